"""What a search for z* needs: the networks, the embeddings to start from, and the settings."""

from __future__ import annotations

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from droprl.adapt.inference import Adaptation, Inferred, Score, infer
from droprl.errors import DropError
from droprl.networks.actors import BehaviorPolicy
from droprl.networks.critics import AnyScoreModel, score_of_behavior
from droprl.networks.homes import Home

STAY, CLIMB, CHOOSE, CHOOSE_AND_CLIMB = range(4)
# For each rule that searches, the evidence that speaks for it.
_PROVEN_BY: dict[str, tuple[int, ...]] = {
    "best": (CHOOSE, CHOOSE_AND_CLIMB),
    "best-ada": (CHOOSE, CHOOSE_AND_CLIMB),
    "grad": (CLIMB, CHOOSE_AND_CLIMB),
    "grad-ada": (CLIMB, CHOOSE_AND_CLIMB),
}


def auto(adaptation: Adaptation) -> list[Adaptation]:
    """What the rule auto can turn out to be, in the order of the names above."""
    return [
        replace(adaptation, rule="first"),
        replace(adaptation, rule="grad-ada", candidates="first"),
        replace(adaptation, rule="best-ada"),
        replace(adaptation, rule="grad-ada", starts=1),
    ]


def is_first(z: Array, embeddings: Array) -> Array:
    """Whether z is the first z_n itself. A sum, because ONNX files know it."""
    return jnp.sum(jnp.abs(z - embeddings[0])) == 0.0


class Search(eqx.Module):
    """The search for z*(s) = argmax_z f(s, β(s, z), z) with one model. Every method takes one state."""

    behavior_policy: BehaviorPolicy
    score_model: AnyScoreModel
    embeddings: Array  # (N, embedding_size)
    adaptation: Adaptation = eqx.field(static=True)
    home: Home | None = None
    choice: Array | None = None  # what the rule auto does: a place in `auto`
    fallback: BehaviorPolicy | None = None  # acts in place of β at the first z_n

    def score_at(self, observation: Array) -> Score:
        """z ↦ f(s, β(s, z), z): what the score model expects of behaving as z from s on. Or as `score_by` says."""
        encoded = self.behavior_policy.encode(observation)
        weights = None if self.adaptation.score_by == "embedding" else self._weights(observation)

        def score(z: Array) -> Array:
            if weights is None:
                return score_of_behavior(self.score_model, self.behavior_policy, observation, encoded, z)
            action = self.behavior_policy.mode(encoded, z)
            of_each = jax.vmap(lambda z_n: jnp.min(self.score_model.each(observation, action, z_n)))(self.embeddings)
            return weights @ of_each

        return score

    def _weights(self, observation: Array) -> Array:
        """(N,) one share for each sub-task at home at this state, or for all if nothing is known."""
        at_home = jnp.ones(len(self.embeddings)) if self.home is None else 1.0 * self.home.supported(observation)
        return at_home / jnp.maximum(at_home.sum(), 1.0)

    def scores(self, observation: Array) -> Array:
        """(N,) the score of every z_n."""
        return jax.vmap(self.score_at(observation))(self.embeddings)

    def supported(self, observation: Array) -> Array | None:
        """(N,) which z_n may be chosen at this state. None: all of them, or nothing is known."""
        if self.home is None or self.adaptation.candidates != "supported":
            return None
        return self.home.supported(observation)

    def infer(self, observation: Array, last: Inferred | None = None) -> Inferred:
        """z*(s)."""
        if self.adaptation.rule == "auto":
            settled = [replace(self, adaptation=how) for how in auto(self.adaptation)]
            return jax.lax.switch(self.chosen, [lambda way=way: way.infer(observation, last) for way in settled])
        score, supported = self.score_at(observation), self.supported(observation)
        return infer(score, self.embeddings, self.adaptation, last, supported)

    def may_change(self, observation: Array, z: Array) -> Array:
        """Whether a candidate acts differently from `z` at this state, by more than `least_change`."""
        actions = jax.vmap(lambda z_n: self.action(observation, z_n))(self.embeddings)
        change = jnp.max(jnp.abs(actions - self.action(observation, z)), axis=1)
        supported = self.supported(observation)
        if supported is not None:
            change = jnp.where(supported.at[0].set(True), change, 0.0)
        return jnp.max(change) > self.adaptation.least_change

    @property
    def chosen(self) -> Array:
        """The place in `auto` of what this search does."""
        if self.choice is None:
            raise DropError(
                "the rule auto needs evidence from training: train DROP with cross_fit, or give another rule"
            )
        return self.choice

    @property
    def unproven(self) -> bool:
        """Whether training looked for evidence that the search of this rule pays, and found none."""
        enough = _PROVEN_BY.get(self.adaptation.rule)
        return self.choice is not None and enough is not None and int(self.choice) not in enough

    def action(self, observation: Array, z: Array) -> Array:
        """What a policy does with z: β(s, z)."""
        action = self.behavior_policy.mode(self.behavior_policy.encode(observation), z)
        if self.fallback is None:
            return action
        own = self.fallback.mode(self.fallback.encode(observation), z[:0])
        return jnp.where(is_first(z, self.embeddings), own, action)

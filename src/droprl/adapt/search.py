"""What a search for z* needs: the networks, the embeddings to start from, and the settings."""

from __future__ import annotations

from dataclasses import replace

import equinox as eqx
import jax
from jax import Array

from droprl.adapt.inference import Adaptation, Inferred, Score, infer
from droprl.errors import DropError
from droprl.networks.actors import BehaviorPolicy
from droprl.networks.critics import AnyScoreModel, score_of_behavior
from droprl.networks.homes import Home

STAY, CLIMB, CHOOSE, CHOOSE_AND_CLIMB = range(4)


def auto(adaptation: Adaptation) -> list[Adaptation]:
    """What the rule auto can turn out to be, in the order of the names above."""
    return [
        replace(adaptation, rule="first"),
        replace(adaptation, rule="grad-ada", candidates="first"),
        replace(adaptation, rule="best-ada"),
        replace(adaptation, rule="grad-ada", starts=1),
    ]


class Search(eqx.Module):
    """The search for z*(s) = argmax_z f(s, β(s, z), z) with one model. Every method takes one state."""

    behavior_policy: BehaviorPolicy
    score_model: AnyScoreModel
    embeddings: Array  # (N, embedding_size)
    adaptation: Adaptation = eqx.field(static=True)
    home: Home | None = None
    choice: Array | None = None  # what the rule auto does: a place in `AUTO`

    def score_at(self, observation: Array) -> Score:
        """z ↦ f(s, β(s, z), z): what the score model expects of behaving as z from s on."""
        encoded = self.behavior_policy.encode(observation)

        def score(z: Array) -> Array:
            return score_of_behavior(self.score_model, self.behavior_policy, observation, encoded, z)

        return score

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

    @property
    def chosen(self) -> Array:
        """The place in `auto` of what this search does."""
        if self.choice is None:
            raise DropError(
                "the rule auto needs evidence from training: train DROP with cross_fit, or give another rule"
            )
        return self.choice

    def action(self, observation: Array, z: Array) -> Array:
        """β(s, z)."""
        return self.behavior_policy.mode(self.behavior_policy.encode(observation), z)

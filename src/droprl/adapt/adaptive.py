"""Policies as values: `start(n)` opens n episodes, `act(carry, observations, key)` takes one step in each of them.

Here observations are normalised and actions lie in [-1, 1]; `droprl.loaded` adds the task's units. What an episode must
remember is in the carry, so a z fixed at s₀ and a z inferred anew every m steps are the same kind of thing. A policy
that goes by what it has earned has a carry that hears rewards (`HearsRewards`); the others are told nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from droprl.adapt.guard import Guard, Guarded
from droprl.adapt.inference import Adaptation, Inferred, Score, infer
from droprl.networks.actors import BehaviorPolicy
from droprl.networks.critics import AnyScoreModel, score_of_behavior
from droprl.policies.fixed import actions_of
from droprl.policies.policy import Carry


class Episode(NamedTuple):
    """What DROP remembers of an episode: its clock, and the embedding in use with its origin."""

    step: Array
    inferred: Inferred
    guarded: Guarded | None = None  # None where there is no guard


class AdaptivePolicy(eqx.Module):
    """π*(a|s) = β(a|s, z*(s)) by the rule of `adaptation` (Algorithm 2)."""

    behavior_policy: BehaviorPolicy
    score_model: AnyScoreModel
    embeddings: Array  # (N, embedding_size)
    adaptation: Adaptation = eqx.field(static=True)
    sample_actions: bool = eqx.field(static=True)
    guard: Guard | None = None

    def start(self, n: int) -> Episode:
        z = jnp.zeros((n, self.embeddings.shape[1]), self.embeddings.dtype)
        inferred = Inferred(z, jnp.zeros(n, z.dtype), jnp.zeros(n, jnp.int32))
        return Episode(jnp.zeros(n, jnp.int32), inferred, None if self.guard is None else self.guard.start(n))

    def act(self, carry: Episode, observations: Array, key: Array | None) -> tuple[Episode, Array]:
        if self.guard is None:
            after = self._inferred(carry, observations)._replace(step=carry.step + 1)
        else:
            after, observations = self._guarded(self.guard, carry, observations)
        return after, actions_of(self.behavior_policy, observations, after.inferred.z, key, self.draws)

    def _guarded(self, guard: Guard, carry: Episode, observations: Array) -> tuple[Episode, Array]:
        """The episodes after a step, and the observations that its actions go by."""
        assert carry.guarded is not None, "the memory of a guarded policy is what its start() makes"
        guarded = jax.vmap(guard.read)(observations, carry.guarded)
        observations = guarded.gone_by(observations)
        finite = jnp.all(jnp.isfinite(observations), axis=-1)
        before = carry._replace(guarded=guarded)
        # Nothing is inferred from what is no number, and the clock waits for a state at which z may be kept.
        after = _where(finite, self._inferred(before, observations), before)
        waits = (carry.step == 0) & ~(finite & guard.settled(guarded))
        return after._replace(step=jnp.where(waits, 0, carry.step + 1)), observations

    @property
    def draws(self) -> bool:
        return self.sample_actions

    def _inferred(self, carry: Episode, observations: Array) -> Episode:
        """The episodes with a new embedding in those that are due."""
        infer_all = jax.vmap(self._infer_after)
        adapts = self.adaptation.rule in ("best-ada", "grad-ada")
        if adapts and self.adaptation.reinference_interval == 1:
            return infer_all(observations, carry)
        due = carry.step % self.adaptation.reinference_interval == 0 if adapts else carry.step == 0
        # The whole batch skips the search when no episode is due, which is what makes DROP(m) cheap.
        found = jax.lax.cond(jnp.any(due), lambda: infer_all(observations, carry), lambda: carry)
        return _where(due, found, carry)

    def _infer_after(self, observation: Array, episode: Episode) -> Episode:
        """The episode with a new embedding."""
        began = Inferred(self.embeddings[0], jnp.zeros((), self.embeddings.dtype), jnp.zeros((), jnp.int32))
        last = jax.tree.map(lambda new, old: jnp.where(episode.step == 0, new, old), began, episode.inferred)
        found = self.infer(observation, last)
        if self.guard is None or episode.guarded is None:
            return episode._replace(inferred=found)
        found, replaced = self.guard.checked(
            found, self.score_at(observation), self.embeddings, self.adaptation.guard_fallback
        )
        return episode._replace(inferred=found, guarded=episode.guarded._replace(replaced=replaced))

    def infer(self, observation: Array, last: Inferred | None = None) -> Inferred:
        """z*(s) for one state, unguarded."""
        return infer(self.score_at(observation), self.embeddings, self.adaptation, last)

    def score_at(self, observation: Array) -> Score:
        """z ↦ f(s, β(s, z), z)."""
        encoded = self.behavior_policy.encode(observation)

        def score(z: Array) -> Array:
            return score_of_behavior(self.score_model, self.behavior_policy, observation, encoded, z)

        return score


def _where(which: Array, new: Carry, old: Carry) -> Carry:
    """The memory of each episode: the new one where it is marked."""
    return jax.tree.map(lambda a, b: jnp.where(which.reshape(which.shape + (1,) * (a.ndim - 1)), a, b), new, old)

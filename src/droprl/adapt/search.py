"""What a search for z* needs: the networks, the embeddings to start from, and the settings."""

from __future__ import annotations

import equinox as eqx
import jax
from jax import Array

from droprl.adapt.inference import Adaptation, Inferred, Score, infer
from droprl.networks.actors import BehaviorPolicy
from droprl.networks.critics import AnyScoreModel, score_of_behavior


class Search(eqx.Module):
    """The search for z*(s) = argmax_z f(s, β(s, z), z) with one model. Every method takes one state."""

    behavior_policy: BehaviorPolicy
    score_model: AnyScoreModel
    embeddings: Array  # (N, embedding_size)
    adaptation: Adaptation = eqx.field(static=True)

    def score_at(self, observation: Array) -> Score:
        """z ↦ f(s, β(s, z), z): what the score model expects of behaving as z from s on."""
        encoded = self.behavior_policy.encode(observation)

        def score(z: Array) -> Array:
            return score_of_behavior(self.score_model, self.behavior_policy, observation, encoded, z)

        return score

    def scores(self, observation: Array) -> Array:
        """(N,) the score of every z_n."""
        return jax.vmap(self.score_at(observation))(self.embeddings)

    def infer(self, observation: Array, last: Inferred | None = None) -> Inferred:
        """z*(s)."""
        return infer(self.score_at(observation), self.embeddings, self.adaptation, last)

    def action(self, observation: Array, z: Array) -> Array:
        """β(s, z)."""
        return self.behavior_policy.mode(self.behavior_policy.encode(observation), z)

"""Critics: networks that say what a state and an action are worth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from droprl.networks.actors import BehaviorPolicy
from droprl.networks.layers import bias, times, times_few
from droprl.networks.perceptrons import MLP

Member = TypeVar("Member", bound=Callable[..., Array])


class ScoreModel(eqx.Module):
    """f(s, a, z) = Enc_4(z, Enc_3(s, a)) ≈ Q of the behaviour with embedding z."""

    state_action_encoder: MLP
    score_decoder: MLP

    def __init__(
        self,
        observation_size: int,
        action_size: int,
        embedding_size: int,
        width: int,
        depths: tuple[int, int],
        layer_norm: bool,
        key: Array,
    ) -> None:
        encoder_key, decoder_key = jax.random.split(key)
        self.state_action_encoder = MLP(
            observation_size + action_size, (width,) * depths[0], None, encoder_key, layer_norm
        )
        self.score_decoder = MLP(embedding_size + width, (width,) * depths[1], 1, decoder_key, layer_norm)

    def __call__(self, observation: Array, action: Array, z: Array) -> Array:
        return self._decoded(self.state_action_encoder(jnp.concatenate([observation, action])), z)

    def shared(self, observation: Array, action: Array, z: Array) -> Array:
        """The same score. The first layer computes the state's part apart, so that many z at one state share it."""
        first = self.state_action_encoder.layers[0]
        of_state, of_action = jnp.split(first.weight, [observation.size], axis=1)
        return self._decoded(
            self.state_action_encoder.finish((times(observation, of_state) + bias(first)) + times(action, of_action)),
            z,
        )

    def _decoded(self, encoded: Array, z: Array) -> Array:
        """z has its own product in the first layer of Enc_4: z is never rounded, and the wide product stays aligned."""
        first = self.score_decoder.layers[0]
        of_z, of_encoding = jnp.split(first.weight, [z.size], axis=1)
        wide = times(encoded, of_encoding) + bias(first)
        return self.score_decoder.finish(wide + times_few(z, of_z))[0]

    def each(self, observation: Array, action: Array, z: Array) -> Array:
        """(1,): one model is an ensemble of one member."""
        return self(observation, action, z)[None]


class ScoreEnsemble(eqx.Module):
    """Several score models, each trained by itself. The lowest of their scores counts."""

    members: ScoreModel  # the first axis of every array is the member

    def __init__(self, members: list[ScoreModel]) -> None:
        self.members = jax.tree.map(lambda *leaves: jnp.stack(leaves), *members)

    def each(self, observation: Array, action: Array, z: Array) -> Array:
        """(members,) the score of each member."""
        return jax.vmap(lambda member: member(observation, action, z))(self.members)

    def __call__(self, observation: Array, action: Array, z: Array) -> Array:
        return jnp.min(self.each(observation, action, z))

    def shared(self, observation: Array, action: Array, z: Array) -> Array:
        return jnp.min(jax.vmap(lambda member: member.shared(observation, action, z))(self.members))


AnyScoreModel = ScoreModel | ScoreEnsemble


def score_of_behavior(
    score_model: AnyScoreModel, behavior_policy: BehaviorPolicy, observation: Array, encoded: Array, z: Array
) -> Array:
    """f(s, β(s, z), z): what the score model expects of behaving as z from here on."""
    return score_model.shared(observation, behavior_policy.mode(encoded, z), z)


# --- critics without an embedding ---


class Critic(eqx.Module):
    """Q(s, a)."""

    network: MLP

    def __init__(
        self,
        observation_size: int,
        action_size: int,
        hidden: tuple[int, ...],
        key: Array,
        layer_norm: bool = False,
        orthogonal: bool = False,
    ) -> None:
        self.network = MLP(observation_size + action_size, hidden, 1, key, layer_norm, orthogonal)

    def __call__(self, observation: Array, action: Array) -> Array:
        return self.network(jnp.concatenate([observation, action]))[0]


class Value(eqx.Module):
    """V(s)."""

    network: MLP

    def __init__(
        self,
        observation_size: int,
        hidden: tuple[int, ...],
        key: Array,
        layer_norm: bool = False,
        orthogonal: bool = False,
    ) -> None:
        self.network = MLP(observation_size, hidden, 1, key, layer_norm, orthogonal)

    def __call__(self, observation: Array) -> Array:
        return self.network(observation)[0]


class Ensemble(eqx.Module, Generic[Member]):
    """Networks of one shape side by side, each with its own weights. A call gives (members, …)."""

    members: Member  # the first axis of every array is the member

    def __init__(self, make: Callable[[Array], Member], n: int, key: Array) -> None:
        self.members = jax.vmap(make)(jax.random.split(key, n))

    def __call__(self, *inputs: Array) -> Array:
        def called(member: Member) -> Array:
            return member(*inputs)

        return jax.vmap(called)(self.members)

"""The networks of the paper's hyper-parameter table: Enc_0 … Enc_4, put together as φ, β and f.

Every module is a PyTree of arrays alone, so seeds, targets and checkpoints are tree operations. All take one sample.
"""

from __future__ import annotations

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from droprl.layers import EPS, activated, bias, product, times, times_few

EmbeddingSpace = Literal["whitened", "tanh"]
PolicyHead = Literal["deterministic", "gaussian"]
Conditioning = Literal["bilinear", "concatenate"]
LOG_STD_RANGE = (-5.0, 2.0)


class MLP(eqx.Module):
    """Linear layers with ReLU between, optionally LayerNorm before each ReLU."""

    layers: tuple[eqx.nn.Linear, ...]
    norms: tuple[eqx.nn.LayerNorm, ...]
    final_activation: bool = eqx.field(static=True)

    def __init__(
        self,
        in_size: int,
        hidden: tuple[int, ...],
        out_size: int | None,
        key: Array,
        layer_norm: bool = False,
    ) -> None:
        """`out_size=None` makes an encoder, whose last hidden layer is its output."""
        sizes = (in_size, *hidden, *(() if out_size is None else (out_size,)))
        keys = jax.random.split(key, len(sizes) - 1)
        self.layers = tuple(eqx.nn.Linear(a, b, key=k) for a, b, k in zip(sizes[:-1], sizes[1:], keys, strict=True))
        self.norms = tuple(eqx.nn.LayerNorm(size, eps=EPS) for size in hidden) if layer_norm else ()
        self.final_activation = out_size is None

    def __call__(self, x: Array) -> Array:
        return self._finish(product(self.layers[0], x), bias(self.layers[0]))

    def finish(self, x: Array) -> Array:
        """What is left to do with the product of the first layer, its bias included."""
        return self._finish(x, None)

    def _finish(self, x: Array, shift: Array | None) -> Array:
        n_active = len(self.layers) - (0 if self.final_activation else 1)
        for i, layer in enumerate(self.layers):
            if i:
                x, shift = product(layer, x), bias(layer)
            if i < n_active:
                x = activated(self.norms[i] if self.norms else None, x, shift)
            elif shift is not None:
                x = x + shift
        return x


class TaskEmbedding(eqx.Module):
    """φ(z|n) = Enc_0(one-hot n), for all N sub-tasks at once: `table()` is (N, embedding_size)."""

    first: eqx.nn.Linear  # from the one-hot n: its columns are looked up, not multiplied
    rest: MLP
    space: EmbeddingSpace = eqx.field(static=True)

    def __init__(self, n_sub_tasks: int, size: int, width: int, depth: int, space: EmbeddingSpace, key: Array) -> None:
        first_key, rest_key = jax.random.split(key)
        self.first = eqx.nn.Linear(n_sub_tasks, width, key=first_key)
        self.rest = MLP(width, (width,) * (depth - 1), size, rest_key)
        self.space = space

    def raw_table(self) -> Array:
        hidden = jax.nn.relu(self.first.weight.T + bias(self.first))
        return jax.vmap(self.rest)(hidden)

    def table(self) -> Array:
        """The z_n. Whitened: zero mean and unit variance over the sub-tasks per dimension, so that they cannot collapse
        onto each other; tanh: bounded by (-1, 1), as the paper is usually read."""
        raw = self.raw_table()
        if self.space == "tanh":
            return jnp.tanh(raw)
        return (raw - raw.mean(axis=0)) * jax.lax.rsqrt(raw.var(axis=0) + 1e-12)


class LatentEncoder(eqx.Module):
    """φ(z|s, a), or φ(z|s) where it does not see the action: a Gaussian with independent dimensions."""

    network: MLP
    sees_action: bool = eqx.field(static=True)

    def __init__(
        self, observation_size: int, action_size: int, size: int, width: int, depth: int, sees_action: bool, key: Array
    ) -> None:
        in_size = observation_size + (action_size if sees_action else 0)
        self.network = MLP(in_size, (width,) * depth, 2 * size, key)
        self.sees_action = sees_action

    def distribution(self, observation: Array, action: Array) -> tuple[Array, Array]:
        """Mean and logarithm of the standard deviation."""
        seen = jnp.concatenate([observation, action]) if self.sees_action else observation
        mean, log_std = jnp.split(self.network(seen), 2)
        return mean, jnp.clip(log_std, *LOG_STD_RANGE)


class BehaviorPolicy(eqx.Module):
    """β(a|s, z) = Enc_2(z, Enc_1(s)).

    Bilinear, Enc_2 also sees every product of z and the state's encoding: the weights of its first layer are then
    affine in z, so that sub-tasks can differ in more than a bias. What does not depend on z is computed once a state
    (`encode`), so that many z can share it.
    """

    state_encoder: MLP
    action_decoder: MLP
    head: PolicyHead = eqx.field(static=True)
    conditioning: Conditioning = eqx.field(static=True)
    embedding_size: int = eqx.field(static=True)

    def __init__(
        self,
        observation_size: int,
        action_size: int,
        embedding_size: int,
        width: int,
        depths: tuple[int, int],
        head: PolicyHead,
        key: Array,
        conditioning: Conditioning = "concatenate",
    ) -> None:
        encoder_key, decoder_key = jax.random.split(key)
        outputs = action_size * (2 if head == "gaussian" else 1)
        self.state_encoder = MLP(observation_size, (width,) * depths[0], None, encoder_key)
        products = embedding_size * width if conditioning == "bilinear" else 0
        self.action_decoder = MLP(embedding_size + width + products, (width,) * depths[1], outputs, decoder_key)
        self.head, self.conditioning, self.embedding_size = head, conditioning, embedding_size

    def encode(self, observation: Array) -> Array:
        """The state's part in the first product of Enc_2: one row, and bilinear one more for each number in z."""
        encoding = self.state_encoder(observation)
        weights = self.action_decoder.layers[0].weight[:, self.embedding_size :]
        # Row by row what meets 1, z_1, z_2 …: weights change places here, of which there are fewer than of answers.
        by_place = weights.reshape(len(weights), -1, encoding.size).transpose(1, 0, 2)
        return times(encoding, by_place.reshape(-1, encoding.size)).reshape(-1, len(weights))

    def distribution(self, encoded: Array, z: Array) -> tuple[Array, Array]:
        """Mean in [-1, 1] and logarithm of the standard deviation; a deterministic head has the constant 0 there."""
        layer = self.action_decoder.layers[0]
        first = encoded[0] + bias(layer) + times_few(z, layer.weight[:, : self.embedding_size])
        if self.conditioning == "bilinear":
            first = first + z @ encoded[1:]
        out = self.action_decoder.finish(first)
        if self.head == "deterministic":
            return jnp.tanh(out), jnp.zeros_like(out)
        mean, log_std = jnp.split(out, 2)
        return jnp.tanh(mean), jnp.clip(log_std, *LOG_STD_RANGE)

    def mode(self, encoded: Array, z: Array) -> Array:
        return self.distribution(encoded, z)[0]

    def sample(self, encoded: Array, z: Array, key: Array) -> Array:
        mean, log_std = self.distribution(encoded, z)
        if self.head == "deterministic":
            return mean
        return jnp.clip(mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape), -1.0, 1.0)

    def clone_loss(self, observation: Array, action: Array, z: Array) -> Array:
        """−log β(a|s, z) per action dimension, without its constant: half the squared error if deterministic."""
        return clone_error(action, *self.distribution(self.encode(observation), z))


def clone_error(action: Array, mean: Array, log_std: Array) -> Array:
    """The same by what a policy's `distribution` says, for those who also want its mean."""
    return jnp.mean(0.5 * ((action - mean) * jnp.exp(-log_std)) ** 2 + log_std)


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
        """The same with the state's part in the first layer apart, so that many z at one state share it."""
        first = self.state_action_encoder.layers[0]
        of_state, of_action = jnp.split(first.weight, [observation.size], axis=1)
        return self._decoded(
            self.state_action_encoder.finish((times(observation, of_state) + bias(first)) + times(action, of_action)),
            z,
        )

    def _decoded(self, encoded: Array, z: Array) -> Array:
        """z enters the first layer of Enc_4 apart: it is never rounded, and the wide product has a handy size."""
        first = self.score_decoder.layers[0]
        of_z, of_encoding = jnp.split(first.weight, [z.size], axis=1)
        wide = times(encoded, of_encoding) + bias(first)
        return self.score_decoder.finish(wide + times_few(z, of_z))[0]

    def each(self, observation: Array, action: Array, z: Array) -> Array:
        """(1,): a model alone is an ensemble of one."""
        return self(observation, action, z)[None]


class ScoreEnsemble(eqx.Module):
    """Several score models, each learned by itself; the lowest of them is the score."""

    members: ScoreModel  # every array has the member as its first axis

    def __init__(self, members: list[ScoreModel]) -> None:
        self.members = jax.tree.map(lambda *leaves: jnp.stack(leaves), *members)

    def each(self, observation: Array, action: Array, z: Array) -> Array:
        """(members,) scores."""
        return jax.vmap(lambda member: member(observation, action, z))(self.members)

    def __call__(self, observation: Array, action: Array, z: Array) -> Array:
        return jnp.min(self.each(observation, action, z))

    def shared(self, observation: Array, action: Array, z: Array) -> Array:
        return jnp.min(jax.vmap(lambda member: member.shared(observation, action, z))(self.members))


AnyScoreModel = ScoreModel | ScoreEnsemble


def score_of_behavior(
    score_model: AnyScoreModel, behavior_policy: BehaviorPolicy, observation: Array, encoded: Array, z: Array
) -> Array:
    """f(s, β(s, z), z): how good it is, by the score model, to behave as z from here on."""
    return score_model.shared(observation, behavior_policy.mode(encoded, z), z)

"""Actors: networks that answer a state with an action."""

from __future__ import annotations

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from droprl.networks.layers import bias, times, times_few
from droprl.networks.perceptrons import LOG_STD_RANGE, MLP

PolicyHead = Literal["deterministic", "gaussian"]
Conditioning = Literal["bilinear", "concatenate"]


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

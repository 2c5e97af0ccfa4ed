"""Actors: networks that answer a state with an action."""

from __future__ import annotations

import math
from typing import Literal, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from droprl.networks.layers import bias, times, times_few
from droprl.networks.perceptrons import LOG_STD_RANGE, MLP

PolicyHead = Literal["deterministic", "gaussian"]
Conditioning = Literal["bilinear", "concatenate"]
BORDER = 1e-5  # a logged action is moved this far inside (-1, 1) before its density under tanh is computed


class BehaviorPolicy(eqx.Module):
    """β(a|s, z) = Enc_2(z, Enc_1(s)).

    With bilinear conditioning Enc_2 also sees every product of z and the state's encoding. The weights of its first
    layer are then affine in z, so sub-tasks can differ in more than a bias. `encode` computes everything that does not
    depend on z, once for each state, so that many z can share it.
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
        """The state's part in the first product of Enc_2: one row. Bilinear adds one more row for each number in z."""
        encoding = self.state_encoder(observation)
        weights = self.action_decoder.layers[0].weight[:, self.embedding_size :]
        # Row 0 will be multiplied by 1, row k by z_k. The weights are reordered for it: the answers would be more.
        by_place = weights.reshape(len(weights), -1, encoding.size).transpose(1, 0, 2)
        return times(encoding, by_place.reshape(-1, encoding.size)).reshape(-1, len(weights))

    def distribution(self, encoded: Array, z: Array) -> tuple[Array, Array]:
        """Mean in [-1, 1] and logarithm of the standard deviation, which is 0 for a deterministic head."""
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
        """−log β(a|s, z) per action dimension, without its constant. If deterministic, half the squared error."""
        return clone_error(action, *self.distribution(self.encode(observation), z))


def clone_error(action: Array, mean: Array, log_std: Array) -> Array:
    """`clone_loss` from the policy's `distribution`, for callers that also need its mean."""
    return jnp.mean(0.5 * ((action - mean) * jnp.exp(-log_std)) ** 2 + log_std)


# --- actors without an embedding: they map a state to an action in [-1, 1] ---


class Actor(Protocol):
    """What policies and losses ask of an actor."""

    def mode(self, observation: Array) -> Array:
        """The action that it plays if nothing is drawn at random."""
        ...

    def sample(self, observation: Array, key: Array) -> Array:
        """An action drawn from its distribution, inside its bounds."""
        ...


class DeterministicActor(eqx.Module):
    """π(s) = tanh(network(s))."""

    network: MLP

    def __init__(self, observation_size: int, action_size: int, hidden: tuple[int, ...], key: Array) -> None:
        self.network = MLP(observation_size, hidden, action_size, key)

    def mode(self, observation: Array) -> Array:
        return jnp.tanh(self.network(observation))

    def sample(self, observation: Array, key: Array) -> Array:
        return self.mode(observation)


class GaussianActor(eqx.Module):
    """A Gaussian around tanh(network(s)) with one standard deviation for all states; samples are clipped to [-1, 1]."""

    network: MLP
    log_std: Array  # (action_size,) learned; clipped where it is used

    def __init__(
        self, observation_size: int, action_size: int, hidden: tuple[int, ...], key: Array, orthogonal: bool = False
    ) -> None:
        self.network = MLP(observation_size, hidden, action_size, key, orthogonal=orthogonal)
        self.log_std = jnp.zeros(action_size)

    def mode(self, observation: Array) -> Array:
        return jnp.tanh(self.network(observation))

    def sample(self, observation: Array, key: Array) -> Array:
        noise = jax.random.normal(key, self.log_std.shape)
        return jnp.clip(self.mode(observation) + jnp.exp(self._log_std()) * noise, -1.0, 1.0)

    def log_probability(self, observation: Array, action: Array) -> Array:
        """log π(a|s) of the Gaussian before samples are clipped, summed over the action's dimensions."""
        return normal_log_probability(action, self.mode(observation), self._log_std())

    def _log_std(self) -> Array:
        return jnp.clip(self.log_std, *LOG_STD_RANGE)


class TanhGaussianActor(eqx.Module):
    """a = tanh(u), where u is drawn from a Gaussian. The network gives its mean and standard deviation at the state."""

    network: MLP
    log_std_range: tuple[float, float] = eqx.field(static=True)

    def __init__(
        self,
        observation_size: int,
        action_size: int,
        hidden: tuple[int, ...],
        key: Array,
        log_std_range: tuple[float, float] = LOG_STD_RANGE,
    ) -> None:
        self.network = MLP(observation_size, hidden, 2 * action_size, key)
        self.log_std_range = log_std_range

    def distribution(self, observation: Array) -> tuple[Array, Array]:
        """Mean and logarithm of the standard deviation of u."""
        mean, log_std = jnp.split(self.network(observation), 2)
        return mean, jnp.clip(log_std, *self.log_std_range)

    def mode(self, observation: Array) -> Array:
        """tanh of the mean of u."""
        return jnp.tanh(self.distribution(observation)[0])

    def sample(self, observation: Array, key: Array) -> Array:
        return self.sample_with_log_probability(observation, key)[0]

    def sample_with_log_probability(self, observation: Array, key: Array) -> tuple[Array, Array]:
        """An action and log π(a|s), summed over the dimensions. This way needs no inverse of tanh."""
        mean, log_std = self.distribution(observation)
        u = mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape)
        return jnp.tanh(u), normal_log_probability(u, mean, log_std) - _log_slope_of_tanh(u)

    def log_probability(self, observation: Array, action: Array) -> Array:
        """log π(a|s), summed over the dimensions. At ±1 it is infinite, so actions are moved inside by `BORDER`."""
        u = jnp.arctanh(jnp.clip(action, -1.0 + BORDER, 1.0 - BORDER))
        return normal_log_probability(u, *self.distribution(observation)) - _log_slope_of_tanh(u)


class LatentDecoder(eqx.Module):
    """The decoder of a conditional VAE: it turns a state and a latent z into the action tanh(network(s, z))."""

    network: MLP

    def __init__(
        self, observation_size: int, action_size: int, latent_size: int, hidden: tuple[int, ...], key: Array
    ) -> None:
        self.network = MLP(observation_size + latent_size, hidden, action_size, key)

    def __call__(self, observation: Array, z: Array) -> Array:
        return jnp.tanh(self.network(jnp.concatenate([observation, z])))


def normal_log_probability(x: Array, mean: Array, log_std: Array) -> Array:
    """log N(x; mean, std²), summed over independent dimensions."""
    return jnp.sum(-0.5 * ((x - mean) * jnp.exp(-log_std)) ** 2 - log_std - 0.5 * math.log(2 * math.pi))


def _log_slope_of_tanh(u: Array) -> Array:
    """Σ log(1 − tanh(u)²), in a form that does not round to log 0."""
    return jnp.sum(2.0 * (math.log(2.0) - u - jax.nn.softplus(-2.0 * u)))

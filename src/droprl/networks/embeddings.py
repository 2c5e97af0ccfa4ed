"""φ: it turns a sub-task, or a step of the data, into an embedding z."""

from __future__ import annotations

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from droprl.networks.layers import bias
from droprl.networks.perceptrons import LOG_STD_RANGE, MLP

EmbeddingSpace = Literal["whitened", "tanh"]
EmbeddingNetwork = Literal["perceptron", "linear"]


class TaskEmbedding(eqx.Module):
    """φ(z|n) = Enc_0(one-hot n), for all N sub-tasks at once: `table()` is (N, embedding_size)."""

    first: eqx.nn.Linear  # its input is the one-hot n, so its columns are looked up, not multiplied
    rest: MLP | None  # None: φ is linear
    space: EmbeddingSpace = eqx.field(static=True)

    def __init__(self, n_sub_tasks: int, size: int, width: int, depth: int, space: EmbeddingSpace, key: Array) -> None:
        """`depth=0` makes φ linear."""
        first_key, rest_key = jax.random.split(key)
        self.first = eqx.nn.Linear(n_sub_tasks, width if depth else size, key=first_key)
        self.rest = MLP(width, (width,) * (depth - 1), size, rest_key) if depth else None
        self.space = space

    def raw_table(self) -> Array:
        first = self.first.weight.T + bias(self.first)
        return first if self.rest is None else jax.vmap(self.rest)(jax.nn.relu(first))

    def table(self) -> Array:
        """The z_n. Whitened: every dimension has zero mean and unit variance over the sub-tasks, so the z_n cannot
        collapse onto each other. tanh: bounded by (-1, 1), as the paper is usually read."""
        raw = self.raw_table()
        if self.space == "tanh":
            return jnp.tanh(raw)
        return (raw - raw.mean(axis=0)) * jax.lax.rsqrt(raw.var(axis=0) + 1e-12)


class LatentEncoder(eqx.Module):
    """φ(z|s, a), or φ(z|s) if it does not see the action: a Gaussian with independent dimensions."""

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


def no_embedding() -> Array:
    """The z of a behaviour policy or score model that takes none: a vector of size 0."""
    return jnp.zeros(0)

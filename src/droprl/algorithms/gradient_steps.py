"""One network with its own Adam, and rates that follow from where training stands.

For methods whose networks learn one after another. DROP moves all its networks by one Adam instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import optax
from jax import Array

from droprl.algorithms.protocol import Clock

Network = TypeVar("Network")


class Learner(NamedTuple, Generic[Network]):
    """A network and the moments of its Adam."""

    network: Network
    moments: Any

    @classmethod
    def of(cls, network: Network) -> Learner[Network]:
        return cls(network, optax.scale_by_adam().init(network))

    def step(self, loss: Callable[[Network], Array], rate: float | Array) -> tuple[Learner[Network], Array]:
        """The network after one step of Adam down the loss, and the loss before it."""
        value, gradient = jax.value_and_grad(loss)(self.network)
        direction, moments = optax.scale_by_adam().update(gradient, self.moments)
        change = jax.tree.map(lambda leaf: -rate * leaf, direction)
        return Learner(optax.apply_updates(self.network, change), moments), value


def cosine(clock: Clock) -> Array:
    """From 1 at the first update down to 0 at the run's end, along half a cosine; 1 in fine-tuning, which comes after.

    A rate that followed the count of Optax would need the total when the optimiser is made. The clock knows it later.
    """
    done = clock.number / jnp.maximum(clock.total, 1)
    return jnp.where(done < 1, 0.5 * (1 + jnp.cos(jnp.pi * done)), 1.0)

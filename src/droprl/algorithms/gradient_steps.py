"""One network with its own Adam, and learning rates that depend on the clock of training.

For methods whose networks learn one after another. DROP has one Adam for all its networks instead.
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
        """The network after one step of Adam on the loss, and the loss before the step."""
        value, gradient = jax.value_and_grad(loss)(self.network)
        direction, moments = optax.scale_by_adam().update(gradient, self.moments)
        change = jax.tree.map(lambda leaf: -rate * leaf, direction)
        return Learner(optax.apply_updates(self.network, change), moments), value


def cosine(clock: Clock) -> Array:
    """Half a cosine from 1 at the first update to 0 at the end of the run. In fine-tuning, after the run, it is 1.

    With a schedule of Optax the total would have to be known when the optimiser is made. The clock brings it later.
    """
    done = clock.number / jnp.maximum(clock.total, 1)
    return jnp.where(done < 1, 0.5 * (1 + jnp.cos(jnp.pi * done)), 1.0)

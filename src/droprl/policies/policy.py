"""What every policy is: a value that opens episodes and takes steps in them."""

from __future__ import annotations

from typing import Any, Protocol, Self, runtime_checkable

import jax.numpy as jnp
import numpy as np
from jax import Array

Carry = Any


class Policy(Protocol):
    def start(self, n: int) -> Carry:
        """The memory of n episodes that begin now; every leaf has the episode as its first axis."""
        ...

    def act(self, carry: Carry, observations: Array, key: Array | None) -> tuple[Carry, Array]:
        """One action for each of the n observations; `key` is one key for all, or one for each episode."""
        ...

    @property
    def draws(self) -> bool:
        """Whether `act` makes use of its key: a key costs a call of its own, and most policies need none."""
        ...


@runtime_checkable
class HearsRewards(Protocol):
    """The carry of a policy that wants to know what its last action earned, in each episode."""

    def rewarded(self, rewards: Array) -> Self:
        """The same memory, told the rewards (n,) of the step just taken, in the task's own units."""
        ...


def tell_rewards(carry: Carry, rewards: np.ndarray) -> Carry:
    """The memory after the step's rewards: to be called between two actions. One that does not listen is unchanged."""
    return carry.rewarded(jnp.asarray(rewards, jnp.float32)) if isinstance(carry, HearsRewards) else carry

"""What every policy is: a value that opens episodes, takes steps in them, and says how it acts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, Self, runtime_checkable

import jax.numpy as jnp
import numpy as np
from jax import Array

from droprl.adapt.inference import InferenceRule
from droprl.adapt.search import Search
from droprl.policies.program import Program

Carry = Any
Facts = dict[str, Array]


@dataclass(frozen=True)
class Traits:
    """How a policy acts. Code that plays, times, serves or ships a policy asks this."""

    draws: bool = False
    """`act` uses its key. Making a key costs a call of its own, and most policies need none."""
    remembers: bool = False
    """An action depends on more than its observation, so every episode needs its own memory."""
    interval: int = 1
    """The policy infers z again every `interval` steps. 1 if every step costs the same."""
    chooses_once: bool = False
    """The policy infers z at the first state of the episode, and remembers nothing else."""
    rule: InferenceRule | None = None
    """Its rule of inference. None for a policy that infers nothing."""
    tokens: int = 1
    """How many tokens its network reads for one action. 1 for a policy that is no sequence model."""


class Policy(Protocol):
    def start(self, n: int) -> Carry:
        """The memory of n episodes that begin now. The first axis of every leaf is the episode."""
        ...

    def act(self, carry: Carry, observations: Array, key: Array | None) -> tuple[Carry, Array]:
        """One action for each of the n observations. `key` is one key for all, or one for each episode."""
        ...

    def facts(self, carry: Carry) -> Facts:
        """What it knows about the actions it has just taken, by name: arrays with one row per episode.

        The names in use: `embedding` (the z that acts), `score` (its score at the state where it was inferred) and
        `sub_task` (the search started from the z_n of this one). A guarded policy adds `held` (the action used an
        earlier observation), `believed` (that observation) and `guarded` (the guard stepped in).
        """
        ...

    def program(self) -> Program:
        """Its step for a file of another format. Raises a `DropError` that says why, if there is none."""
        ...

    @property
    def traits(self) -> Traits: ...

    @property
    def search(self) -> Search | None:
        """What it searches at test time. None for a policy that searches nothing."""
        ...


@runtime_checkable
class HearsRewards(Protocol):
    """The memory of a policy that wants to know what its last action earned, in each episode."""

    def rewarded(self, rewards: Array) -> Self:
        """This memory after it heard the rewards (n,) of the step just taken, in the task's own units."""
        ...


def tell_rewards(carry: Carry, rewards: np.ndarray | Array) -> Carry:
    """The memory after it heard the step's rewards, between two actions. A memory that does not listen stays as is."""
    return carry.rewarded(jnp.asarray(rewards, jnp.float32)) if isinstance(carry, HearsRewards) else carry

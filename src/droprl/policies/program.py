"""A step of a policy as a function of arrays: what a file of another format can hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax import Array


@dataclass(frozen=True)
class Program:
    """`step(observations, [reward,] *memory)` returns the `answers`, and then the memory after the step.

    All arrays have one row per episode. Observations are normalised, and actions lie in [-1, 1].
    """

    step: Callable[..., tuple[Array, ...]]
    answers: tuple[str, ...]  # "actions" is the first
    memory: dict[str, np.ndarray] = field(default_factory=dict)  # of one episode at its beginning, by name
    hears_rewards: bool = False  # the reward of the step before is an input; it is 0 when an episode begins


def first_row(carry: Any) -> Any:
    """The memory of the first episode, without the axis of the episodes."""
    return jax.tree.map(lambda leaf: np.asarray(leaf[0]), carry)

"""Averages of weights over updates: the average that acts, and the slow targets of losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax.numpy as jnp
import optax

from droprl.algorithms.protocol import Clock

Tree = TypeVar("Tree")


def averaged(average: Tree, new: Tree, rate: float, clock: Clock, target: Callable[[Tree], Any] | None = None) -> Tree:
    """The average after one step towards the new weights.

    The return of a cloned policy jumps from update to update; that of its average jumps less. Early on the average
    moves faster, by 9 / (9 + t), so that a short training does not act with its first weights. `target` picks the part
    of the weights that is a target of a loss: it moves slowly from the start.
    """
    t = clock.number + 1
    followed: Tree = optax.incremental_update(new, average, jnp.maximum(rate, 9.0 / (9.0 + t)))
    if target is None:
        return followed
    slow = optax.incremental_update(target(new), target(average), rate)
    with_target: Tree = eqx.tree_at(target, followed, slow)
    return with_target

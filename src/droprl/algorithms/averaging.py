"""The average over updates that acts: what a cloned policy earns jumps between updates, its average less."""

from __future__ import annotations

from typing import Any, TypeVar

import equinox as eqx
import jax.numpy as jnp
import optax

Tree = TypeVar("Tree")


def averaged(average: Tree, new: Tree, rate: float, optimizer: optax.OptState) -> Tree:
    """The average one step closer to the new weights, after the optimiser's t-th update.

    Early on it moves faster, by 9 / (9 + t), so that a short training does not act with the weights it began with.
    """
    t = optax.tree_utils.tree_get(optimizer, "count")
    followed: Tree = optax.incremental_update(new, average, jnp.maximum(rate, 9.0 / (9.0 + t)))
    return followed


def averaged_networks(average: Tree, new: Tree, rate: float, optimizer: optax.OptState) -> Tree:
    """Likewise of networks with a `score_model`, whose average is the target f̄: it moves slowly from the start."""
    target = optax.incremental_update(_score_model(new), _score_model(average), rate)
    followed: Tree = eqx.tree_at(_score_model, averaged(average, new, rate, optimizer), target)
    return followed


def _score_model(networks: Any) -> Any:
    return networks.score_model

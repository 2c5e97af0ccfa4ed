"""Tools to judge a training by: measures of fit and of rank, and a check with the sentence that says what it means.

Which measures an algorithm has, and where each becomes unhealthy, stands with the algorithm.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array


def r_squared(errors: Array, targets: Array, weights: Array) -> Array:
    """1 − the share of the targets' variance that is left as error; NaN where the targets do not vary."""
    total = jnp.maximum(jnp.sum(weights), 1.0)
    mean = jnp.sum(weights * targets) / total
    variance = jnp.sum(weights * (targets - mean) ** 2)
    return jnp.where(variance > 1e-12, 1.0 - jnp.sum(weights * errors**2) / variance, jnp.nan)


def spearman(a: Array, b: Array) -> Array:
    """Rank correlation with ties at their mean rank; NaN where one side is constant."""
    rank_a, rank_b = _ranks(a), _ranks(b)
    rank_a, rank_b = rank_a - rank_a.mean(), rank_b - rank_b.mean()
    return jnp.sum(rank_a * rank_b) / jnp.sqrt(jnp.sum(rank_a**2) * jnp.sum(rank_b**2))


def _ranks(x: Array) -> Array:
    below = jnp.sum(x[:, None] > x[None, :], axis=1)
    not_above = jnp.sum(x[:, None] >= x[None, :], axis=1)
    return 0.5 * (below + not_above + 1.0)


@dataclass(frozen=True)
class Check:
    """One measure of one seed, judged, and what it means as it stands."""

    name: str
    value: float
    healthy: bool
    meaning: str


def measured(metrics: dict[str, float], name: str) -> float:
    """NaN for what is missing or undefined."""
    value = metrics.get(name, math.nan)
    return value if math.isfinite(value) else math.nan


def judged(name: str, value: float, healthy: bool, good: str, bad: str) -> list[Check]:
    return [] if math.isnan(value) else [Check(name, value, healthy, good if healthy else bad)]

"""Tools to judge a training: measures of fit and of rank, a check with its meaning in words, and the shared checks.

Every algorithm says which checks it has. A limit that only one algorithm needs is in the file of that algorithm.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array

# Each lies between trainings whose policies play well and trainings whose policies do not: docs/recipe.md.
UNUSED_INCREASE = 0.1  # by this share cloning must be worse with a wrong z
UNRANKED = 0.7  # Spearman's ρ
UNCALIBRATED = 0.5  # R²


def r_squared(errors: Array, targets: Array, weights: Array) -> Array:
    """1 − the share of the targets' variance that is left as error. NaN if the targets do not vary."""
    total = jnp.maximum(jnp.sum(weights), 1.0)
    mean = jnp.sum(weights * targets) / total
    variance = jnp.sum(weights * (targets - mean) ** 2)
    return jnp.where(variance > 1e-12, 1.0 - jnp.sum(weights * errors**2) / variance, jnp.nan)


def spearman(a: Array, b: Array) -> Array:
    """Rank correlation; ties have their mean rank. NaN if one side is constant."""
    rank_a, rank_b = _ranks(a), _ranks(b)
    rank_a, rank_b = rank_a - rank_a.mean(), rank_b - rank_b.mean()
    return jnp.sum(rank_a * rank_b) / jnp.sqrt(jnp.sum(rank_a**2) * jnp.sum(rank_b**2))


def _ranks(x: Array) -> Array:
    below = jnp.sum(x[:, None] > x[None, :], axis=1)
    not_above = jnp.sum(x[:, None] >= x[None, :], axis=1)
    return 0.5 * (below + not_above + 1.0)


@dataclass(frozen=True)
class Check:
    """One measure of one seed, judged, and what this value means."""

    name: str
    value: float
    healthy: bool
    meaning: str


def measured(metrics: dict[str, float], name: str) -> float:
    """The metric, or NaN if it is missing or undefined."""
    value = metrics.get(name, math.nan)
    return value if math.isfinite(value) else math.nan


def relative_increase(metrics: dict[str, float], right: str, wrong: str) -> float:
    """How much larger the second loss is than the first, as a share of the first."""
    loss = measured(metrics, right)
    return (measured(metrics, wrong) - loss) / max(abs(loss), 1e-12)


def judged(name: str, value: float, healthy: bool, good: str, bad: str) -> list[Check]:
    """One check, or none if there is no value to judge."""
    return [] if math.isnan(value) else [Check(name, value, healthy, good if healthy else bad)]


# --- checks that several algorithms share ---


def wrong_embedding_check(metrics: dict[str, float], of: str, remedy: str) -> list[Check]:
    """Does z steer the policy? Cloning is measured with the right z and with that of another sub-task or step."""
    increase = relative_increase(metrics, "probe_clone_loss", "probe_clone_loss_permuted")
    return judged(
        "cost of a wrong embedding",
        increase,
        increase >= UNUSED_INCREASE,
        f"cloning is worse with another {of}'s z than with the right one: z steers the policy",
        f"unused embedding: cloning is no worse with another {of}'s z than with the right one, so z does not steer the "
        f"policy; {remedy}",
    )


def calibration_check(metrics: dict[str, float]) -> list[Check]:
    """Can f be trusted where adaptation maximises it?"""
    r2 = measured(metrics, "score_r2")
    return judged(
        "R² of scores against returns",
        r2,
        r2 >= UNCALIBRATED,
        "f explains the returns that followed in the data",
        "uncalibrated score: f explains little of the returns in the data, so what adaptation maximises is not the "
        "return; train longer or raise td_steps",
    )


def ranking_check(metrics: dict[str, float], ranked: str, consequence: str) -> list[Check]:
    """Does f prefer what earned more?"""
    correlation = measured(metrics, "score_rank_correlation")
    return judged(
        "rank correlation of scores and returns",
        correlation,
        correlation >= UNRANKED,
        f"f ranks the {ranked} as their returns do",
        f"unranked score: f does not rank the {ranked} as their returns do, so {consequence}",
    )


def multiplier_check(metrics: dict[str, float], cap: float, kept_low: str, remedy: str) -> list[Check]:
    """Does the constraint hold? When its multiplier reaches the cap, it is given up."""
    multiplier = measured(metrics, "multiplier")
    return judged(
        "multiplier of the constraint",
        multiplier,
        multiplier < 0.999 * cap,
        f"the constraint holds: {kept_low} do not out-score those of the data by more than the threshold",
        f"violated constraint: the multiplier is at its cap, so {kept_low} out-score those of the data; {remedy}",
    )

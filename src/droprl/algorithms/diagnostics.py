"""The measures that show DROP's silent failures, and the sentences that say what each one means."""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array

# Between what was seen in trainings that play well and in those that do not (docs/recipe.md, "What to watch").
COLLAPSED_SPREAD = 0.2
UNUSED_COST = 0.1  # how much worse cloning must be with another sub-task's z, as a share of its loss
UNRANKED = 0.7
UNCALIBRATED = 0.5


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


def drop_checks(metrics: dict[str, float], multiplier_max: float | None) -> list[Check]:
    """Is this DROP what it claims to be? A measure that is missing or undefined is not judged."""
    found: list[Check] = []

    def judge(name: str, value: float | None, healthy: bool, good: str, bad: str) -> None:
        if value is not None:
            found.append(Check(name, value, healthy, good if healthy else bad))

    def measured(name: str) -> float | None:
        value = metrics.get(name, math.nan)
        return value if math.isfinite(value) else None

    spread = measured("embedding_spread")
    judge(
        "embedding spread",
        spread,
        spread is not None and spread >= COLLAPSED_SPREAD,
        "sub-tasks have embeddings of their own",
        "collapsed embedding: all sub-tasks share one z, so every rule is plain cloning; keep td_into_embedding off "
        "and embedding_space whitened",
    )
    right, permuted = measured("probe_clone_loss"), measured("probe_clone_loss_permuted")
    cost = None if right is None or permuted is None else (permuted - right) / max(abs(right), 1e-12)
    judge(
        "cost of a wrong embedding",
        cost,
        cost is not None and cost >= UNUSED_COST,
        "cloning is worse with another sub-task's z than with the right one: z steers the policy",
        "unused embedding: cloning is no worse with another sub-task's z than with the right one, so z does not steer "
        "the policy; train longer or use fewer, more distinct sub-tasks",
    )
    correlation = measured("score_rank_correlation")
    judge(
        "rank correlation of scores and returns",
        correlation,
        correlation is not None and correlation >= UNRANKED,
        "f at initial states ranks the sub-tasks as their returns do",
        "unranked score: f at initial states does not follow the sub-tasks' returns, so Best may pick a poor one; "
        "train longer or raise the discount",
    )
    r2 = measured("score_r2")
    judge(
        "R² of scores against returns",
        r2,
        r2 is not None and r2 >= UNCALIBRATED,
        "f explains the returns that followed in the data",
        "uncalibrated score: f explains little of the returns in the data, so what adaptation maximises is not the "
        "return; train longer or raise td_steps",
    )
    multiplier = measured("multiplier") if multiplier_max else None
    judge(
        "multiplier of the constraint",
        multiplier,
        multiplier is not None and multiplier_max is not None and multiplier < 0.999 * multiplier_max,
        "the constraint holds: unseen embeddings do not out-score those of the data by more than the threshold",
        "violated constraint: the multiplier sits at its cap, so unseen embeddings out-score those of the data; ascend "
        "less far (trust_radius, ascent_steps) or raise multiplier_max",
    )
    return found

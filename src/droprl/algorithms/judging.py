"""The measures that show an algorithm's silent failures, and the sentences that say what each one means."""

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
UNDISTILLED = 0.8
EMPTY_LATENT = 0.1  # nats
# Guesses, not measured yet: where a target or an improvement is plainly not what its name says.
UNMOVED_BY_TARGET = 0.1  # change of the action between a poor target and the chosen one, in spreads of the actions
UNINFORMED = 0.1  # R² of Q^β: it cannot know whose trajectory a step is from, so less is asked of it than of f
FAR_FROM_BEHAVIOR = 2.0  # nats for each action dimension: two standard deviations away
MOSTLY_CLIPPED = 0.2  # share of the weights at their cap
# Those of the baselines rest on a run or two: what they warn of is certain, where it begins is not.
DEAF_COST = 0.02  # how much worse the transformer must be with another window's return, as a share of its loss
FAR_DESIGN = 0.2  # how far a design's actions may be from those it started from, in half-ranges: 0.11 played, 0.22 fell


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
    spread = _measured(metrics, "embedding_spread")
    correlation = _measured(metrics, "score_rank_correlation")
    return [
        *_judged(
            "embedding spread",
            spread,
            spread >= COLLAPSED_SPREAD,
            "sub-tasks have embeddings of their own",
            "collapsed embedding: all sub-tasks share one z, so every rule is plain cloning; keep td_into_embedding "
            "off and embedding_space whitened",
        ),
        *_wrong_embedding_check(metrics, "sub-task", "train longer or use fewer, more distinct sub-tasks"),
        *_judged(
            "rank correlation of scores and returns",
            correlation,
            correlation >= UNRANKED,
            "f at initial states ranks the sub-tasks as their returns do",
            "unranked score: f at initial states does not follow the sub-tasks' returns, so Best may pick a poor one; "
            "train longer or raise the discount",
        ),
        *_score_checks(metrics, multiplier_max),
    ]


def cvae_checks(metrics: dict[str, float], multiplier_max: float | None) -> list[Check]:
    """Likewise of DROP over the latents of a CVAE."""
    divergence = _measured(metrics, "probe_kl")
    return [
        *_judged(
            "what the latent knows",
            divergence,
            divergence >= EMPTY_LATENT,
            "the latents of the data differ from the prior: z tells steps apart",
            "empty latent: φ answers with the prior wherever it is asked, so every rule is plain cloning; lower "
            "kl_weight and encode state and action",
        ),
        *_wrong_embedding_check(metrics, "step", "lower kl_weight and encode state and action"),
        *_score_checks(metrics, multiplier_max),
    ]


def rvs_checks(metrics: dict[str, float]) -> list[Check]:
    """Does the target return steer the policy, and was it ever seen?"""
    reaction = _measured(metrics, "target_reaction")
    share = _measured(metrics, "target_share")
    return [
        *_judged(
            "reaction to the target",
            reaction,
            reaction >= UNMOVED_BY_TARGET,
            "the policy acts otherwise for the chosen target than for a poor one",
            "ignored target: the policy acts the same for a poor target as for the chosen one, so it is plain cloning; "
            "train longer, or take data of more than one quality",
        ),
        *_judged(
            "steps that went as well as the target",
            share,
            share > 0,
            "some steps of the data were followed by what the target asks for",
            "target out of reach: no step that was looked at went as well as the target, so the policy extrapolates; "
            "lower target_return",
        ),
    ]


def onestep_checks(metrics: dict[str, float]) -> list[Check]:
    """Was the behaviour improved on, by a Q worth believing, and without leaving it?"""
    r2, gain = _measured(metrics, "score_r2"), _measured(metrics, "improvement")
    kl, clipped = _measured(metrics, "policy_kl"), _measured(metrics, "clipped_share")
    return [
        *_judged(
            "R² of Q against returns",
            r2,
            r2 >= UNINFORMED,
            "Q explains returns that followed in the data",
            "uninformed Q: it explains next to nothing of the returns in the data, so the improvement follows noise; "
            "train longer or raise td_steps",
        ),
        *_judged(
            "improvement by Q",
            gain,
            gain > 0,
            "by Q, the improved policy's actions are better than the behaviour's",
            "no improvement: by Q itself the policy's actions are no better than the behaviour's; train longer, or "
            "lower kl_weight or temperature",
        ),
        *_judged(
            "divergence from the behaviour",
            kl,
            kl <= FAR_FROM_BEHAVIOR,
            "the improved policy stays where Q was learned",
            "left the data: the policy is far from the behaviour, where Q was never learned; raise kl_weight or "
            "temperature",
        ),
        *_judged(
            "share of clipped weights",
            clipped,
            clipped <= MOSTLY_CLIPPED,
            "the weights tell good actions from better ones",
            "clipped weights: so many are at their cap that they tell no action from another; raise temperature",
        ),
    ]


def distillation_check(metrics: dict[str, float]) -> list[Check]:
    """Does the student do what adaptation would?"""
    r2 = _measured(metrics, "distillation_r2")
    return _judged(
        "R² of the student's actions against adapted ones",
        r2,
        r2 >= UNDISTILLED,
        "the student acts as adaptation would at states of the data",
        "undistilled: the student explains little of what adaptation would do; train longer or raise distilled_share",
    )


def return_check(metrics: dict[str, float]) -> list[Check]:
    """Does the Decision Transformer go by the return it is told?"""
    right = _measured(metrics, "probe_clone_loss")
    cost = (_measured(metrics, "probe_clone_loss_other_return") - right) / max(abs(right), 1e-12)
    return _judged(
        "cost of a wrong return-to-go",
        cost,
        cost >= DEAF_COST,
        "actions are predicted worse with another window's return-to-go than with the right one: the target steers it",
        "deaf to the return: actions are predicted no worse with another window's return-to-go, so this is plain "
        "cloning whatever target_return says; train longer, or the data's returns do not tell its actions apart",
    )


def design_checks(metrics: dict[str, float], multiplier_max: float) -> list[Check]:
    """Is what COMs designed better than the data by its own score, and still a policy like the data's?"""
    correlation, gain = _measured(metrics, "score_rank_correlation"), _measured(metrics, "design_gain")
    shift, multiplier = _measured(metrics, "design_action_shift"), _measured(metrics, "multiplier")
    return [
        *_judged(
            "rank correlation of scores and returns",
            correlation,
            correlation >= UNRANKED,
            "f ranks the cloned policies as their returns do",
            "unranked score: f does not follow the returns of the cloned policies, so ascent on it means nothing; "
            "train longer or raise threshold",
        ),
        *_judged(
            "gain of the design by its own score",
            gain,
            gain > 0,
            "ascent raises f above that of the best cloned policy",
            "no design: ascent does not raise f, so the policy is the best clone or worse; lower step_size",
        ),
        *_judged(
            "how far the design's actions are from the best clone's",
            shift,
            shift <= FAR_DESIGN,
            "the design acts like a policy of the data",
            "runaway design: its actions have little to do with those of the policy it started from; lower step_size "
            "or ascent_steps, or train longer so that the constraint takes hold",
        ),
        *_judged(
            "multiplier of the constraint",
            multiplier,
            multiplier < 0.999 * multiplier_max,
            "the constraint is within its means",
            "violated constraint: the multiplier sits at its cap, so adversarial designs out-score those of the data; "
            "raise threshold or multiplier_max",
        ),
    ]


def _measured(metrics: dict[str, float], name: str) -> float:
    """NaN for what is missing or undefined."""
    value = metrics.get(name, math.nan)
    return value if math.isfinite(value) else math.nan


def _judged(name: str, value: float, healthy: bool, good: str, bad: str) -> list[Check]:
    return [] if math.isnan(value) else [Check(name, value, healthy, good if healthy else bad)]


def _wrong_embedding_check(metrics: dict[str, float], of: str, remedy: str) -> list[Check]:
    """Does z steer the policy? By cloning with the z of another sub-task or step."""
    right = _measured(metrics, "probe_clone_loss")
    cost = (_measured(metrics, "probe_clone_loss_permuted") - right) / max(abs(right), 1e-12)
    return _judged(
        "cost of a wrong embedding",
        cost,
        cost >= UNUSED_COST,
        f"cloning is worse with another {of}'s z than with the right one: z steers the policy",
        f"unused embedding: cloning is no worse with another {of}'s z than with the right one, so z does not steer the "
        f"policy; {remedy}",
    )


def _score_checks(metrics: dict[str, float], multiplier_max: float | None) -> list[Check]:
    """Can f be trusted where adaptation asks it?"""
    r2 = _measured(metrics, "score_r2")
    multiplier = _measured(metrics, "multiplier") if multiplier_max else math.nan
    return [
        *_judged(
            "R² of scores against returns",
            r2,
            r2 >= UNCALIBRATED,
            "f explains the returns that followed in the data",
            "uncalibrated score: f explains little of the returns in the data, so what adaptation maximises is not "
            "the return; train longer or raise td_steps",
        ),
        *_judged(
            "multiplier of the constraint",
            multiplier,
            multiplier < 0.999 * (multiplier_max or math.inf),
            "the constraint holds: unseen embeddings do not out-score those of the data by more than the threshold",
            "violated constraint: the multiplier sits at its cap, so unseen embeddings out-score those of the data; "
            "ascend less far (trust_radius, ascent_steps) or raise multiplier_max",
        ),
    ]

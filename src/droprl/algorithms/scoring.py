"""How the score model f(s, a, z) is learned, whatever gives a step its z: equation 8 of DROP, equation 11 of its CVAE.

Temporal differences, the conservative constraint with its Lagrangian (appendix B), and how well f explains the data.
"""

from __future__ import annotations

import math
from typing import Literal, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from droprl.algorithms.judging import Check, judged, measured, r_squared
from droprl.algorithms.protocol import Metrics
from droprl.data.transitions import Batch, Spec
from droprl.networks.actors import BehaviorPolicy
from droprl.networks.critics import AnyScoreModel, ScoreEnsemble, ScoreModel

Constraint = Literal["lagrangian", "hinge", "none"]


class ScoreSettings(Protocol):
    """The fields of an algorithm that say how its score model is made and learned."""

    @property
    def width(self) -> int: ...
    @property
    def depths(self) -> tuple[int, int, int, int, int]: ...
    @property
    def score_models(self) -> int: ...
    @property
    def score_layer_norm(self) -> bool: ...
    @property
    def constraint(self) -> Constraint: ...
    @property
    def threshold(self) -> float: ...
    @property
    def multiplier_start(self) -> float: ...
    @property
    def multiplier_rate(self) -> float: ...
    @property
    def multiplier_max(self) -> float: ...


def make_score_model(settings: ScoreSettings, spec: Spec, embedding_size: int, key: Array) -> AnyScoreModel:
    def one(key: Array) -> ScoreModel:
        o, a, depths = spec.observation_size, spec.action_size, settings.depths[3:]
        return ScoreModel(o, a, embedding_size, settings.width, depths, settings.score_layer_norm, key)

    if settings.score_models == 1:
        return one(key)
    return ScoreEnsemble([one(k) for k in jax.random.split(key, settings.score_models)])


# --- losses, each for one step of the data ---


def td_target(target: AnyScoreModel, answer: Array | None, z: Array, step: Batch) -> Array:
    """R + γ f̄(s', a', z), for each score model; `answer` is the policy's a', where the data may have none."""
    next_action = step.next_action
    if answer is not None and step.next_action_known is not None:
        next_action = jnp.where(step.next_action_known, next_action, answer)
    return jax.lax.stop_gradient(step.reward + step.discount * target.each(step.next_observation, next_action, z))


def next_answer(policy: BehaviorPolicy, z: Array, step: Batch) -> Array | None:
    """β(s', z), where the data may have no a': behind a timeout. Most files have one wherever there is a target."""
    if step.next_action_known is None:
        return None
    return policy.mode(policy.encode(step.next_observation), z)


def td_error(
    score_model: AnyScoreModel, target: AnyScoreModel, policy: BehaviorPolicy, z: Array, step: Batch
) -> tuple[Array, Array]:
    """The target − f(s, a, z), and f(s, a, z) itself, for each score model. Both sides have the step's own z."""
    score = score_model.each(step.observation, step.action, z)
    return td_target(target, next_answer(policy, z, step), z, step) - score, score


# --- of a batch ---

_td_errors = jax.vmap(td_error, (None, None, None, 0, 0))
_td_targets = jax.vmap(td_target, (None, 0, 0, 0))


def td_loss(
    score_model: AnyScoreModel, target: AnyScoreModel, policy: BehaviorPolicy, z: Array, batch: Batch
) -> tuple[Array, Metrics]:
    """The squared errors of all score models, the mean over the steps that have a target; `z` is one a step."""
    return _mean_square(*_td_errors(score_model, target, policy, z, batch), batch)


def _mean_square(errors: Array, scores: Array, batch: Batch) -> tuple[Array, Metrics]:
    squared = jnp.sum(errors**2, axis=1)
    td = jnp.sum(batch.has_target * squared) / jnp.maximum(jnp.sum(batch.has_target), 1.0)
    return td, {"td_loss": td, "score_mean": jnp.mean(scores)}


def score_loss(
    settings: ScoreSettings,
    score_model: AnyScoreModel,
    target: AnyScoreModel,
    multiplier: Array,
    policy: BehaviorPolicy,
    learned_z: Array,
    z: Array,
    unseen_z: Array,
    batch: Batch,
    own: Array | None = None,
) -> tuple[Array, Metrics]:
    """TD at `learned_z`, plus λ · (gap − η), which moves neither the policy nor `z`.

    The gap is f(s, β(s, z̃), z̃) − f(s, β(s, z), z), the mean over as many of the first steps as there are `unseen_z`.
    `own` is β(s, z), where the caller has it already.
    """
    policy = jax.lax.stop_gradient(policy)
    if settings.constraint == "none":
        return td_loss(score_model, target, policy, learned_z, batch)

    n_steps, n_unseen = len(learned_z), len(unseen_z)
    states = batch.observation[:n_unseen]
    z, unseen_z = jax.lax.stop_gradient((z[:n_unseen], unseen_z))
    asked = {"unseen": (states, unseen_z)}
    if own is None:
        asked["own"] = (states, z)
    if batch.next_action_known is not None:
        asked["next"] = (batch.next_observation, jax.lax.stop_gradient(learned_z))
    answers = _answers(policy, asked)
    own = answers["own"] if own is None else jax.lax.stop_gradient(own[:n_unseen])
    # What the data did, what the policy would do, and what it would do at unseen z: one product for all three.
    scores = jax.vmap(score_model.each)(
        jnp.concatenate([batch.observation, states, states]),
        jnp.concatenate([batch.action, own, answers["unseen"]]),
        jnp.concatenate([learned_z, z, unseen_z]),
    )
    of_data, of_own, of_unseen = jnp.split(scores, [n_steps, n_steps + n_unseen])
    targets = _td_targets(target, answers.get("next"), learned_z, batch)
    td, metrics = _mean_square(targets - of_data, of_data, batch)
    gaps = jnp.min(of_unseen, axis=1) - jnp.min(of_own, axis=1)
    gap = jnp.mean(gaps)
    if settings.constraint == "hinge":
        penalty = settings.multiplier_max * jnp.mean(jax.nn.relu(gaps - settings.threshold) ** 2)
    else:
        penalty = multiplier * (gap - settings.threshold)
    return td + penalty, metrics | {"gap": gap}


def _answers(policy: BehaviorPolicy, asked: dict[str, tuple[Array, Array]]) -> dict[str, Array]:
    """β(s, z) of several batches of states and embeddings, in one pass."""
    states, z = (jnp.concatenate(part) for part in zip(*asked.values(), strict=True))
    found = jax.vmap(lambda s, z: policy.mode(policy.encode(s), z))(states, z)
    ends = np.cumsum([len(z) for _, z in asked.values()])
    return dict(zip(asked, jnp.split(found, ends[:-1]), strict=True))


def first_multiplier(settings: ScoreSettings) -> Array:
    """λ at the start: only the Lagrangian has one."""
    return jnp.asarray(settings.multiplier_start if settings.constraint == "lagrangian" else 0.0, dtype=float)


def next_multiplier(settings: ScoreSettings, multiplier: Array, metrics: Metrics) -> Array:
    """The dual step: λ ascends by the violation of the constraint, projected to [0, multiplier_max]."""
    if settings.constraint != "lagrangian":
        return multiplier
    ascended = multiplier + settings.multiplier_rate * (metrics["gap"] - settings.threshold)
    return jnp.clip(ascended, 0.0, settings.multiplier_max)


def capped_multiplier(settings: ScoreSettings) -> float | None:
    """The λ at which the constraint is given up; None without a Lagrangian."""
    return settings.multiplier_max if settings.constraint == "lagrangian" else None


def calibration(score_model: AnyScoreModel, policy: BehaviorPolicy, z: Array, batch: Batch) -> Metrics:
    """R² and bias of f against what followed in the data.

    The probe's targets go to the end of the episode, so this error is one of calibration; only behind a timeout does
    the model's own score of the last state enter, discounted by all the steps to it.
    """
    errors, scores = _td_errors(score_model, score_model, policy, z, batch)
    errors, scores = jnp.mean(errors, axis=1), jnp.mean(scores, axis=1)
    return {
        "score_r2": r_squared(errors, scores + errors, batch.has_target),
        "score_bias": -jnp.sum(batch.has_target * errors) / jnp.maximum(jnp.sum(batch.has_target), 1.0),
    }


# --- is it working? Between what was seen in trainings that play well and in those that do not (docs/recipe.md) ---

UNUSED_COST = 0.1  # how much worse cloning must be with another sub-task's z, as a share of its loss
UNCALIBRATED = 0.5


def wrong_embedding_check(metrics: dict[str, float], of: str, remedy: str) -> list[Check]:
    """Does z steer the policy? By cloning with the z of another sub-task or step."""
    right = measured(metrics, "probe_clone_loss")
    cost = (measured(metrics, "probe_clone_loss_permuted") - right) / max(abs(right), 1e-12)
    return judged(
        "cost of a wrong embedding",
        cost,
        cost >= UNUSED_COST,
        f"cloning is worse with another {of}'s z than with the right one: z steers the policy",
        f"unused embedding: cloning is no worse with another {of}'s z than with the right one, so z does not steer the "
        f"policy; {remedy}",
    )


def score_checks(metrics: dict[str, float], multiplier_max: float | None) -> list[Check]:
    """Can f be trusted where adaptation asks it?"""
    r2 = measured(metrics, "score_r2")
    multiplier = measured(metrics, "multiplier") if multiplier_max else math.nan
    return [
        *judged(
            "R² of scores against returns",
            r2,
            r2 >= UNCALIBRATED,
            "f explains the returns that followed in the data",
            "uncalibrated score: f explains little of the returns in the data, so what adaptation maximises is not "
            "the return; train longer or raise td_steps",
        ),
        *judged(
            "multiplier of the constraint",
            multiplier,
            multiplier < 0.999 * (multiplier_max or math.inf),
            "the constraint holds: unseen embeddings do not out-score those of the data by more than the threshold",
            "violated constraint: the multiplier sits at its cap, so unseen embeddings out-score those of the data; "
            "ascend less far (trust_radius, ascent_steps) or raise multiplier_max",
        ),
    ]

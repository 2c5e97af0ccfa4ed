"""How the score model f(s, a, z) is learned: equation 8 of DROP, and equation 11 of its CVAE.

Temporal differences, the conservative constraint with its Lagrangian (appendix B), and how well f explains the data.
The callers decide which z belongs to a step.
"""

from __future__ import annotations

from typing import Literal, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from droprl.algorithms.judging import Check, calibration_check, multiplier_check, r_squared
from droprl.algorithms.protocol import Metrics, filled
from droprl.data.transitions import Batch, Spec
from droprl.errors import DropError
from droprl.networks.actors import BehaviorPolicy
from droprl.networks.critics import AnyScoreModel, ScoreEnsemble, ScoreModel

Constraint = Literal["lagrangian", "hinge", "adversarial", "none"]
PAPER_THRESHOLD, ADVERSARY_THRESHOLD = 2.0, 0.1  # η
MultiplierRule = Literal["projected", "log"]


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
    def threshold(self) -> float | None: ...
    @property
    def multiplier_start(self) -> float: ...
    @property
    def multiplier_rate(self) -> float: ...
    @property
    def multiplier_rule(self) -> MultiplierRule: ...
    @property
    def multiplier_max(self) -> float | None: ...


def eta(settings: ScoreSettings) -> float:
    """η, in the unit of the scores."""
    if settings.threshold is not None:
        return settings.threshold
    return ADVERSARY_THRESHOLD if settings.constraint == "adversarial" else PAPER_THRESHOLD


def require_weights(settings: ScoreSettings) -> None:
    """Refuse a multiplier that could never act as its rule says."""
    if settings.constraint in ("hinge", "adversarial") and settings.multiplier_max is None:
        raise DropError(f"multiplier_max is the weight of constraint {settings.constraint}: give a number")
    if settings.constraint == "lagrangian" and settings.multiplier_rule == "log" and not settings.multiplier_start:
        raise DropError("multiplier_rule log multiplies λ: give a multiplier_start above 0")


def make_score_model(settings: ScoreSettings, spec: Spec, embedding_size: int, key: Array) -> AnyScoreModel:
    def one(key: Array) -> ScoreModel:
        o, a, depths = spec.observation_size, spec.action_size, settings.depths[3:]
        return ScoreModel(o, a, embedding_size, settings.width, depths, settings.score_layer_norm, key)

    if settings.score_models == 1:
        return one(key)
    return ScoreEnsemble([one(k) for k in jax.random.split(key, settings.score_models)])


# --- losses, each for one step of the data ---


def td_target(target: AnyScoreModel, answer: Array | None, z: Array, step: Batch) -> Array:
    """R + γ f̄(s', a', z), for each score model. `answer` is the policy's a', for steps whose a' the data lacks."""
    next_action = step.next_action
    if answer is not None and step.next_action_known is not None:
        next_action = jnp.where(step.next_action_known, next_action, answer)
    return jax.lax.stop_gradient(step.reward + step.discount * target.each(step.next_observation, next_action, z))


def next_answer(policy: BehaviorPolicy, z: Array, step: Batch) -> Array | None:
    """β(s', z), or None if the data has an a' at every target, as most files do. It may lack one behind a timeout."""
    if step.next_action_known is None:
        return None
    return policy.mode(policy.encode(step.next_observation), z)


def td_error(
    score_model: AnyScoreModel, target: AnyScoreModel, policy: BehaviorPolicy, z: Array, step: Batch
) -> tuple[Array, Array]:
    """target − f(s, a, z), and f(s, a, z) itself, for each score model. Both sides have the step's own z."""
    score = score_model.each(step.observation, step.action, z)
    return td_target(target, next_answer(policy, z, step), z, step) - score, score


# --- of a batch ---

_td_errors = jax.vmap(td_error, (None, None, None, 0, 0))
_td_targets = jax.vmap(td_target, (None, 0, 0, 0))


def td_loss(
    score_model: AnyScoreModel, target: AnyScoreModel, policy: BehaviorPolicy, z: Array, batch: Batch
) -> tuple[Array, Metrics]:
    """The squared errors, summed over score models and averaged over the steps that have a target.

    `z` has one row for each step.
    """
    return _mean_square(*_td_errors(score_model, target, policy, z, batch), batch)


def _mean_square(errors: Array, scores: Array, batch: Batch) -> tuple[Array, Metrics]:
    if batch.fold is None:
        squared = jnp.sum(errors**2, axis=1)
        td = jnp.sum(batch.has_target * squared) / jnp.maximum(jnp.sum(batch.has_target), 1.0)
    else:
        learns = batch.has_target[:, None] * (batch.fold[:, None] == jnp.arange(errors.shape[1]))
        td = jnp.sum(jnp.sum(learns * errors**2, axis=0) / jnp.maximum(jnp.sum(learns, axis=0), 1.0))
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
    """TD at `learned_z`, plus λ · (gap − η). The second term moves neither the policy nor `z`.

    The gap is f(s, β(s, z̃), z̃) − f(s, β(s, z), z), with z̃ from `unseen_z`. It is the mean over the first steps of the
    batch, one for each row of `unseen_z`. `own` is β(s, z), if the caller has it already.
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
    # Actions of the data, of the policy, and of the policy at unseen z: one product serves all three.
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
    threshold = eta(settings)
    if settings.constraint == "hinge":
        weight = filled(settings.multiplier_max, "multiplier_max")
        penalty = weight * jnp.mean(jax.nn.relu(gaps - threshold) ** 2)
    else:
        penalty = multiplier * (gap - threshold)
    return td + penalty, metrics | {"gap": gap}


def _answers(policy: BehaviorPolicy, asked: dict[str, tuple[Array, Array]]) -> dict[str, Array]:
    """β(s, z) for several batches of states and embeddings, in one pass."""
    states, z = (jnp.concatenate(part) for part in zip(*asked.values(), strict=True))
    found = jax.vmap(lambda s, z: policy.mode(policy.encode(s), z))(states, z)
    ends = np.cumsum([len(z) for _, z in asked.values()])
    return dict(zip(asked, jnp.split(found, ends[:-1]), strict=True))


def first_multiplier(settings: ScoreSettings) -> Array:
    """λ at the start. It stays 0 unless the constraint is Lagrangian."""
    return jnp.asarray(settings.multiplier_start if settings.constraint == "lagrangian" else 0.0, dtype=float)


def next_multiplier(settings: ScoreSettings, multiplier: Array, metrics: Metrics) -> Array:
    """The dual step: λ rises by the violation of the constraint and is clipped to [0, multiplier_max]."""
    if settings.constraint != "lagrangian":
        return multiplier
    violation = settings.multiplier_rate * (metrics["gap"] - eta(settings))
    ascended = multiplier * jnp.exp(violation) if settings.multiplier_rule == "log" else multiplier + violation
    return jnp.clip(ascended, 0.0, settings.multiplier_max)


def calibration(score_model: AnyScoreModel, policy: BehaviorPolicy, z: Array, batch: Batch) -> Metrics:
    """R² and bias of f against the returns that followed in the data.

    The targets of the probe go to the end of the episode, so this error is one of calibration. Only behind a timeout
    the model's own score of the last state enters, discounted by all steps up to it. With folds, the model that has not
    learned from a trajectory is asked about it.
    """
    errors, scores = _td_errors(score_model, score_model, policy, z, batch)
    if batch.fold is None:
        errors, scores = jnp.mean(errors, axis=1), jnp.mean(scores, axis=1)
    else:
        errors, scores = (x[jnp.arange(len(x)), 1 - batch.fold] for x in (errors, scores))
    return {
        "score_r2": r_squared(errors, scores + errors, batch.has_target),
        "score_bias": -jnp.sum(batch.has_target * errors) / jnp.maximum(jnp.sum(batch.has_target), 1.0),
    }


def score_checks(settings: ScoreSettings, metrics: dict[str, float]) -> list[Check]:
    """Can f be trusted where adaptation asks it?"""
    checks = calibration_check(metrics)
    if settings.constraint == "lagrangian" and settings.multiplier_max:
        remedy = "ascend less far (trust_radius, ascent_steps) or raise multiplier_max"
        checks += multiplier_check(metrics, settings.multiplier_max, "unseen embeddings", remedy)
    return checks

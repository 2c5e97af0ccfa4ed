"""The measures of silent failures, against SciPy and by hand, and the checks that judge them."""

from __future__ import annotations

import dataclasses
import math
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.builders import make_dataset
from helpers.plain import PLAIN
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from droprl.algorithms.drop import DROP, DropState
from droprl.algorithms.judging import Check, r_squared, spearman
from droprl.algorithms.protocol import Clock
from droprl.data.transitions import Prepared

spearman_jit, r_squared_jit = jax.jit(spearman), jax.jit(r_squared)

# --- the measures ---

few_numbers = st.lists(st.integers(-3, 3), min_size=8, max_size=8)


@settings(deadline=None)
@given(few_numbers, few_numbers)
def test_spearman_with_ties_equals_that_of_scipy(a: list[int], b: list[int]) -> None:
    found = float(spearman_jit(jnp.array(a, float), jnp.array(b, float)))
    if len(set(a)) == 1 or len(set(b)) == 1:
        assert math.isnan(found)
    else:
        assert found == pytest.approx(float(stats.spearmanr(a, b).statistic), abs=1e-5)


def test_spearman_depends_only_on_ranks() -> None:
    x = jnp.array([0.1, 5.0, -3.0, 2.0])
    assert float(spearman(x, jnp.exp(x))) == pytest.approx(1.0)
    assert float(spearman(x, -(x**3))) == pytest.approx(-1.0)


def test_r_squared_by_hand() -> None:
    """Targets 1, 2, 3, 6 have mean 3 and squared deviations 4 + 1 + 0 + 9 = 14; errors 1, 0, 2, 0 have squares 5."""
    targets, errors = jnp.array([1.0, 2.0, 3.0, 6.0]), jnp.array([1.0, 0.0, -2.0, 0.0])
    assert float(r_squared_jit(errors, targets, jnp.ones(4))) == pytest.approx(1 - 5 / 14)


def test_r_squared_leaves_out_targets_without_weight() -> None:
    """Without the last target: mean 2, squared deviations 1 + 0 + 1 = 2."""
    targets, errors = jnp.array([1.0, 2.0, 3.0, 600.0]), jnp.array([1.0, 0.0, 0.0, 50.0])
    assert float(r_squared_jit(errors, targets, jnp.array([1.0, 1, 1, 0]))) == pytest.approx(0.5)


def test_r_squared_of_no_error_of_the_mean_and_of_equal_targets() -> None:
    targets = jnp.array([1.0, 2.0, 3.0, 6.0])
    assert float(r_squared_jit(jnp.zeros(4), targets, jnp.ones(4))) == 1.0
    assert float(r_squared_jit(targets - 3.0, targets, jnp.ones(4))) == pytest.approx(0.0)
    assert math.isnan(float(r_squared_jit(jnp.ones(4), jnp.ones(4), jnp.ones(4))))
    assert math.isnan(float(r_squared_jit(jnp.ones(4), targets, jnp.zeros(4))))


# --- the judgements ---

HEALTHY = {
    "embedding_spread": 1.0,
    "probe_clone_loss": 0.10,
    "probe_clone_loss_permuted": 0.13,
    "score_rank_correlation": 0.9,
    "score_r2": 0.8,
    "multiplier": 0.2,
}


def drop_checks(metrics: dict[str, float], multiplier_max: float | None) -> list[Check]:
    """The checks of DROP with a Lagrangian whose λ has this cap, or without a constraint."""
    return (DROP(constraint="none") if multiplier_max is None else DROP(multiplier_max=multiplier_max)).checks(metrics)


def unhealthy(changes: dict[str, float], multiplier_max: float | None = 1.0) -> list[str]:
    return [
        check.meaning.split(":")[0] for check in drop_checks(HEALTHY | changes, multiplier_max) if not check.healthy
    ]


def test_a_healthy_model_passes_all_five_checks() -> None:
    checks = drop_checks(HEALTHY, 1.0)
    assert [check.healthy for check in checks] == [True] * 5
    assert [round(check.value, 6) for check in checks] == [1.0, 0.3, 0.9, 0.8, 0.2]


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"embedding_spread": 0.01}, "collapsed embedding"),
        ({"probe_clone_loss_permuted": 0.10}, "unused embedding"),
        ({"probe_clone_loss_permuted": 0.05}, "unused embedding"),
        ({"probe_clone_loss": -1.0, "probe_clone_loss_permuted": -1.0}, "unused embedding"),
        ({"score_rank_correlation": 0.2}, "unranked score"),
        ({"score_rank_correlation": -0.9}, "unranked score"),
        ({"score_r2": 0.1}, "uncalibrated score"),
        ({"score_r2": -1.5}, "uncalibrated score"),
        ({"multiplier": 1.0}, "violated constraint"),
    ],
)
def test_each_silent_failure_is_named_and_nothing_else(changes: dict[str, float], kind: str) -> None:
    assert unhealthy(changes) == [kind]


def test_a_gaussian_heads_negative_loss_is_judged_by_its_size() -> None:
    """−0.7 is worse than −1.0 by 30 %: z is used."""
    assert unhealthy({"probe_clone_loss": -1.0, "probe_clone_loss_permuted": -0.7}) == []


@pytest.mark.parametrize("name", HEALTHY)
@pytest.mark.parametrize("value", [math.nan, math.inf, None])
def test_a_missing_or_undefined_measure_is_not_judged(name: str, value: float | None) -> None:
    metrics = {k: v for k, v in HEALTHY.items() if k != name} | ({} if value is None else {name: value})
    checks = drop_checks(metrics, 1.0)
    assert len(checks) == 4
    assert all(check.healthy for check in checks)


def test_without_a_constraint_its_multiplier_is_not_judged() -> None:
    assert len(drop_checks(HEALTHY, None)) == 4
    assert unhealthy({"multiplier": 1.0}, None) == []
    assert not DROP(multiplier_max=0.2).checks(HEALTHY)[-1].healthy


def test_without_measures_nothing_is_judged() -> None:
    assert drop_checks({}, 1.0) == []


# --- the diagnosis of a model, entry by entry ---

TINY = DROP(
    **PLAIN, n_sub_tasks=3, trajectories_per_sub_task=2, embedding_size=2, width=4, depths=(1, 1, 1, 1, 1), discount=0.9
)


@cache
def prepared() -> Prepared:
    layout: Any = [(5, "terminal"), (4, "timeout"), (6, "terminal"), (3, "timeout"), (5, "terminal"), (7, "cut")]
    return TINY.prepare(make_dataset(layout, observation_size=3))


@cache
def diagnosed() -> tuple[DropState, dict[str, float]]:
    rng, spec = np.random.default_rng(0), prepared().spec
    shapes = jax.eval_shape(lambda: TINY.init(jax.random.key(0), spec, Clock.at(0, 1)))
    state = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), leaf.dtype), shapes)
    return state, {k: float(v) for k, v in jax.jit(TINY.diagnose)(state, prepared().probe).items()}


def scores(state: DropState, observations: Any, table: Any) -> np.ndarray:
    """f(s, β(s, z_n), z_n) for each state and sub-task, one at a time."""
    beta, f = state.averaged.behavior_policy, state.averaged.score_model

    def one(s: Any, z: Any) -> jax.Array:
        return f(s, beta.mode(beta.encode(s), z), z)

    return np.asarray(jax.jit(jax.vmap(jax.vmap(one, (None, 0)), (0, None)))(observations, table))


def test_the_diagnosis_of_f_and_the_sub_tasks() -> None:
    state, found = diagnosed()
    probe, table = prepared().probe, jax.jit(lambda: state.averaged.embedding.table())()
    at_start = scores(state, probe.starts, table).mean(axis=0)
    expected = stats.spearmanr(at_start, probe.sub_task_returns).statistic
    assert found["score_rank_correlation"] == pytest.approx(expected)
    favourites = scores(state, probe.batch.observation[:64], table).argmax(axis=1)
    assert probe.sub_task_returns.argmax() == 0
    assert found["top_sub_task_share"] == pytest.approx(np.mean(favourites == 0))
    assert found["embedding_spread"] == pytest.approx(1.0, rel=1e-3)


def test_the_diagnosis_of_calibration() -> None:
    """R² and bias of f(s, a, z_n) against the returns in the data; behind a timeout f's own score takes their place."""
    state, found = diagnosed()
    batch, f = prepared().probe.batch, state.averaged.score_model
    assert batch.next_action_known is None  # so the policy is never asked; in `test_losses` it is
    table = jax.jit(lambda: state.averaged.embedding.table())()

    def one(step: Any) -> tuple[jax.Array, jax.Array]:
        z = table[step.sub_task]
        following = f(step.next_observation, step.next_action, z)
        return f(step.observation, step.action, z), step.reward + step.discount * following

    predicted, target = (np.asarray(x, float) for x in jax.jit(jax.vmap(one))(batch))
    seen = np.asarray(batch.has_target) == 1
    assert 0 < seen.sum() < len(seen)
    predicted, target = predicted[seen], target[seen]
    assert found["score_bias"] == pytest.approx(np.mean(predicted - target), rel=1e-4, abs=1e-5)
    r2 = 1 - np.sum((predicted - target) ** 2) / np.sum((target - target.mean()) ** 2)
    assert found["score_r2"] == pytest.approx(r2, rel=1e-4)


def test_the_diagnosis_of_z_compares_with_other_sub_tasks_embeddings() -> None:
    state, found = diagnosed()
    batch, beta = prepared().probe.batch, state.averaged.behavior_policy
    table = jax.jit(lambda: state.averaged.embedding.table())()
    clone = jax.jit(jax.vmap(beta.clone_loss))
    right = np.mean(clone(batch.observation, batch.action, table[batch.sub_task]))
    assert found["probe_clone_loss"] == pytest.approx(float(right), rel=1e-5)
    others = [float(np.mean(clone(batch.observation, batch.action, table[(batch.sub_task + k) % 3]))) for k in (1, 2)]
    assert any(found["probe_clone_loss_permuted"] == pytest.approx(other, rel=1e-5) for other in others)


def test_one_sub_task_is_not_called_collapsed() -> None:
    dataset = make_dataset([(10, "timeout"), (10, "terminal")])
    algorithm = dataclasses.replace(
        DROP(**PLAIN, width=8, depths=(1, 1, 1, 1, 1), batch_size=16), n_sub_tasks=1, trajectories_per_sub_task=2
    ).resolve(dataset)
    prepared = algorithm.prepare(dataset)
    found = algorithm.diagnose(algorithm.init(jax.random.key(0), prepared.spec, Clock.at(0, 1)), prepared.probe)
    names = {check.name for check in algorithm.checks({name: float(value) for name, value in found.items()})}
    assert names.isdisjoint({"embedding spread", "cost of a wrong embedding"})

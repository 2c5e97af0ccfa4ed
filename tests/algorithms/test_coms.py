"""COMs: policies cloned side by side, a conservative score of their weights, and the ascent that designs one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.training import learnable_dataset, refusal, tiny

from droprl import load_policy
from droprl.algorithms.coms import COMs, COMsState, _designs, _standardized
from droprl.algorithms.protocol import Clock
from droprl.data import Dataset
from droprl.data.transitions import Prepared, Spec, Strata, Stratified
from droprl.networks.perceptrons import MLP
from droprl.policies import FixedPolicy
from droprl.train import fit
from droprl.train.loop import Loop

KEY = jax.random.key(0)
SPEC = Spec(observation_size=3, action_size=2, n_sub_tasks=4)
TINY: Any = tiny("coms", n_policies=4, adversarial_steps=5)


@pytest.fixture
def _double_precision() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


@cache
def dataset() -> Dataset:
    return learnable_dataset()


@cache
def prepared() -> Prepared[Stratified]:
    found: Prepared[Stratified] = TINY.prepare(dataset())
    return found


@cache
def first_state() -> COMsState:
    return jax.jit(lambda: TINY.init(KEY, SPEC, Clock.at(0, 1)))()


@cache
def trained(updates: int = 60) -> COMsState:
    loop = Loop(TINY, prepared(), [5], updates)
    return jax.tree.map(lambda leaf: leaf[0], loop.run(loop.init(), 0, updates)[0])


def score_model(size: int, seed: int = 0) -> MLP:
    """With every weight drawn: f of (size → 6 → 6 → 1)."""
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(lambda: MLP(size, (6, 6), 1, KEY))
    return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape)), shapes)


def by_hand(f: MLP, x: np.ndarray) -> tuple[float, np.ndarray]:
    """f(x) and its gradient, layer by layer."""
    active, weights = [], [np.asarray(layer.weight, float) for layer in f.layers]
    for weight, layer in zip(weights[:-1], f.layers, strict=False):
        pre = weight @ x + np.asarray(layer.bias)
        active.append(pre > 0)
        x = np.maximum(pre, 0)
    slope = weights[-1]
    for weight, on in zip(weights[-2::-1], active[::-1], strict=True):
        slope = (slope * on) @ weight
    return float((weights[-1] @ x + np.asarray(f.layers[-1].bias))[0]), slope[0]


# --- the data ---


def test_groups_go_by_return_from_the_best_down_and_share_nothing() -> None:
    parts = TINY.sub_tasks(dataset())
    assert [len(part) for part in parts] == [3, 3, 3, 3]
    assert sorted(np.concatenate(parts)) == list(range(12))
    means = [np.mean(dataset().returns[part]) for part in parts]
    assert means == sorted(means, reverse=True)
    assert replace(TINY, n_policies=50).resolve(dataset()).n_policies == 12
    assert COMs().resolve(dataset()).n_policies == 12


def test_a_batch_holds_as_many_steps_of_every_group_each_from_its_own() -> None:
    batch = prepared().transitions.sample(KEY, 30)
    assert isinstance(batch, Strata)
    assert batch.steps.observation.shape == (4, 7, 3)
    rows = prepared().transitions.transitions.rows
    shown = np.asarray(rows.observation(np.arange(dataset().n_steps)))
    for n, part in enumerate(TINY.sub_tasks(dataset())):
        own = np.concatenate([shown[dataset().bounds[e] : dataset().bounds[e + 1]] for e in part])
        for observation in np.asarray(batch.steps.observation[n]):
            assert (own == observation).all(axis=1).any()
    assert prepared().transitions.sample(KEY, 1).steps.observation.shape == (4, 1, 3)
    means = prepared().probe.sub_task_returns
    np.testing.assert_allclose(batch.returns, (means - means.mean()) / means.std(), rtol=1e-5)
    np.testing.assert_array_equal(_standardized(jnp.full(3, 7.0)), 0)


# --- cloning side by side ---


def test_policies_begin_alike_and_each_learns_from_its_own_steps_alone() -> None:
    state = first_state()
    assert all((leaf == leaf[:1]).all() for leaf in jax.tree.leaves(state.clones))
    batch = prepared().transitions.sample(KEY, 32)
    spoilt = batch._replace(steps=batch.steps._replace(action=batch.steps.action.at[2].multiply(-1.0)))
    update, clock = jax.jit(TINY.update), Clock.at(0, 1)
    new, other = update(state, batch, KEY, clock)[0], update(state, spoilt, KEY, clock)[0]
    for a, b in zip(jax.tree.leaves(new.clones), jax.tree.leaves(other.clones), strict=True):
        np.testing.assert_array_equal(a[jnp.array([0, 1, 3])], b[jnp.array([0, 1, 3])])
    assert any((a[2] != b[2]).any() for a, b in zip(*map(jax.tree.leaves, (new.clones, other.clones)), strict=True))


def test_a_policy_has_two_layers_of_64_units() -> None:
    shapes = jax.eval_shape(lambda: COMs().init(KEY, SPEC, Clock.at(0, 1)))
    encoder, decoder = shapes.clones.state_encoder.layers, shapes.clones.action_decoder.layers
    assert [layer.weight.shape for layer in (*encoder, *decoder)] == [(4, 64, 3), (4, 64, 64), (4, 2, 64)]
    dimension = 3 * 64 + 64 + 64 * 64 + 64 + 64 * 2 + 2
    assert [layer.weight.shape for layer in shapes.score_model.layers] == [(2048, dimension), (2048, 2048), (1, 2048)]


# --- the score and its ascent ---


@pytest.mark.usefixtures("_double_precision")
def test_ascent_is_that_of_the_definition_step_by_step() -> None:
    f, x = score_model(5), np.random.default_rng(1).normal(size=5)
    algorithm = replace(TINY, step_size=0.01)
    for steps in (0, 1, 7):
        expected = x.copy()
        for _ in range(steps):
            expected = expected + 0.01 * np.sqrt(5) * by_hand(f, expected)[1]
        np.testing.assert_allclose(algorithm.ascend(f, jnp.asarray(x), steps), expected, rtol=1e-9)


@pytest.mark.usefixtures("_double_precision")
def test_the_loss_and_its_gradient_against_finite_differences() -> None:
    """Adversaries are held still: what moves is f at them, not where they are."""
    f, rng = score_model(5), np.random.default_rng(2)
    x, returns, multiplier = rng.normal(size=(4, 5)), rng.normal(size=4), 0.7
    algorithm = replace(TINY, step_size=0.01, adversarial_steps=3)
    adversaries = x.copy()
    for _ in range(3):
        adversaries += 0.01 * np.sqrt(5) * np.stack([by_hand(f, a)[1] for a in adversaries])

    def objective(f: MLP) -> tuple[float, float]:
        scores, adversarial = (np.array([by_hand(f, p)[0] for p in points]) for points in (x, adversaries))
        gap = float(np.mean(adversarial - scores))
        return float(np.mean((scores - returns) ** 2)) + multiplier * gap, gap

    given = jnp.asarray(multiplier), jnp.asarray(x), jnp.asarray(returns)
    (loss, metrics), gradient = jax.jit(jax.value_and_grad(algorithm.score_loss, has_aux=True))(f, *given)
    assert float(loss) == pytest.approx(objective(f)[0])
    assert float(metrics["gap"]) == pytest.approx(objective(f)[1])
    assert float(metrics["gap"]) > 0  # ascent climbs: adversaries out-score the designs
    direction = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape)), f)
    moved = [objective(jax.tree.map(lambda a, d, s=s: a + s * d, f, direction))[0] for s in (1e-6, -1e-6)]
    along = sum(float(jnp.vdot(g, d)) for g, d in zip(*map(jax.tree.leaves, (gradient, direction)), strict=True))
    assert along == pytest.approx((moved[0] - moved[1]) / 2e-6, rel=1e-5)


def test_the_constraint_pushes_adversaries_down_and_designs_up() -> None:
    """One step down the gradient of the constraint alone makes the gap smaller."""
    f, x = score_model(5), jnp.asarray(np.random.default_rng(2).normal(size=(4, 5)))
    algorithm = replace(TINY, step_size=0.01)

    def gap(f: MLP) -> jax.Array:
        return algorithm.score_loss(f, jnp.asarray(1.0), x, jnp.zeros(4))[1]["gap"]

    before, gradient = jax.jit(jax.value_and_grad(gap))(f)
    assert float(gap(jax.tree.map(lambda a, g: a - 0.01 * g, f, gradient))) < float(before)


@pytest.mark.parametrize("threshold", [-5.0, 5.0])
def test_the_multiplier_rises_while_the_constraint_is_violated_and_stays_in_its_bounds(threshold: float) -> None:
    algorithm = replace(TINY, threshold=threshold, multiplier_rate=1.0, multiplier_max=20.0)
    update, batch = jax.jit(algorithm.update), prepared().transitions.sample(KEY, 32)
    state, seen = first_state(), [1.0]
    for i in range(16):
        state, metrics = update(state, batch, KEY, Clock.at(i, 16))
        assert (float(metrics["gap"]) > threshold) == (threshold < 0)
        seen.append(float(metrics["multiplier"]))
    assert seen == sorted(seen, reverse=threshold > 0)
    assert seen[1] == pytest.approx(np.exp(np.sign(-threshold)), rel=1e-4)  # Adam's first step is its rate
    assert seen[-1] == pytest.approx(20.0 if threshold < 0 else 1e-3, rel=1e-4)


def test_training_keeps_adversaries_within_the_threshold_and_without_it_they_get_away() -> None:
    batch = prepared().transitions.sample(KEY, 32)
    settings = {"score_learning_rate": 3e-3, "adversarial_steps": 20}
    gaps = {}
    for kind, limits in {
        "kept": {"threshold": 0.1, "multiplier_rate": 0.05},
        "free": {"multiplier_start": 1e-6, "multiplier_max": 1e-6},
    }.items():
        algorithm = replace(TINY, **settings | limits)
        start = jnp.log(jnp.asarray(algorithm.multiplier_start))
        state, update = first_state()._replace(log_multiplier=start), jax.jit(algorithm.update)
        for i in range(250):
            state, metrics = update(state, batch, jax.random.key(i), Clock.at(i, 250))
        gaps[kind] = float(metrics["gap"])
    assert gaps["kept"] < 0.3
    assert gaps["free"] > 2 * gaps["kept"] + 0.2


# --- the design ---


def test_the_policy_is_200_steps_from_the_best_clone_and_scores_higher() -> None:
    state = trained()
    assert TINY.ascent_steps == COMs().ascent_steps == 200
    designs = _designs(state.averaged)
    x = np.asarray(designs.x[0], float)
    for _ in range(200):
        x = x + TINY.step_size * np.sqrt(x.size) * by_hand(state.score_model, x)[1]
    policy = TINY.policy(state)
    assert isinstance(policy, FixedPolicy)
    found = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(policy.behavior_policy)])
    start = np.concatenate([np.ravel(leaf[0]) for leaf in jax.tree.leaves(state.averaged)])
    np.testing.assert_allclose(found, designs.mean + designs.spread * x, rtol=1e-3, atol=1e-4)
    assert np.abs(found - start).max() > 1e-3
    scores = [by_hand(state.score_model, (theta - designs.mean) / designs.spread)[0] for theta in (start, found)]
    assert scores[1] > scores[0] + 1e-3
    metrics = {name: float(value) for name, value in jax.jit(TINY.diagnose)(state, prepared().probe).items()}
    assert [metrics["score_best_clone"], metrics["score_design"]] == pytest.approx(scores, rel=1e-2, abs=1e-3)
    assert metrics["design_gain"] == pytest.approx(scores[1] - scores[0], rel=1e-2, abs=1e-3)
    moved = (found - start) / np.asarray(designs.spread)
    assert metrics["design_distance"] == pytest.approx(np.sqrt(np.mean(moved**2)), rel=1e-2)
    assert metrics["design_action_shift"] > 0


def test_without_ascent_the_policy_is_the_best_clone() -> None:
    policy = replace(TINY, ascent_steps=0).policy(trained())
    for found, clones in zip(*map(jax.tree.leaves, (policy.behavior_policy, trained().averaged)), strict=True):
        np.testing.assert_allclose(found, clones[0], rtol=1e-5, atol=1e-6)


def test_the_design_is_the_same_every_time_and_travels_as_weights(tmp_path: Path) -> None:
    first, again = (jax.tree.leaves(TINY.policy(trained())) for _ in range(2))
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a, b)
    run = fit(dataset(), TINY, out=tmp_path / "run", steps=5, progress=False)
    policy = load_policy(run.path)
    saved = load_policy(policy.save(tmp_path / "policy"))
    for a, b in zip(*(jax.tree.leaves(p.policy) for p in (policy, saved)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_weight_that_no_two_policies_differ_in_stays_where_it_is() -> None:
    state = trained()
    same = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[:1], leaf.shape), state.averaged)
    policy = TINY.policy(state._replace(averaged=same))
    for found, clones in zip(*map(jax.tree.leaves, (policy.behavior_policy, same)), strict=True):
        np.testing.assert_allclose(found, clones[0], atol=1e-3)


# --- settings and diagnostics ---


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_policies", 0),
        ("score_width", 0),
        ("score_depth", 0),
        ("ascent_steps", -1),
        ("adversarial_steps", -1),
        ("step_size", 0.0),
        ("multiplier_start", 0.0),
        ("multiplier_max", -1.0),
        ("score_learning_rate", float("nan")),
        ("average_rate", 1.5),
    ],
)
def test_a_senseless_setting_is_refused_by_name(name: str, value: Any) -> None:
    assert refusal(COMs, **{name: value}).startswith(f"{name} is {value}")


def test_unresolved_settings_are_named() -> None:
    assert "n_policies is open" in refusal(COMs().prepare, dataset())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, ""),
        ({"score_rank_correlation": 0.2}, "unranked score"),
        ({"design_gain": -0.1}, "no design"),
        ({"design_action_shift": 0.9}, "runaway design"),
        ({"multiplier": 100.0}, "violated constraint"),
    ],
)
def test_each_silent_failure_has_its_warning(change: dict[str, float], said: str) -> None:
    healthy = {"score_rank_correlation": 0.9, "design_gain": 0.1, "design_action_shift": 0.1, "multiplier": 1.0}
    unhealthy = [check for check in COMs().checks(healthy | change) if not check.healthy]
    assert [check.meaning.split(":")[0] for check in unhealthy] == ([said] if said else [])


def test_seeds_side_by_side_do_not_notice_each_other() -> None:
    """What an accelerator runs: seeds under vmap."""
    data = prepared()

    @jax.jit
    @jax.vmap
    def train(key: jax.Array) -> tuple[Any, Any]:
        state = TINY.init(key, SPEC, Clock.at(0, 1))
        state, metrics = TINY.update(state, data.transitions.sample(key, 32), key, Clock.at(0, 1))
        return metrics, TINY.diagnose(state, data.probe)

    keys = jax.random.split(KEY, 2)
    found, swapped = jax.tree.leaves(train(keys)), jax.tree.leaves(train(keys[::-1]))
    for a, b in zip(found, swapped, strict=True):
        np.testing.assert_allclose(a, b[::-1], rtol=1e-3, atol=1e-4)
    assert any((a[0] != a[1]).all() for a in found)

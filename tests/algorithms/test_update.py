"""One update by hand: Adam on the gradient, clipped dual ascent on λ, a slow step of the averages, which act."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.plain import PLAIN

from droprl.algorithms import scoring
from droprl.algorithms.bc import BC, BCState
from droprl.algorithms.drop import DROP, DropState
from droprl.algorithms.protocol import Clock
from droprl.data.transitions import Batch, Spec

SPEC = Spec(observation_size=2, action_size=1, n_sub_tasks=3)
# The gap of random networks is of order 1: it always violates the threshold −5 and always keeps the threshold 5.
VIOLATED = DROP(
    **PLAIN,
    embedding_size=2,
    width=4,
    depths=(1, 1, 1, 1, 1),
    discount=0.9,
    score_layer_norm=False,
    threshold=-5.0,
    multiplier_start=0.3,
    multiplier_rate=0.1,
    multiplier_max=1.0,
    target_rate=0.25,
    learning_rate=0.01,
)
SATISFIED = replace(VIOLATED, threshold=5.0)
WITHOUT = replace(VIOLATED, constraint="none")
CLONING = BC(width=4, state_depth=1, action_depth=1, learning_rate=0.01, average_rate=0.25)


@pytest.fixture(autouse=True)
def _double_precision() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


@cache
def update(algorithm: DROP | BC) -> Any:
    """A function of state, batch, key and the number of the update. It gives the next state and the metrics."""
    return jax.jit(
        lambda state, batch, key, number=0: algorithm.update(state, batch, key, Clock.at(number, 1000)),
    )


@cache
def gradient(drop: DROP) -> Any:
    return jax.jit(jax.grad(drop.loss, has_aux=True))


def make_batch(seed: int) -> Batch:
    rng = np.random.default_rng(seed)
    s, a, next_s, next_a = (jnp.asarray(rng.uniform(-1, 1, (6, size))) for size in (2, 1, 2, 1))
    reward, discount = jnp.asarray(rng.normal(size=6)), jnp.full(6, 0.9)
    return Batch(s, a, jnp.array([0, 1, 2, 0, 1, 2]), reward, discount, next_s, next_a, jnp.ones(6, bool), jnp.ones(6))


def make_state(drop: DROP, multiplier: float) -> DropState:
    """Random weights, and an optimiser that has not moved yet."""
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(lambda: drop.init(jax.random.key(0), SPEC, Clock.at(0, 1)))
    drawn = jax.tree.map(lambda leaf: jnp.asarray(0.5 * rng.normal(size=leaf.shape)), shapes)
    still = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes.optimizer)
    return drawn._replace(optimizer=still, multiplier=jnp.asarray(multiplier, dtype=float))


def cloning_state() -> BCState:
    rng = np.random.default_rng(0)
    fresh = CLONING.init(jax.random.key(0), SPEC, Clock.at(0, 1))
    policy, averaged = (
        jax.tree.map(lambda leaf: jnp.asarray(0.5 * rng.normal(size=leaf.shape)), p)
        for p in (fresh.behavior_policy, fresh.averaged)
    )
    return BCState(policy, averaged, fresh.optimizer)


def leaves(tree: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


KEYS = [jax.random.key(i) for i in (11, 12)]


def test_two_steps_of_adam_by_hand() -> None:
    """m ← 0.9 m + 0.1 g, v ← 0.999 v + 0.001 g², θ ← θ − α · m̂ / (√v̂ + ε). A hat corrects for the start at zero."""
    state = make_state(VIOLATED, 0.4)
    theta = leaves(state.networks)
    m, v = [np.zeros_like(x) for x in theta], [np.zeros_like(x) for x in theta]
    for t, key in enumerate(KEYS, start=1):
        batch = make_batch(t)
        g = leaves(gradient(VIOLATED)(state.networks, state.averaged.score_model, state.multiplier, batch, key)[0])
        state = update(VIOLATED)(state, batch, key, t - 1)[0]
        m = [0.9 * a + 0.1 * b for a, b in zip(m, g, strict=True)]
        v = [0.999 * a + 0.001 * b**2 for a, b in zip(v, g, strict=True)]
        m_hat, v_hat = [x / (1 - 0.9**t) for x in m], [x / (1 - 0.999**t) for x in v]
        theta = [x - 0.01 * a / (np.sqrt(b) + 1e-8) for x, a, b in zip(theta, m_hat, v_hat, strict=True)]
        for found, expected in zip(leaves(state.networks), theta, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


def test_the_averages_follow_the_new_networks() -> None:
    """f̄ as in the paper. φ and β move faster at first: by 9 / 10 in the first update."""
    before = make_state(VIOLATED, 0.4)
    after = update(VIOLATED)(before, make_batch(0), KEYS[0])[0]
    for part, rate in (("embedding", 0.9), ("behavior_policy", 0.9), ("score_model", 0.25)):
        old, new = leaves(getattr(before.averaged, part)), leaves(getattr(after.networks, part))
        for found, a, b in zip(leaves(getattr(after.averaged, part)), old, new, strict=True):
            np.testing.assert_allclose(found, (1 - rate) * a + rate * b, rtol=1e-6)


@pytest.mark.parametrize("rate", [0.85, 1.0])
def test_the_average_of_a_cloned_policy_follows_its_new_weights(rate: float) -> None:
    """By 9 / (9 + t) in update t, or by the rate if that is larger: 0.9, 0.82 …"""
    algorithm, state = replace(CLONING, average_rate=rate), cloning_state()
    for t, key in enumerate(KEYS, start=1):
        old = leaves(state.averaged)
        trained = leaves(state.behavior_policy)
        state = update(algorithm)(state, make_batch(t), key, t - 1)[0]
        new, expected = leaves(state.behavior_policy), max(rate, 9 / (9 + t))
        assert all(np.any(a != b) for a, b in zip(trained, new, strict=True))
        for found, a, b in zip(leaves(state.averaged), old, new, strict=True):
            np.testing.assert_allclose(found, (1 - expected) * a + expected * b, rtol=1e-6, atol=1e-7)


def test_at_the_start_the_average_equals_the_weights() -> None:
    for algorithm in (VIOLATED, CLONING):
        trained, averaged, *_ = algorithm.init(jax.random.key(0), SPEC, Clock.at(0, 1))
        for a, b in zip(leaves(trained), leaves(averaged), strict=True):
            np.testing.assert_array_equal(a, b)


def shifted(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf + 0.1 * jnp.arange(leaf.size).reshape(leaf.shape), tree)


def acted(algorithm: DROP | BC, state: Any) -> np.ndarray:
    policy = algorithm.policy(state)
    observations = make_batch(3).observation
    return np.asarray(jax.jit(lambda: policy.act(policy.start(6), observations, KEYS[0])[1])())


def test_a_cloned_policy_acts_with_its_average() -> None:
    state = cloning_state()
    before = acted(CLONING, state)
    np.testing.assert_array_equal(
        acted(CLONING, state._replace(behavior_policy=shifted(state.behavior_policy))), before
    )
    assert np.abs(acted(CLONING, state._replace(averaged=shifted(state.averaged))) - before).min() > 1e-3


def test_drop_acts_with_its_averages() -> None:
    """φ, β and f, all three: the averaged β acts with the embedding that has the best averaged score."""
    drop, state = VIOLATED, make_state(VIOLATED, 0.4)
    before = acted(drop, state)
    np.testing.assert_array_equal(acted(drop, state._replace(networks=shifted(state.networks))), before)
    for part in ("embedding", "behavior_policy", "score_model"):
        averaged = replace(state.averaged, **{part: shifted(getattr(state.averaged, part))})
        assert np.abs(acted(drop, state._replace(averaged=averaged)) - before).max() > 1e-3, part


@pytest.mark.parametrize("start", [0.0, 0.2, 0.9, 1.0])
@pytest.mark.parametrize("drop", [VIOLATED, SATISFIED])
def test_the_multiplier_rises_by_the_violation_and_is_clipped(drop: DROP, start: float) -> None:
    new, metrics = update(drop)(make_state(drop, start), make_batch(0), KEYS[0])
    gap, threshold = float(metrics["gap"]), scoring.eta(drop)
    assert (gap > threshold) is (drop is VIOLATED)
    assert float(new.multiplier) == pytest.approx(min(max(start + 0.1 * (gap - threshold), 0.0), 1.0))
    assert float(metrics["multiplier"]) == float(new.multiplier)


def test_the_multiplier_reaches_its_cap_or_zero_and_stays() -> None:
    for drop, start, end in ((VIOLATED, 0.0, 1.0), (SATISFIED, 1.0, 0.0)):
        state = make_state(drop, start)
        seen = []
        for _ in range(8):
            state = update(drop)(state, make_batch(0), KEYS[0])[0]
            seen.append(float(state.multiplier))
        assert seen[0] not in (start, end)
        assert seen[-2:] == [end, end]


def test_without_the_constraint_it_has_no_effect() -> None:
    """λ is 0 regardless of multiplier_start and stays 0, and the weights move as with a λ of 0."""
    key = jax.random.key(0)
    assert float(jax.jit(lambda: VIOLATED.init(key, SPEC, Clock.at(0, 1)).multiplier)()) == pytest.approx(0.3)
    assert float(jax.jit(lambda: WITHOUT.init(key, SPEC, Clock.at(0, 1)).multiplier)()) == 0.0
    state = make_state(WITHOUT, 0.0)
    without, metrics = update(WITHOUT)(state, make_batch(0), KEYS[0])
    assert float(without.multiplier) == float(metrics["multiplier"]) == 0.0
    with_zero = update(VIOLATED)(state, make_batch(0), KEYS[0])[0]
    for a, b in zip(leaves(without.networks), leaves(with_zero.networks), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)
    with_one = update(VIOLATED)(state._replace(multiplier=jnp.asarray(1.0, dtype=float)), make_batch(0), KEYS[0])[0]
    f_without, f_with = leaves(without.networks.score_model), leaves(with_one.networks.score_model)
    assert any(np.any(a != b) for a, b in zip(f_without, f_with, strict=True))


def test_the_hinge_does_not_move_the_multiplier() -> None:
    """Its weight is constant. λ is 0 from the start, and would have no effect on the weights."""
    hinge = replace(VIOLATED, constraint="hinge")
    assert float(jax.jit(lambda: hinge.init(jax.random.key(0), SPEC, Clock.at(0, 1)).multiplier)()) == 0.0
    zero, one = (update(hinge)(make_state(hinge, start), make_batch(0), KEYS[0]) for start in (0.0, 1.0))
    assert float(zero[0].multiplier) == float(zero[1]["multiplier"]) == 0.0
    for a, b in zip(leaves(zero[0].networks), leaves(one[0].networks), strict=True):
        np.testing.assert_array_equal(a, b)
    without = update(WITHOUT)(make_state(WITHOUT, 0.0), make_batch(0), KEYS[0])[0]
    f_without, f_with = leaves(without.networks.score_model), leaves(zero[0].networks.score_model)
    assert any(np.any(a != b) for a, b in zip(f_without, f_with, strict=True))


def test_the_randomness_of_an_update_comes_from_its_key() -> None:
    state, batch = make_state(VIOLATED, 0.4), make_batch(0)
    first, again, other = (update(VIOLATED)(state, batch, key)[1]["gap"] for key in (KEYS[0], KEYS[0], KEYS[1]))
    assert first == again
    assert first != other

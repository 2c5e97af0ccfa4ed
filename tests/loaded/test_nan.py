"""Observations with NaN or infinity. A guard replaces them. Without a guard they are refused and change nothing.

Also here: tests of the guard's benchmark, of its faults, and that it never mixes results of different settings.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.playing import CountingTask
from helpers.training import learnable_dataset, refusal, tiny

from droprl import load_policy
from droprl.adapt import Inferred
from droprl.data.support import Support
from droprl.policies.guard import Guard
from droprl.rollout import rollouts
from droprl.train import Run, fit

TRUST = Path(__file__).parents[2] / "benchmarks" / "trust"
FAR = np.full(3, 50.0, np.float32)
CORNERS = jnp.array([[0.0, 0.0], [2.0, 0.0], [0.0, 4.0]])
AT_ZERO = Support(np.eye(2, dtype=np.float32), np.zeros((1, 2), np.float32), np.zeros(3, np.float32))
GUARD = Guard(AT_ZERO, state_limit=jnp.asarray(1.0), patience=jnp.asarray(2), embedding_limit=jnp.asarray(1.0))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("drop") / "run"
    return fit(learnable_dataset(), tiny("drop"), out=out, steps=20, progress=False)


@pytest.mark.parametrize("reading", [[np.nan, np.nan], [0.0, np.nan], [np.inf, 0.0], [-np.inf, np.inf]])
def test_nan_and_infinity_are_never_believed(reading: list[float]) -> None:
    guarded = jax.vmap(GUARD.read)(jnp.array([[0.0, 0.5]]), GUARD.start(1))
    guarded = jax.vmap(GUARD.read)(jnp.array([reading]), guarded)
    assert guarded.held[0]
    np.testing.assert_array_equal(guarded.used(jnp.array([reading])), [[0.0, 0.5]])


def test_a_nan_embedding_goes_back_to_where_it_started() -> None:
    found = Inferred(jnp.full(2, jnp.nan), jnp.asarray(jnp.nan), jnp.asarray(1, jnp.int32))
    chosen, replaced = GUARD.checked(found, lambda z: jnp.sum(z), CORNERS, "start")
    assert replaced
    np.testing.assert_array_equal(chosen.z, CORNERS[1])


# --- in a policy ---


WITH_NAN = [[np.nan] * 3, [0.1, np.nan, 0.2], [np.inf, 0.0, 0.0]]


@pytest.mark.parametrize("reading", WITH_NAN)
@pytest.mark.parametrize("rule", ["best", "grad-ada"])
def test_the_guard_replaces_a_reading_with_nan(run: Run, rule: str, reading: list[float]) -> None:
    policy = load_policy(run.path, rule=rule, guard=True, guard_patience=2)
    first, second = learnable_dataset().observations[:2]
    acted = policy.act(first)
    for _ in range(2):
        np.testing.assert_array_equal(policy.act(np.array(reading)), acted)
        assert (policy.trust().guarded, policy.trust().state_share) == (True, 1.0)
    assert "holds NaN or infinity" in refusal(policy.act, np.array(reading))  # its patience is at an end
    expected = load_policy(run.path, rule=rule)
    expected.act(first)
    np.testing.assert_array_equal(policy.act(second), expected.act(second))  # the refused reading changed nothing


@pytest.mark.parametrize("reading", WITH_NAN)
def test_a_reading_with_nan_leaves_no_trace_in_a_memory(run: Run, reading: list[float]) -> None:
    policy = load_policy(run.path, guard=True, guard_patience=1, warm_start=True)
    states, odd = learnable_dataset().observations[:2, None], np.array([reading])
    carry, _ = policy.step(policy.start(1), states[0], None)
    for k in range(4):
        carry, actions = policy.step(carry, odd, None)
        assert k > 0 or np.isfinite(actions).all()  # its patience is one reading
        assert np.isfinite(carry.inferred.z).all()
    assert np.isfinite(policy.step(carry, states[1], None)[1]).all()


def test_nan_is_refused_without_a_guard_or_before_a_believed_state(run: Run) -> None:
    first = learnable_dataset().observations[0]
    for guard in (False, True):
        policy = load_policy(run.path, rule="grad", guard=guard)
        assert "holds NaN or infinity" in refusal(policy.act, WITH_NAN[1])
        assert "has not acted in this episode" in refusal(policy.trust)
        np.testing.assert_array_equal(policy.act(first), load_policy(run.path, rule="grad").act(first))


def test_the_clock_starts_when_patience_ends(run: Run) -> None:
    policy = load_policy(run.path, rule="best", guard=True, guard_patience=3)
    clocks, carry = [], policy.start(1)
    for _ in range(6):
        carry, _ = policy.step(carry, FAR[None], None)
        clocks.append(int(carry.step[0]))
        assert not carry.guarded.held[0]  # nothing was ever believed
    assert clocks == [0, 0, 0, 1, 2, 3]
    z = np.asarray(carry.inferred.z)
    carry, _ = policy.step(carry, learnable_dataset().observations[:1], None)
    np.testing.assert_array_equal(carry.inferred.z, z)  # the rule infers once


def test_an_action_with_nan_never_reaches_a_task(run: Run) -> None:
    class Blind(CountingTask):
        def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
            return np.full(3, np.nan), *super().step(action)[1:]

    usual: dict[str, Any] = {"episodes": 2, "n_envs": 2}
    for guard, length, refused in ((False, 3, True), (True, 3, False), (True, 30, True)):
        policy, steps = load_policy(run.path, guard=guard), []  # type: ignore[var-annotated]
        make = partial(Blind, lambda action: float(action[0]), length, steps)
        if refused:
            assert "an action was NaN or infinite" in refusal(rollouts, [policy], make, **usual)
        else:
            assert rollouts([policy], make, **usual)[0].guarded == [2, 2]


# --- the benchmark ---


@pytest.fixture
def benchmark_of_trust(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(TRUST))
    import faults
    import measure

    return faults, measure


def test_every_fault_leaves_the_first_readings_unchanged(benchmark_of_trust: Any) -> None:
    faults, _ = benchmark_of_trust
    for name, fault in faults.FAULTS.items():
        env = faults.FaultyEnv(gymnasium.make("Pendulum-v1"), fault, np.zeros(3), np.ones(3))
        right = np.array([0.1, 0.2, 0.3])
        env.reset(seed=0)
        seen = np.stack([env.observation(right) for _ in range(200)])
        np.testing.assert_allclose(seen[: faults.BEGIN - 1], np.tile(right, (faults.BEGIN - 1, 1)), rtol=1e-6)
        assert np.isnan(seen).any() == name.startswith("NaN")


def test_results_of_other_settings_are_not_mixed(benchmark_of_trust: Any, tmp_path: Path) -> None:
    _, measure = benchmark_of_trust
    where, settings = tmp_path / "found.json", {"updates": 5, "episodes": 2, "adaptation": {"ascent_steps": 5}}
    found = measure.opened(where, "maze", settings)
    assert found == {"dataset": "maze", **settings, "plays": {}}
    where.write_text(json.dumps(found | {"plays": {"as trained": {}}}))
    assert measure.opened(where, "maze", settings)["plays"] == {"as trained": {}}
    for other in ({"updates": 6}, {"adaptation": {"ascent_steps": 10}}):
        with pytest.raises(SystemExit, match="was measured with other settings"):
            measure.opened(where, "maze", settings | other)
    where.write_text(json.dumps({"dataset": "maze", "updates": 5, "episodes": 2, "plays": {}}))  # without K
    with pytest.raises(SystemExit, match="adaptation None"):
        measure.opened(where, "maze", settings)


def test_a_refused_policy_has_a_row(benchmark_of_trust: Any) -> None:
    _, measure = benchmark_of_trust
    played = {"scores": [1.0, 3.0], "lengths": [5, 5], "guarded": [1, 0]}
    assert measure._row([{"refused": "NaN"}], [played]) == ("refused", "2.0", "–", "10.0 %")

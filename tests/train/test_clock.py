"""An update knows its number: a delayed actor, a loss that only some updates have, a falling learning rate."""

from __future__ import annotations

import importlib
import os
import signal
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.training import learnable_dataset
from jax import Array

from droprl.algorithms.averaging import averaged
from droprl.algorithms.bc import BC
from droprl.algorithms.protocol import Clock, Logged, Sometimes
from droprl.train import Interrupted, Run, fit
from droprl.train.loop import Loop, means_of, updates

TOTAL = 9


class Counts(NamedTuple):
    updates: Array
    late: Array
    totals: Array
    own: Array  # a number that differs between seeds


@dataclass(frozen=True)
class Delayed(BC):
    """Learns nothing. It counts its updates, and its actor learns in every third update."""

    name: ClassVar[str] = "bc"

    def init(self, key: Array, spec: Any, clock: Clock) -> Any:
        return Counts(jnp.zeros(()), jnp.zeros(()), jnp.asarray(clock.total, float), jax.random.uniform(key))

    def update(self, state: Any, batch: Any, key: Array, clock: Clock) -> tuple[Any, Logged]:
        due = clock.number % 3 == 2

        def learn(late: Array) -> tuple[Array, Array]:
            return late + 1, jnp.asarray(clock.number, float) + state.own

        late, loss = jax.lax.cond(due, learn, lambda late: (late, jnp.zeros(())), state.late)
        logged = {"late_loss": Sometimes.when(due, loss), "number": jnp.asarray(clock.number, float)}
        return Counts(state.updates + 1, late, state.totals, state.own), logged

    def policy(self, state: Any) -> Any:
        raise NotImplementedError

    def diagnose(self, state: Any, probe: Any) -> Any:
        return {}


def loop(seeds: tuple[int, ...] = (0, 1)) -> Loop:
    algorithm = Delayed.tiny()
    return Loop(algorithm, algorithm.prepare(learnable_dataset()), seeds, TOTAL)


def test_init_gets_the_total_and_each_update_its_number() -> None:
    made = loop()
    states, sums = made.run(made.init(), 0, TOTAL)
    np.testing.assert_array_equal(states.totals, [TOTAL, TOTAL])
    np.testing.assert_array_equal(states.late, [3, 3])
    np.testing.assert_array_equal(sums["number"], [36, 36])


def own_numbers() -> np.ndarray:
    """The number that each seed adds to the loss of its delayed actor."""
    own = np.asarray(loop().init().own)
    assert own[0] != own[1]
    return own


@pytest.mark.parametrize("cuts", [(9,), (4, 5), (1, 1, 7)])
def test_a_loss_that_some_updates_lack_is_the_mean_over_the_others(cuts: tuple[int, ...]) -> None:
    """Updates 2, 5 and 8 have the loss, with the values 2, 5 and 8."""
    made, first = loop(), 0
    total: Any = None
    states = made.init()
    for count in cuts:
        states, sums = made.run(states, first, count)
        total, first = (sums if total is None else jax.tree.map(np.add, total, sums)), first + count
    means = means_of(total, TOTAL)
    np.testing.assert_allclose(means["late_loss"], 5.0 + own_numbers(), rtol=1e-6)
    np.testing.assert_allclose(means["number"], [4.0, 4.0])


def delayed_run(out: Path, **schedule: Any) -> Run:
    return fit(learnable_dataset(), Delayed.tiny(), out=out, seeds=2, progress=False, **schedule)


def test_the_log_shows_each_seeds_mean_over_the_updates_that_had_the_loss(tmp_path: Path) -> None:
    """With a line every four updates: 2, then 5, then 8 and 11."""
    run = delayed_run(tmp_path / "run", steps=12, log_every=4, checkpoint_every=12)
    expected = np.array([[2.0], [5.0], [9.5]]) + own_numbers()
    np.testing.assert_allclose([entry["late_loss"] for entry in run.metrics()], expected, rtol=1e-6)
    np.testing.assert_allclose([entry["number"] for entry in run.metrics()], [[1.5] * 2, [5.5] * 2, [9.5] * 2])


@pytest.mark.parametrize("at", [3, 4, 6, 7])
def test_a_resumed_run_logs_the_same_means(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Ctrl-C comes between two lines of the log, after or before an update with the loss, or at a line."""
    run_updates, schedule = Loop.run, {"steps": 12, "log_every": 6, "checkpoint_every": 12}

    def interrupt(self: Loop, states: Any, first: int, count: int) -> Any:
        if first == at - 1:
            os.kill(os.getpid(), signal.SIGINT)
        return run_updates(self, states, first, count)

    with monkeypatch.context() as patch:
        patch.setattr(importlib.import_module("droprl.train.training"), "CALL_SECONDS", 0.0)  # one update in each call
        patch.setattr(Loop, "run", interrupt)
        with pytest.raises(Interrupted, match=f"stopped at update {at} of 12"):
            delayed_run(tmp_path / "run", **schedule)
    entries = delayed_run(tmp_path / "run", **schedule).metrics()
    assert [entry["step"] for entry in entries] == [6, 12]
    expected = np.array([[3.5], [9.5]]) + own_numbers()  # 2 and 5, then 8 and 11
    np.testing.assert_allclose([entry["late_loss"] for entry in entries], expected, rtol=1e-6)
    np.testing.assert_allclose([entry["number"] for entry in entries], [[2.5] * 2, [8.5] * 2])


def test_a_loss_that_no_update_had_is_left_out_of_the_log(tmp_path: Path) -> None:
    run = delayed_run(tmp_path / "run", steps=6, log_every=2, checkpoint_every=6)
    late: list[Any] = [entry.get("late_loss") for entry in run.metrics()]
    assert late[0] is None
    np.testing.assert_allclose(late[1:], np.array([[2.0], [5.0]]) + own_numbers(), rtol=1e-6)
    assert [entry["number"] for entry in run.metrics()] == [[0.5] * 2, [2.5] * 2, [4.5] * 2]


def test_seeds_side_by_side_still_run_one_branch() -> None:
    """Under `vmap`, a condition on the seed becomes a `select` of both branches. A condition on the clock does not."""
    algorithm = Delayed.tiny()
    prepared = algorithm.prepare(learnable_dataset())
    states = jax.vmap(lambda _: algorithm.init(jax.random.key(0), prepared.spec, Clock.at(0, TOTAL)))(jnp.arange(2))
    batched = jax.vmap(partial(updates, algorithm), (0, 0, None, None, None, None))
    numbers = jnp.int32(0), jnp.int32(TOTAL), jnp.int32(TOTAL)
    program = str(jax.make_jaxpr(batched)(states, jnp.arange(2, dtype=jnp.uint32), prepared.transitions, *numbers))
    assert "cond[" in program


def test_an_average_follows_the_clock_and_not_the_optimiser() -> None:
    """It moves by 9 / (9 + t) in update t, until the rate is larger. A target moves by the rate alone."""
    old, new = {"a": jnp.zeros(()), "f": jnp.zeros(())}, {"a": jnp.ones(()), "f": jnp.ones(())}
    for t in (1, 3, 100, 100_000):
        found = averaged(old, new, 0.005, Clock.at(t - 1, 10), target=lambda tree: tree["f"])
        assert float(found["a"]) == pytest.approx(max(0.005, 9 / (9 + t)), rel=1e-6)
        assert float(found["f"]) == pytest.approx(0.005, rel=1e-6)

"""An update knows its number: an actor that learns late, a loss that some updates lack, a rate that falls."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
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
from droprl.train import fit
from droprl.train.loop import Loop, means_of, updates

TOTAL = 9


class Counts(NamedTuple):
    updates: Array
    late: Array
    totals: Array


@dataclass(frozen=True)
class Delayed(BC):
    """Learns nothing. It counts its updates, and does something else in every third of them."""

    name: ClassVar[str] = "bc"

    def init(self, key: Array, spec: Any, clock: Clock) -> Any:
        return Counts(jnp.zeros(()), jnp.zeros(()), jnp.asarray(clock.total, float))

    def update(self, state: Any, batch: Any, key: Array, clock: Clock) -> tuple[Any, Logged]:
        due = clock.number % 3 == 2

        def learn(late: Array) -> tuple[Array, Array]:
            return late + 1, jnp.asarray(clock.number, float)

        late, loss = jax.lax.cond(due, learn, lambda late: (late, jnp.zeros(())), state.late)
        logged = {"late_loss": Sometimes.when(due, loss), "number": jnp.asarray(clock.number, float)}
        return Counts(state.updates + 1, late, state.totals), logged

    def policy(self, state: Any) -> Any:
        raise NotImplementedError

    def diagnose(self, state: Any, probe: Any) -> Any:
        return {}


def loop(seeds: tuple[int, ...] = (0, 1)) -> Loop:
    algorithm = Delayed.tiny()
    return Loop(algorithm, algorithm.prepare(learnable_dataset()), seeds, TOTAL)


def test_init_hears_the_total_and_updates_their_numbers() -> None:
    made = loop()
    states, sums = made.run(made.init(), 0, TOTAL)
    np.testing.assert_array_equal(states.totals, [TOTAL, TOTAL])
    np.testing.assert_array_equal(states.late, [3, 3])
    np.testing.assert_array_equal(sums["number"], [36, 36])


@pytest.mark.parametrize("cuts", [(9,), (4, 5), (1, 1, 7)])
def test_a_loss_that_some_updates_lack_is_the_mean_over_those_that_had_it(cuts: tuple[int, ...]) -> None:
    """Updates 2, 5 and 8 have it, with the losses 2, 5 and 8."""
    made, first = loop(), 0
    total: Any = None
    states = made.init()
    for count in cuts:
        states, sums = made.run(states, first, count)
        total, first = (sums if total is None else jax.tree.map(np.add, total, sums)), first + count
    means = means_of(total, TOTAL)
    np.testing.assert_allclose(means["late_loss"], [5.0, 5.0])
    np.testing.assert_allclose(means["number"], [4.0, 4.0])


def test_a_loss_that_no_update_had_is_left_out_of_the_log(tmp_path: Any) -> None:
    run = fit(
        learnable_dataset(),
        Delayed.tiny(),
        out=tmp_path / "run",
        steps=6,
        log_every=2,
        checkpoint_every=6,
        progress=False,
    )
    assert [entry.get("late_loss") for entry in run.metrics()] == [None, [2.0], [5.0]]
    assert [entry["number"] for entry in run.metrics()] == [[0.5], [2.5], [4.5]]


def test_seeds_side_by_side_still_run_one_branch() -> None:
    """Under `vmap` a condition that depends on the seed becomes a `select` of both branches; the clock does not."""
    algorithm = Delayed.tiny()
    prepared = algorithm.prepare(learnable_dataset())
    states = jax.vmap(lambda _: algorithm.init(jax.random.key(0), prepared.spec, Clock.at(0, TOTAL)))(jnp.arange(2))
    batched = jax.vmap(partial(updates, algorithm), (0, 0, None, None, None, None))
    numbers = jnp.int32(0), jnp.int32(TOTAL), jnp.int32(TOTAL)
    program = str(jax.make_jaxpr(batched)(states, jnp.arange(2, dtype=jnp.uint32), prepared.transitions, *numbers))
    assert "cond[" in program


def test_an_average_follows_the_clock_and_not_the_optimiser() -> None:
    """By 9 / (9 + t) in update t until the rate is larger; a target moves by the rate alone."""
    old, new = {"a": jnp.zeros(()), "f": jnp.zeros(())}, {"a": jnp.ones(()), "f": jnp.ones(())}
    for t in (1, 3, 100, 100_000):
        found = averaged(old, new, 0.005, Clock.at(t - 1, 10), target=lambda tree: tree["f"])
        assert float(found["a"]) == pytest.approx(max(0.005, 9 / (9 + t)), rel=1e-6)
        assert float(found["f"]) == pytest.approx(0.005, rel=1e-6)

"""The training loop: the result of a seed has the same bits beside any other seeds and for calls of any size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import jax
import numpy as np
import pytest
from helpers.builders import make_dataset

from droprl.algorithms import BC, DROP, Algorithm
from droprl.data import Dataset
from droprl.train.loop import Loop

UPDATES = 20


@cache
def dataset() -> Dataset:
    return make_dataset([(7, "terminal"), (9, "timeout"), (8, "terminal"), (6, "cut")], observation_size=3)


@cache
def algorithm(name: str) -> Algorithm:
    if name == "bc":
        return BC(width=8, state_depth=1, action_depth=1, batch_size=16)
    sizes: dict[str, Any] = {"n_sub_tasks": 2, "trajectories_per_sub_task": 2, "embedding_size": 2, "width": 8}
    # The threshold is violated from the start, so the multiplier changes.
    sizes |= {"depths": (1, 1, 1, 1, 1), "batch_size": 16, "score_layer_norm": False}
    return DROP(**sizes, discount=0.9, threshold=-1.0).resolve(dataset())


@cache
def loop(name: str, seeds: tuple[int, ...]) -> Loop:
    return Loop(algorithm(name), algorithm(name).prepare(dataset()), seeds, UPDATES)


@cache
def trained(
    name: str, seeds: tuple[int, ...], cuts: tuple[int, ...] = (0, UPDATES)
) -> tuple[Any, list[dict[str, Any]]]:
    """The states after all updates, and the sums of metrics of each call."""
    states, sums = loop(name, seeds).init(), []
    for first, end in pairwise(cuts):
        states, found = loop(name, seeds).run(states, first, end - first)
        sums.append(found)
    return states, sums


def of_seed(tree: Any, i: int) -> list[np.ndarray]:
    return [np.asarray(leaf)[i] for leaf in jax.tree.leaves(tree)]


def same(a: Sequence[np.ndarray], b: Sequence[np.ndarray]) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


both = pytest.mark.parametrize("name", ["drop", "bc"])


@pytest.fixture
def _on_a_cpu() -> None:
    if jax.default_backend() != "cpu":
        pytest.skip("only a CPU promises identical bits beside other seeds")


@both
@pytest.mark.usefixtures("_on_a_cpu")
def test_a_seed_alone_is_bit_identical_to_the_seed_beside_others(name: str) -> None:
    states, (sums,) = trained(name, (0, 1, 5))
    alone, (alone_sums,) = trained(name, (5,))
    assert same(of_seed(states, 2), of_seed(alone, 0))
    assert same(of_seed(sums, 2), of_seed(alone_sums, 0))
    assert same(of_seed(loop(name, (0, 1, 5)).diagnose(states), 2), of_seed(loop(name, (5,)).diagnose(alone), 0))


@pytest.mark.usefixtures("_on_a_cpu")
def test_the_order_of_the_seeds_does_not_matter() -> None:
    states, swapped = trained("bc", (0, 1, 5))[0], trained("bc", (1, 0))[0]
    assert same(of_seed(states, 0), of_seed(swapped, 1))
    assert same(of_seed(states, 1), of_seed(swapped, 0))


@both
def test_calls_of_any_size_are_bit_identical(name: str) -> None:
    whole, _ = trained(name, (0, 1, 5))
    for cuts in ((0, 1, 8, UPDATES), tuple(range(UPDATES + 1))):
        pieces, _ = trained(name, (0, 1, 5), cuts)
        assert same(jax.tree.leaves(whole), jax.tree.leaves(pieces))


@both
def test_different_seeds_differ_from_the_start(name: str) -> None:
    for states in (loop(name, (0, 1, 5)).init(), trained(name, (0, 1, 5))[0]):
        for i, j in ((0, 1), (0, 2), (1, 2)):
            assert not same(of_seed(states, i), of_seed(states, j))


@both
def test_metrics_are_sums_over_the_updates(name: str) -> None:
    _, (whole,) = trained(name, (0, 1, 5))
    _, singles = trained(name, (0, 1, 5), tuple(range(UPDATES + 1)))
    for metric, sums in whole.items():
        assert sums.shape == (3,)
        np.testing.assert_allclose(sums, np.sum([s[metric] for s in singles], axis=0), rtol=1e-5, err_msg=metric)
    assert len({float(s["clone_loss"][0]) for s in singles}) == UPDATES  # each update reports its own batch


def test_the_logged_multiplier_is_the_one_in_the_state() -> None:
    states, singles = trained("drop", (0, 1, 5), tuple(range(UPDATES + 1)))
    np.testing.assert_array_equal(singles[-1]["multiplier"], states.multiplier)
    assert np.all(np.asarray(states.multiplier) > 0)


@both
def test_no_updates_change_nothing(name: str) -> None:
    states, sums = loop(name, (0, 1, 5)).run(loop(name, (0, 1, 5)).init(), 3, 0)
    assert same(jax.tree.leaves(states), jax.tree.leaves(loop(name, (0, 1, 5)).init()))
    assert all(np.all(value == 0) for value in sums.values())


@both
def test_each_update_has_its_own_random_numbers(name: str) -> None:
    run = loop(name, (0, 1, 5)).run
    first, other = (run(loop(name, (0, 1, 5)).init(), number, 1)[1]["clone_loss"] for number in (0, 1))
    assert np.all(first != other)


def kinds(tree: Any) -> list[tuple[Any, ...]]:
    return [(leaf.shape, leaf.dtype, getattr(leaf, "weak_type", False)) for leaf in jax.tree.leaves(tree)]


@both
def test_states_keep_their_types_so_that_nothing_is_compiled_twice(name: str) -> None:
    before, after = loop(name, (0, 1, 5)).init(), trained(name, (0, 1, 5))[0]
    assert kinds(before) == kinds(after) == kinds(loop(name, (0, 1, 5)).shapes())


def test_training_begins_with_averages_equal_to_the_networks() -> None:
    states = loop("drop", (0, 1, 5)).init()
    assert same(jax.tree.leaves(states.averaged), jax.tree.leaves(states.networks))
    assert np.all(np.asarray(states.multiplier) == 0)


@both
def test_the_batched_program_of_accelerators_does_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to rounding: a batched product rounds differently."""
    backend: Callable[[], str] = lambda: "gpu"  # noqa: E731
    monkeypatch.setattr(jax, "default_backend", backend)
    batched = Loop(algorithm(name), algorithm(name).prepare(dataset()), (0, 1, 5), UPDATES)
    assert kinds(batched.init()) == kinds(loop(name, (0, 1, 5)).init())
    states, sums = batched.run(batched.init(), 0, UPDATES)
    expected_states, (expected,) = trained(name, (0, 1, 5))
    for metric, value in sums.items():
        np.testing.assert_allclose(value, expected[metric], rtol=1e-3, atol=1e-4, err_msg=metric)
    assert kinds(states) == kinds(expected_states)
    if name == "bc":  # it compiles quickly
        diagnosis, expected = batched.diagnose(states), loop(name, (0, 1, 5)).diagnose(expected_states)
        np.testing.assert_allclose(diagnosis["probe_clone_loss"], expected["probe_clone_loss"], rtol=1e-4)

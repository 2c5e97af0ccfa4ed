"""Windows of rows, back and ahead: by hand, against a walk through every episode, and from the disk as from memory."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from helpers.builders import Layout, make_dataset, on_disk
from hypothesis import given, settings
from hypothesis import strategies as st

from droprl.data import Dataset
from droprl.data.rewards import Treatment
from droprl.data.transitions import Places
from droprl.data.windows import Window, Windows, prepare_windows

LAYOUT: Layout = [(3, "terminal"), (1, "timeout"), (4, "cut")]
RAW: dict[str, Any] = {"normalize_observations": False}


def every_window(windows: Windows, n_rows: int) -> Window:
    rows: Any = np.arange(n_rows)
    return jax.tree.map(np.asarray, windows.gather(Places(rows)))


def places_of(window: Window) -> list[list[tuple[int, int]]]:
    """Observations name their episode and step."""
    return [[(int(e), int(t)) for e, t in steps] for steps in window.observations[..., :2]]


def test_a_window_ahead_begins_at_its_row_and_is_padded_behind_the_end_of_its_episode() -> None:
    """Three rows each, over episodes of 3, 1 and 4 steps. Padding shows the episode's last row."""
    window = every_window(prepare_windows(make_dataset(LAYOUT), ahead=2, **RAW).transitions, 8)
    assert places_of(window) == [
        [(0, 0), (0, 1), (0, 2)],
        [(0, 1), (0, 2), (0, 2)],
        [(0, 2), (0, 2), (0, 2)],
        [(1, 0), (1, 0), (1, 0)],
        [(2, 0), (2, 1), (2, 2)],
        [(2, 1), (2, 2), (2, 3)],
        [(2, 2), (2, 3), (2, 3)],
        [(2, 3), (2, 3), (2, 3)],
    ]
    assert window.valid.astype(int).tolist() == [
        [1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 0, 0], [1, 1, 1], [1, 1, 1], [1, 1, 0], [1, 0, 0]
    ]  # fmt: skip
    assert window.steps[:4].tolist() == [[0, 1, 2], [1, 2, 2], [2, 2, 2], [0, 0, 0]]


def test_a_window_back_and_ahead_by_hand() -> None:
    """One row before and one after; with rewards 1, 2, 4 the returns to go are 7, 6 and 4."""
    dataset = make_dataset([(3, "terminal")], rewards=[1, 2, 4])
    window = every_window(prepare_windows(dataset, back=1, ahead=1, **RAW).transitions, 3)
    assert places_of(window) == [[(0, 0), (0, 0), (0, 1)], [(0, 0), (0, 1), (0, 2)], [(0, 1), (0, 2), (0, 2)]]
    assert window.valid.tolist() == [[False, True, True], [True, True, True], [True, True, False]]
    assert window.returns_to_go.tolist() == [[7, 7, 6], [7, 6, 4], [6, 4, 4]]
    np.testing.assert_allclose(window.actions[1], dataset.actions, atol=1e-6)


def by_walking(dataset: Dataset, back: int, ahead: int, discount: float, scale: float) -> Window:
    """By the definition, one row after another."""
    made: dict[str, list[Any]] = {name: [] for name in Window._fields}
    for begin, end in pairwise(dataset.bounds.tolist()):
        for row in range(begin, end):
            wanted = list(range(row - back, row + ahead + 1))
            shown = [min(max(r, begin), end - 1) for r in wanted]
            rewards = dataset.rewards.astype(np.float64)
            to_go = [sum(discount**i * rewards[r + i] for i in range(end - r)) / scale for r in shown]
            made["returns_to_go"].append(to_go)
            made["observations"].append(dataset.observations[shown])
            made["actions"].append(dataset.actions[shown])
            made["steps"].append([r - begin for r in shown])
            made["valid"].append([begin <= r < end for r in wanted])
    return Window(**{name: np.array(values) for name, values in made.items()})  # type: ignore[arg-type]


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    back=st.integers(0, 7),
    ahead=st.integers(0, 7),
    discount=st.sampled_from([1.0, 0.9]),
)
def test_windows_follow_the_definition(lengths: list[int], back: int, ahead: int, discount: float) -> None:
    dataset = make_dataset([(length, "timeout") for length in lengths], observation_size=3)
    asked: dict[str, Any] = {"back": back, "ahead": ahead, "discount": discount, "rewards": Treatment(2.0)}
    found = every_window(prepare_windows(dataset, **asked, **RAW).transitions, dataset.n_steps)
    for name, one, other in zip(Window._fields, found, by_walking(dataset, back, ahead, discount, 2.0), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(("back", "ahead"), [(3, 0), (0, 3), (2, 4)])
def test_windows_from_the_disk_equal_those_in_memory(tmp_path: Path, back: int, ahead: int) -> None:
    dataset = make_dataset([*LAYOUT[:2], (9, "terminal"), (5, "cut")], observation_size=3)
    asked: dict[str, Any] = {"back": back, "ahead": ahead, "discount": 0.9, "rewards": Treatment(3.0)}
    memory, disk = (prepare_windows(data, **asked) for data in (dataset, on_disk(dataset, tmp_path)))
    whole = [every_window(prepared.transitions, dataset.n_steps) for prepared in (memory, disk)]
    for name, expected, found in zip(Window._fields, *whole, strict=True):
        assert expected.dtype == found.dtype, name
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6, err_msg=name)
    key = jax.random.key(1)
    np.testing.assert_array_equal(memory.transitions.draw(key, 50).step, disk.transitions.draw(key, 50).step)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), memory.probe, disk.probe)
    assert memory.spec == disk.spec
    assert memory.spec.n_sub_tasks is None


def test_every_row_is_drawn() -> None:
    windows = prepare_windows(make_dataset(LAYOUT), ahead=1, **RAW).transitions
    drawn = np.asarray(jax.jit(Windows.draw, static_argnums=2)(windows, jax.random.key(0), 400).step)
    assert set(drawn) == set(range(8))

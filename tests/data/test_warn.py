"""What fails quietly is said, with its limit and what to do. Nothing is said of sound data, and numbers are by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.builders import on_disk

from droprl.data import Dataset, from_arrays
from droprl.data.describe import describe
from droprl.data.warn import column_ranges, reward_facts

EPISODES, LENGTH = 12, 20
N = EPISODES * LENGTH


def sound(**changes: Any) -> Dataset:
    """Twelve episodes of twenty steps, with nothing to warn of."""
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        "observations": rng.normal(size=(N, 3)),
        "actions": rng.uniform(-0.9, 0.9, (N, 2)),
        "rewards": rng.normal(size=N),
        "timeouts": np.arange(N) % LENGTH == LENGTH - 1,
    }
    return from_arrays(**arrays | changes)


def with_column(values: Any) -> Dataset:
    observations = np.random.default_rng(1).normal(size=(N, 3))
    observations[:, 1] = values
    return sound(observations=observations)


def warned(dataset: Dataset) -> dict[str, str]:
    """What is said, by the kind of warning."""
    found = describe(dataset).warnings
    assert all(one.do and one.limit for one in found)
    assert len({(one.kind, one.what) for one in found}) == len(found)
    return {one.kind: one.what for one in found}


def test_nothing_is_said_of_sound_data() -> None:
    assert warned(sound()) == {}


def test_a_unix_time_that_float32_flattens() -> None:
    found = warned(with_column(1.7e9 + np.arange(N) / 10))  # 24 seconds: float32 keeps steps of 128 there
    assert found == {"flattened": "observation 1 has one value near 1.7e+09: float32 keeps steps of 128 there"}
    found = warned(with_column(1.7e9 + np.arange(N) * 10))  # 2,390 seconds: 20 values
    assert list(found) == ["flattened"]
    values = len(np.unique(np.float32(1.7e9 + np.arange(N) * 10)))
    assert f"observation 1 has at most {values} values near 1.7e+09" in found["flattened"]
    assert list(warned(with_column(1.7e9 + np.arange(N) * 3600.0))) == ["flattened"]  # ten days, still steps of 128
    assert list(warned(with_column(np.arange(N) * 1e6))) == ["scales"]  # a counter that begins at 0 keeps its digits
    assert list(warned(with_column(1.7e9 + np.arange(N) * 10.0 - 1.7e9))) == []


@pytest.mark.parametrize(("steps", "expected"), [(99, ["flattened"]), (100, [])])
def test_the_limit_of_flattening_is_a_hundred_numbers(steps: int, expected: list[str]) -> None:
    values = 1024.0 + np.linspace(0, steps, N) * 2.0**-13  # the spacing of float32 between 1024 and 2048
    assert list(warned(with_column(values))) == expected


def test_a_constant_column() -> None:
    assert warned(with_column(3.0)) == {"constant": "observation 1 never changes"}
    both = sound(observations=np.random.default_rng(0).normal(size=(N, 3)) * [1, 0, 0])
    assert warned(both)["constant"] == "observation 1, observation 2 never change"


@pytest.mark.parametrize(("scale", "expected"), [(9_000.0, []), (11_000.0, ["scales"])])
def test_columns_of_wildly_different_scale(scale: float, expected: list[str]) -> None:
    column = np.random.default_rng(0).permutation(np.linspace(-1, 1, N))
    observations = np.stack([column, column[::-1] * scale, column], axis=1)
    found = warned(sound(observations=observations))
    assert list(found) == expected
    if expected:
        assert "observation 1 varies by 6.4e+03, and 0 by 0.58" in found["scales"]  # a uniform column: range / √12


@pytest.mark.parametrize(("share", "expected"), [(0.45, []), (0.55, ["actions-at-bound"])])
def test_actions_stuck_at_a_bound(share: float, expected: list[str]) -> None:
    actions = np.random.default_rng(0).uniform(-0.9, 0.9, (N, 2))
    n = round(share * N)
    actions[:n, 1] = np.where(np.arange(n) % 2, 1, -1)  # half of these at each bound
    found = warned(sound(actions=actions))
    assert list(found) == expected
    if expected:
        assert found["actions-at-bound"] == "action 1: at a bound in 55% of the steps"


def test_rewards_that_teach_nothing() -> None:
    assert warned(sound(rewards=np.zeros(N))) == {"zero-rewards": "every reward is 0"}
    same = warned(sound(rewards=np.ones(N)))
    assert same["constant-rewards"] == "every reward is 1, so a return only counts steps"
    assert same["equal-returns"] == "all episodes have a return of 20, so none is better than another"
    ends = np.arange(N) % LENGTH == LENGTH - 1
    once = warned(sound(rewards=np.where(ends, np.arange(N), 0)))
    assert list(once) == ["one-step-rewards"]
    assert "(12 of 240 steps)" in once["one-step-rewards"]
    repeated = warned(sound(rewards=np.repeat(np.arange(EPISODES), LENGTH)))
    assert list(repeated) == ["repeated-rewards"]
    swings = warned(sound(rewards=np.where(np.arange(N) % 2, 1, -1)))
    assert list(swings) == ["equal-returns"]


@pytest.mark.parametrize(("n", "said"), [(1, "there is one episode"), (9, "there are 9 episodes, fewer than the 10")])
def test_too_few_episodes(n: int, said: str) -> None:
    marks = np.zeros(N, bool)
    marks[np.linspace(N / n, N, n).astype(int) - 1] = True
    found = warned(sound(timeouts=marks))
    assert list(found) == ["few-episodes"]
    assert found["few-episodes"].startswith(said)


def test_ten_episodes_are_enough() -> None:
    assert warned(sound(timeouts=np.arange(N) % 24 == 23)) == {}


def test_an_end_in_every_row() -> None:
    found = warned(sound(timeouts=np.ones(N)))
    assert found["one-step-episodes"] == "240 of 240 episodes have one step"


def test_duplicated_episodes() -> None:
    arrays = {key: getattr(sound(), key).copy() for key in ("observations", "actions", "rewards")}
    for array in arrays.values():
        array[20:40] = array[:20]
        array[60:80] = array[:20]
    assert warned(sound(**arrays)) == {"duplicates": "2 of 12 episodes are copies of another, number by number"}
    arrays["rewards"][25] += 1
    found = warned(sound(**arrays))
    assert found == {"duplicates": "1 of 12 episodes is a copy of another, number by number"}


@pytest.mark.parametrize("stored", [lambda dataset, folder: dataset, on_disk])
def test_ranges_by_column_and_the_density_of_rewards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: Callable[[Dataset, Path], Dataset]
) -> None:
    """Also block by block, from the disk."""
    monkeypatch.setattr("droprl.data.dataset.BLOCK_ROWS", 50)
    monkeypatch.setattr("droprl.data.warn.PART_ROWS", 17)
    rewards = np.where(np.arange(N) % 4, 0.0, np.arange(N))
    made = sound(rewards=rewards, actions=np.clip(np.random.default_rng(0).normal(size=(N, 2)), -1, 1))
    dataset = stored(made, tmp_path)
    columns = column_ranges(dataset)
    assert [(column.kind, column.name) for column in columns] == [
        ("observation", "0"), ("observation", "1"), ("observation", "2"), ("action", "0"), ("action", "1"),
    ]  # fmt: skip
    table = np.hstack([made.observations, made.actions]).astype(np.float64)
    for column, values in zip(columns, table.T, strict=True):
        by_hand = (values.min(), values.max(), values.mean(), values.std())
        np.testing.assert_allclose((column.min, column.max, column.mean, column.std), by_hand, atol=1e-9)
    assert columns[3].at_bound == pytest.approx(np.mean(np.abs(made.actions[:, 0]) >= 1 - 2e-4))
    assert columns[0].at_bound is None
    facts = reward_facts(dataset)
    assert facts.density == 59 / 240  # 0, 4, 8, … 236; the first is 0
    assert (facts.min, facts.max) == (0, 236)
    assert facts.mean == pytest.approx(rewards.mean())
    assert (facts.n_distinct, facts.most_in_an_episode, facts.one_for_each_episode) == (60, 5, False)


def test_names_of_columns_and_warnings_are_in_the_json() -> None:
    entries = {"clock": 1.7e9 + np.arange(N), "joint": np.random.default_rng(0).normal(size=(N, 2))}
    description = json.loads(json.dumps(asdict(describe(sound(observations=entries))), allow_nan=False))
    names = [column["name"] for column in description["columns"]]
    assert names == ["clock", "joint[0]", "joint[1]", "0", "1"]
    assert description["observation_parts"] == [["clock", 1], ["joint", 2]]
    (found,) = description["warnings"]
    assert found["kind"] == "flattened"
    assert found["what"].startswith("observation clock has at most 3 values")
    assert found["do"]
    assert "100" in found["limit"]
    assert description["rewards"]["density"] == 1

"""Datasets from arrays with ids, from lists of episodes and from dictionaries, against arrays put together by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.builders import small_arrays

from droprl.data import Dataset, from_arrays, from_episodes, load_dataset, map_dataset
from droprl.data.sources import join_datasets
from droprl.errors import DropError

LENGTHS = (3, 1, 4)


def refusal(build: Any, *arguments: Any, **options: Any) -> str:
    with pytest.raises(DropError) as caught:
        build(*arguments, **options)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


def episode(number: int, length: int, extra: int = 0) -> dict[str, Any]:
    """Numbers that say where they are: 10 · episode + step."""
    steps = 10.0 * number + np.arange(length + extra)
    return {
        "observations": np.stack([steps, -steps], axis=1),
        "actions": np.full((length, 1), number / 10),
        "rewards": np.arange(length, dtype=float),
    }


def ragged(extra: int = 0) -> list[dict[str, Any]]:
    return [episode(number, length, extra) for number, length in enumerate(LENGTHS)]


# --- lists of episodes ---


def test_a_list_of_episodes_of_any_length() -> None:
    dataset = from_episodes(ragged())
    assert dataset.lengths.tolist() == [3, 1, 4]
    assert dataset.observations[:, 0].tolist() == [0, 1, 2, 10, 20, 21, 22, 23]
    assert dataset.returns.tolist() == [3, 0, 6]
    assert np.flatnonzero(dataset.timeouts).tolist() == [2, 3, 7]
    assert not dataset.terminals.any()
    assert dataset.next_observations is None
    equal = [episode(0, 2), episode(1, 2)]
    assert from_episodes(equal).lengths.tolist() == [2, 2]


def test_one_observation_more_is_the_state_after_the_last_step() -> None:
    dataset = from_episodes(ragged(extra=1))
    assert dataset.observations[:, 0].tolist() == [0, 1, 2, 10, 20, 21, 22, 23]
    assert dataset.next_observations is not None
    assert dataset.next_observations[:, 0].tolist() == [1, 2, 3, 11, 21, 22, 23, 24]
    mixed = from_episodes([episode(0, 3, 1), episode(1, 2)])  # not known everywhere, so nowhere
    assert mixed.next_observations is None
    assert mixed.observations[:, 0].tolist() == [0, 1, 2, 10, 11]


def test_how_episodes_end() -> None:
    episodes = ragged()
    episodes[0]["terminated"] = True
    episodes[1]["terminated"] = False
    episodes[2]["terminals"] = [0, 0, 0, 1]
    dataset = from_episodes(episodes)
    assert dataset.ends_in_terminal.tolist() == [True, False, True]
    assert np.flatnonzero(dataset.timeouts).tolist() == [3]


def test_episodes_of_dictionaries() -> None:
    episodes = ragged()
    for one in episodes:
        steps = one["observations"][:, 0]
        one["observations"] = {"b": steps, "a": {"y": steps + 1, "x": np.stack([steps, steps], 1)}}
    dataset = from_episodes(episodes)
    assert dataset.observation_parts == (("a/x", 2), ("a/y", 1), ("b", 1))
    assert dataset.observations[3].tolist() == [10, 10, 11, 10]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"rewards": None}, "episode 1: rewards are missing"),
        ({"rewards": [1.0, 2.0]}, "episode 1: observations has 1 rows, but rewards has 2"),
        ({"rewards": []}, "episode 1: rewards has shape (0,)"),
        ({"observations": np.zeros((3, 2))}, "episode 1: observations has 3 rows, but rewards has 1"),
        ({"observations": np.zeros((1, 3))}, "observations of episode 1 have shape (1, 3)"),
        ({"observations": [[np.nan, 0]]}, "row 3 (episode 1, step 0) is nan"),
        ({"actions": [[5.0]]}, "actions row 3 (episode 1, step 0) is outside [-1, 1]"),
        ({"actions": [[1]]}, "discrete"),
        ({"terminals": [1, 0]}, "episode 1: terminals is not a flag for each step"),
        ({"reward": [1.0]}, "episode 1: has an entry 'reward'"),
        ({"observations": {"a": [1.0]}}, "episode 1 has other entries than episode 0"),
    ],
)
def test_faults_name_the_episode(change: dict[str, Any], expected: str) -> None:
    episodes = ragged()
    episodes[1] |= change
    if expected == "discrete":
        episodes = [one | {"actions": np.zeros((len(one["rewards"]), 1), int)} for one in episodes]
    assert expected in refusal(from_episodes, episodes)


@pytest.mark.parametrize("nothing", [[], {}, None, 3])
def test_no_episodes(nothing: Any) -> None:
    assert "there are no episodes" in refusal(from_episodes, nothing)


# --- ids ---


@pytest.mark.parametrize("ids", [[7, 7, 3, 3, 3, 9], ["b", "b", "a", "a", "a", "c"], list("BBAAAC")])
def test_ids_mark_the_episodes(ids: list[Any]) -> None:
    rows = np.arange(6.0)
    dataset = from_arrays(rows[:, None], np.zeros((6, 1)), rows, episode_ids=ids)
    assert dataset.lengths.tolist() == [2, 3, 1]
    assert np.flatnonzero(dataset.timeouts).tolist() == [1, 4, 5]
    assert dataset.returns.tolist() == [1, 9, 5]


def test_ids_gather_rows_and_keep_terminals() -> None:
    rows = np.arange(6.0)
    terminals = [0, 0, 0, 0, 1, 0]
    dataset = from_arrays(rows[:, None], np.zeros((6, 1)), rows, terminals, episode_ids=[1, 2, 1, 2, 2, 1])
    assert dataset.observations[:, 0].tolist() == [0, 2, 5, 1, 3, 4]
    assert dataset.ends_in_terminal.tolist() == [False, True]
    assert any("brought together" in note for note in dataset.notes)


@pytest.mark.parametrize(
    ("ids", "terminals", "expected"),
    [
        ([1, 1, 2], None, "episode_ids has shape (3,), not (4,)"),
        ([1, 1, 2, np.nan], None, "episode_ids row 3 is not a number"),
        ([1, 1, 2, 2], [1, 0, 0, 0], "terminals row 0 ends the task, but its episode goes on"),
    ],
)
def test_ids_that_do_not_fit(ids: Any, terminals: Any, expected: str) -> None:
    rows = np.arange(4.0)
    assert expected in refusal(from_arrays, rows[:, None], np.zeros((4, 1)), rows, terminals, episode_ids=ids)


# --- dictionaries of arrays ---


def named(**changes: Any) -> Dataset:
    entries = {"speed": np.arange(12.0), "joint": np.arange(24.0).reshape(12, 2)}
    return from_arrays(**small_arrays() | {"observations": entries, "next_observations": None} | changes)


def test_a_dictionary_is_joined_in_the_order_of_its_sorted_names() -> None:
    dataset = named()
    assert dataset.observation_parts == (("joint", 2), ("speed", 1))
    assert dataset.observations[4].tolist() == [8, 9, 4]
    following = {"joint": np.zeros((12, 2)), "speed": np.ones(12)}
    again = named(next_observations=following)
    assert again.next_observations is not None
    assert again.next_observations[4].tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"observations": {}}, "observations is a dict without entries"),
        ({"observations": {"eye": np.zeros((12, 4, 4))}}, "observations 'eye' have shape (12, 4, 4); pixel"),
        ({"observations": {"a": np.zeros(12), "b": np.zeros(11)}}, "'b' has 11 rows but 'a' has 12"),
        ({"observations": {"a": np.array(["x"] * 12)}}, "observations 'a' holds <U1, not numbers"),
        ({"next_observations": np.zeros((12, 3))}, "next_observations is not a dict"),
        ({"next_observations": {"speed": np.zeros((12, 3))}}, "has other entries than observations"),
    ],
)
def test_dictionaries_that_do_not_fit(changes: dict[str, Any], expected: str) -> None:
    assert expected in refusal(named, **changes)


# --- the names go with the data ---


def test_the_names_are_saved_mapped_and_joined(tmp_path: Path) -> None:
    dataset = named()
    dataset.save(tmp_path / "named.hdf5")
    saved = load_dataset(tmp_path / "named.hdf5")
    assert saved.observation_parts == (("joint", 2), ("speed", 1))
    assert saved.action_parts is None
    map_dataset(tmp_path / "named.hdf5", tmp_path / "columns")
    assert load_dataset(tmp_path / "columns").observation_parts == saved.observation_parts
    assert join_datasets([saved, saved]).observation_parts == saved.observation_parts
    other = named(observations={"a": np.zeros((12, 2)), "b": np.zeros(12)})
    assert "observation_parts are joint (2), speed in" in refusal(join_datasets, [saved, other])


def test_saving_replaces_nothing_unless_asked(tmp_path: Path) -> None:
    path = named().save(tmp_path / "named.hdf5")
    before = path.read_bytes()
    other = from_arrays(**small_arrays())
    assert "exists already" in refusal(other.save, path)
    assert path.read_bytes() == before
    other.save(path, force=True)
    assert load_dataset(path).fingerprint == other.fingerprint
    assert "does not end in .hdf5" in refusal(other.save, tmp_path / "data.npz")


@pytest.mark.parametrize(
    "parts",
    ['[["joint", 2]]', '[["joint", 2], ["joint", 1]]', '[["joint", -1], ["speed", 4]]', '{"joint": 3}', "[1, 2]", "[["],
)
def test_names_of_a_stranger_that_do_not_fit(tmp_path: Path, parts: str) -> None:
    import h5py

    path = tmp_path / "stranger.hdf5"
    with h5py.File(path, "w") as file:
        for key, array in small_arrays().items():
            file[key] = array
        file.attrs["observation_parts"] = np.bytes_(parts.encode())
    message = refusal(load_dataset, path)
    assert str(path) in message
    assert "observation_parts" in message

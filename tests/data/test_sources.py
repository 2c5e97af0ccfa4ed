"""Every kind of source, as real files: D4RL's HDF5, Minari, your own npz, OGBench's npz, and parts joined with `+`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from helpers.builders import small_arrays

from droprl.data import Dataset, from_arrays, load_dataset, save_d4rl
from droprl.data.sources import joined_name
from droprl.errors import DropError


def write_d4rl(path: Path, arrays: dict[str, Any], **attributes: Any) -> Path:
    with h5py.File(path, "w") as file:
        for key, array in arrays.items():
            file[key] = array
        file.attrs.update(attributes)
    return path


def refusal(source: str | Path, **options: Any) -> str:
    with pytest.raises(DropError) as caught:
        load_dataset(source, **options)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


def same(one: Dataset, other: Dataset) -> bool:
    return one.fingerprint == other.fingerprint and (one.env, one.score_range) == (other.env, other.score_range)


# D4RL -----------------------------------------------------------------------------------------------------------------


def test_a_d4rl_file_is_read_with_its_attributes_and_without_its_other_keys(tmp_path: Path) -> None:
    arrays = small_arrays()
    extra = {"infos/qpos": np.zeros((3, 2)), "metadata/algorithm": "SAC"}
    path = write_d4rl(tmp_path / "mine.hdf5", {**arrays, **extra}, env="Hopper-v4", ref_min_score=1, ref_max_score=2.5)
    dataset = load_dataset(path)
    assert dataset.name == "mine"
    assert dataset.env == "Hopper-v4"
    assert dataset.score_range == (1.0, 2.5)
    for key, array in arrays.items():
        np.testing.assert_array_equal(getattr(dataset, key), array)
    assert load_dataset(path, env="Hopper-v5").env == "Hopper-v5"


def test_the_name_of_the_task_fills_in_what_the_file_lacks(tmp_path: Path) -> None:
    dataset = load_dataset(write_d4rl(tmp_path / "hopper-medium-v2.hdf5", small_arrays()))
    assert dataset.env == "Hopper-v4"
    assert dataset.score_range is not None
    nameless = load_dataset(write_d4rl(tmp_path / "mine.h5", small_arrays()))
    assert nameless.env is None
    assert nameless.score_range is None


@pytest.mark.parametrize("with_next", [True, False])
def test_a_saved_dataset_comes_back_the_same(tmp_path: Path, with_next: bool) -> None:
    arrays = small_arrays()
    arrays["actions"] *= 3
    if not with_next:
        del arrays["next_observations"]
    dataset = from_arrays(**arrays, action_low=[-3, -4], action_high=5, env="Any-v0", score_range=(0.5, 9.0))
    path = tmp_path / "new" / "made.hdf5"
    save_d4rl(dataset, path)
    assert same(load_dataset(path), dataset)
    assert [file.name for file in path.parent.iterdir()] == ["made.hdf5"]
    with h5py.File(path) as file:  # damaged text of variable length can hang its reader
        assert h5py.check_string_dtype(file.attrs.get_id("env").dtype).length is not None


def test_a_failed_save_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset, path = from_arrays(**small_arrays()), tmp_path / "made.hdf5"
    save_d4rl(dataset, path)

    def full_disk(*_: Any, **__: Any) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(h5py.Group, "create_dataset", full_disk)
    with pytest.raises(DropError, match="cannot be written"):
        save_d4rl(dataclasses.replace(dataset, env="Other-v0"), path)
    assert [file.name for file in tmp_path.iterdir()] == ["made.hdf5"]
    assert same(load_dataset(path), dataset)


def test_a_file_is_not_saved_under_a_name_that_would_not_be_recognised(tmp_path: Path) -> None:
    with pytest.raises(DropError, match=r"made\.txt\.hdf5"):
        save_d4rl(from_arrays(**small_arrays()), tmp_path / "made.txt")


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"ref_min_score": 2.0, "ref_max_score": 1.0}, "ref_min_score"),
        ({"ref_min_score": "low", "ref_max_score": 1.0}, "ref_min_score"),
        ({"env": 3}, "env is not text"),
        ({"action_low": 1.0, "action_high": -1.0}, "action_low"),
        ({"action_low": -1.0}, "action_high is missing"),
    ],
)
def test_attributes_that_make_no_sense(tmp_path: Path, attributes: dict[str, Any], expected: str) -> None:
    assert expected in refusal(write_d4rl(tmp_path / "mine.hdf5", small_arrays(), **attributes))


def test_hdf5_groups_images_and_empty_entries_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "mine.hdf5"
    nested = {"observations/position": np.zeros((12, 2)), "actions": np.zeros((12, 2))}
    assert "dict observations are not supported yet" in refusal(write_d4rl(path, nested))
    images = {**small_arrays(), "observations": np.zeros((12, 8, 8, 3), np.uint8)}
    assert "pixel observations are not supported yet" in refusal(write_d4rl(path, images))
    empty = {**small_arrays(), "rewards": h5py.Empty("f4")}
    assert "rewards is not an array" in refusal(write_d4rl(path, empty))


def test_a_header_that_claims_more_than_is_stored_does_not_fill_the_memory(tmp_path: Path) -> None:
    path = write_d4rl(tmp_path / "mine.hdf5", {key: a for key, a in small_arrays().items() if key != "observations"})
    with h5py.File(path, "a") as file:
        file.create_dataset("observations", shape=(2**40, 3), dtype="f4", chunks=(1024, 3))
    assert "observations claims shape" in refusal(path)


# npz ------------------------------------------------------------------------------------------------------------------


def test_your_own_npz(tmp_path: Path) -> None:
    arrays = small_arrays()
    np.savez_compressed(tmp_path / "mine.npz", **arrays)
    assert same(load_dataset(tmp_path / "mine.npz"), from_arrays(**arrays))
    arrays["actions"] *= 2
    np.savez(tmp_path / "wide.npz", **arrays, action_low=-2, action_high=np.array([2.0, 3.0]))
    assert list(load_dataset(tmp_path / "wide.npz").action_high) == [2, 3]
    assert list(load_dataset(tmp_path / "wide.npz", action_low=-5, action_high=5).action_high) == [5, 5]


def test_npz_files_with_code_or_without_an_archive_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", **{**small_arrays(), "actions": np.array([{}, None], dtype=object)})
    assert "actions holds Python objects" in refusal(tmp_path / "mine.npz")
    with (tmp_path / "plain.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    assert "plain.npz: is not an .npz archive" in refusal(tmp_path / "plain.npz")


def test_a_goal_is_only_for_files_without_rewards(tmp_path: Path) -> None:
    arrays = small_arrays()
    np.savez(tmp_path / "mine.npz", **arrays)
    assert "leave goal= out" in refusal(tmp_path / "mine.npz", goal=(0, 0))
    assert "leave goal= out" in refusal(write_d4rl(tmp_path / "mine.hdf5", arrays), goal=(0, 0))
    del arrays["rewards"]
    np.savez(tmp_path / "bare.npz", **arrays)
    assert "qpos is missing" in refusal(tmp_path / "bare.npz", goal=(0, 0))
    assert "rewards is missing" in refusal(tmp_path / "bare.npz")


# OGBench --------------------------------------------------------------------------------------------------------------


def ogbench_arrays(*paths: list[float]) -> dict[str, Any]:
    """OGBench's file for trajectories along a line. The last row of each is the final position and not a step."""
    x = np.concatenate([np.array(path, np.float32) for path in paths])
    stops = np.cumsum([len(path) for path in paths]) - 1
    terminals = np.zeros(len(x), np.float32)
    terminals[stops] = 1
    actions = np.full((len(x), 1), 0.5, np.float32)
    actions[stops] = 77  # never taken, so never read
    qpos = np.stack([x, np.zeros_like(x), np.ones_like(x)], axis=1)  # three wide: a body, whose radius is 0.5
    return {"observations": x[:, None], "actions": actions, "terminals": terminals, "qpos": qpos, "qvel": qpos}


def test_an_ogbench_trajectory_ends_where_it_first_reaches_the_goal(tmp_path: Path) -> None:
    arrays = ogbench_arrays(
        [0, 1, 2, 3, 4, 5, 6, 7, 8],  # reaches 5 and goes on: the rest is dropped
        [5, 5, 6, 7],  # begins inside the goal: those rows are dropped
        [0, 1, 2],  # never reaches it: timed out
        [5, 5, 5],  # never leaves: dropped
        [4, 5],  # its only row inside is the last, which is not a step
    )
    np.savez(tmp_path / "maze.npz", **arrays)
    dataset = load_dataset(tmp_path / "maze.npz", goal=(5.0, 0.0))
    assert dataset.observations[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 6, 0, 1, 4]
    assert dataset.next_observations is not None
    assert dataset.next_observations[:, 0].tolist() == [1, 2, 3, 4, 5, 6, 7, 1, 2, 5]
    assert dataset.lengths.tolist() == [6, 1, 2, 1]
    assert dataset.returns.tolist() == [-5, -1, -2, -1]
    assert dataset.ends_in_terminal.tolist() == [True, False, False, False]
    assert (dataset.actions == 0.5).all()
    assert dataset.env is None


def test_ogbench_rows_are_named_as_in_the_file(tmp_path: Path) -> None:
    arrays = ogbench_arrays([0, 1, 2], [0, 1, 5, 6])
    arrays["actions"][4] = np.nan
    np.savez(tmp_path / "maze.npz", **arrays)
    assert "actions row 4 is nan" in refusal(tmp_path / "maze.npz", goal=(5,))


def test_ogbench_needs_a_goal_that_a_step_reaches(tmp_path: Path) -> None:
    path = tmp_path / "maze.npz"
    np.savez(path, **ogbench_arrays([0, 1, 2, 3]))
    assert "goal=(x, y)" in refusal(path)
    assert "nearest is 7 away, qpos row 2" in refusal(path, goal=(9, 0))
    assert load_dataset(path, goal=(9, 0), goal_radius=7.5).terminals.any()
    assert "does not fit qpos" in refusal(path, goal=(1, 2, 3, 4))
    assert "does not fit qpos" in refusal(path, goal=(np.nan, 0))
    assert "goal_radius" in refusal(path, goal=(1, 0), goal_radius=0)
    assert "no step is taken outside the goal" in refusal(path, goal=(1, 0), goal_radius=50)


def test_ogbenchs_own_radius_is_wider_for_the_point(tmp_path: Path) -> None:
    arrays = ogbench_arrays([0, 1, 2, 3, 4])
    np.savez(tmp_path / "body.npz", **arrays)
    np.savez(tmp_path / "point.npz", **{**arrays, "qpos": arrays["qpos"][:, :2]})
    assert load_dataset(tmp_path / "body.npz", goal=(3, 0)).n_steps == 4
    assert load_dataset(tmp_path / "point.npz", goal=(3, 0)).n_steps == 3


def test_ogbenchs_three_layouts_give_the_same_dataset(tmp_path: Path) -> None:
    raw = ogbench_arrays([0, 1, 2, 3, 4], [0, 5, 6, 7])
    step = raw["terminals"] == 0
    reached = (np.abs(raw["qpos"][:, 0] - 5) <= 0.5).astype(np.float32)
    labels = {"rewards": reached - 1, "masks": 1 - reached}
    stops = np.maximum(raw["terminals"], np.append(raw["terminals"][1:], 1))
    compact = {**raw, **labels, "terminals": stops, "valids": step.astype(np.float32)}
    del compact["qpos"]
    regular = {key: array[step] for key, array in compact.items() if key != "valids"}
    regular["next_observations"] = raw["observations"][np.flatnonzero(step) + 1]
    datasets = []
    for name, arrays in {"raw": raw, "labelled": {**raw, **labels}, "compact": compact, "regular": regular}.items():
        np.savez(tmp_path / f"{name}.npz", **arrays)
        datasets.append(load_dataset(tmp_path / f"{name}.npz", goal=(5, 0) if name == "raw" else None))
    assert datasets[0].lengths.tolist() == [4, 2]
    assert all(same(dataset, datasets[0]) for dataset in datasets[1:])


def test_ogbench_files_that_are_wrong(tmp_path: Path) -> None:
    good = ogbench_arrays([0, 1, 2], [3, 4, 5, 5])
    wrong = {
        "actions is missing": {"actions": None},
        "qpos has 3 rows": {"qpos": good["qpos"][:3]},
        "qpos row 3 is not finite": {"qpos": np.where(np.arange(7)[:, None] == 3, np.nan, good["qpos"])},
        "terminals row 3 ends a trajectory of no steps": {"terminals": np.array([0, 0, 1, 1, 0, 0, 1])},
        "terminals row 0 is 3": {"terminals": good["terminals"] + 3},
        "pixel observations": {"observations": np.zeros((7, 4, 4, 3), np.uint8)},
        "discrete actions": {"actions": np.zeros((7, 1), np.int32)},
        "qpos has shape (7,)": {"qpos": np.zeros(7)},
    }
    for expected, change in wrong.items():
        arrays = {key: array for key, array in {**good, **change}.items() if array is not None}
        np.savez(tmp_path / "maze.npz", **arrays)
        assert expected in refusal(tmp_path / "maze.npz", goal=(5, 0))


# Joined ---------------------------------------------------------------------------------------------------------------


def test_medium_and_expert_join_to_medium_expert(tmp_path: Path) -> None:
    medium, expert = small_arrays(), small_arrays()
    del expert["next_observations"]
    one = write_d4rl(tmp_path / "hopper-medium-v2.hdf5", medium)
    two = write_d4rl(tmp_path / "hopper-expert-v2.hdf5", expert)
    dataset = load_dataset(f"{one}+{two}")
    assert dataset.name == "hopper-medium-expert-v2"
    assert dataset.env == "Hopper-v4"
    assert dataset.lengths.tolist() == [4, 4, 4, 4, 4, 4]
    assert dataset.timeouts[11], "the episode that the first file leaves open must not run into the second"
    assert dataset.last_is_cut_short
    assert dataset.next_observations is None
    np.testing.assert_array_equal(dataset.rewards, np.tile(medium["rewards"], 2))
    assert load_dataset(f"{one} + {one} + {one}").n_steps == 36


def test_a_plus_in_a_files_name_is_not_a_join(tmp_path: Path) -> None:
    assert load_dataset(write_d4rl(tmp_path / "a+b.hdf5", small_arrays())).name == "a+b"


@pytest.mark.parametrize(
    ("names", "joined"),
    [
        (["walker2d-medium", "walker2d-expert"], "walker2d-medium-expert"),
        (["mujoco/hopper/medium-v0", "mujoco/hopper/expert-v0"], "mujoco/hopper/medium-expert-v0"),
        (["hopper-medium-v2", "hopper-expert-v0"], "hopper-medium-v2+hopper-expert-v0"),
        (["hopper-medium", "walker2d-expert"], "hopper-medium+walker2d-expert"),
        (["a", "b", "c"], "a+b+c"),
    ],
)
def test_joined_names(names: list[str], joined: str) -> None:
    assert joined_name(names) == joined


def test_parts_of_different_tasks_do_not_join(tmp_path: Path) -> None:
    arrays = small_arrays()
    one = write_d4rl(tmp_path / "one.hdf5", arrays, env="Hopper-v4", ref_min_score=0.0, ref_max_score=1.0)
    narrow = {key: array[:, :1] if array.ndim == 2 else array for key, array in arrays.items()}
    wide = {**arrays, "actions": np.tile(arrays["actions"], 2)}
    others = {
        "observation_size": write_d4rl(tmp_path / "narrow.hdf5", narrow),
        "action_size": write_d4rl(tmp_path / "wide.hdf5", wide),
        "action_low": write_d4rl(tmp_path / "bounds.hdf5", arrays, action_low=-2.0, action_high=1.0),
        "action_high": write_d4rl(tmp_path / "bounds2.hdf5", arrays, action_low=-1.0, action_high=2.0),
        "env": write_d4rl(tmp_path / "env.hdf5", arrays, env="Walker2d-v4"),
        "score_range": write_d4rl(tmp_path / "scores.hdf5", arrays, ref_min_score=0.0, ref_max_score=2.0),
    }
    for key, other in others.items():
        message = refusal(f"{one}+{other}")
        assert key in message
        assert other.stem in message
    assert load_dataset(f"{one}+{others['action_low']}", action_low=-2, action_high=2).n_episodes == 6
    assert "no such file" in refusal(f"{one}+{tmp_path / 'gone.hdf5'}")


def test_without_timeouts_the_time_limit_of_a_known_task_cuts_episodes(tmp_path: Path) -> None:
    """D4RL's older files have no timeouts. Without this cut, a timed-out episode would run on into the next."""
    n_steps = 2_500
    arrays = {
        "observations": np.zeros((n_steps, 3), np.float32),
        "actions": np.zeros((n_steps, 2), np.float32),
        "rewards": np.ones(n_steps, np.float32),
        "terminals": np.isin(np.arange(n_steps), [199, 1_399]),
    }
    for name in ("hopper-medium-v0", "someones-own"):
        with h5py.File(tmp_path / f"{name}.hdf5", "w") as file:
            for key, array in arrays.items():
                file[key] = array
    known = load_dataset(tmp_path / "hopper-medium-v0.hdf5")
    assert known.lengths.tolist() == [200, 1_000, 200, 1_000, 100]
    assert known.ends_in_terminal.tolist() == [True, False, True, False, False]
    assert load_dataset(tmp_path / "someones-own.hdf5").lengths.tolist() == [200, 1_200, 1_100]

"""Damaged files of every format: each loads as a valid dataset, or is refused in one line that names it.

In a file with checksums a flipped bit is always noticed: our own HDF5 files are sealed, archives have one checksum for
each array. Other HDF5 files have none: there a flipped bit may change the data, but it must not cause a crash, an
endless wait or an unclear error.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import minari
import numpy as np
import pytest
from helpers.builders import small_arrays
from hypothesis import given, settings
from hypothesis import strategies as st
from minari.data_collector import EpisodeBuffer

from droprl.data import Dataset, from_arrays, load_dataset, save_d4rl
from droprl.errors import DropError

N_STEPS = 12
Arrays = dict[str, Any]
# libhdf5 is C, and random bytes may still crash it: with the same examples each time, no release test fails by chance.
fixed = settings(max_examples=150, deadline=None, derandomize=True)
quick = settings(max_examples=40, deadline=None)


def ogbench_arrays() -> Arrays:
    """Two trajectories of six rows along a line. Both reach the goal at 4."""
    x = np.tile(np.arange(6, dtype=np.float32), 2)
    terminals = (x == 5).astype(np.float32)
    qpos = np.stack([x, np.zeros_like(x), np.zeros_like(x)], axis=1)
    actions = np.full((N_STEPS, 2), 0.5, np.float32)
    return {"observations": qpos.copy(), "actions": actions, "terminals": terminals, "qpos": qpos}


def write_hdf5(path: Path, arrays: Arrays) -> None:
    with h5py.File(path, "w") as file:
        for key, array in arrays.items():
            file[key] = array


def write_packed_hdf5(path: Path, _: Arrays) -> None:
    save_d4rl(from_arrays(**small_arrays(), env="Hopper-v4", score_range=(0.0, 1.0)), path)


def write_npz(path: Path, arrays: Arrays) -> None:
    np.savez(path, **arrays)


def write_packed_npz(path: Path, arrays: Arrays) -> None:
    np.savez_compressed(path, **arrays)


FORMATS: dict[str, tuple[str, Callable[[Path, Arrays], None], Arrays, dict[str, Any]]] = {
    "d4rl": ("mine.hdf5", write_hdf5, small_arrays(), {}),
    "saved": ("mine.hdf5", write_packed_hdf5, small_arrays(), {}),
    "npz": ("mine.npz", write_npz, small_arrays(), {}),
    "packed npz": ("mine.npz", write_packed_npz, small_arrays(), {}),
    "ogbench": ("maze.npz", write_npz, ogbench_arrays(), {"goal": (4.0, 0.0)}),
}
# Formats whose arrays a test changes before writing.
ALTERED = ("d4rl", "npz", "ogbench")


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def load_or_refuse(source: str | Path, named: str, **options: Any) -> Dataset | str:
    """The dataset after checks, or the text of the refusal. Any other exception fails the test."""
    try:
        dataset = load_dataset(source, **options)
    except DropError as error:
        message = str(error)
        assert len(message.splitlines()) == 1
        assert str(DropError(named)) in message
        return message
    for key in ("observations", "actions", "rewards"):
        array = getattr(dataset, key)
        assert array.dtype == np.float32
        assert len(array) == dataset.n_steps > 0
        assert np.isfinite(array).all()
    assert ((dataset.action_low <= dataset.actions) & (dataset.actions <= dataset.action_high)).all()
    assert dataset.terminals.any() or dataset.timeouts.any()
    assert not (dataset.terminals & dataset.timeouts).any()
    assert dataset.lengths.sum() == dataset.n_steps
    if dataset.next_observations is not None:
        assert dataset.next_observations.shape == dataset.observations.shape
    return dataset


def refusal(source: str | Path, **options: Any) -> str:
    message = load_or_refuse(source, Path(source).name, **options)
    assert isinstance(message, str), "it should have been refused"
    return message


def altered(kind: str, change: Callable[[Arrays], None]) -> str:
    """Change the format's arrays, write them, and return the refusal."""
    name, write, arrays, options = FORMATS[kind]
    arrays = {key: array.copy() for key, array in arrays.items()}
    change(arrays)
    with folder() as place:
        write(place / name, arrays)
        return refusal(place / name, **options)


@pytest.mark.parametrize("kind", FORMATS)
def test_undamaged_files_load(kind: str) -> None:
    name, write, arrays, options = FORMATS[kind]
    with folder() as place:
        write(place / name, arrays)
        assert isinstance(load_or_refuse(place / name, name, **options), Dataset)


@pytest.mark.parametrize("kind", FORMATS)
@fixed
@given(st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=8))
def test_flipped_bytes(kind: str, flips: list[tuple[float, int]]) -> None:
    name, write, arrays, options = FORMATS[kind]
    with folder() as place:
        path = place / name
        write(path, arrays)
        content = bytearray(path.read_bytes())
        for position, bits in flips:
            content[int(position * len(content))] ^= bits
        path.write_bytes(content)
        load_or_refuse(path, name, **options)


@pytest.mark.parametrize("kind", FORMATS)
@fixed
@given(st.floats(0, 1, exclude_max=True))
def test_truncated_anywhere(kind: str, share: float) -> None:
    name, write, arrays, options = FORMATS[kind]
    with folder() as place:
        path = place / name
        write(path, arrays)
        content = path.read_bytes()
        path.write_bytes(content[: int(share * len(content))])
        message = load_or_refuse(path, name, **options)
        if share > 0.5:  # enough is left to recognise the format
            assert isinstance(message, Dataset) or "is damaged or cut short" in message


def test_our_own_file_is_refused_whichever_bit_changes(tmp_path: Path) -> None:
    path = tmp_path / "mine.hdf5"
    write_packed_hdf5(path, {})
    content = path.read_bytes()
    for place in (*range(512), *range(512, len(content), 7)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        assert "is damaged or cut short (its checksum differs)" in refusal(path)


@pytest.mark.parametrize("write", [write_npz, write_packed_npz])
def test_a_changed_bit_of_an_archive_never_changes_the_data(
    tmp_path: Path, write: Callable[[Path, Arrays], None]
) -> None:
    """Each array has a checksum, and its name is stored twice, so that a damaged name is noticed too."""
    path = tmp_path / "mine.npz"
    write(path, small_arrays() | {"action_low": np.full(2, -3.0), "action_high": np.full(2, 3.0)})
    content, expected = path.read_bytes(), load_dataset(path).fingerprint
    outcomes = []
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        found = load_or_refuse(path, path.name)
        outcomes.append(isinstance(found, str))
        assert isinstance(found, str) or found.fingerprint == expected, place
    assert np.mean(outcomes) > 0.5  # the others are in bytes that nothing reads, such as times


@quick
@given(st.binary(max_size=300), st.sampled_from(["mine.hdf5", "mine.npz"]), st.booleans())
def test_any_bytes_under_a_known_ending(content: bytes, name: str, with_signature: bool) -> None:
    signature = {"mine.hdf5": b"\x89HDF\r\n\x1a\n", "mine.npz": b"PK\x03\x04"}[name]
    with folder() as place:
        (place / name).write_bytes((signature if with_signature else b"") + content)
        refusal(place / name)


@pytest.mark.parametrize("kind", ALTERED)
@quick
@given(st.data())
def test_a_missing_key(kind: str, data: st.DataObject) -> None:
    required = [key for key in FORMATS[kind][2] if key not in ("timeouts", "next_observations")]
    key = data.draw(st.sampled_from(required))

    def change(arrays: Arrays) -> None:
        del arrays[key]
        if key == "terminals":  # one of the two is enough
            arrays.pop("timeouts", None)

    message = altered(kind, change)
    assert "is missing" in message or "are missing" in message
    assert ("rewards" if key == "qpos" else key) in message  # without qpos it is a file without rewards


@pytest.mark.parametrize("kind", ALTERED)
@quick
@given(st.data())
def test_a_wrong_length(kind: str, data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(sorted(FORMATS[kind][2])))
    rows = data.draw(st.integers(0, 2 * N_STEPS).filter(lambda rows: rows != N_STEPS))

    def change(arrays: Arrays) -> None:
        arrays[key] = np.concatenate([arrays[key], arrays[key]])[:rows]

    message = altered(kind, change)
    assert key in message
    assert f"{rows}" in message


@pytest.mark.parametrize("kind", ALTERED)
@quick
@given(st.data())
def test_a_value_that_is_not_finite(kind: str, data: st.DataObject) -> None:
    floats = {"observations", "actions", "rewards", "next_observations", "qpos"} & set(FORMATS[kind][2])
    key = data.draw(st.sampled_from(sorted(floats)))
    # In an OGBench trajectory of six rows only the first five are steps.
    row = data.draw(st.integers(0, N_STEPS - 1).filter(lambda row: kind != "ogbench" or row not in (5, 11)))
    value = data.draw(st.sampled_from([np.nan, np.inf, -np.inf]))

    def change(arrays: Arrays) -> None:
        arrays[key][row, ...] = value

    message = altered(kind, change)
    assert f"{key} row {row} is" in message


@pytest.mark.parametrize("kind", ALTERED)
@quick
@given(st.integers(0, 10).filter(lambda row: row != 5), st.floats(1.01, 1e30), st.booleans())
def test_an_action_out_of_bounds(kind: str, row: int, size: float, negative: bool) -> None:
    def change(arrays: Arrays) -> None:
        arrays["actions"][row, 1] = -size if negative else size

    message = altered(kind, change)
    assert f"actions row {row} is outside [-1, 1]" in message
    assert "action_low=" in message


@pytest.mark.parametrize("kind", ALTERED)
@quick
@given(st.data())
def test_a_wrong_rank(kind: str, data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(sorted(FORMATS[kind][2])))
    rank = data.draw(st.integers(0, 4).filter(lambda rank: rank != FORMATS[kind][2][key].ndim))

    def change(arrays: Arrays) -> None:
        arrays[key] = np.zeros((N_STEPS, 2, 2, 2)[:rank], arrays[key].dtype)

    message = altered(kind, change)
    assert key in message or (key == "next_observations" and "observations" in message)


@pytest.mark.parametrize("kind", ALTERED)
@quick
@given(st.data())
def test_a_type_that_is_not_numbers(kind: str, data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(sorted(FORMATS[kind][2])))
    dtype = data.draw(st.sampled_from(["S3", "c8", np.dtype([("a", "f4"), ("b", "f4")])]))

    def change(arrays: Arrays) -> None:
        arrays[key] = np.zeros(arrays[key].shape, dtype)

    assert f"{key} holds" in altered(kind, change)


@pytest.mark.parametrize("kind", ALTERED)
@quick
@given(st.integers(0, N_STEPS - 1), st.sampled_from([2.0, -1.0, 0.5, np.nan, np.inf]))
def test_a_mark_that_is_neither_0_nor_1(kind: str, row: int, value: float) -> None:
    def change(arrays: Arrays) -> None:
        arrays["terminals"] = arrays["terminals"].astype(np.float32)
        arrays["terminals"][row] = value

    assert f"terminals row {row} is" in altered(kind, change)


# Minari ---------------------------------------------------------------------------------------------------------------

MINARI_ID = "mine/point/test-v0"


@pytest.fixture(scope="module")
def minari_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Minari root with one small dataset, to be copied and damaged."""
    root = tmp_path_factory.mktemp("minari")
    rng = np.random.default_rng(0)
    episodes = [
        EpisodeBuffer(
            observations=rng.normal(size=(5, 3)),
            actions=rng.uniform(-1, 1, size=(4, 2)).astype(np.float32),
            rewards=[1.0] * 4,
            terminations=[False] * 4,
            truncations=[False] * 3 + [True],
        )
        for _ in range(2)
    ]
    box = gymnasium.spaces.Box
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setenv("MINARI_DATASETS_PATH", str(root))
        minari.create_dataset_from_buffers(
            MINARI_ID,
            episodes,
            observation_space=box(-np.inf, np.inf, (3,), np.float64),
            action_space=box(-1, 1, (2,), np.float32),
        )
    return root


@contextmanager
def minari_copy(root: Path) -> Iterator[Path]:
    """Copy the root and use the copy as Minari's root; gives the copy's data folder."""
    with folder() as place, pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shutil.copytree(root, place / "root")
        patch.setenv("MINARI_DATASETS_PATH", str(place / "root"))
        yield place / "root" / MINARI_ID / "data"


@fixed
@given(
    flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), max_size=8),
    keep=st.floats(0, 1) | st.just(1.0),
    name=st.sampled_from(["main_data.hdf5", "metadata.json"]),
)
def test_damaged_minari_files(minari_root: Path, flips: list[tuple[float, int]], keep: float, name: str) -> None:
    with minari_copy(minari_root) as data:
        content = bytearray((data / name).read_bytes())
        for position, bits in flips:
            content[int(position * len(content))] ^= bits
        (data / name).write_bytes(content[: int(keep * len(content))])
        load_or_refuse(MINARI_ID, MINARI_ID)


@quick
@given(
    key=st.sampled_from(["observations", "actions", "rewards", "terminations", "truncations"]),
    episode=st.integers(0, 1),
    step=st.integers(0, 3),
    damage=st.sampled_from(["drop", "shorten", "rank", "text", "nan"]),
)
def test_minari_episodes_that_are_wrong(minari_root: Path, key: str, episode: int, step: int, damage: str) -> None:
    if damage == "nan" and key not in ("observations", "actions", "rewards"):
        damage = "drop"
    with minari_copy(minari_root) as data:
        with h5py.File(data / "main_data.hdf5", "a") as file:
            place = f"episode_{episode}/{key}"
            array = file[place][()]
            del file[place]
            if damage == "nan":
                array[step] = np.nan
            if damage != "drop":
                new = {"shorten": array[:-1], "rank": array[..., None], "text": np.full(len(array), b"x"), "nan": array}
                file[place] = new[damage]
        message = load_or_refuse(MINARI_ID, MINARI_ID)
        assert isinstance(message, str)
        flag = {"terminations": "terminals", "truncations": "timeouts"}.get(key, key)
        assert flag in message or key in message
        if damage == "nan":
            assert f"(episode {episode}, step {step})" in message


# Files that cannot be read --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mine.hdf5", "mine.npz"])
def test_names_without_a_readable_file(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / name
    assert f"{name}: no such file" in refusal(path)
    path.write_bytes(b"")
    assert f"{name}: is empty" in refusal(path)
    path.write_bytes(b"not what the ending says" * 100)
    assert f"{name}: is " in refusal(path)
    real_open = Path.open

    def denied(self: Path, *args: Any, **kwargs: Any) -> Any:
        if self == path:
            raise PermissionError(13, "Permission denied")
        return real_open(self, *args, **kwargs)

    monkeypatch.setattr(Path, "open", denied)  # the superuser may read everything, so file modes would test nothing
    assert f"{name}: may not be read" in refusal(path)
    path.unlink()
    path.mkdir()
    assert f"{name}: is a folder" in refusal(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "mine.npz")
    assert "not a regular file" in refusal(tmp_path / "mine.npz")


def test_names_that_are_not_a_source(tmp_path: Path) -> None:
    for source in ("nonsense", "", "a+", "+", "\0", "x" * 5000, "~nobody-of-this-name/mine", str(tmp_path)):
        assert ".hdf5" in refusal(source)
    (tmp_path / "data.txt").write_text("1,2")
    assert "ending in .txt is not a known kind" in refusal(tmp_path / "data.txt")
    (tmp_path / "data.csv").write_text("1,2")
    assert "is a table: make a dataset of it first: drop data import" in refusal(tmp_path / "data.csv")

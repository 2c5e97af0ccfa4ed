"""Loads data by the name of its source: a file, a folder, a Minari id, or several joined with `+`.

This module recognises the format and joins the parts. The module named after a format knows its layout.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from droprl.data.check import OPTIONAL_KEYS, REQUIRED_KEYS, Bound, fault
from droprl.data.d4rl import HDF5_SUFFIXES, load_d4rl, opened_d4rl
from droprl.data.dataset import Dataset
from droprl.data.minari_source import load_minari
from droprl.data.npz import load_npz
from droprl.data.on_disk import DESCRIPTION, Progress, is_on_disk, load_on_disk, opened_columns, write_on_disk
from droprl.data.tasks import find_task, known_time_limit
from droprl.environments.ids import given_by_user
from droprl.environments.vectors import shown_parts

_MINARI_ID = re.compile(r"[-\w]+(/[-\w]+)*-v\d+")
_KINDS = (
    "a .hdf5 or .h5 file in D4RL's layout, an .npz file, a Minari id such as mujoco/hopper/medium-v0, "
    "several of these joined with +, or a folder that drop data map made"
)


@dataclasses.dataclass(frozen=True)
class SourceOptions:
    """How to read the data."""

    download: bool = False
    """Fetch a Minari dataset that is not on this machine yet."""
    env: str | None = None
    """The Gymnasium id of the task, if the data does not name it."""
    goal: Sequence[float] | None = None
    """For OGBench files, which have no rewards: the goal's coordinates."""
    goal_radius: float | None = None
    """The goal counts as reached within this distance."""
    action_low: float | Sequence[float] | None = None
    """The actions' lower bounds, if the data does not give them: one number, or one for each dimension."""
    action_high: float | Sequence[float] | None = None
    """The actions' upper bounds, in the same form."""

    def __post_init__(self) -> None:
        given_by_user(self.env)

    def load(self, source: str | os.PathLike[str]) -> Dataset:
        text = os.fspath(source)
        parts = [text] if "+" not in text or _exists(text) else text.split("+")
        if not all(part.strip() for part in parts):
            raise fault(text, "a part before or after + is empty", f"join {_KINDS}")
        loaded = [_load_one(part if len(parts) == 1 else part.strip(), self) for part in parts]
        dataset = loaded[0] if len(loaded) == 1 else join_datasets(loaded)
        return _with_task(dataset)


def load_dataset(
    source: str | os.PathLike[str],
    *,
    download: bool = False,
    goal: Sequence[float] | None = None,
    goal_radius: float | None = None,
    action_low: Bound = None,
    action_high: Bound = None,
    env: str | None = None,
) -> Dataset:
    """Load and check a dataset: a D4RL file, an `.npz` file, a Minari id, or parts of them joined with `+`.

    `env`, `action_low` and `action_high` overrule the source. The source overrules what droprl knows of the task by the
    dataset's name. `goal` and `goal_radius` turn an OGBench file, which has no rewards, into a task.
    """
    bounds: dict[str, Any] = {"action_low": action_low, "action_high": action_high}
    return SourceOptions(download=download, env=env, goal=goal, goal_radius=goal_radius, **bounds).load(source)


def map_dataset(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    progress: Progress = lambda done, total: None,
    **options: Any,
) -> Dataset:
    """Check a dataset and write it to `out`, as a folder of columns that `load_dataset` opens in place.

    This is for data larger than memory. A D4RL file, or a folder with D4RL's keys as `.npy` files, goes through memory
    a part at a time. Other sources are read whole. `options` are the keywords of `load_dataset`.
    """
    reading = SourceOptions(**options)
    text, path = os.fspath(source), _path(os.fspath(source))
    known: dict[str, Any] = {name: getattr(reading, name) for name in ("env", "action_low", "action_high")}
    if reading.goal is None and path.suffix.lower() in HDF5_SUFFIXES and ("+" not in text or _exists(text)):
        with opened_d4rl(path, **known) as (columns, facts):
            return _with_task(write_on_disk(columns, Path(out), text, **facts, progress=progress))
    if reading.goal is None and _exists(text) and is_on_disk(path) and not (path / DESCRIPTION).exists():
        with opened_columns(path) as arrays:
            named = write_on_disk(arrays, Path(out), text, name=path.name, **known, progress=progress)
            return _with_task(named)
    dataset = reading.load(text)
    return write_on_disk(
        {key: column for key in (*REQUIRED_KEYS, *OPTIONAL_KEYS) if (column := getattr(dataset, key)) is not None},
        Path(out),
        text,
        name=dataset.name,
        env=dataset.env,
        score_range=dataset.score_range,
        time_limit=dataset.time_limit,
        action_low=dataset.action_low,
        action_high=dataset.action_high,
        observation_parts=dataset.observation_parts,
        action_parts=dataset.action_parts,
        progress=progress,
    )


def _with_task(dataset: Dataset) -> Dataset:
    """Fill in what the source lacks of its task by the dataset's name: environment, reference returns, time limit."""
    if dataset.time_limit is None:
        dataset = dataclasses.replace(dataset, time_limit=known_time_limit(dataset.name, dataset.env))
    task = find_task(dataset.name)
    if task is None:
        return dataset
    return dataclasses.replace(
        dataset,
        env=dataset.env if dataset.env is not None else task.env,
        score_range=dataset.score_range if dataset.score_range is not None else task.score_range,
    )


def join_datasets(parts: Sequence[Dataset]) -> Dataset:
    """Join the parts in this order. No episode crosses into the next part: an unfinished one counts as timed out.

    The result has `next_observations` only if every part has them.
    """
    first = parts[0]
    for part in parts:
        if part.on_disk:
            remedy = "join the sources it was made from: drop data map A+B --out FOLDER"
            raise fault(part.name, "is on the disk and cannot be joined", remedy)
    for part in parts[1:]:
        _check_joinable(first, part)
    ends = [part.timeouts.copy() for part in parts]
    for part, timeouts in zip(parts[:-1], ends[:-1], strict=True):
        timeouts[-1] = not part.terminals[-1]
    following = [part.next_observations for part in parts if part.next_observations is not None]
    return Dataset(
        observations=np.concatenate([part.observations for part in parts]),
        actions=np.concatenate([part.actions for part in parts]),
        rewards=np.concatenate([part.rewards for part in parts]),
        terminals=np.concatenate([part.terminals for part in parts]),
        timeouts=np.concatenate(ends),
        next_observations=np.concatenate(following) if len(following) == len(parts) else None,
        action_low=first.action_low,
        action_high=first.action_high,
        name=joined_name([part.name for part in parts]),
        env=next((part.env for part in parts if part.env is not None), None),
        score_range=next((part.score_range for part in parts if part.score_range is not None), None),
        time_limit=next((part.time_limit for part in parts if part.time_limit is not None), None),
        observation_parts=next((part.observation_parts for part in parts if part.observation_parts is not None), None),
        action_parts=next((part.action_parts for part in parts if part.action_parts is not None), None),
    )


def joined_name(names: Sequence[str]) -> str:
    """D4RL's name if there is one: `hopper-medium` and `hopper-expert` make `hopper-medium-expert`."""
    if len(names) == 2:
        medium = re.fullmatch(r"(.*[-/_])medium((?:-v\d+)?)", names[0])
        if medium and names[1] == f"{medium[1]}expert{medium[2]}":
            return f"{medium[1]}medium-expert{medium[2]}"
    return "+".join(names)


def _load_one(source: str, options: SourceOptions) -> Dataset:
    path = _path(source)
    suffix = path.suffix.lower()
    is_npz = suffix == ".npz"
    if options.goal is not None and not is_npz:
        raise fault(source, "a goal is only for OGBench's .npz files, which have no rewards", "leave --goal out")
    if suffix in HDF5_SUFFIXES:
        return load_d4rl(path, env=options.env, action_low=options.action_low, action_high=options.action_high)
    if is_npz:
        return load_npz(
            path,
            env=options.env,
            action_low=options.action_low,
            action_high=options.action_high,
            goal=options.goal,
            goal_radius=options.goal_radius,
        )
    if _exists(source) and is_on_disk(path):
        if options.action_low is not None or options.action_high is not None:
            raise fault(source, "has its bounds already", "give --action-low/--action-high to drop data map")
        return load_on_disk(path, env=options.env)
    if _exists(source) and (suffix in (".csv", ".tsv", ".parquet", ".pq") or (path / "meta" / "info.json").exists()):
        kind = "a LeRobot folder" if path.is_dir() else "a table"
        raise fault(source, f"is {kind}", f"make a dataset of it first: drop data import {source} --help")
    if _exists(source) and path.is_file():
        raise fault(source, f"a file ending in {suffix or 'nothing'} is not a known kind", f"name {_KINDS}")
    if _MINARI_ID.fullmatch(source):
        return load_minari(
            source,
            download=options.download,
            env=options.env,
            action_low=options.action_low,
            action_high=options.action_high,
        )
    if _exists(source):
        raise fault(source, "is a folder, not a dataset", f"name {_KINDS}")
    raise fault(source, "is neither a file nor a dataset's id", f"name {_KINDS}")


def _path(source: str) -> Path:
    try:
        return Path(source).expanduser()
    except RuntimeError:  # ~name of an unknown user: no such folder
        return Path(source)


def _exists(source: str) -> bool:
    try:
        return _path(source).exists()
    except (OSError, ValueError):  # the name is too long or has a zero byte
        return False


def _check_joinable(first: Dataset, part: Dataset) -> None:
    where = f"{first.name}+{part.name}"
    for key in ("observation_size", "action_size"):
        ours, theirs = getattr(first, key), getattr(part, key)
        if ours != theirs:
            raise fault(where, f"{key} is {ours} in {first.name} but {theirs} in {part.name}", "join data of one task")
    for key in ("action_low", "action_high"):
        if not np.array_equal(getattr(first, key), getattr(part, key)):
            raise fault(
                where,
                f"{key} of {first.name} and {part.name} differ",
                "pass --action-low/--action-high for all parts",
            )
    for key in ("observation_parts", "action_parts"):
        ours, theirs = getattr(first, key), getattr(part, key)
        if ours is not None and theirs is not None and ours != theirs:
            what = f"{key} are {shown_parts(ours)} in {first.name} but {shown_parts(theirs)} in {part.name}"
            raise fault(where, what, "join data with the same columns in the same order")
    for key in ("env", "score_range", "time_limit"):
        ours, theirs = getattr(first, key), getattr(part, key)
        if ours is not None and theirs is not None and ours != theirs:
            raise fault(where, f"{key} is {ours} in {first.name} but {theirs} in {part.name}", "join data of one task")

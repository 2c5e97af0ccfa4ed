"""Where a task's data is found, and the record of the data that a method learned from.

A cell writes the record, suite.json keeps it, and the page shows it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from droprl.bench.results import Bench
from droprl.bench.small_files import DataRecord
from droprl.data import Dataset, load_dataset
from droprl.data.d4rl import HDF5_SUFFIXES
from droprl.data.hdf5 import file_origin
from droprl.data.made import can_be_made, make_dataset
from droprl.environments.mazes import env_id
from droprl.errors import DropError

MAZE_STEPS = 100_000  # of a maze that is made on the spot
MADE = "regenerated on the spot: walks of scripted controllers"


def find_task_data(task: str, data: Path | None) -> Dataset:
    """Load what `task_source` finds, or make the maze."""
    source = task_source(task, data)
    return make_dataset(task, MAZE_STEPS, seed=0) if source is None else load_dataset(source)


def task_source(task: str, data: Path | None) -> str | None:
    """FOLDER/TASK.hdf5, or several such files joined with +; None for a maze that must be made.

    If X-medium-expert has no file of its own, X-medium and X-expert are joined.
    """
    for name in (task, re.sub(r"^(\w+)-medium-expert$", r"\1-medium+\1-expert", task)):
        files = [data / f"{part}.hdf5" for part in name.split("+")] if data is not None else []
        if files and all(file.exists() for file in files):
            return "+".join(map(str, files))
    if can_be_made(task):
        return None
    if Path(task).exists() or "/" in task:
        return task
    where = f"{data} has no {task}.hdf5" if data is not None else "say where its file is with --data FOLDER"
    raise DropError(f"task {task}: {where}")


# --- the record ---


def data_record(source: str | None, dataset: Dataset) -> DataRecord:
    """The record of a dataset; `source` is what `task_source` returned."""
    parts = [] if source is None else source.split("+")
    files = [Path(part) for part in parts if Path(part).is_file()]
    names = [Path(part).name if Path(part).is_file() else part for part in parts]
    return DataRecord(
        source=" + ".join(names) or f"made: {dataset.name}, seed 0",
        sha256={file.name: _sha256(file) for file in files},
        origin=MADE if source is None else origin_of_files(files),
        made=source is None,
        fingerprint=dataset.fingerprint,
        steps=dataset.n_steps,
        episodes=dataset.n_episodes,
    )


def refuse_other_data(bench: Bench, task: str, record: DataRecord) -> None:
    """All methods must learn from the same data. A maze made on another machine may differ in its last digits."""
    others = [other["fingerprint"] for other in bench.data_of(task) if not other["made"]]
    if not record.made and others and record.fingerprint not in others:
        raise DropError(
            f"{record.source} is not the data that other methods here learned from (its fingerprint is "
            f"{record.fingerprint}, theirs is {others[0]}): give the same --data, or another --out"
        )


# --- in words ---


class DataWords(NamedTuple):
    """The data of a suite in words."""

    note: str  # what a reader must know about the data; may be empty
    beside: str  # a few words to stand beside a number


def data_words(bench: Bench) -> DataWords:
    """Whether the played tasks have D4RL's own data, as far as that is known."""
    tasks = [task for task in bench.suite.tasks if bench.any_evaluation(task) is not None]
    origins = {task: _origin(bench, task) for task in tasks}
    anew = [task for task, origin in origins.items() if origin and origin.lower().startswith("regenerated")]
    if anew:
        which = "" if len(anew) == len(tasks) else f" ({', '.join(anew)})"
        note = f"Regenerated data{which}: not D4RL’s files; the scores are not comparable with published ones."
        return DataWords(note, "regenerated data" if len(anew) == len(tasks) else "partly regenerated data")
    unknown = [task for task, origin in origins.items() if not origin]
    note = f"It is not recorded whether these are D4RL’s own files: {', '.join(unknown)}." if unknown else ""
    return DataWords(note, ", ".join(tasks) if len(tasks) < 3 else f"{len(tasks)} datasets of these names")


def _origin(bench: Bench, task: str) -> str | None:
    """The recorded origin; for an older suite without records, what the files in `bench.data` say."""
    if records := bench.data_of(task):
        return "; ".join(dict.fromkeys(r["origin"] for r in records if r["origin"])) or None
    try:
        source = task_source(task, bench.data)
    except DropError:
        return None
    if source is None:
        return MADE if (bench.any_evaluation(task) or {}).get("env") == env_id(task) else None
    return origin_of_files([Path(part) for part in source.split("+")])


def origin_of_files(files: Sequence[Path]) -> str | None:
    """The texts in the attribute `origin` of D4RL-like files, each once."""
    origins = []
    for file in files:
        if file.suffix.lower() in HDF5_SUFFIXES and file.is_file():
            origins.append(file_origin(file))
    return "; ".join(dict.fromkeys(text for text in origins if text is not None)) or None


def _sha256(file: Path) -> str:
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()

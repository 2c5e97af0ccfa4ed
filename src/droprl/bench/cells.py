"""One cell of a suite: a method on a task, trained and played. What is there is not done again.

A cell belongs to one process at a time. What it is doing can be read from the disk by anybody, and a cell that was
killed goes on where its last checkpoint is, to the same bytes.
"""

from __future__ import annotations

import re
import resource
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax

from droprl.bench.results import Bench
from droprl.bench.suite import Method
from droprl.data import Dataset, load_dataset
from droprl.data.maze import MAZES, make_maze_dataset
from droprl.errors import DropError
from droprl.evaluation import evaluate
from droprl.train import Run, fit
from droprl.train.storage import write_json

MAZE_STEPS = 100_000  # of the mazes that are made on the spot


class Cell(NamedTuple):
    task: str
    method: Method

    def __str__(self) -> str:
        return f"{self.task}, {self.method.name}"


def cells_of(bench: Bench) -> list[Cell]:
    return [Cell(task, method) for task in bench.suite.tasks for method in bench.suite.methods]


def is_done(bench: Bench, cell: Cell) -> bool:
    plays = bench.suite.plays_of(cell.method)
    if not all(bench.is_played(cell.task, cell.method, play) for play in plays):
        return False
    # A suite that was copied without its weights is done if it was played.
    return bool(plays) or _finished(bench.run_path(cell.task, cell.method))


def run_cell(bench: Bench, cell: Cell) -> None:
    """Train what is not trained, play what is not played."""
    if is_done(bench, cell):
        return
    suite, (task, method) = bench.suite, cell
    path = bench.run_path(task, method)
    dataset = find_task_data(task, bench.data)
    algorithm = method.algorithm(bench.preset, suite.name)
    began, finished = time.perf_counter(), _finished(path)
    run = fit(dataset, algorithm, out=path, seeds=suite.seeds, steps=suite.steps_of(method), progress=False)
    if not finished:
        _add_cost(bench, cell, time.perf_counter() - began)
    for play, settings in suite.plays_of(method).items():
        if not bench.is_played(task, method, play):
            found = evaluate(run, episodes=suite.episodes, protocol=suite.protocol, progress=False, **settings)
            write_json(bench.play_path(task, method, play), found.to_json())


def state_of(bench: Bench, cell: Cell) -> str:
    """In a few letters, from the disk."""
    path = bench.run_path(cell.task, cell.method)
    if not (path / "config.json").exists():
        return "·"
    step = max((c.step for c in Run(path).checkpoints()), default=0)
    if step < (steps := bench.suite.steps_of(cell.method)):
        return f"training {100 * step // steps} %"
    plays = bench.suite.plays_of(cell.method)
    played = sum(bench.play_path(cell.task, cell.method, play).exists() for play in plays)
    return f"playing {played}/{len(plays)}" if played < len(plays) else "done"


def find_task_data(task: str, data: Path | None) -> Dataset:
    """What `task_source` found; a maze that is nowhere is made."""
    source = task_source(task, data)
    return make_maze_dataset(task, MAZE_STEPS, seed=0) if source is None else load_dataset(source)


def task_source(task: str, data: Path | None) -> str | None:
    """FOLDER/TASK.hdf5, each part of it where several are joined with +; None for a maze that is to be made.

    Where X-medium-expert has no file of its own, X-medium and X-expert are joined.
    """
    for name in (task, re.sub(r"^(\w+)-medium-expert$", r"\1-medium+\1-expert", task)):
        files = [data / f"{part}.hdf5" for part in name.split("+")] if data is not None else []
        if files and all(file.exists() for file in files):
            return "+".join(map(str, files))
    if task in MAZES:
        return None
    if Path(task).exists() or "/" in task:
        return task
    where = f"{data} has no {task}.hdf5" if data is not None else "say where its file is with --data FOLDER"
    raise DropError(f"task {task}: {where}")


def _finished(path: Path) -> bool:
    return (path / "config.json").exists() and Run(path).finished


def _add_cost(bench: Bench, cell: Cell, seconds: float) -> None:
    """What training took, compiling and saving included; a training that was interrupted adds up its parts."""
    before = bench.cost(cell.task, cell.method)
    total = seconds + (before["train_seconds"] if before else 0.0)
    cost = {
        "train_seconds": total,
        "updates_per_second": bench.suite.steps_of(cell.method) / total,
        "peak_memory_mb": _peak_memory() / 2**20,
        "device": jax.devices()[0].device_kind,
    }
    write_json(bench.cost_path(cell.task, cell.method), cost)


def _peak_memory() -> float:
    """Bytes: of the accelerator where there is one, of this process otherwise."""
    stats: dict[str, Any] | None = jax.local_devices()[0].memory_stats()
    if stats and "peak_bytes_in_use" in stats:
        return float(stats["peak_bytes_in_use"])
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(largest if sys.platform == "darwin" else 1024 * largest)

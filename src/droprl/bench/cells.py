"""One cell of a suite: one method on one task, trained and played. What is already done is not done again.

One process works on a cell at a time. Any process can read from the disk how far the cell is. A cell that was killed
goes on from its last checkpoint and ends with the same bytes.
"""

from __future__ import annotations

import resource
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import jax

from droprl.bench.results import Bench
from droprl.bench.searched import is_searched, play_search
from droprl.bench.suite import Method
from droprl.bench.task_data import data_record, find_task_data, refuse_other_data, task_source
from droprl.evaluation import evaluate
from droprl.files.seals import sealed
from droprl.files.storage import write_bytes
from droprl.train import Run, fit


class Cell(NamedTuple):
    task: str
    method: Method

    def __str__(self) -> str:
        return f"{self.task}, {self.method.name}"


def cells_of(bench: Bench) -> list[Cell]:
    """The cells of the part of the suite that is asked for."""
    return [Cell(task, method) for task in bench.asked.tasks for method in bench.asked.methods]


def is_done(bench: Bench, cell: Cell) -> bool:
    plays = bench.suite.plays_of(cell.method)
    if not all(bench.is_played(cell.task, cell.method, play) for play in plays):
        return False
    if not is_searched(bench, cell.task, cell.method):
        return False
    # A copy of a suite may lack the weights: there a cell is done once it is played.
    return bool(plays) or _finished(bench.run_path(cell.task, cell.method))


def run_cell(bench: Bench, cell: Cell) -> None:
    """Train the method unless it is trained, then play what is not played."""
    if is_done(bench, cell):
        return
    suite, (task, method) = bench.suite, cell
    path = bench.run_path(task, method)
    dataset = find_task_data(task, bench.data)
    record = data_record(task_source(task, bench.data), dataset)
    refuse_other_data(bench, task, record)
    algorithm = method.algorithm(bench.preset, suite.name)
    began, before = time.perf_counter(), _steps_done(path)
    run = fit(dataset, algorithm, out=path, seeds=suite.seeds, steps=suite.steps_of(method), progress=False)
    # Only now, because `fit` refuses to go on with other data.
    write_bytes(bench.data_path(task, method), sealed(asdict(record)))
    if updates := suite.steps_of(method) - before:
        _write_cost(bench, cell, time.perf_counter() - began, updates)
    for play, settings in suite.plays_of(method).items():
        if not bench.is_played(task, method, play):
            found = evaluate(run, episodes=suite.episodes, protocol=suite.protocol, progress=False, **settings)
            write_bytes(bench.play_path(task, method, play), sealed(found.to_json()))
    if not is_searched(bench, task, method):
        play_search(bench, task, method, run)


def state_of(bench: Bench, cell: Cell) -> str:
    """How far the cell is, in a few words, from the disk."""
    if is_done(bench, cell):
        return "done"
    path = bench.run_path(cell.task, cell.method)
    if not (path / "config.json").exists():
        return "·"
    step = _steps_done(path)
    if step < (steps := bench.suite.steps_of(cell.method)):
        return f"training {100 * step // steps} %"
    plays = bench.suite.plays_of(cell.method)
    played = sum(bench.is_played(cell.task, cell.method, play) for play in plays)
    return f"playing {played}/{len(plays)}"


def _finished(path: Path) -> bool:
    return (path / "config.json").exists() and Run(path).finished


def _steps_done(path: Path) -> int:
    """Updates up to the last checkpoint."""
    checkpoints = Run(path).checkpoints() if (path / "config.json").exists() else []
    return checkpoints[-1].step if checkpoints else 0


def _write_cost(bench: Bench, cell: Cell, seconds: float, updates: int) -> None:
    """What training cost in this process, with compiling and saving, and for how many updates. After an interruption
    these are not all updates, because nobody knows what the killed process spent."""
    cost = {
        "train_seconds": seconds,
        "updates": updates,
        "updates_per_second": updates / seconds,
        "peak_memory_mb": _peak_memory() / 2**20,
        "device": jax.devices()[0].device_kind,
    }
    write_bytes(bench.cost_path(cell.task, cell.method), sealed(cost))


def _peak_memory() -> float:
    """In bytes: of the accelerator if there is one, otherwise of this process."""
    stats: dict[str, Any] | None = jax.local_devices()[0].memory_stats()
    if stats and "peak_bytes_in_use" in stats:
        return float(stats["peak_bytes_in_use"])
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(largest if sys.platform == "darwin" else 1024 * largest)

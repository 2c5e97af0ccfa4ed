"""Run a suite: what is missing is trained and played, what is there is not done again.

OUT/runs/TASK/METHOD are run directories like any other; OUT/plays/TASK/METHOD/PLAY.json is one evaluation each;
OUT/episodes.csv has every episode in one tidy table.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from droprl.bench.suite import Method, Suite
from droprl.data import Dataset, load_dataset
from droprl.data.maze import make_maze_dataset
from droprl.errors import DropError
from droprl.evaluation import evaluate
from droprl.train import Run, fit
from droprl.train.storage import read_json, write_bytes, write_json

MAZE_STEPS = 100_000  # of the mazes that are made on the spot
COLUMNS = ("task", "method", "play", "seed", "step", "episode", "return", "score", "length")


@dataclass(frozen=True)
class Bench:
    """A suite and where its results are."""

    suite: Suite
    out: Path
    data: Path | None = None
    preset: Literal["paper", "small"] = "paper"

    def run_path(self, task: str, method: Method) -> Path:
        return self.out / "runs" / file_name(task) / file_name(method.name)

    def play_path(self, task: str, method: Method, play: str) -> Path:
        return self.out / "plays" / file_name(task) / file_name(method.name) / f"{file_name(play)}.json"

    def evaluation(self, task: str, method: Method, play: str) -> dict[str, Any] | None:
        """What was played, as it was written; None where it is still to come."""
        path = self.play_path(task, method, play)
        return read_json(path) if path.exists() else None

    def scores(self, task: str, method: Method, play: str) -> np.ndarray | None:
        """The mean of every seed over its episodes and checkpoints: D4RL-normalised, or returns without a reference."""
        found = self.evaluation(task, method, play)
        if found is None:
            return None
        of_seed: dict[int, list[float]] = {}
        for result in found["results"]:
            of_seed.setdefault(result["seed"], []).extend(result["scores"] or result["returns"])
        return np.array([np.mean(values) for values in of_seed.values()])

    def milliseconds(self, task: str, method: Method, play: str) -> np.ndarray | None:
        """For one action; one number, as the seeds share the machine."""
        found = self.evaluation(task, method, play)
        known = found["milliseconds_per_action"] if found else None
        return None if known is None else np.array([known])


def file_name(text: str) -> str:
    return re.sub(r"[^-+.=\w]+", "-", text)


def run_suite(bench: Bench, say: Callable[[str, str, str], None] = lambda task, method, state: None) -> None:
    """`say` hears of every task and method what is being done with it."""
    suite = bench.suite
    algorithms = {method.name: method.algorithm(bench.preset, suite.name) for method in suite.methods}
    for task in suite.tasks:
        dataset: Dataset | None = None
        for method in suite.methods:
            path = bench.run_path(task, method)
            if not ((path / "config.json").exists() and Run(path).finished and _is_played(bench, task, method)):
                dataset = dataset or find_task_data(task, bench.data)
                say(task, method.name, "training")
                run = fit(
                    dataset, algorithms[method.name], out=path, seeds=suite.seeds, steps=suite.steps, progress=False
                )
                for play, settings in suite.plays_of(method).items():
                    if not bench.play_path(task, method, play).exists():
                        say(task, method.name, f"playing {play}")
                        _play(bench, task, method, play, run, settings)
            say(task, method.name, "done")
    write_bytes(bench.out / "episodes.csv", _tidy(bench).encode())


def find_task_data(task: str, data: Path | None) -> Dataset:
    """FOLDER/TASK.hdf5, each part of it where several are joined with +; a maze that is not there is made."""
    files = [data / f"{part}.hdf5" for part in task.split("+")] if data is not None else []
    if files and all(file.exists() for file in files):
        return load_dataset("+".join(map(str, files)))
    if task.startswith("maze2d-"):
        return make_maze_dataset(task, MAZE_STEPS, seed=0)
    if Path(task).exists() or "/" in task:
        return load_dataset(task)
    where = f"{data} has no {task}.hdf5" if data is not None else "say where its file is with --data FOLDER"
    raise DropError(f"task {task}: {where}")


def _is_played(bench: Bench, task: str, method: Method) -> bool:
    return all(bench.play_path(task, method, play).exists() for play in bench.suite.plays_of(method))


def _play(bench: Bench, task: str, method: Method, play: str, run: Run, settings: dict[str, Any]) -> None:
    suite = bench.suite
    found = evaluate(run, episodes=suite.episodes, protocol=suite.protocol, progress=False, **settings)
    write_json(bench.play_path(task, method, play), found.to_json())


def _tidy(bench: Bench) -> str:
    said = io.StringIO()
    writer = csv.writer(said, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_rows(bench))
    return said.getvalue()


def _rows(bench: Bench) -> Iterator[tuple[object, ...]]:
    suite = bench.suite
    for task in suite.tasks:
        for method in suite.methods:
            for play in suite.plays_of(method):
                found = bench.evaluation(task, method, play)
                for r in found["results"] if found else ():
                    scores = r["scores"] or [""] * len(r["returns"])
                    for i, (earned, score, length) in enumerate(zip(r["returns"], scores, r["lengths"], strict=True)):
                        yield task, method.name, play, r["seed"], r["step"], i, earned, score, length

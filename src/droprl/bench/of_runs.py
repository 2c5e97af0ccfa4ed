"""What a suite's run directories add to its page: learning curves, an episode, costs, and where the data came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import h5py
import numpy as np

from droprl.bench.results import Bench
from droprl.bench.suite import Method
from droprl.errors import DropError
from droprl.policy import policy_of_run
from droprl.report.build import CURVES, DIAGNOSTIC_CURVES, metric_chart, scores_at_start, sub_tasks_of, walks_of
from droprl.report.contents import Chart, EmbeddingWalk, SubTaskReturns
from droprl.report.suite_contents import Cost, Entry, Predictions
from droprl.train import Run
from droprl.train.storage import read_json


def _run(bench: Bench, task: str, method: Method) -> Run | None:
    path = bench.run_path(task, method)
    return Run(path) if (path / "config.json").exists() else None


# --- learning curves ---


def training_charts(bench: Bench) -> tuple[list[Chart], list[Chart]]:
    """A chart a task of what all methods log alike, and those of all other metrics."""
    runs = {t: [(m.name, r) for m in bench.suite.methods if (r := _run(bench, t, m))] for t in bench.suite.tasks}
    first, *others = (CURVES | DIAGNOSTIC_CURVES).items()

    def charts(metric: str, title: str, unit: str) -> list[Chart]:
        drawn = [metric_chart(of, metric, f"{task}: {title[0].lower()}{title[1:]}", unit) for task, of in runs.items()]
        return [chart for chart in drawn if chart.series]

    return charts(first[0], *first[1]), [chart for name, words in others for chart in charts(name, *words)]


# --- an episode ---


@dataclass(frozen=True)
class EpisodeOfRun:
    of: str
    walks: list[EmbeddingWalk] = field(default_factory=list)
    sub_tasks: SubTaskReturns | None = None
    predictions: list[Predictions] = field(default_factory=list)
    problem: str = ""  # why there is none


def episode_of(bench: Bench) -> EpisodeOfRun | None:
    """An episode of the first run that adapts among sub-tasks and has a task to play."""
    for task in bench.suite.tasks:
        for method in bench.suite.methods:
            run = _run(bench, task, method)
            if run is None or not run.checkpoints() or run.config.data.env is None:
                continue
            if run.config.algorithm.adaptation is None or run.spec().n_sub_tasks < 2:
                continue
            try:
                walks, predicted = walks_of(run), scores_at_start(policy_of_run(run))
            except DropError as error:
                return EpisodeOfRun("", problem=f"No episode could be played for this page: {error}.")
            predictions = [p for w in walks if (p := predictions_of(run, w)) is not None]
            return EpisodeOfRun(f"{method.name} on {task}", walks, sub_tasks_of(run, predicted), predictions)
    return None


def predictions_of(run: Run, walk: EmbeddingWalk) -> Predictions | None:
    discount = getattr(run.config.algorithm, "discount", None)
    scale = read_json(run.path / "data.json").get("reward_scale")
    if not discount or not scale or not walk.rewards:
        return None
    backwards = accumulate(reversed(walk.rewards), lambda later, now: now + discount * later)
    earned = [total / scale for total in backwards][::-1]
    # Between two inferences the score stays as it was, and says nothing of the state that has been reached.
    anew = [i for i, score in enumerate(walk.scores) if i == 0 or score != walk.scores[i - 1]]
    return Predictions(walk.rule, [walk.scores[i] for i in anew], [earned[i] for i in anew])


# --- costs ---


def read_costs(bench: Bench, played: Sequence[tuple[Entry, Method, Mapping[str, dict[str, Any]]]]) -> list[Cost]:
    """The median over the tasks of what was measured; empty where nothing was."""
    found = []
    for entry, method, evaluations in played:
        measured = [cost for task in bench.suite.tasks if (cost := bench.cost(task, method)) is not None]
        found.append(
            Cost(
                entry,
                _median(m.get("train_seconds") for m in measured),
                _median(m.get("updates_per_second") for m in measured),
                _median(m.get("peak_memory_mb") for m in measured),
                _median(e["milliseconds_per_action"] for e in evaluations.values()),
                ", ".join(dict.fromkeys(str(m["device"]) for m in measured if m.get("device"))),
            )
        )
    known = [c.milliseconds_per_action for c in found] + [c.train_seconds for c in found]
    return found if np.isfinite(known).any() else []


def _median(values: Any) -> float:
    known = [float(v) for v in values if v is not None]
    return float(np.median(known)) if known else float("nan")


# --- where the data came from ---


def origin_of(bench: Bench, task: str, env: str) -> str | None:
    """What the task's file says of itself; mazes that are made on the spot have none, and are regenerated."""
    file = None if bench.data is None else bench.data / f"{task.split('+')[0]}.hdf5"
    if file is not None and file.is_file():
        with h5py.File(file) as opened:
            said = opened.attrs.get("origin")
        return said.decode() if isinstance(said, bytes) else None if said is None else str(said)
    return "regenerated on the spot" if env.startswith("droprl/") else None

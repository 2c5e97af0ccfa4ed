"""What the run directories of a suite add to its page: learning curves, an episode, and costs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from droprl.algorithms.curves import Curve
from droprl.bench.page.contents import Cost, Entry, Predictions
from droprl.bench.results import EPISODE, Bench
from droprl.bench.suite import Method
from droprl.errors import DropError
from droprl.evaluation.statistics import Estimate
from droprl.files.seals import read_sealed, sealed
from droprl.files.settings import from_dict
from droprl.files.storage import write_bytes
from droprl.loaded import policy_of_run
from droprl.report.build import curve_chart, curves_of, has_several_sub_tasks, scores_at_start, sub_tasks_of, walks_of
from droprl.report.contents import Chart, EmbeddingWalk, SubTaskReturns
from droprl.svg import nullable
from droprl.train import Run
from droprl.train.run import MEND

# --- learning curves ---


def training_charts(bench: Bench) -> tuple[list[Chart], list[Chart]]:
    """The charts of the first metric, one for each task; and those of all other metrics."""
    runs = {t: [(m.name, r) for m in bench.suite.methods if (r := bench.run(t, m))] for t in bench.suite.tasks}
    declared = [curve for curve in curves_of([pair for pairs in runs.values() for pair in pairs]) if not curve.lines]
    places = {method.name: i for i, method in enumerate(bench.suite.methods)}

    def charts(curve: Curve) -> list[Chart]:
        drawn = []
        for task, pairs in runs.items():
            chart = curve_chart(pairs, curve)
            series = [replace(s, look=(places[s.label], 0)) for s in chart.series]
            title = f"{task}: {curve.title[0].lower()}{curve.title[1:]}"
            drawn += [replace(chart, title=title, series=series, panel=(curve.title, task))] if series else []
        return drawn

    drawn = [charts(curve) for curve in sorted(declared, key=lambda curve: curve.diagnosis)]
    return drawn[0] if drawn else [], [chart for several in drawn[1:] for chart in several]


# --- an episode ---


@dataclass(frozen=True)
class EpisodeOfRun:
    """One episode of one run under each rule."""

    of: str  # the method and the task
    walks: list[EmbeddingWalk] = field(default_factory=list)
    sub_tasks: SubTaskReturns | None = None
    predictions: list[Predictions] = field(default_factory=list)
    problem: str = ""  # why no episode could be played


def episode_of(bench: Bench) -> EpisodeOfRun | None:
    """Play the first run that adapts among sub-tasks and whose task is known.

    The episode is saved in the suite's folder, for copies of the folder that have no weights.
    """
    where, played = bench.out / EPISODE, _play_episode(bench)
    if played is not None and not played.problem:
        write_bytes(where, sealed(_in_short(asdict(played)), _without_spaces))
    elif played is None and where.exists():
        return _saved_episode(read_sealed(where, "remove it, and the page is made without one"), where)
    return played


def _without_spaces(content: dict[str, Any]) -> str:
    return json.dumps(content, separators=(",", ":"), allow_nan=False)


def _in_short(content: Any) -> Any:
    """The content as JSON can hold it, with the digits of a float32."""
    if isinstance(content, dict):
        return {key: _in_short(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_in_short(value) for value in content]
    return nullable(content, digits=8) if isinstance(content, float) else content


def _saved_episode(content: Any, where: Path) -> EpisodeOfRun:
    remedy = "remove it, and the page is made without one"
    try:
        walks = [_saved_walk(walk, where, remedy) for walk in content["walks"]]
        ranked = content["sub_tasks"]
        columns: dict[str, Any] = {name: _numbers(values) for name, values in (ranked or {}).items()}
        sub_tasks = SubTaskReturns(**columns) if ranked else None
        predictions = [from_dict(Predictions, p, str(where), remedy) for p in content["predictions"]]
        return EpisodeOfRun(str(content["of"]), walks, sub_tasks, predictions)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise DropError(f"{where}: is not an episode: {remedy}") from error


def _saved_walk(content: Any, where: Path, remedy: str) -> EmbeddingWalk:
    scores = _numbers(content["scores"]) or []
    walk = from_dict(EmbeddingWalk, content | {"scores": [0.0] * len(scores)}, str(where), remedy)
    if not walk.path or not all(-1 <= n < len(walk.embeddings) for n in walk.start_of_path):
        raise ValueError("its path has no steps, or starts nowhere")
    return replace(walk, scores=scores)


def _numbers(values: Any) -> list[float] | None:
    """A list of numbers in which JSON has null for NaN."""
    return None if values is None else [math.nan if value is None else float(value) for value in list(values)]


def _play_episode(bench: Bench) -> EpisodeOfRun | None:
    for task in bench.suite.tasks:
        for method in bench.suite.methods:
            run = bench.run(task, method)
            if not isinstance(run, Run) or not run.checkpoints() or run.config.data.env is None:
                continue
            if run.config.algorithm.adaptation is None or not has_several_sub_tasks(run):
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
    content = read_sealed(run.path / "data.json", MEND)
    scale, plus = content.get("reward_scale"), content.get("reward_plus", 0.0)
    if not discount or not scale or not walk.rewards:
        return None
    treated = (reward + plus * scale for reward in reversed(walk.rewards))
    backwards = accumulate(treated, lambda later, now: now + discount * later)
    earned = [total / scale for total in backwards][::-1]
    # Between two inferences the score does not change: it says nothing about the present state.
    anew = [i for i, score in enumerate(walk.scores) if i == 0 or score != walk.scores[i - 1]]
    return Predictions(walk.rule, [walk.scores[i] for i in anew], [earned[i] for i in anew])


# --- costs ---


def read_costs(
    bench: Bench, played: Sequence[tuple[Entry, Method, Mapping[str, dict[str, Any]], Estimate | None]]
) -> list[Cost]:
    """For each entry its score and the median cost over the tasks. Empty if nothing was measured."""
    found = []
    for entry, method, evaluations, score in played:
        measured = [cost for task in bench.suite.tasks if (cost := bench.cost(task, method)) is not None]
        found.append(
            Cost(
                entry,
                score,
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

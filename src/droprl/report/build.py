"""From run directories to the contents of a report: scores, curves, sub-tasks, diagnostics, and z* on its walk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import jax
import numpy as np

from droprl.adapt import RULES, InferenceRule, Plane
from droprl.algorithms import Algorithm
from droprl.algorithms.curves import Curve
from droprl.environments.mazes import CELL_OFFSET, MAZES, env_id
from droprl.errors import DropError
from droprl.evaluation import EVALUATION_SEED, Evaluation, load_evaluations
from droprl.evaluation.evaluation import task_of
from droprl.loaded import LoadedPolicy, policy_of_run
from droprl.policies import Carry, Facts
from droprl.report.contents import Chart, Diagnostic, EmbeddingWalk, Report, ScoreRow, Series, SubTaskReturns
from droprl.rollout import EnvMaker, rollout
from droprl.train.config import RunConfig
from droprl.train.endings import ending_checks
from droprl.train.run import Run


def build_report(runs: Sequence[Run], command: str, notes: Sequence[str] = ()) -> Report:
    """Everything that these runs of one dataset can show. The first run that adapts among sub-tasks also plays an
    episode under each rule.

    If the task cannot be played here, the page says so and has the rest.
    """
    evaluations = [e for run in runs for e in load_evaluations(run)]
    in_sub_tasks = [run for run in runs if has_several_sub_tasks(run)]
    adaptive = next((run for run in in_sub_tasks if run.config.algorithm.adaptation is not None), None)
    named = [(run.config.algorithm.name, run) for run in runs]
    data = runs[0].config.data
    walks: list[EmbeddingWalk] = []
    predicted: list[float] | None = None
    all_notes = [*notes, *dict.fromkeys(f"{e.dataset}: {e.caveat}." for e in evaluations if e.caveat)]
    if old := [" ".join(filter(None, (e.algorithm, e.rule, *e.particulars))) for e in evaluations if e.unsealed]:
        all_notes.append(f"Of an older version, without a checksum: the evaluations of {', '.join(old)}.")
    if adaptive is not None and data.env is not None:
        try:
            walks, predicted = walks_of(adaptive), scores_at_start(policy_of_run(adaptive))
        except DropError as error:
            all_notes.append(f"No episode could be played for this page: {error}.")
    return Report(
        title=data.name,
        subtitle=f"{', '.join(run.config.algorithm.name for run in runs)} on {data.n_episodes:,} trajectories",
        command=command,
        score_unit=evaluations[0].unit if evaluations else "return",
        table=[_row(e) for e in evaluations],
        curves=_charts(named, diagnosis=False),
        sub_tasks=next((sub_tasks_of(run, predicted) for run in (adaptive, *in_sub_tasks) if run is not None), None),
        diagnostics=next((found for run in runs if (found := _diagnostics(run))), []),
        diagnostic_charts=_charts(named, diagnosis=True),
        walks=walks,
        facts=_facts(runs),
        notes=all_notes,
        interval_of="iqm",
    )


def _row(evaluation: Evaluation) -> ScoreRow:
    return ScoreRow(
        method=evaluation.algorithm,
        rule=" ".join(filter(None, (evaluation.rule, *evaluation.particulars))) or None,
        mean=evaluation.mean,
        iqm=evaluation.iqm,
        low=evaluation.interval[0],
        high=evaluation.interval[1],
        seeds=len({r.seed for r in evaluation.results}),
        episodes=len(evaluation.values),
        milliseconds_per_action=float("nan") if (ms := evaluation.milliseconds_per_action) is None else ms,
        episode_scores=evaluation.values,
    )


# --- curves ---


class LoggedRun(Protocol):
    """What the curves need of a run: no weights."""

    @property
    def config(self) -> RunConfig: ...

    def metrics(self) -> list[dict[str, Any]]: ...


def curves_of(runs: Sequence[tuple[str, LoggedRun]]) -> list[Curve]:
    """The curves that the runs' algorithms declare, one for each metric: that of the first algorithm that has it."""
    found: dict[str, Curve] = {}
    for _, run in runs:
        for curve in run.config.algorithm.card.curves:
            found.setdefault(curve.metric, curve)
    return list(found.values())


def curve_chart(runs: Sequence[tuple[str, LoggedRun]], curve: Curve) -> Chart:
    """The chart of a curve, from the logs of the runs whose algorithm declares it. Each run has a name."""
    own = [(name, run) for name, run in runs if any(c.metric == curve.metric for c in run.config.algorithm.card.curves)]
    lines = [(metric, f"{name}, {part}" if part else name, run) for name, run in own for metric, part in _lines(curve)]
    series = [s for metric, label, run in lines if (s := _series(run, metric, label)) is not None]
    has_band = any(s.low is not None for s in series)
    band = "Mean over seeds; the band reaches from the lowest to the highest." if has_band else ""
    return Chart(curve.title, "updates", curve.unit, series, curve.note or band)


def _lines(curve: Curve) -> tuple[tuple[str, str], ...]:
    return curve.lines or ((curve.metric, ""),)


def _charts(runs: Sequence[tuple[str, LoggedRun]], diagnosis: bool) -> list[Chart]:
    charts = [curve_chart(runs, curve) for curve in curves_of(runs) if curve.diagnosis == diagnosis]
    return [chart for chart in charts if chart.series]


def _series(run: LoggedRun, metric: str, label: str) -> Series | None:
    entries = [(e["step"], e[metric]) for e in run.metrics() if metric in e]
    if not entries:
        return None
    values = np.array([[np.nan if v is None else v for v in value] for _, value in entries], dtype=float)
    return Series(
        label=label,
        x=[float(step) for step, _ in entries],
        y=values.mean(axis=1).tolist(),
        low=values.min(axis=1).tolist() if values.shape[1] > 1 else None,
        high=values.max(axis=1).tolist() if values.shape[1] > 1 else None,
    )


# --- sub-tasks and diagnostics ---


def has_several_sub_tasks(run: Run) -> bool:
    """Whether the run has more than one sub-task. Older runs count data that is not cut as one sub-task."""
    return (run.spec().n_sub_tasks or 1) > 1


def sub_tasks_of(run: Run, predicted: list[float] | None) -> SubTaskReturns:
    summary = run.sub_tasks()
    assert summary is not None
    return SubTaskReturns(summary.mean, summary.low, summary.high, predicted)


def scores_at_start(policy: LoadedPolicy, n_starts: int = 8) -> list[float]:
    """f(s₀, β(s₀, z_n), z_n) for each sub-task: the mean over a few initial states of the task."""
    search = policy.search
    assert search is not None
    env = task_of(policy.origin, None)[0]()
    starts = np.stack([env.reset(seed=EVALUATION_SEED + i)[0] for i in range(n_starts)]).astype(np.float32)
    env.close()
    normalized = jax.numpy.asarray(policy.scaling.observations_in(starts))
    return [float(v) for v in jax.jit(lambda o: jax.vmap(search.scores)(o).mean(axis=0))(normalized)]


def _diagnostics(run: Run) -> list[Diagnostic]:
    """The algorithm's own checks of each seed, on the last value of each metric in the log; and whether it was over."""
    latest: dict[str, Any] = {}
    for entry in (log := run.metrics()):
        latest |= entry
    algorithm: Algorithm = run.config.algorithm
    found = []
    for i, seed in enumerate(run.config.seeds):
        last = {
            name: float("nan") if value[i] is None else float(value[i])
            for name, value in latest.items()
            if isinstance(value, list)
        }
        checks = [*algorithm.checks(last), *(ending_checks(algorithm.card, log, i) if run.finished else ())]
        suffix = f", seed {seed}" if len(run.config.seeds) > 1 else ""
        found += [Diagnostic(c.name + suffix, c.value, c.healthy, c.meaning) for c in checks]
    return sorted(found, key=lambda d: d.name)


# --- the walk of z* ---


def walks_of(run: Run) -> list[EmbeddingWalk]:
    """One episode under each rule. It starts like the worst episode of the last evaluation, if there is one."""
    make, _ = task_of(policy_of_run(run).origin, None)
    played = [e.results[0].returns for e in load_evaluations(run)]
    seed = EVALUATION_SEED + (int(np.argmin(played[-1])) if played else 0)
    return [_walk(run, rule, make, seed) for rule in RULES]


def _walk(run: Run, rule: InferenceRule, make: EnvMaker, seed: int) -> EmbeddingWalk:
    policy = policy_of_run(run, rule=rule)
    search, sub_tasks = policy.search, run.sub_tasks()
    assert search is not None
    assert sub_tasks is not None
    known: list[Facts] = []
    rewards: list[float] = []
    seen: list[np.ndarray] = []

    def record(carry: Carry, observations: np.ndarray, reward: np.ndarray) -> None:
        known.append({name: value[0] for name, value in jax.device_get(policy.facts(carry)).items()})
        rewards.append(float(reward[0]))
        seen.append(observations[0])

    rollout(policy, make, episodes=1, seed=seed, record=record)
    plane = Plane(np.asarray(search.embeddings))
    walls, goal = _maze(policy.origin.env)
    return EmbeddingWalk(
        rule=rule,
        embeddings=_points(plane, np.asarray(search.embeddings)),
        sub_task_returns=sub_tasks.mean,
        path=_points(plane, np.stack([step["embedding"] for step in known])),
        start_of_path=[int(step["sub_task"]) for step in known],
        scores=[float(step["score"]) for step in known],
        rewards=rewards,
        explained=plane.explained,
        positions=[_seen_from_above(o[0], o[1]) for o in seen] if walls else None,
        walls=walls,
        goal=goal,
    )


def _points(plane: Plane, z: np.ndarray) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in plane.points(z)]


def _maze(env: str | None) -> tuple[list[tuple[float, float, float, float]] | None, tuple[float, float] | None]:
    """Walls and goal of one of our mazes, seen from above; None for any other task."""
    maze = next((m for m in MAZES.values() if env_id(m.name) == env), None)
    if maze is None:
        return None, None
    cells = [(r, c) for r, row in enumerate(maze.rows) for c, mark in enumerate(row) if mark == "#"]
    corners = [_seen_from_above(r + 0.5 - CELL_OFFSET, c - 0.5 - CELL_OFFSET) for r, c in cells]
    return [(x, y, 1.0, 1.0) for x, y in corners], _seen_from_above(*maze.goal)


def _seen_from_above(row: float, column: float) -> tuple[float, float]:
    """A position in the drawing, where the rows of the maze go down."""
    return float(column), -float(row)


def _facts(runs: Sequence[Run]) -> list[tuple[str, str]]:
    data = runs[0].config.data
    facts = [("dataset", data.name), ("steps", f"{data.n_steps:,}"), ("trajectories", f"{data.n_episodes:,}")]
    facts += [("task", data.env)] if data.env else []
    for run in runs:
        config = run.config
        cut = f", {run.spec().n_sub_tasks} sub-tasks" if has_several_sub_tasks(run) else ""
        facts.append((config.algorithm.name, f"{len(config.seeds)} seeds × {config.steps:,} updates{cut}"))
    return facts

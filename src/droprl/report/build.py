"""From run directories to the contents of a report: scores, curves, sub-tasks, diagnostics, and z* on its walk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
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
from droprl.report.comparison import comparison_of, names_of
from droprl.report.contents import (
    Animation,
    Chart,
    Diagnostic,
    EmbeddingWalk,
    Report,
    ScoreGroup,
    ScoreRow,
    Series,
    SubTaskReturns,
)
from droprl.rollout import EnvMaker, rollout
from droprl.train.config import RunConfig
from droprl.train.endings import ending_checks
from droprl.train.run import Run
from droprl.video import film_episode, gif

VIDEO_FRAMES, VIDEO_WIDTH = 120, 280  # of the page's video


def build_report(runs: Sequence[Run], command: str, notes: Sequence[str] = ()) -> Report:
    """Everything that these runs can show. The first run that adapts among sub-tasks also plays an episode under each
    rule. Runs of several datasets have a table of scores for each.

    If the task cannot be played here, the page says so and has the rest.
    """
    names = names_of(runs)
    played = [(name, run, e) for name, run in zip(names, runs, strict=True) for e in load_evaluations(run)]
    evaluations = [e for _, _, e in played]
    in_sub_tasks = [run for run in runs if has_several_sub_tasks(run)]
    adaptive = next((run for run in in_sub_tasks if run.config.algorithm.adaptation is not None), None)
    named = list(zip(names, runs, strict=True))
    data = (adaptive or runs[0]).config.data
    datasets = list(dict.fromkeys(run.config.data.name for run in runs))
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
    kinds = ", ".join(dict.fromkeys(run.config.algorithm.name for run in runs))
    title = datasets[0] if len(datasets) == 1 else f"{len(runs)} runs on {len(datasets)} datasets"
    return Report(
        title=title,
        subtitle=f"{kinds} on {data.n_episodes:,} trajectories" if len(datasets) == 1 else f"{kinds} on all of them",
        command=command,
        score_unit=evaluations[0].unit if evaluations else "return",
        table=[_row(name, e) for name, _, e in played] if len(datasets) == 1 else [],
        curves=_charts(named, diagnosis=False),
        sub_tasks=next((sub_tasks_of(run, predicted) for run in (adaptive, *in_sub_tasks) if run is not None), None),
        diagnostics=_all_diagnostics(named),
        diagnostic_charts=_charts(named, diagnosis=True),
        walks=walks,
        facts=_facts(runs),
        notes=all_notes,
        groups=_groups(datasets, played) if len(datasets) > 1 else [],
        comparison=comparison_of(runs) if len(runs) > 1 else None,
        animation=_animation(adaptive or runs[0]),
        interval_of="iqm",
    )


def _groups(datasets: Sequence[str], played: Sequence[tuple[str, Run, Evaluation]]) -> list[ScoreGroup]:
    """The scores of each dataset by themselves: scores on different data are not compared."""
    groups = []
    for dataset in datasets:
        own = [(name, e) for name, run, e in played if run.config.data.name == dataset]
        if own:
            groups.append(ScoreGroup(dataset, own[0][1].unit, [_row(name, e) for name, e in own]))
    return groups


def _row(name: str, evaluation: Evaluation) -> ScoreRow:
    return ScoreRow(
        method=name,
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


def _all_diagnostics(named: Sequence[tuple[str, Run]]) -> list[Diagnostic]:
    """Those of all runs, each with the name of its run if there are several."""
    found = [(name, diagnostics) for name, run in named if (diagnostics := _diagnostics(run))]
    if len(found) < 2:
        return found[0][1] if found else []
    return [replace(d, name=f"{d.name}, {name}") for name, diagnostics in found for d in diagnostics]


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
    seed = _seed_to_show(run)
    return [_walk(run, rule, make, seed) for rule in RULES]


def _animation(run: Run) -> Animation | str:
    """A video of the episode that the walks show, or the reason why there is none."""
    data = run.config.data
    if data.env is None:
        return ""
    try:
        policy = policy_of_run(run)
        film = film_episode(policy, data.env, data.time_limit, _seed_to_show(run), VIDEO_FRAMES)
        content = gif(film, VIDEO_WIDTH)
    except DropError as error:
        return str(error)
    method = " ".join(filter(None, (run.config.algorithm.name, policy.traits.rule)))
    skipped = "" if film.every == 1 else f", a frame every {film.every} steps"
    caption = (
        f"{method} in {data.env}, seed {policy.origin.seed}: {film.steps:,} steps{skipped}, return {film.earned:,.1f}"
    )
    return Animation(content, caption)


def _seed_to_show(run: Run) -> int:
    """The start of the worst episode of the last evaluation, if there is one."""
    played = [e.results[0].returns for e in load_evaluations(run)]
    return EVALUATION_SEED + (int(np.argmin(played[-1])) if played else 0)


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
    known = {run.config.data.name: run.config.data for run in runs}
    if len(known) > 1:
        return [(name, f"{data.n_steps:,} steps in {data.n_episodes:,} trajectories") for name, data in known.items()]
    data = runs[0].config.data
    facts = [("dataset", data.name), ("steps", f"{data.n_steps:,}"), ("trajectories", f"{data.n_episodes:,}")]
    facts += [("task", data.env)] if data.env else []
    for name, run in zip(names_of(runs), runs, strict=True):
        config = run.config
        cut = f", {run.spec().n_sub_tasks} sub-tasks" if has_several_sub_tasks(run) else ""
        facts.append((name, f"{len(config.seeds)} seeds × {config.steps:,} updates{cut}"))
    return facts

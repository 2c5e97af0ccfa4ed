"""From a suite's folder to the contents of its page: what was played, task by task and over all tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from droprl.bench.budget import BUDGETS, method_curves
from droprl.bench.page.contents import Aggregate, Budget, Entry, Improvements, SuiteReport, TaskData, TaskScores
from droprl.bench.page.runs import episode_of, read_costs, training_charts
from droprl.bench.published import published_scores
from droprl.bench.results import WHEN, Bench, last_episodes
from droprl.bench.suite import Method
from droprl.bench.tables import LIKE_THESE, THESE, Scores, caveats, known_name, load_scores
from droprl.bench.task_data import data_words
from droprl.errors import DropError
from droprl.evaluation.statistics import (
    Estimate,
    Over,
    aggregate,
    bootstrap_interval,
    pairwise_improvement,
    performance_profile,
)
from droprl.report.contents import Chart, ScoreRow, Series
from droprl.train.checkpoints import KEEP

SCORE = "D4RL-normalised score"
THRESHOLDS = 101  # number of scores τ at which a profile is drawn


@dataclass(frozen=True)
class Played:
    """One method under one play, and its evaluations by task; tasks that were not played are missing."""

    entry: Entry
    method: Method
    look: tuple[int, int]  # colour and dash, the same in every figure
    evaluations: dict[str, dict[str, Any]]
    unsealed: bool = False  # whether an older version wrote some of them, without a checksum


def build_suite_report(bench: Bench, command: str, notes: Sequence[str] = (), episode: bool = True) -> SuiteReport:
    """Everything that a suite's folder can show; with `episode` also one episode of a DROP run, for the walk of z."""
    bench = as_played(bench)
    everything = [played for method in bench.suite.methods for played in _played(bench, method)]
    scores, late = load_scores(bench), load_scores(bench, KEEP)
    tasks = scores.tasks
    units = list(dict.fromkeys(e["unit"] for p in everything for e in p.evaluations.values()))
    curves, more_curves = training_charts(bench)
    if not (everything or curves):
        raise DropError(f"{bench.out}: nothing of suite {bench.suite.name} is trained or played here yet")
    over_all = [p for p in everything if scores.whole(p.entry.name) is not None]
    origin, data = data_words(bench)
    scored = bool(over_all) and not scores.in_returns
    budgets = _budgets(bench) if over_all else []
    walks = episode_of(bench) if episode else None
    warnings = [*notes, origin, *_caveats(everything), *caveats(scores)]
    return SuiteReport(
        title=bench.suite.title,
        note=bench.suite.note,
        claim=bench.suite.claim,
        command=command,
        when=WHEN[1],
        score_unit=units[0] if len(units) == 1 else "score (return for tasks without reference scores)",
        facts=_facts(bench, tasks, everything, data),
        notes=[note for note in (*warnings, walks.problem if walks else "") if note],
        data=data,
        entries=[p.entry for p in everything],
        overall=[_row(p, scores) for p in over_all],
        averaged=len(scores.comparable),
        scores=[TaskScores(task, [_cell(p.evaluations.get(task)) for p in everything]) for task in tasks],
        statistics=[title[0].upper() + title[1:] for title in scores.summaries] if scored else [],
        aggregates=_aggregates(over_all, scores) if scored else [],
        late_when=WHEN[KEEP],
        late_scores=[
            TaskScores(task, [_cell(p.evaluations.get(task), KEEP) for p in everything]) for task in late.tasks
        ],
        late_aggregates=_aggregates(everything, late) if scored and late.tasks == tasks else [],
        profile=_profile(over_all, scores, "return" if scores.in_returns else SCORE) if over_all else None,
        improvements=_improvements(everything, scores),
        budgets=BUDGETS,
        budget_rows=budgets,
        curves=[*_score_curves(everything, tasks), *curves],
        more_curves=more_curves,
        walks_of=walks.of if walks else "",
        walks=walks.walks if walks else [],
        sub_tasks=walks.sub_tasks if walks else None,
        predictions=walks.predictions if walks else [],
        published=published_scores([known_name(bench, task) for task in tasks])
        if scored and not scores.unscored
        else [],
        costs=read_costs(bench, [(p.entry, p.method, p.evaluations, _iqm(p.entry.name, scores)) for p in everything]),
        data_rows=[
            TaskData(task, r["source"], r["origin"] or "not recorded", r["steps"], r["episodes"], r["fingerprint"])
            for task in bench.suite.tasks
            for r in bench.data_of(task)
        ],
    )


def as_played(bench: Bench) -> Bench:
    """With the tasks of the suite, and with other tasks whose folders are there."""
    known = list(bench.suite.tasks)
    folders = [name for part in ("plays", "runs") for name in bench.folders(bench.out / part)]
    paths = {bench.play_folder(task, bench.suite.methods[0]).parent.name for task in known}
    tasks = tuple(dict.fromkeys([*known, *(name for name in folders if name not in paths)]))
    return replace(bench, suite=bench.suite.changed(tasks=tasks))


def _played(bench: Bench, method: Method) -> list[Played]:
    """The method under each of its plays, if any task was played."""
    found, place = [], bench.suite.methods.index(method)
    for i, play in enumerate(bench.suite.plays_of(method)):
        look = (place, i) if len(bench.suite.methods) > 1 else (i, 0)
        entry = Entry(method.name, None if play == method.name else play)
        by_task = {t: e for t in bench.suite.tasks if (e := bench.evaluation(t, method, play)) is not None}
        if by_task:
            found.append(Played(entry, method, look, by_task, any(bench.is_unsealed(t, method, play) for t in by_task)))
    return found


# --- notes and facts ---


def _caveats(everything: Sequence[Played]) -> list[str]:
    found = [(e["caveat"], e["dataset"]) for p in everything for e in p.evaluations.values() if e.get("caveat")]
    by_caveat = {c: list(dict.fromkeys(name for caveat, name in found if caveat == c)) for c, _ in found}
    return [f"{', '.join(names)}: {caveat}." for caveat, names in by_caveat.items()]


def _facts(bench: Bench, tasks: Sequence[str], everything: Sequence[Played], data: str) -> list[tuple[str, str]]:
    evaluations = [e for p in everything for e in p.evaluations.values()]
    seeds = [len({r["seed"] for r in e["results"]}) for e in evaluations]
    episodes = [len(r["returns"]) for e in evaluations for r in e["results"]]
    steps = [max(r["step"] for r in e["results"]) for e in evaluations]
    checkpoints = [len({r["step"] for r in e["results"]}) for e in evaluations]
    unsealed = any(p.unsealed for p in everything)
    facts = [
        ("tasks", str(len(tasks))),
        ("methods", ", ".join(m.name for m in bench.suite.methods if any(p.method == m for p in everything))),
        ("seeds", _range(seeds)),
        ("checkpoints played", _range(checkpoints)),
        ("episodes for each seed and checkpoint", _range(episodes)),
        ("updates", _range(steps)),
        ("scores", WHEN[1]),
        ("sizes", "the small preset" if bench.preset == "small" else ""),
        ("data", data),
        ("checksums", "none for some results: an older version wrote them" if unsealed else ""),
    ]
    return [(label, value) for label, value in facts if value and tasks]


def _range(values: Sequence[int]) -> str:
    if not values:
        return ""
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


# --- numbers ---


def _cell(evaluation: dict[str, Any] | None, checkpoints: int = 1) -> Estimate | None:
    """The mean over the episodes of the last checkpoints, with a bootstrap interval over seeds and episodes."""
    of_seeds = None if evaluation is None else last_episodes(evaluation, checkpoints)
    if of_seeds is None:
        return None
    groups = [[value for episodes in played for value in episodes] for played in of_seeds.values()]
    interval = bootstrap_interval(groups, lambda drawn: drawn.mean(axis=-1))
    return Estimate(float(np.mean([value for group in groups for value in group])), *interval)


def _row(played: Played, scores: Scores) -> ScoreRow:
    runs = scores.whole(played.entry.name) or []
    over_all = aggregate(runs, "iqm")
    times = [e["milliseconds_per_action"] for e in played.evaluations.values()]
    return ScoreRow(
        method=played.entry.method,
        rule=played.entry.play,
        mean=float(np.mean(runs)),
        iqm=over_all.value,
        low=over_all.low,
        high=over_all.high,
        seeds=len(runs[0]),
        episodes=sum(len(r["returns"]) for t in scores.comparable for r in played.evaluations[t]["results"]),
        milliseconds_per_action=float(np.median([float("nan") if t is None else t for t in times])),
        episode_scores=np.concatenate(runs).tolist(),
    )


def _aggregates(several: Sequence[Played], scores: Scores) -> list[Aggregate]:
    known = [(p.entry, scores.whole(p.entry.name)) for p in several if p.entry.name in scores.runs]
    played = [(entry, runs) for entry, runs in known if runs is not None]
    return [
        Aggregate(entry, [aggregate(runs, name, over=over) for name, over in scores.summaries.values()])
        for entry, runs in played
    ]


def _iqm(name: str, scores: Scores) -> Estimate | None:
    runs = scores.whole(name)
    return None if runs is None else aggregate(runs, "iqm")


def _budgets(bench: Bench) -> list[Budget]:
    places = {method.name: i for i, method in enumerate(bench.suite.methods)}
    return [
        Budget(
            name,
            places[name],
            curve.candidates,
            curve.most,
            [Estimate(*map(float, ends)) for ends in zip(curve.score, curve.low, curve.high, strict=True)],
            curve.exhausted.tolist(),
        )
        for name, curve in method_curves(bench).items()
    ]


def _profile(several: Sequence[Played], scores: Scores, unit: str) -> Chart:
    known = [(p, scores.whole(p.entry.name) or []) for p in several]
    every = np.concatenate([seeds for _, runs in known for seeds in runs])
    thresholds = np.linspace(every.min() - 0.02 * np.ptp(every), every.max(), THRESHOLDS)
    series = []
    for p, runs in known:
        found = performance_profile(runs, thresholds)
        x, y, low, high = (np.asarray(part).tolist() for part in (thresholds, found.value, found.low, found.high))
        series.append(Series(p.entry.name, x, y, low, high, look=p.look))
    note = f"A run is a seed’s mean on one task, {WHEN[1]}. All tasks weigh the same. Bands: pointwise 95 % intervals."
    return Chart("Share of runs that score more than τ", f"{unit} τ", "share of runs", series, note)


def _improvements(everything: Sequence[Played], scores: Scores) -> Improvements | None:
    whole = scores.everywhere()
    entries = [p.entry for p in everything if p.entry.name in whole]
    if len(entries) < 2:
        return None

    def cells(over: Over) -> list[list[Estimate | None]]:
        found = pairwise_improvement(whole, over=over)
        return [[found.get((x.name, y.name)) for y in entries] for x in entries]

    return Improvements(entries, cells(THESE), cells(LIKE_THESE) if len(scores.tasks) > 1 else None)


def _score_curves(everything: Sequence[Played], tasks: Sequence[str]) -> list[Chart]:
    """Scores against the checkpoints, if more than one was played."""
    charts = []
    for task in tasks:
        series = [s for p in everything if task in p.evaluations if (s := _score_series(p, task)) is not None]
        if series:
            unit = next(p.evaluations[task]["unit"] for p in everything if task in p.evaluations)
            note = "Mean over seeds; the band reaches from the lowest to the highest."
            charts.append(Chart(f"{task}: score", "updates", unit, series, note, panel=("Scores of checkpoints", task)))
    return charts


def _score_series(played: Played, task: str) -> Series | None:
    at: dict[int, list[float]] = {}
    for r in played.evaluations[task]["results"]:
        at.setdefault(r["step"], []).append(float(np.mean(r["scores"] or r["returns"])))
    if len(at) < 2:
        return None
    steps = sorted(at)
    low, high, mean = ([float(statistic(at[step])) for step in steps] for statistic in (min, max, np.mean))
    return Series(played.entry.name, [float(step) for step in steps], mean, low, high, look=played.look)

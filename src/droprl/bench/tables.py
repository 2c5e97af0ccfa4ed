"""The tables of a suite, from what was played: scores, aggregates, which method beats which, what choosing and training
cost, the data, and published scores.

Scores are of the last checkpoint and, if six were played, of the mean of the last six. There is no "best checkpoint":
to know it, one must play, and that costs episodes (droprl.bench.budget).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from droprl.bench.budget import BUDGETS, method_curves
from droprl.bench.published import published_scores
from droprl.bench.results import WHEN, Bench
from droprl.bench.searched import choices, search_table
from droprl.bench.suite import label
from droprl.bench.task_data import data_words
from droprl.data.tasks import find_task
from droprl.evaluation.statistics import EXPERT, Aggregate, Over, aggregate, pairwise_improvement, standard_error
from droprl.files.storage import write_json
from droprl.report.table import Cell, Number, Table, best_in_bold, save_tables
from droprl.train.checkpoints import KEEP

NAMES: dict[Aggregate, str] = {
    "iqm": "IQM",
    "median": "median",
    "mean": "mean",
    "optimality_gap": f"optimality gap to {EXPERT:g}",
}
THESE: Over = "these tasks"
LIKE_THESE: Over = "tasks like these"
BOLD = "Bold: the best, and all others whose range overlaps with its range."
COSTS = {"train_seconds": "training, s", "updates_per_second": "updates a second", "peak_memory_mb": "peak memory, MB"}


@dataclass(frozen=True)
class Scores:
    """What every method and play earned on every task, with the last checkpoint or the last six."""

    title: str
    tasks: tuple[str, ...]  # those that were played
    when: str
    runs: dict[str, dict[str, np.ndarray]]  # by method and play, then by task: one value for each seed
    unscored: frozenset[str]  # tasks without reference scores: their runs are returns

    @property
    def names(self) -> dict[str, str]:
        """How each task is printed; one without reference scores is marked as a return."""
        return {task: f"{task} (return)" if task in self.unscored else task for task in self.tasks}

    @property
    def unequal(self) -> bool:
        """Whether the tasks of some method have different numbers of seeds."""
        return any(len({len(seeds) for seeds in by_task.values()}) > 1 for by_task in self.runs.values())

    @property
    def comparable(self) -> list[str]:
        """The tasks whose runs can be averaged: those with scores, or a single task."""
        return [task for task in self.tasks if task not in self.unscored or len(self.tasks) == 1]

    @property
    def summaries(self) -> dict[str, tuple[Aggregate, Over]]:
        """The aggregates and their names. Of one task alone nothing can be said of others."""
        these: dict[str, tuple[Aggregate, Over]] = {title: (name, THESE) for name, title in NAMES.items()}
        wider: tuple[Aggregate, ...] = ("iqm", "mean") if len(self.comparable) > 1 else ()
        return these | {f"{NAMES[name]}, {LIKE_THESE}": (name, LIKE_THESE) for name in wider}

    @property
    def in_returns(self) -> bool:
        """Whether the averaged runs are returns."""
        return bool(self.unscored & set(self.comparable))

    def everywhere(self) -> dict[str, list[np.ndarray]]:
        """The runs on all tasks, of each method that was played on all of them."""
        whole = {name: by_task for name, by_task in self.runs.items() if len(by_task) == len(self.tasks)}
        return {name: [by_task[task] for task in self.tasks] for name, by_task in whole.items()}

    def whole(self, name: str) -> list[np.ndarray] | None:
        """The runs on the comparable tasks, the same number for each; None if a task is missing."""
        tasks = self.comparable
        found = [self.runs[name][task] for task in tasks if task in self.runs[name]]
        fewest = min((len(runs) for runs in found), default=0)
        return [runs[:fewest] for runs in found] if found and len(found) == len(tasks) else None


def load_scores(bench: Bench, checkpoints: int = 1) -> Scores:
    suite, runs, unscored = bench.suite, {}, set()
    for method in suite.methods:
        for play in suite.plays_of(method):
            by_task = {}
            for task in suite.tasks:
                played, found = bench.evaluation(task, method, play), bench.scores(task, method, play, checkpoints)
                if played is not None and found is not None:
                    by_task[task] = found
                    unscored |= {task} if any(result["scores"] is None for result in played["results"]) else set()
            if by_task:
                runs[label(method, play)] = by_task
    for name, of_tasks in choices(bench, checkpoints).items():
        runs[name] = {task: np.array([c.scores for c in of_seeds]) for task, of_seeds in of_tasks.items()}
    tasks = tuple(task for task in suite.tasks if any(task in by_task for by_task in runs.values()))
    return Scores(suite.title, tasks, WHEN[checkpoints], runs, frozenset(unscored))


def score_table(scores: Scores) -> Table:
    """Tasks × methods and plays: the longer side becomes the rows. The IQM over all tasks comes last."""
    names = scores.names
    lines: list[tuple[Cell, ...]] = [
        (names[task], *best_in_bold([_mean(by_task.get(task)) for by_task in scores.runs.values()]))
        for task in scores.tasks
    ]
    lines.append(("IQM", *best_in_bold([_aggregate(scores, name, "iqm") for name in scores.runs])))
    columns: tuple[str, ...] = ("task", *scores.runs)
    tasks_are_rows = len(scores.runs) <= len(lines)
    if not tasks_are_rows:
        columns, lines = (
            ("method", *names.values(), "IQM"),
            list(zip(scores.runs, *(line[1:] for line in lines), strict=True)),
        )
    note = f"Mean ± standard error over seeds; IQM over all tasks with its 95 % interval. {BOLD}{_caveats(scores)}"
    return Table(f"{scores.title}: score, {scores.when}", columns, tuple(lines), note, summary=tasks_are_rows)


def aggregate_table(scores: Scores) -> Table:
    """One row for each method and play, one column for each aggregate."""
    columns: list[Sequence[Cell]] = []
    for statistic, over in scores.summaries.values():
        cells = [_aggregate(scores, name, statistic, over) for name in scores.runs]
        # All methods share the tasks, so ranges over tasks overlap even where one method is better on every task.
        columns.append(best_in_bold(cells, statistic == "optimality_gap") if over == THESE else cells)
    wider = f' "{LIKE_THESE}": the tasks are drawn too.' if len(scores.comparable) > 1 else ""
    note = (
        f"Over all tasks, with 95 % intervals: seeds are drawn within each task.{wider} A lower gap is better. "
        f"{BOLD}{_caveats(scores)}"
    )
    header = ("method", *scores.summaries)
    rows = tuple(zip(scores.runs, *columns, strict=True))
    return Table(f"{scores.title}: over all tasks, {scores.when}", header, rows, note)


def improvement_table(scores: Scores, over: Over = THESE) -> Table:
    """How likely a run of the row beats a run of the column, for methods that were played on every task."""
    whole = scores.everywhere()
    found = pairwise_improvement(whole, over=over)

    def cell(row: str, column: str) -> Cell:
        if (row, column) not in found:
            return None
        p, fewest = found[row, column], min(len(runs) for name in (row, column) for runs in whole[name])
        return Number(p.value, (p.low, p.high) if fewest > 1 else None, decimals=2)

    rows = tuple((row, *(cell(row, column) for column in scores.runs)) for row in scores.runs)
    note = (
        "How likely a seed of the row beats a seed of the column on the same task; a tie counts half. The mean over "
        f"all tasks, with its 95 % interval over {over}: {'seeds' if over == THESE else 'tasks and seeds'} are drawn."
    )
    return Table(
        f"{scores.title}: probability of improvement, {over}, {scores.when}", ("method", *scores.runs), rows, note
    )


def cost_table(bench: Bench) -> Table:
    """One row for each task, method and play: its score, the cost of training all seeds, and the time of an action."""
    rows: list[tuple[Cell, ...]] = []
    for task in bench.suite.tasks:
        for method in bench.suite.methods:
            cost = bench.cost(task, method) or {}
            training = [Number(cost[key], decimals=0) if key in cost else None for key in COSTS]
            for play in bench.suite.plays_of(method) or {method.name: {}}:
                taken = (bench.evaluation(task, method, play) or {}).get("milliseconds_per_action")
                action = None if taken is None else Number(taken, decimals=2)
                if cost or action:
                    score = _mean(bench.scores(task, method, play))
                    rows.append((task, label(method, play), score, *training, action, cost.get("device", "")))
    header = ("task", "method", f"score, {WHEN[1]}", *COSTS.values(), "ms an action", "device")
    note = (
        "Training counts all seeds together, with compiling and saving. After an interruption it counts from the last "
        "checkpoint on."
    )
    return Table(f"{bench.suite.title}: cost", header, tuple(rows), note)


def budget_table(bench: Bench) -> Table | None:
    """One row for each method: its score by the episodes spent on choosing. None if there is nothing to choose."""
    curves = method_curves(bench)
    rows: list[tuple[Cell, ...]] = []
    for name, curve in curves.items():
        ranged = curve.seeds.shape[1] > 1
        found = zip(curve.score.tolist(), curve.low.tolist(), curve.high.tolist(), strict=True)
        scores = [Number(value, (low, high) if ranged else None) for value, low, high in found]
        rows.append((name, Number(curve.candidates, decimals=0), Number(curve.most, decimals=0), *scores))
    header = ("method", "candidates", "episodes to choose by", *map(str, BUDGETS))
    note = (
        "The numbers at the top are episodes spent on choosing. A seed chooses among its own candidates, played "
        "checkpoints × plays. With 0 episodes it takes the last checkpoint under the method's default play. Otherwise "
        "the candidates play in turn, and the highest mean is chosen. Half of the recorded episodes choose and the "
        "other half judge: the mean over many splits, then over seeds and tasks, with its 95 % interval over seeds "
        "only. With few recorded episodes a score may fall by chance. A budget above the episodes to choose by gets "
        "only these."
    )
    title = f"{bench.suite.title}: score by the episodes spent on choosing"
    return Table(title, header, tuple(rows), note) if rows else None


def data_table(bench: Bench) -> Table:
    """One row for the data of each task; if methods learned from different data, one row for each dataset."""
    rows: list[tuple[Cell, ...]] = []
    for task in bench.suite.tasks:
        for r in bench.data_of(task):
            sizes = Number(r["steps"], decimals=0), Number(r["episodes"], decimals=0)
            rows.append((task, r["source"], *sizes, r["origin"] or "not recorded", r["fingerprint"]))
    header = ("task", "data", "steps", "episodes", "origin", "fingerprint")
    note = "The fingerprint is of the arrays that the methods learned from; suite.json has the SHA-256 of every file."
    return Table(f"{bench.suite.title}: data", header, tuple(rows), note)


def published_table(bench: Bench) -> Table | None:
    """Our scores, and below them what others published on other data for tasks of the same name."""
    tasks, ours = bench.suite.tasks, load_scores(bench)
    others = published_scores([known_name(bench, task) for task in tasks])
    if not (others and ours.runs) or ours.unscored:
        return None
    rows: list[tuple[Cell, ...]] = [
        ("here", name, *(_mean(by_task.get(task)) for task in tasks)) for name, by_task in ours.runs.items()
    ]
    for i, table in enumerate(others, 1):
        rows += [(f"({i})", method, *map(_as_published, cells)) for method, cells in table.rows]
    sources = " ".join(f"({i}) {t.table}: {t.source}, D4RL {t.version}." for i, t in enumerate(others, 1))
    note = (
        f"Here: {data_words(bench).beside}; {ours.when}, mean ± standard error over seeds. The other scores "
        f"come from other data (D4RL's own files) and other code. They are not comparable with ours: {sources}"
    )
    return Table(f"{bench.suite.title}: beside published scores", ("source", "method", *tasks), tuple(rows), note)


def _as_published(cell: tuple[float, float | None] | None) -> Cell:
    if cell is None:
        return None
    mean, deviation = cell
    return Number(mean, None if deviation is None else (mean - deviation, mean + deviation), "error")


def known_name(bench: Bench, task: str) -> str:
    """The name under which others publish scores for the task's data, without a version."""
    known = find_task((bench.any_evaluation(task) or {}).get("dataset", task))
    return known.name if known else task


def suite_tables(bench: Bench) -> dict[str, Table]:
    """The tables by the names of their files. Without played episodes there is no table."""
    found = {}
    for checkpoints, ending in ((1, "last"), (KEEP, f"last-{KEEP}")):
        scores = load_scores(bench, checkpoints)
        if scores.runs:
            found[f"scores-{ending}"] = score_table(scores)
            found[f"aggregates-{ending}"] = aggregate_table(scores)
            found[f"improvement-{ending}"] = improvement_table(scores)
            if len(scores.tasks) > 1:
                found[f"improvement-tasks-like-these-{ending}"] = improvement_table(scores, LIKE_THESE)
    more = {
        "search": search_table(bench),
        "budget": budget_table(bench),
        "published": published_table(bench),
        "costs": cost_table(bench),
        "data": data_table(bench),
    }
    return found | {name: table for name, table in more.items() if table is not None and table.rows}


def write_tables(bench: Bench) -> dict[str, Table]:
    """Write OUT/tables/NAME.csv and NAME.tex, and intervals.json for scripts."""
    tables = suite_tables(bench)
    save_tables(tables, bench.out / "tables")
    if found := {name: _as_json(table) for name, table in tables.items() if _has_ends(table)}:
        write_json(bench.out / "tables" / "intervals.json", found)
    return tables


def _has_ends(table: Table) -> bool:
    return any(
        isinstance(cell, Number) and cell.shown == "interval" and cell.ends for row in table.rows for cell in row
    )


def _as_json(table: Table) -> dict[str, dict[str, Any]]:
    """By row and column: the value, and both ends of its interval if there is one."""
    return {
        str(name): {
            column: {"value": cell.value} | ({"interval": list(cell.ends)} if cell.ends else {})
            for column, cell in zip(table.columns[1:], cells, strict=True)
            if isinstance(cell, Number)
        }
        for name, *cells in table.rows
    }


def _mean(runs: np.ndarray | None) -> Cell:
    if runs is None:
        return None
    mean, error = float(runs.mean()), standard_error(runs)
    return Number(mean, (mean - error, mean + error) if len(runs) > 1 else None, "error")


def _aggregate(scores: Scores, name: str, statistic: Aggregate, over: Over = THESE) -> Cell:
    tasks = scores.whole(name)
    if tasks is None or (statistic == "optimality_gap" and scores.in_returns):
        return None
    found = aggregate(tasks, statistic, over=over)
    # With one run for each task the interval has no width, which would look like certainty.
    return Number(found.value, (found.low, found.high) if len(tasks[0]) > 1 else None)


def _caveats(scores: Scores) -> str:
    return "".join(f" {caveat}" for caveat in caveats(scores))


def caveats(scores: Scores) -> list[str]:
    """What a reader must know about the aggregates."""
    found = []
    if scores.unscored and not scores.in_returns:
        found.append("Aggregates leave out the tasks whose results are returns.")
    missing = [name for name in scores.runs if scores.whole(name) is None]
    if missing and scores.comparable:
        found.append(f"A method that was not played on every task has no aggregate: {', '.join(missing)}.")
    if scores.unequal:
        found.append("Tasks have different numbers of seeds: aggregates use the smallest number for each.")
    return found

"""What the page of a suite says: values only, like `contents`, whose parts it uses where they are the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from droprl.evaluation.statistics import Estimate
from droprl.report.contents import Chart, EmbeddingWalk, ScoreRow, SubTaskReturns


@dataclass(frozen=True)
class Entry:
    """One method under one play: a column of the table, a row of the figures."""

    method: str
    play: str | None  # None for a method that is played in one way only

    @property
    def name(self) -> str:
        return f"{self.method} · {self.play}" if self.play else self.method


@dataclass(frozen=True)
class TaskScores:
    """A row of the table: what every entry scored on one task, and None where it was not played."""

    task: str
    cells: list[Estimate | None]  # the mean over all episodes


@dataclass(frozen=True)
class Aggregate:
    """One entry over all tasks, with the interval of each statistic."""

    entry: Entry
    values: list[Estimate]  # as many as `SuiteReport.statistics`


@dataclass(frozen=True)
class Improvements:
    """How likely a run of the row is to beat one of the column; None on the diagonal."""

    entries: list[Entry]
    cells: list[list[Estimate | None]]


@dataclass(frozen=True)
class PublishedTable:
    """Scores that others measured on other data: (mean, standard deviation or None) for each task of the page."""

    table: str
    source: str
    version: str  # of D4RL's files
    rows: list[tuple[str, list[tuple[float, float | None] | None]]]


@dataclass(frozen=True)
class Cost:
    """What an entry costs: training as its method's runs measured it, an action as it was played. NaN: not known."""

    entry: Entry
    score: Estimate | None  # over all tasks
    train_seconds: float
    updates_per_second: float
    peak_memory_mb: float
    milliseconds_per_action: float
    device: str = ""


@dataclass(frozen=True)
class Budget:
    """What a method is expected to score after so many episodes spent on choosing among its candidates."""

    method: str
    place: int  # of the method in the suite, which gives its colour
    candidates: int
    most: int  # episodes that there are to choose by
    values: list[Estimate]  # as many as `SuiteReport.budgets`
    capped: list[bool]  # where a budget has more episodes than there are


@dataclass(frozen=True)
class TaskData:
    """What the methods learned from on a task."""

    task: str
    source: str
    origin: str
    steps: int
    episodes: int
    fingerprint: str


@dataclass(frozen=True)
class Predictions:
    """What f said at the steps of an episode where z was inferred anew, and what was earned from there on: both
    discounted, in f's own unit."""

    rule: str
    predicted: list[float]
    realised: list[float]


@dataclass(frozen=True)
class SuiteReport:
    """The whole page. An empty part is left out of it."""

    title: str
    note: str  # in the makers' own words
    claim: str  # the paper's, in words
    command: str
    when: str  # of which checkpoints all scores are, but for those that are called late
    score_unit: str
    facts: list[tuple[str, str]]
    notes: list[str]
    data: str  # what the runs learned from, in words, as it stands beside a number
    entries: list[Entry]
    overall: list[ScoreRow]  # over all tasks; a dot is a run, and intervals are those of the IQM
    scores: list[TaskScores]
    averaged: int = 0  # tasks that `overall` and all aggregates are over: not those in returns
    statistics: list[str] = field(default_factory=list)
    aggregates: list[Aggregate] = field(default_factory=list)
    late_when: str = ""
    late_scores: list[TaskScores] = field(default_factory=list)
    late_aggregates: list[Aggregate] = field(default_factory=list)
    profile: Chart | None = None
    improvements: Improvements | None = None
    budgets: tuple[int, ...] = ()
    budget_rows: list[Budget] = field(default_factory=list)
    curves: list[Chart] = field(default_factory=list)
    more_curves: list[Chart] = field(default_factory=list)  # folded away
    walks_of: str = ""  # which run the episode belongs to
    walks: list[EmbeddingWalk] = field(default_factory=list)
    sub_tasks: SubTaskReturns | None = None
    predictions: list[Predictions] = field(default_factory=list)
    published: list[PublishedTable] = field(default_factory=list)
    costs: list[Cost] = field(default_factory=list)
    data_rows: list[TaskData] = field(default_factory=list)

    def __post_init__(self) -> None:
        for row in (*self.scores, *self.late_scores):
            _as_many(f"scores of {row.task}", row.cells, self.entries)
        for budget in self.budget_rows:
            _as_many(f"budgets of {budget.method}", budget.values, self.budgets)
        for aggregate in (*self.aggregates, *self.late_aggregates):
            _as_many(f"aggregates of {aggregate.entry.name}", aggregate.values, self.statistics)
        for table in self.published:
            for method, cells in table.rows:
                _as_many(f"published scores of {method}", cells, self.scores)


def _as_many(what: str, cells: Sequence[object], columns: Sequence[object]) -> None:
    if len(cells) != len(columns):
        raise ValueError(f"{what}: {len(cells)} cells for {len(columns)} columns")

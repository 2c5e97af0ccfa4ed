"""What the page of a suite says: values only. Parts that are on the page of runs too come from `report.contents`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from droprl.evaluation.statistics import Estimate
from droprl.report.contents import Chart, EmbeddingWalk, ScoreRow, SubTaskReturns


@dataclass(frozen=True)
class Entry:
    """One method under one play: a column of the table, a row of the figures."""

    method: str
    play: str | None  # None if the method is played in one way only

    @property
    def name(self) -> str:
        return f"{self.method} · {self.play}" if self.play else self.method


@dataclass(frozen=True)
class TaskScores:
    """A row of the table: the score of every entry on one task, None if it was not played."""

    task: str
    cells: list[Estimate | None]  # the mean over all episodes


@dataclass(frozen=True)
class Aggregate:
    """One entry over all tasks, with the interval of each statistic."""

    entry: Entry
    values: list[Estimate]  # as many as `SuiteReport.statistics`


@dataclass(frozen=True)
class Improvements:
    """How likely a run of the row beats a run of the column; None on the diagonal."""

    entries: list[Entry]
    cells: list[list[Estimate | None]]
    like_these: list[list[Estimate | None]] | None = None  # with intervals over tasks like these, if there are several


@dataclass(frozen=True)
class PublishedTable:
    """Scores that others measured on other data: (mean, standard deviation or None) for each task of the page."""

    table: str
    source: str
    version: str  # of D4RL's files
    rows: list[tuple[str, list[tuple[float, float | None] | None]]]


@dataclass(frozen=True)
class Cost:
    """What an entry costs: training, as measured in the method's runs, and an action in play. NaN: not known."""

    entry: Entry
    score: Estimate | None  # over all tasks
    train_seconds: float
    updates_per_second: float
    peak_memory_mb: float
    milliseconds_per_action: float
    device: str = ""


@dataclass(frozen=True)
class Budget:
    """The expected score of a method for each number of episodes spent on choosing among its candidates."""

    method: str
    place: int  # of the method in the suite, which gives its colour
    candidates: int
    most: int  # the number of episodes to choose by
    values: list[Estimate]  # as many as `SuiteReport.budgets`
    capped: list[bool]  # whether the budget is larger than `most`


@dataclass(frozen=True)
class TaskData:
    """The data that the methods learned from on one task."""

    task: str
    source: str
    origin: str
    steps: int
    episodes: int
    fingerprint: str


@dataclass(frozen=True)
class Predictions:
    """For each step of an episode at which z was inferred: the score f, and the discounted reward from there on, in the
    unit of f."""

    rule: str
    predicted: list[float]
    realised: list[float]


@dataclass(frozen=True)
class SuiteReport:
    """The whole page. An empty part is left out of it."""

    title: str
    note: str  # what the people who ran the suite want to say
    claim: str  # what the paper says
    command: str
    when: str  # the checkpoints of all scores; those named late have `late_when`
    score_unit: str
    facts: list[tuple[str, str]]
    notes: list[str]
    data: str  # the data of the runs, in a few words
    entries: list[Entry]
    overall: list[ScoreRow]  # over all tasks; a dot is a run, and intervals are those of the IQM
    scores: list[TaskScores]
    averaged: int = 0  # number of tasks in `overall` and in all aggregates: without those in returns
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
    more_curves: list[Chart] = field(default_factory=list)  # shown on request
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

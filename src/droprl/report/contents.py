"""What a report says: the contract between the code that measures and the page that draws.

Values only. NaN and infinity are allowed everywhere and become gaps. Lists that belong together must have the same
length. A mismatch is refused here, so that it cannot become a wrong figure later.
"""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass, field

Point = tuple[float, float]
Rectangle = tuple[float, float, float, float]  # x, y of the corner with the smallest coordinates, width, height


def _equally_long(owner: str, **lists: Sized | None) -> None:
    lengths = {name: len(values) for name, values in lists.items() if values is not None}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{n} {name}" for name, n in lengths.items())
        raise ValueError(f"{owner}: {counts}; they must have the same length.")


@dataclass(frozen=True)
class ScoreRow:
    """One row of the table: one method under one rule."""

    method: str
    rule: str | None  # "best", "grad", "best-ada", "grad-ada"; None for a method that has no rules
    mean: float
    iqm: float  # mean of the middle half of the episodes
    low: float  # low and high end of the 95 % interval of the statistic `Report.interval_of`
    high: float
    seeds: int
    episodes: int  # in total, over seeds and checkpoints
    milliseconds_per_action: float
    episode_scores: list[float]  # of every episode; each is drawn as a faint dot


@dataclass(frozen=True)
class Series:
    """One line of a chart, with a band if `low` and `high` are given."""

    label: str
    x: list[float]
    y: list[float]
    low: list[float] | None = None
    high: list[float] | None = None
    look: tuple[int, int] | None = field(default=None, kw_only=True)  # colour and dash; by default only a colour

    def __post_init__(self) -> None:
        _equally_long(f"Series '{self.label}'", x=self.x, y=self.y, low=self.low, high=self.high)
        if (self.low is None) != (self.high is None):
            raise ValueError(f"Series '{self.label}': a band needs both low and high.")


@dataclass(frozen=True)
class Chart:
    """Lines over one x axis."""

    title: str
    x_label: str
    y_label: str
    series: list[Series]
    note: str = ""
    log_y: bool = False  # values of 0 or below become gaps, and the figure says how many
    panel: tuple[str, str] | None = None  # for charts drawn side by side: their common title, and the name of this one
    places: tuple[str, ...] = ()  # labels at x = 0, 1, 2, …, if the x axis is not to scale


@dataclass(frozen=True)
class SubTaskReturns:
    """For each sub-task n in rank order (0 is the best): the returns of its trajectories, and its score f."""

    mean_returns: list[float]
    low: list[float]  # smallest and largest return of a trajectory in the sub-task
    high: list[float]
    predicted: list[float] | None  # f(s₀, β(s₀, z_n), z_n)

    def __post_init__(self) -> None:
        _equally_long(
            "SubTaskReturns", mean_returns=self.mean_returns, low=self.low, high=self.high, predicted=self.predicted
        )


@dataclass(frozen=True)
class Diagnostic:
    """One check, and in words what its value means."""

    name: str
    value: float | None
    healthy: bool | None  # None: shown, but not judged
    meaning: str


@dataclass(frozen=True)
class EmbeddingWalk:
    """One episode in the plane of embeddings: the inferred z* at every step (the paper's Figure 3)."""

    rule: str
    embeddings: list[Point]  # z_n, projected to the plane
    sub_task_returns: list[float]  # mean return of sub-task n, the colour of z_n
    path: list[Point]  # z* at every step, in the same projection
    start_of_path: list[int]  # for each step the n of the z_n from which the ascent to z* began; -1 if there is none
    scores: list[float]  # f(s, β(s, z*), z*) at every step
    rewards: list[float]
    explained: float  # share of the embeddings' variance that the projection keeps, 0 to 1
    positions: list[Point] | None = None  # for mazes: the agent at every step; y points up
    walls: list[Rectangle] | None = None
    goal: Point | None = None

    def __post_init__(self) -> None:
        owner = f"EmbeddingWalk '{self.rule}'"
        _equally_long(owner, embeddings=self.embeddings, sub_task_returns=self.sub_task_returns)
        _equally_long(
            owner,
            path=self.path,
            start_of_path=self.start_of_path,
            scores=self.scores,
            rewards=self.rewards,
            positions=self.positions,
        )


@dataclass(frozen=True)
class ScoreGroup:
    """The scores on one dataset, on a page with several."""

    title: str
    unit: str
    rows: list[ScoreRow]


@dataclass(frozen=True)
class Comparison:
    """One row for each run, as text."""

    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError("Comparison: every row must have as many cells as there are columns.")


@dataclass(frozen=True)
class Animation:
    """A video of an episode."""

    gif: bytes
    caption: str


@dataclass(frozen=True)
class Report:
    """The whole page. An empty part is left out of it."""

    title: str
    subtitle: str
    command: str  # the command that makes this report again
    score_unit: str  # e.g. "D4RL-normalised score"
    table: list[ScoreRow]
    curves: list[Chart]
    sub_tasks: SubTaskReturns | None
    diagnostics: list[Diagnostic]
    diagnostic_charts: list[Chart]
    walks: list[EmbeddingWalk]
    facts: list[tuple[str, str]]  # (label, value) about dataset and run
    notes: list[str]  # what a reader must know before trusting a number, e.g. "Regenerated data"
    groups: list[ScoreGroup] = field(default_factory=list)  # for several datasets, in place of `table`
    comparison: Comparison | None = None
    animation: Animation | str = ""  # or the reason why there is none
    interval_of: str = "mean"  # "mean" or "iqm": the statistic of the intervals, which also decides the best row

    def __post_init__(self) -> None:
        if self.interval_of not in ("mean", "iqm"):
            raise ValueError(f"Report.interval_of is '{self.interval_of}'; it must be 'mean' or 'iqm'.")

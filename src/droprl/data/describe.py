"""What a dataset holds, as plain numbers and as a page for a terminal: sizes, returns, and how each rule would cut it.

Nothing is decided here; the sub-tasks are those that training would use by default.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from droprl.data.dataset import Dataset
from droprl.data.decompose import Rule, decompose
from droprl.data.tasks import equal_sub_tasks

HISTOGRAM_BINS = 12
_EIGHTHS = " ▏▎▍▌▋▊▉█"


@dataclass(frozen=True)
class Spread:
    """How a quantity is spread over the episodes."""

    min: float
    lower_quartile: float
    median: float
    upper_quartile: float
    max: float
    mean: float


@dataclass(frozen=True)
class Cut:
    """How one decomposition rule would cut the episodes into sub-tasks."""

    rule: str
    n_sub_tasks: int
    n_trajectories: int
    smallest: int  # trajectories in the smallest sub-task
    largest: int
    first_returns: tuple[float, float]  # lowest and highest return in the first sub-task
    last_returns: tuple[float, float]


@dataclass(frozen=True)
class Description:
    """Everything `drop data info` shows, plain enough for JSON."""

    name: str
    env: str | None
    n_steps: int
    n_episodes: int
    observation_size: int
    action_size: int
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    n_terminals: int
    n_timeouts: int
    has_next_observations: bool
    last_is_cut_short: bool
    lengths: Spread
    returns: Spread
    score_range: tuple[float, float] | None
    scores: Spread | None  # D4RL-normalised, where the reference returns are known
    sub_tasks_asked: int  # N
    trajectories_asked: int  # M
    sub_tasks_origin: str
    cuts: tuple[Cut, ...]
    histogram_edges: tuple[float, ...]
    histogram_counts: tuple[int, ...]
    fingerprint: str


def describe(dataset: Dataset, seed: int = 0) -> Description:
    """Sum a dataset up; `seed` is that of the rules which draw."""
    returns = dataset.returns
    scores = dataset.scores(returns)
    preset = equal_sub_tasks(dataset.n_episodes)
    counts, edges = _histogram(returns)
    return Description(
        name=dataset.name,
        env=dataset.env,
        n_steps=dataset.n_steps,
        n_episodes=dataset.n_episodes,
        observation_size=dataset.observation_size,
        action_size=dataset.action_size,
        action_low=tuple(float(bound) for bound in dataset.action_low),
        action_high=tuple(float(bound) for bound in dataset.action_high),
        n_terminals=int(dataset.terminals.sum()),
        n_timeouts=int(dataset.timeouts.sum()),
        has_next_observations=dataset.next_observations is not None,
        last_is_cut_short=dataset.last_is_cut_short,
        lengths=_spread(dataset.lengths),
        returns=_spread(returns),
        score_range=dataset.score_range,
        scores=None if scores is None else _spread(scores),
        sub_tasks_asked=preset.n_sub_tasks,
        trajectories_asked=preset.trajectories_per_sub_task,
        sub_tasks_origin=preset.origin,
        cuts=tuple(
            _cut(returns, rule, preset.n_sub_tasks, preset.trajectories_per_sub_task, seed) for rule in get_args(Rule)
        ),
        histogram_edges=tuple(float(edge) for edge in edges),
        histogram_counts=tuple(int(count) for count in counts),
        fingerprint=dataset.fingerprint,
    )


def print_description(description: Description, console: Console) -> None:
    """The description as a compact page."""
    console.print(_facts(description))
    console.print(_spreads(description))
    console.print(Text("Episodes by return", style="bold"))
    for line in _histogram_lines(description):
        console.print(line)
    console.print(_cuts(description))


def _spread(values: np.ndarray) -> Spread:
    quartiles = np.percentile(values, [0, 25, 50, 75, 100])
    low, lower, median, upper, high = (float(value) for value in quartiles)
    return Spread(low, lower, median, upper, high, float(np.mean(values)))


def _cut(returns: np.ndarray, rule: Rule, n_sub_tasks: int, trajectories_per_sub_task: int, seed: int) -> Cut:
    sub_tasks = decompose(returns, rule, n_sub_tasks, trajectories_per_sub_task, seed)
    sizes = [len(members) for members in sub_tasks]
    first, last = returns[sub_tasks[0]], returns[sub_tasks[-1]]
    return Cut(
        rule=rule,
        n_sub_tasks=len(sub_tasks),
        n_trajectories=sum(sizes),
        smallest=min(sizes),
        largest=max(sizes),
        first_returns=(float(first.min()), float(first.max())),
        last_returns=(float(last.min()), float(last.max())),
    )


def _histogram(returns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One bin where all returns are (nearly) equal: bins narrower than a float's steps cannot be made."""
    low, high = float(returns.min()), float(returns.max())
    if high - low <= 1e-9 * max(1.0, abs(low), abs(high)):
        return np.array([len(returns)]), np.array([low, high])
    return np.histogram(returns, bins=HISTOGRAM_BINS)


def _facts(description: Description) -> Table:
    table = Table(title=description.name, title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim")
    table.add_column()
    ends = f"{description.n_terminals:,} ended the task, {description.n_timeouts:,} timed out"
    if description.last_is_cut_short:
        ends += ", the last is cut short"
    table.add_row("environment", description.env or "not known: pass --env to evaluate")
    table.add_row("steps", f"{description.n_steps:,}")
    table.add_row("episodes", f"{description.n_episodes:,}: {ends}")
    table.add_row("observations", f"{description.observation_size} numbers")
    table.add_row("actions", f"{description.action_size} numbers in {_bounds(description)}")
    table.add_row("next observations", "stored" if description.has_next_observations else "not stored")
    if description.score_range is not None:
        low, high = description.score_range
        table.add_row("score", f"0 at a return of {low:,.1f}, 100 at {high:,.1f}")
    return table


def _bounds(description: Description) -> str:
    pairs = sorted(set(zip(description.action_low, description.action_high, strict=True)))
    shown = ", ".join(f"[{low:g}, {high:g}]" for low, high in pairs[:3])
    return shown + (", …" if len(pairs) > 3 else "")


def _spreads(description: Description) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("each episode's")
    for column in ("min", "25 %", "median", "75 %", "max", "mean"):
        table.add_column(column, justify="right")
    rows = [("length", description.lengths, 0), ("return", description.returns, 1), ("score", description.scores, 1)]
    for title, spread, digits in rows:
        if spread is not None:
            values = (spread.min, spread.lower_quartile, spread.median, spread.upper_quartile, spread.max, spread.mean)
            table.add_row(title, *(f"{value:,.{digits}f}" for value in values))
    return table


def _histogram_lines(description: Description, width: int = 40) -> list[Text]:
    edges, counts = description.histogram_edges, description.histogram_counts
    labels = [f"{edge:,.1f}" for edge in edges]
    widest = max(len(label) for label in labels)
    lines = []
    for low, high, count in zip(labels, labels[1:], counts, strict=False):
        line = Text(f"{low:>{widest}} … {high:>{widest}} ", no_wrap=True, overflow="crop")
        line.append(_bar(count / max(counts), width), style="cyan")
        line.append(f" {count:,}")
        lines.append(line)
    return lines


def _bar(share: float, width: int) -> str:
    """A bar of block characters; whatever is not zero shows at least a sliver."""
    eighths = round(share * width * 8)
    if share > 0:
        eighths = max(eighths, 1)
    full, rest = divmod(eighths, 8)
    return "█" * full + (_EIGHTHS[rest] if rest else "")


def _cuts(description: Description) -> Table:
    asked = f"N = {description.sub_tasks_asked}, M = {description.trajectories_asked}: {description.sub_tasks_origin}"
    table = Table(
        title="Sub-tasks by each rule", caption=asked, title_justify="left", caption_justify="left",
        box=box.SIMPLE_HEAD, pad_edge=False, title_style="bold", collapse_padding=True,
    )  # fmt: skip
    table.add_column("rule")
    for column in ("sub-tasks", "episodes", "in each", "first returns", "last returns"):
        table.add_column(column, justify="right")
    for cut in description.cuts:
        size = f"{cut.smallest}" if cut.smallest == cut.largest else f"{cut.smallest} to {cut.largest}"
        table.add_row(
            cut.rule,
            f"{cut.n_sub_tasks}",
            f"{cut.n_trajectories} of {description.n_episodes}",
            size,
            _range(cut.first_returns),
            _range(cut.last_returns),
        )
    return table


def _range(returns: tuple[float, float]) -> str:
    largest = max(abs(bound) for bound in returns)
    form = ".3g" if largest >= 1e5 or largest < 0.1 else ",.0f" if largest >= 1e3 else ".1f"  # two must fit in a line
    return f"{returns[0]:{form}}…{returns[1]:{form}}"

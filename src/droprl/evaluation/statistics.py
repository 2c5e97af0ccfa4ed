"""The interquartile mean and its bootstrap interval: honest error bars for few runs and heavy tails.

Aggregates over several tasks follow rliable (Agarwal et al. 2021). A run is one training seed: the mean over its
episodes. The bootstrap draws the runs of each task separately. It keeps the tasks, and so speaks of these tasks; or it
draws the tasks too, and so speaks of tasks like these (`Over`). All but the latter agree with rliable's:
benchmarks/peers/rliable_check.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Literal, NamedTuple, assert_never

import numpy as np

from droprl.errors import DropError

REPLICATES = 2_000
Statistic = Callable[[np.ndarray], np.ndarray]
Runs = np.ndarray | Sequence[np.ndarray | Sequence[float]]  # one list for each task, one value for each run
Aggregate = Literal["iqm", "median", "mean", "optimality_gap"]
Over = Literal["these tasks", "tasks like these"]
"""What an interval speaks of: other runs on the same tasks, or also other tasks of the same kind."""
EXPERT = 100.0  # D4RL's scale: 0 is a random policy, 100 the reference expert


class Estimate(NamedTuple):
    """A value and the two ends of its interval."""

    value: float
    low: float
    high: float


class Profile(NamedTuple):
    """For each threshold the share of runs above it, and the two ends of its interval."""

    thresholds: np.ndarray
    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


def iqm(values: np.ndarray) -> np.ndarray:
    """The mean of the middle half of the last axis, as in rliable: a quarter, rounded down, is cut at each end."""
    cut = values.shape[-1] // 4
    return np.sort(values, axis=-1)[..., cut : values.shape[-1] - cut].mean(axis=-1)


def bootstrap_interval(
    groups: Sequence[Sequence[float]], statistic: Statistic = iqm, level: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """Percentile interval for a statistic of all values; a group holds one training seed's episodes.

    The bootstrap draws seeds, and it draws episodes, the same ones for every seed: the episodes of a seed share its
    weights, and the k-th episodes of all seeds share their start. To draw each value alone would claim more than was
    measured. With one seed only the episodes are drawn: the interval then says nothing about other seeds.
    """
    shortest = min(len(group) for group in groups)
    table = np.stack([np.asarray(group, dtype=np.float64)[:shortest] for group in groups])
    rng = np.random.default_rng(seed)
    drawn_groups = rng.integers(0, len(table), (REPLICATES, len(table), 1))
    drawn_values = rng.integers(0, shortest, (REPLICATES, 1, shortest))
    return _percentiles(statistic(table[drawn_groups, drawn_values].reshape(REPLICATES, -1)), level)


# ---- over several tasks


def aggregate(
    tasks: Runs,
    statistic: Aggregate,
    *,
    over: Over = "these tasks",
    target: float = EXPERT,
    level: float = 0.95,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> Estimate:
    """One number for all tasks, with the percentile interval of the bootstrap stratified over tasks.

    Over "tasks like these", each replicate first draws as many tasks as there are, with replacement, then runs within
    each drawn task. Few tasks make that interval too short too; one task says nothing of others.

    `iqm` is over all runs of all tasks together. `mean` and `median` are over the tasks, from each task's mean over its
    runs. `optimality_gap` is the mean distance of the runs below the `target` γ; a run above γ counts as γ. A lower
    gap is better.

    Every task must have the same number of runs, so that all tasks count alike. A draw of n runs from n makes the
    interval too short, by the factor √((n − 1) / n): about a tenth at five seeds.
    """
    table = _checked(tasks)
    if len({len(runs) for runs in table}) > 1:
        raise DropError(
            f"tasks with {_listed(len(runs) for runs in table)} runs: give every task the same number, so that all "
            "count alike"
        )
    scores = np.stack(table)
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, scores.shape[1], (replicates, *scores.shape))
    drawn_tasks = scores[None] if over == "these tasks" else scores[_tasks_drawn(rng, len(scores), replicates)]
    resampled = _aggregates(np.take_along_axis(drawn_tasks, drawn, axis=-1), statistic, target)
    return Estimate(float(_aggregates(scores, statistic, target)), *_percentiles(resampled, level))


def _aggregates(scores: np.ndarray, statistic: Aggregate, target: float) -> np.ndarray:
    """The statistic over the last two axes, which are tasks and runs."""
    match statistic:
        case "iqm":
            return iqm(scores.reshape(*scores.shape[:-2], -1))
        case "median":
            return np.median(scores.mean(axis=-1), axis=-1)
        case "mean":
            return scores.mean(axis=(-2, -1))
        case "optimality_gap":
            return target - np.minimum(scores, target).mean(axis=(-2, -1))
        case _:
            assert_never(statistic)


def performance_profile(
    tasks: Runs,
    thresholds: np.ndarray | Sequence[float],
    *,
    level: float = 0.95,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> Profile:
    """For each score τ the share of runs above it, the mean over the tasks: rliable's run-score distribution.

    The band is pointwise: the interval at one threshold covers the truth as often as `level` says, all intervals
    together less often. If all runs lie on one side of τ, the interval has no width.
    """
    table, at = _checked(tasks), np.asarray(thresholds, dtype=np.float64)
    if at.ndim != 1 or not at.size or not np.isfinite(at).all():
        raise DropError("thresholds must be finite scores: give a list of at least one")
    rng = np.random.default_rng(seed)
    value, resampled = np.zeros(at.size), np.zeros((replicates, at.size))
    for runs in table:
        above = (runs[:, None] > at).astype(np.float64)
        value += above.mean(axis=0)
        resampled += _drawn(rng, len(runs), replicates) @ above / len(runs)
    low, high = np.quantile(resampled / len(table), _ends(level), axis=0)
    return Profile(at, value / len(table), low, high)


def probability_of_improvement(
    x: Runs,
    y: Runs,
    *,
    over: Over = "these tasks",
    level: float = 0.95,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> Estimate:
    """How likely a run of x beats a run of y on the same task; a tie counts half. The mean over the tasks.

    For each task this is Mann and Whitney's U as a share of all pairs. The interval draws the runs of each task, those
    of x and those of y separately. If every run of x beats every run of y, it has no width, even for few runs. Over
    "tasks like these" it draws the tasks first, as `aggregate` does.
    """
    tasks_x, tasks_y = _checked(x), _checked(y)
    if len(tasks_x) != len(tasks_y):
        raise DropError(f"{len(tasks_x)} tasks against {len(tasks_y)}: both sides must have run on the same tasks")
    rng, n_tasks = np.random.default_rng(seed), len(tasks_x)
    chosen = None if over == "these tasks" else _tasks_drawn(rng, n_tasks, replicates)
    values, resampled = [], np.zeros(replicates)
    for task, (of_x, of_y) in enumerate(zip(tasks_x, tasks_y, strict=True)):
        wins = (1 + np.sign(of_x[:, None] - of_y[None, :])) / 2
        values.append(wins.mean())
        # The replicates that draw this task, each as often as it draws it.
        among = np.arange(replicates) if chosen is None else np.nonzero(chosen == task)[0]
        # A draw with replacement gives each run a weight, so that each pair is compared only once.
        drawn_x, drawn_y = (_drawn(rng, len(runs), len(among)) for runs in (of_x, of_y))
        shares = np.sum((drawn_x @ wins) * drawn_y, axis=1) / wins.size
        resampled += np.bincount(among, shares, replicates)
    return Estimate(float(np.mean(values)), *_percentiles(resampled / n_tasks, level))


def pairwise_improvement(
    methods: Mapping[str, Runs],
    *,
    over: Over = "these tasks",
    level: float = 0.95,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> dict[tuple[str, str], Estimate]:
    """For every ordered pair (x, y) of different methods, how likely a run of x beats a run of y.

    (y, x) is exactly 1 minus (x, y), also its interval. The intervals are not corrected for the number of pairs: among
    twenty pairs without a difference, one interval is expected to miss 0.5.
    """
    found = {}
    for x, y in combinations(methods, 2):
        sides = methods[x], methods[y]
        p = probability_of_improvement(*sides, over=over, level=level, replicates=replicates, seed=seed)
        found[x, y], found[y, x] = p, Estimate(1 - p.value, 1 - p.high, 1 - p.low)
    return {(x, y): found[x, y] for x in methods for y in methods if x != y}


def standard_error(runs: np.ndarray) -> float:
    """The standard error of the mean over runs; 0 for a single run."""
    return float(runs.std(ddof=1) / np.sqrt(len(runs))) if len(runs) > 1 else 0.0


def _drawn(rng: np.random.Generator, runs: int, replicates: int) -> np.ndarray:
    """(replicates, runs): how often each run was drawn. Counts, because shares would not sum to exactly one."""
    return rng.multinomial(runs, np.full(runs, 1 / runs), replicates).astype(np.float64)


def _tasks_drawn(rng: np.random.Generator, tasks: int, replicates: int) -> np.ndarray:
    """(replicates, tasks): the tasks of each replicate."""
    return rng.integers(0, tasks, (replicates, tasks))


def _checked(tasks: Runs) -> list[np.ndarray]:
    table = [np.asarray(runs, dtype=np.float64) for runs in tasks]
    if not table or any(runs.ndim != 1 or not runs.size for runs in table):
        shapes = _listed(runs.shape for runs in table) or "none"
        raise DropError(f"runs of shape {shapes}: give one list for each task, none of them empty")
    if not all(np.isfinite(runs).all() for runs in table):
        raise DropError("a run's score is not finite: leave out the task, or find out why the run diverged")
    return table


def _listed(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))


def _percentiles(replicates: np.ndarray, level: float) -> tuple[float, float]:
    low, high = np.quantile(replicates, _ends(level))
    return float(low), float(high)


def _ends(level: float) -> list[float]:
    return [(1 - level) / 2, (1 + level) / 2]

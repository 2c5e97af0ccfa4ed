"""The interquartile mean and its bootstrap interval: few runs, heavy tails, honest error bars.

Over several tasks as rliable has it (Agarwal et al. 2021): a run is one training seed, the mean over its episodes, and
the runs of each task are drawn by themselves, because the tasks were chosen and the seeds were not. Values and
intervals agree with rliable's: benchmarks/peers/rliable_check.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Literal, NamedTuple, assert_never

import numpy as np

from droprl.errors import DropError

REPLICATES = 2_000
Statistic = Callable[[np.ndarray], np.ndarray]
Runs = np.ndarray | Sequence[np.ndarray | Sequence[float]]  # one list a task, one value a run
Aggregate = Literal["iqm", "median", "mean", "optimality_gap"]
EXPERT = 100.0  # D4RL's scale: 0 is a random policy, 100 the reference expert


class Estimate(NamedTuple):
    """A value and the two ends of its interval."""

    value: float
    low: float
    high: float


class Profile(NamedTuple):
    """At every threshold the share of runs above it, and the two ends of its interval."""

    thresholds: np.ndarray
    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


def iqm(values: np.ndarray) -> np.ndarray:
    """The mean of the middle half of the last axis, as rliable has it: at each end a quarter is cut, rounded down."""
    cut = values.shape[-1] // 4
    return np.sort(values, axis=-1)[..., cut : values.shape[-1] - cut].mean(axis=-1)


def bootstrap_interval(
    groups: Sequence[Sequence[float]], statistic: Statistic = iqm, level: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """Percentile interval for a statistic of all values; a group holds one training seed's episodes.

    Seeds are resampled, and so are episodes, the same for every seed: a seed's episodes share its weights, and the
    k-th episode of every seed shares its start. Drawing each value by itself would claim more than was measured. With
    one seed only the episodes are drawn: the interval then says nothing of other seeds.
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
    target: float = EXPERT,
    level: float = 0.95,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> Estimate:
    """One number for all tasks, with the percentile interval of the bootstrap stratified over tasks.

    `iqm` is of all runs of all tasks together; `mean` and `median` are over the tasks, of each task's mean over its
    runs; `optimality_gap` is how far runs stay below the `target` γ on average, where more than γ counts as γ: the
    lower the better.

    Every task must have equally many runs, or one would count for more than another. Drawing n runs from n makes the
    interval √((n − 1) / n) as long as it should be: about a tenth too short at five seeds.
    """
    table = _checked(tasks)
    if len({len(runs) for runs in table}) > 1:
        raise DropError(
            f"tasks with {_listed(len(runs) for runs in table)} runs: they count alike only with equally many each"
        )
    scores = np.stack(table)
    drawn = np.random.default_rng(seed).integers(0, scores.shape[1], (replicates, *scores.shape))
    resampled = _aggregates(np.take_along_axis(scores[None], drawn, axis=-1), statistic, target)
    return Estimate(float(_aggregates(scores, statistic, target)), *_percentiles(resampled, level))


def _aggregates(scores: np.ndarray, statistic: Aggregate, target: float) -> np.ndarray:
    """Of the last two axes, which are tasks and runs."""
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
    """At every score τ the share of runs that lie above it, the mean over the tasks: rliable's run-score distribution.

    The band is pointwise: each threshold's interval by itself holds its truth as often as `level` says, all of them
    together less often. Where all runs lie on one side of τ it has no width.
    """
    table, at = _checked(tasks), np.asarray(thresholds, dtype=np.float64)
    if at.ndim != 1 or not at.size or not np.isfinite(at).all():
        raise DropError("thresholds are a list of finite scores: give at least one")
    rng = np.random.default_rng(seed)
    value, resampled = np.zeros(at.size), np.zeros((replicates, at.size))
    for runs in table:
        above = (runs[:, None] > at).astype(np.float64)
        value += above.mean(axis=0)
        resampled += _drawn(rng, len(runs), replicates) @ above / len(runs)
    low, high = np.quantile(resampled / len(table), _ends(level), axis=0)
    return Profile(at, value / len(table), low, high)


def probability_of_improvement(
    x: Runs, y: Runs, *, level: float = 0.95, replicates: int = REPLICATES, seed: int = 0
) -> Estimate:
    """How likely a run of x is to beat one of y on the same task, a tie counting half; the mean over the tasks.

    For each task this is Mann and Whitney's U as a share of all pairs. The interval draws the runs of every task, of x
    and of y each by themselves; where every run of x beats every run of y it has no width, however few they are.
    """
    tasks_x, tasks_y = _checked(x), _checked(y)
    if len(tasks_x) != len(tasks_y):
        raise DropError(f"{len(tasks_x)} tasks against {len(tasks_y)}: both sides must have run on the same tasks")
    rng = np.random.default_rng(seed)
    values, resampled = [], np.zeros(replicates)
    for of_x, of_y in zip(tasks_x, tasks_y, strict=True):
        wins = (1 + np.sign(of_x[:, None] - of_y[None, :])) / 2
        values.append(wins.mean())
        # A draw with replacement is a weight for each run, so that no pair is compared twice.
        drawn_x, drawn_y = (_drawn(rng, len(of), replicates) for of in (of_x, of_y))
        resampled += np.sum((drawn_x @ wins) * drawn_y, axis=1) / wins.size
    return Estimate(float(np.mean(values)), *_percentiles(resampled / len(values), level))


def pairwise_improvement(
    methods: Mapping[str, Runs], *, level: float = 0.95, replicates: int = REPLICATES, seed: int = 0
) -> dict[tuple[str, str], Estimate]:
    """For every ordered pair (x, y) of different methods, how likely a run of x is to beat one of y.

    (y, x) is exactly the rest of (x, y), in its interval too. The intervals are not widened for their number: among
    twenty pairs without a difference, one is expected to leave out 0.5.
    """
    found = {}
    for x, y in combinations(methods, 2):
        p = probability_of_improvement(methods[x], methods[y], level=level, replicates=replicates, seed=seed)
        found[x, y], found[y, x] = p, Estimate(1 - p.value, 1 - p.high, 1 - p.low)
    return {(x, y): found[x, y] for x in methods for y in methods if x != y}


def standard_error(runs: np.ndarray) -> float:
    """Of the mean of runs; a run alone has none."""
    return float(runs.std(ddof=1) / np.sqrt(len(runs))) if len(runs) > 1 else 0.0


def _drawn(rng: np.random.Generator, runs: int, replicates: int) -> np.ndarray:
    """(replicates, runs): how often each run was drawn; counts, because shares would not add up to exactly one."""
    return rng.multinomial(runs, np.full(runs, 1 / runs), replicates).astype(np.float64)


def _checked(tasks: Runs) -> list[np.ndarray]:
    table = [np.asarray(runs, dtype=np.float64) for runs in tasks]
    if not table or any(runs.ndim != 1 or not runs.size for runs in table):
        raise DropError(f"runs of shape {_listed(runs.shape for runs in table) or 'none'}: one list a task, none empty")
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

"""The interquartile mean and its bootstrap interval: few runs, heavy tails, honest error bars.

Over several tasks as rliable has it (Agarwal et al. 2021): a run is one training seed, the mean over its episodes, and
the runs of each task are drawn by themselves, because the tasks were chosen and the seeds were not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from droprl.errors import DropError

REPLICATES = 2_000
Statistic = Callable[[np.ndarray], np.ndarray]
Runs = Sequence[np.ndarray | Sequence[float]]  # one list a task, one value a run


class Estimate(NamedTuple):
    """A value and the two ends of its interval."""

    value: float
    low: float
    high: float


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


def aggregate_iqm(tasks: Runs, level: float = 0.95, seed: int = 0) -> Estimate:
    """The IQM of all runs of all tasks together, with the percentile interval of the bootstrap stratified over tasks.

    Every task must have equally many runs, or one would count for more than another. Drawing n runs from n makes the
    interval √((n − 1) / n) as long as it should be: about a tenth too short at five seeds.
    """
    table = _checked(tasks)
    if len({len(runs) for runs in table}) > 1:
        raise DropError(
            f"tasks with {_listed(len(runs) for runs in table)} runs: they count alike only with equally many each"
        )
    scores = np.stack(table)
    drawn = np.random.default_rng(seed).integers(0, scores.shape[1], (REPLICATES, *scores.shape))
    replicates = iqm(np.take_along_axis(scores[None], drawn, axis=-1).reshape(REPLICATES, -1))
    return Estimate(float(iqm(scores.ravel())), *_percentiles(replicates, level))


def probability_of_improvement(x: Runs, y: Runs, level: float = 0.95, seed: int = 0) -> Estimate:
    """How likely a run of x is to beat one of y on the same task, a tie counting half; the mean over the tasks.

    For each task this is Mann and Whitney's U as a share of all pairs. The interval draws the runs of every task, of x
    and of y each by themselves; where every run of x beats every run of y it has no width, however few they are.
    """
    tasks_x, tasks_y = _checked(x), _checked(y)
    if len(tasks_x) != len(tasks_y):
        raise DropError(f"{len(tasks_x)} tasks against {len(tasks_y)}: both sides must have run on the same tasks")
    rng = np.random.default_rng(seed)
    values, replicates = [], np.zeros(REPLICATES)
    for of_x, of_y in zip(tasks_x, tasks_y, strict=True):
        wins = (1 + np.sign(of_x[:, None] - of_y[None, :])) / 2
        values.append(wins.mean())
        # A draw with replacement is a weight for each run, so that no pair is compared twice.
        replicates += np.sum((_drawn_weights(rng, len(of_x)) @ wins) * _drawn_weights(rng, len(of_y)), axis=1)
    return Estimate(float(np.mean(values)), *_percentiles(replicates / len(values), level))


def standard_error(runs: np.ndarray) -> float:
    """Of the mean of runs; a run alone has none."""
    return float(runs.std(ddof=1) / np.sqrt(len(runs))) if len(runs) > 1 else 0.0


def _drawn_weights(rng: np.random.Generator, runs: int) -> np.ndarray:
    """(replicates, runs): how often each run was drawn, as a share."""
    return rng.multinomial(runs, np.full(runs, 1 / runs), REPLICATES) / runs


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
    low, high = np.quantile(replicates, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)

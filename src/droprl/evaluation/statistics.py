"""The interquartile mean and its bootstrap interval: few runs, heavy tails, honest error bars."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

REPLICATES = 2_000
Statistic = Callable[[np.ndarray], np.ndarray]


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
    replicates = statistic(table[drawn_groups, drawn_values].reshape(REPLICATES, -1))
    low, high = np.quantile(replicates, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)

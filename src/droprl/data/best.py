"""Which trajectories are the best of the data: the share that F-BC clones if nobody chooses one. Nothing is played."""

from __future__ import annotations

import math

import numpy as np

from droprl.data.dataset import Dataset

CLONED_STEPS = 25_000  # cloning needs about so many steps: docs/algorithms.md, F-BC
BEST_RULE = (
    "all trajectories whose return is nearer to the best return than to the median, and so many of the next best that "
    f"at least {CLONED_STEPS:,} steps are cloned, or half of the data if that is less"
)


def best_fraction(dataset: Dataset) -> float:
    """The share of trajectories that `BEST_RULE` chooses from the returns and lengths alone."""
    returns = dataset.returns
    order = np.argsort(-returns, kind="stable")
    near_the_best = int(np.sum(returns >= (returns.max() + np.median(returns)) / 2))
    enough = min(CLONED_STEPS, dataset.n_steps / 2)
    long_enough = int(np.searchsorted(np.cumsum(dataset.lengths[order]), enough)) + 1
    return max(near_the_best, long_enough) / dataset.n_episodes


def best_episodes(dataset: Dataset, fraction: float) -> np.ndarray:
    """The `fraction` of the episodes with the highest returns, rounded up to whole episodes."""
    n = math.ceil(fraction * dataset.n_episodes - 1e-9)  # 0.07 · 100 is a little more than 7
    return np.argsort(-dataset.returns, kind="stable")[:n]

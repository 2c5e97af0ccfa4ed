"""Task decomposition by the states that trajectories visit, and the choice between it and the cut by return.

A return is behaviour and luck together, and different ways can earn the same. Where a trajectory goes shows its way of
behaving, and no reward enters it. On data whose returns tell the ways apart, the cut by return does as well, and its
top sub-task holds what to imitate. `separation` measures from the data alone which case it is.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from droprl.data.behavior import k_means
from droprl.data.dataset import Dataset
from droprl.data.decompose import SubTasks, rank_sub_tasks
from droprl.errors import DropError

FEATURES = 256
FREQUENCY = 2.0  # of the random features: a period is about three standard deviations of the states
COMPONENTS = 10
# A group with a smaller share than this of its part of the steps is no sub-task. In AntMaze some walks begin at the
# goal and end after a step. They are alike, and their return is the highest: they were the top sub-task.
SMALLEST = 0.01
# Midway between the lowest of four mixtures of policies (0.39) and maze2d-gates, where luck and stitching count (0.06).
SEPARATED = 0.2


def visit_sub_tasks(dataset: Dataset, n_sub_tasks: int, at_least: int, seed: int = 0) -> SubTasks:
    """Visits(N, M): k-means of the trajectories into at most N groups with M trajectories each on average.

    Trajectories whose group has too few steps to be cloned join the nearest of the other groups.
    """
    n_groups = max(1, min(n_sub_tasks, dataset.n_episodes // at_least))
    group = _groups(visit_signatures(dataset, seed), dataset.lengths, n_groups, seed)
    return [members for i in range(n_groups) if (members := np.flatnonzero(group == i)).size]


def _groups(points: np.ndarray, steps: np.ndarray, n_groups: int, seed: int) -> np.ndarray:
    kept = np.ones(len(points), bool)
    while True:
        group = k_means(points[kept], n_groups, np.random.default_rng(seed))
        sizes = np.bincount(group, weights=steps[kept], minlength=n_groups)
        tiny = (sizes < SMALLEST * steps.sum() / n_groups)[group]
        if not tiny.any():
            break
        kept[np.flatnonzero(kept)[tiny]] = False
    centres = {i: points[kept][group == i].mean(axis=0) for i in np.unique(group)}
    found = np.empty(len(points), int)
    found[kept] = group
    for each in np.flatnonzero(~kept):
        found[each] = min(centres, key=lambda i: float(np.sum((points[each] - centres[i]) ** 2)))
    return found


@lru_cache(maxsize=1)  # called several times: by the choice of the rule, and before and after γ is chosen
def visit_signatures(dataset: Dataset, seed: int = 0) -> np.ndarray:
    """(E, ·): one point for each trajectory, the mean of random cosines over its states (a kernel mean embedding).

    Two trajectories are close to each other if they visit the same states equally often.
    """
    if dataset.on_disk:
        raise DropError("decomposition visits needs all data in memory, but this data is on the disk: choose rank")
    rng = np.random.default_rng(seed)
    observations = np.asarray(dataset.observations)
    mean, spread = observations.mean(axis=0, dtype=np.float64), observations.std(axis=0, dtype=np.float64)
    size = observations.shape[1]
    directions = FREQUENCY * rng.normal(size=(size, FEATURES)) / np.sqrt(size) / np.maximum(spread, 1e-6)[:, None]
    phases = rng.uniform(0, 2 * np.pi, FEATURES) - mean @ directions
    means = [
        np.cos(observations[begin:end] @ directions + phases).mean(axis=0)
        for begin, end in zip(dataset.bounds[:-1], dataset.bounds[1:], strict=True)
    ]
    centred = np.array(means) - np.mean(means, axis=0)
    left, scale, _ = np.linalg.svd(centred, full_matrices=False)
    return np.asarray((left * scale)[:, :COMPONENTS])


def separation(dataset: Dataset, returns: np.ndarray, n_sub_tasks: int, seed: int = 0) -> float:
    """How well a cut by return tells apart where trajectories go. 1: as well as a cut by visits. 0: like chance."""
    points, n = visit_signatures(dataset, seed), min(n_sub_tasks, dataset.n_episodes)
    each = -(-dataset.n_episodes // n)
    by_visits = _explained(points, visit_sub_tasks(dataset, n, 1, seed))
    by_return = _explained(points, rank_sub_tasks(returns, n, each))
    shuffled = np.random.default_rng(seed).permutation(dataset.n_episodes)
    by_chance = _explained(points, [shuffled[i : i + each] for i in range(0, len(shuffled), each)])
    return (by_return - by_chance) / max(by_visits - by_chance, 1e-9)


def _explained(points: np.ndarray, parts: SubTasks) -> float:
    """The share of the variance of the points that lies between the parts."""
    within = sum(float(((points[part] - points[part].mean(axis=0)) ** 2).sum()) for part in parts)
    return 1.0 - within / max(float(((points - points.mean(axis=0)) ** 2).sum()), 1e-12)

"""Task decomposition by behaviour: a sub-task holds trajectories that act alike in the same states and earn alike.

A return is behaviour and luck together. A cut by return alone mixes behaviours, and its sub-tasks tell the score model
which trajectories were lucky. If all trajectories act alike, only their returns can separate them.
"""

from __future__ import annotations

import warnings
from functools import lru_cache

import numpy as np

from droprl.data.dataset import Dataset
from droprl.data.decompose import SubTasks
from droprl.errors import DropError

FEATURES = 64
PRIOR_STEPS = 100.0  # the mean behaviour weighs as much as this many own steps of a trajectory
COMPONENTS = 10
ATTEMPTS = 10  # of k-means
RETURN_WEIGHT = 0.2  # one standard deviation of return counts as this many of each action dimension


def behavior_sub_tasks(dataset: Dataset, n_sub_tasks: int, at_least: int, seed: int = 0) -> SubTasks:
    """Behavior(N, M): k-means of the trajectories into at most N groups with M trajectories each on average."""
    if dataset.on_disk:
        raise DropError("decomposition behavior needs all data in memory, but this data is on the disk: choose rank")
    n_groups = max(1, min(n_sub_tasks, dataset.n_episodes // at_least))
    returns = (dataset.returns - dataset.returns.mean()) / max(float(dataset.returns.std()), 1e-9)
    weighted_returns = RETURN_WEIGHT * np.sqrt(dataset.action_size) * returns[:, None]
    points = np.concatenate([behavior_signatures(dataset, seed), weighted_returns], axis=1)
    group = k_means(points, n_groups, np.random.default_rng(seed))
    return [members for i in range(n_groups) if (members := np.flatnonzero(group == i)).size]


@lru_cache(maxsize=1)  # called twice: before and after γ is chosen
def behavior_signatures(dataset: Dataset, seed: int = 0) -> np.ndarray:
    """(E, ·): one point for each trajectory.

    The squared distance of two points is the mean squared difference of their actions over all states of the data. In
    states that a trajectory has not visited, it counts as acting like the average of all trajectories.

    Method: regress the actions of each trajectory on random features of its states, and shrink the coefficients towards
    the regression over all trajectories. Measure the coefficients in the metric of the second moment of the features
    over all states. Take the leading principal components.
    """
    features = _features(dataset, seed)
    spread = np.maximum(dataset.actions.std(axis=0, dtype=np.float64), 1e-6)
    actions = (dataset.actions - dataset.actions.mean(axis=0, dtype=np.float64)) / spread
    moment = features.T @ features / len(features) + 1e-4 * np.eye(features.shape[1])
    pooled = np.linalg.solve(moment, features.T @ actions / len(features))
    root = np.linalg.cholesky(moment)
    signatures = []
    for begin, end in zip(dataset.bounds[:-1], dataset.bounds[1:], strict=True):
        own, residual = features[begin:end], actions[begin:end] - features[begin:end] @ pooled
        shift = np.linalg.solve(own.T @ own + PRIOR_STEPS * moment, own.T @ residual)
        signatures.append((root.T @ shift).ravel())
    centred = np.array(signatures) - np.mean(signatures, axis=0)
    left, scale, _ = np.linalg.svd(centred, full_matrices=False)
    return np.asarray((left * scale)[:, :COMPONENTS])


def k_means(points: np.ndarray, n_groups: int, rng: np.random.Generator) -> np.ndarray:
    """The group of each point, from the tightest of several attempts. One attempt may split a group and merge two."""
    from scipy.cluster.vq import kmeans2  # takes half a second, and only this rule needs it

    tightest, best = np.inf, np.zeros(len(points), int)
    for _ in range(ATTEMPTS):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # if points are fewer than groups, some groups are empty: that is fine
            centres, group = kmeans2(points, n_groups, minit="++", seed=rng, iter=50)
        inertia = float(np.sum((points - np.nan_to_num(centres)[group]) ** 2))
        if inertia < tightest:
            tightest, best = inertia, group
    return best


def _features(dataset: Dataset, seed: int) -> np.ndarray:
    """A constant, the state itself, and random ReLU features of the state."""
    rng = np.random.default_rng(seed)
    observations = dataset.observations.astype(np.float64)
    states = (observations - observations.mean(axis=0)) / np.maximum(observations.std(axis=0), 1e-6)
    directions = rng.normal(size=(states.shape[1], FEATURES)) / np.sqrt(states.shape[1])
    hidden = np.maximum(states @ directions + rng.normal(size=FEATURES), 0.0)
    return np.concatenate([np.ones((len(states), 1)), states, hidden], axis=1)

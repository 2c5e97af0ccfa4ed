"""Task decomposition by behaviour: trajectories that act alike in like states, and earn alike, share a sub-task.

A return is behaviour and luck together. Sub-tasks cut by return alone mix behaviours and tell the score model in
hindsight which trajectories were lucky. Where all trajectories act alike, returns are what is left to tell them apart.
"""

from __future__ import annotations

import warnings
from functools import lru_cache

import numpy as np

from droprl.data.dataset import Dataset
from droprl.data.decompose import SubTasks
from droprl.errors import DropError

FEATURES = 64
PRIOR_STEPS = 100.0  # a trajectory's own steps weigh against this many of the mean behaviour
COMPONENTS = 10
ATTEMPTS = 10  # of k-means
RETURN_WEIGHT = 0.2  # one standard deviation of return counts as this many of action, in every action dimension


def behavior_sub_tasks(dataset: Dataset, n_sub_tasks: int, at_least: int, seed: int = 0) -> SubTasks:
    """Behavior(N, M): k-means of the trajectories into at most N groups, M trajectories each on average."""
    if dataset.on_disk:
        raise DropError("decomposition behavior works on all of the data in memory: choose rank for data on the disk")
    n_groups = max(1, min(n_sub_tasks, dataset.n_episodes // at_least))
    returns = (dataset.returns - dataset.returns.mean()) / max(float(dataset.returns.std()), 1e-9)
    earned = RETURN_WEIGHT * np.sqrt(dataset.action_size) * returns[:, None]
    points = np.concatenate([behavior_signatures(dataset, seed), earned], axis=1)
    group = _k_means(points, n_groups, np.random.default_rng(seed))
    return [members for i in range(n_groups) if (members := np.flatnonzero(group == i)).size]


@lru_cache(maxsize=1)  # asked for twice, before and after γ is chosen
def behavior_signatures(dataset: Dataset, seed: int = 0) -> np.ndarray:
    """(E, ·): a point for each trajectory; squared distances are mean squared differences of action over the data, with
    a trajectory that has not been somewhere acting there as all do on average.

    Each trajectory's actions are regressed on random features of its states, shrunk towards the regression of all
    trajectories; the coefficients are measured in the metric of the features' second moment over all states, and the
    leading principal components kept.
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


def _k_means(points: np.ndarray, n_groups: int, rng: np.random.Generator) -> np.ndarray:
    """The group of each point: the tightest of several attempts, as one alone often splits a group and merges two."""
    from scipy.cluster.vq import kmeans2  # half a second, for the one rule that needs it

    tightest, found = np.inf, np.zeros(len(points), int)
    for _ in range(ATTEMPTS):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # fewer different points than groups leave some empty, which is well
            centres, group = kmeans2(points, n_groups, minit="++", seed=rng, iter=50)
        inertia = float(np.sum((points - np.nan_to_num(centres)[group]) ** 2))
        if inertia < tightest:
            tightest, found = inertia, group
    return found


def _features(dataset: Dataset, seed: int) -> np.ndarray:
    """The state itself, a constant, and random ReLU features of it."""
    rng = np.random.default_rng(seed)
    observations = dataset.observations.astype(np.float64)
    states = (observations - observations.mean(axis=0)) / np.maximum(observations.std(axis=0), 1e-6)
    directions = rng.normal(size=(states.shape[1], FEATURES)) / np.sqrt(states.shape[1])
    hidden = np.maximum(states @ directions + rng.normal(size=FEATURES), 0.0)
    return np.concatenate([np.ones((len(states), 1)), states, hidden], axis=1)

"""Converts between the units of the task and of the networks: normalised observations, and actions in [-1, 1]."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import jax
import numpy as np

from droprl.data.dataset import Dataset

Array = np.ndarray | jax.Array


class Scaling(NamedTuple):
    """Every saved policy contains it: the weights are useless without it."""

    observation_mean: Array  # (observation_size,)
    observation_std: Array  # (observation_size,)
    action_low: Array  # (action_size,)
    action_high: Array  # (action_size,)

    def observations_in(self, observations: Array) -> Array:
        return (observations - self.observation_mean) / self.observation_std

    def actions_in(self, actions: Array) -> Array:
        return 2.0 * (actions - self.action_low) / (self.action_high - self.action_low) - 1.0

    def actions_out(self, actions: Array) -> Array:
        return self.action_low + 0.5 * (actions + 1.0) * (self.action_high - self.action_low)


def mean_and_std(blocks: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Over the rows of all blocks, in float64. For a single block, the result of NumPy."""
    count, mean, variance = 0, np.zeros(()), np.zeros(())
    for block in blocks:
        count += len(block)
        share = len(block) / count  # 1 for the first block
        shift = block.mean(axis=0, dtype=np.float64) - mean
        within = (1.0 - share) * variance + share * block.var(axis=0, dtype=np.float64)
        mean, variance = mean + share * shift, within + share * (1.0 - share) * shift**2
    return mean, np.sqrt(variance)


def fit_scaling(dataset: Dataset, normalize_observations: bool = True) -> Scaling:
    """Mean and standard deviation of each dimension. A dimension that never changes is only shifted."""
    size = dataset.observation_size
    mean, std = np.zeros(size), np.ones(size)
    if normalize_observations:
        rows = (slice(dataset.bounds[episodes.start], dataset.bounds[episodes.stop]) for episodes in dataset.blocks())
        mean, std = mean_and_std(dataset.observations[block] for block in rows)
        std = np.where(std < 1e-6, 1.0, std)
    return Scaling(
        mean.astype(np.float32),
        std.astype(np.float32),
        dataset.action_low.astype(np.float32),
        dataset.action_high.astype(np.float32),
    )

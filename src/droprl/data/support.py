"""The support of the data: a few hundred of its states, and the distances of its own states to them.

A run and a saved policy contain it. So without the dataset, one can say at test time that a state is "farther from the
data than 99 % of the data's own states". Observations are normalised here, as for the networks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from droprl.data.dataset import Dataset
from droprl.data.paging import in_pieces
from droprl.data.scaling import Scaling

Array = np.ndarray | jax.Array

PROTOTYPES = 512
LEVELS = 1001
SAMPLE = 20_000  # the number of states read, for data of any size
OWN_STATES = 4_000  # the number of these states whose distances give the levels
SMALLEST_VARIANCE = 0.01  # of a direction, relative to the mean over all: so rounding does not count as distance


class Support(NamedTuple):
    """Prototypes that cover the data, and the distances of the data's own states to them."""

    basis: Array  # (observation_size, observation_size): makes normalised observations decorrelated, with unit variance
    prototypes: Array  # (P, observation_size), decorrelated
    levels: Array  # (LEVELS,) rising: evenly spaced quantiles of the distances of the data's own states

    def distance(self, observation: Array) -> jax.Array:
        """From one normalised observation to the nearest prototype, in standard deviations."""
        offsets = jnp.asarray(self.prototypes) - jnp.asarray(observation) @ self.basis
        return jnp.sqrt(jnp.min(jnp.sum(offsets**2, axis=1)))

    def share_nearer(self, distance: Array) -> jax.Array:
        """The share of the data's own states that are nearer than this. 0: inside the data, 1: beyond all of it."""
        nearer = jnp.searchsorted(jnp.asarray(self.levels), jnp.asarray(distance), side="left")
        return nearer / self.levels.shape[0]

    def limit(self, share: float) -> float:
        """The distance within which this share of the data's own states lies."""
        return float(self.levels[round(share * (LEVELS - 1))])


def fit_support(dataset: Dataset, scaling: Scaling, n_prototypes: int = PROTOTYPES, seed: int = 0) -> Support:
    """Choose prototypes by the farthest-point method, and compute the levels of the distances.

    The distance of a state leaves out the prototypes of its own episode, because the states of one episode are close to
    each other. With them, a state of the data would seem nearer than a state of a new episode can be.
    """
    rng = np.random.default_rng(seed)
    rows = np.sort(rng.choice(dataset.n_steps, min(SAMPLE, dataset.n_steps), replace=False))
    seen = in_pieces(dataset, lambda piece: np.asarray(dataset.observations).take(piece, axis=0), rows)
    normalized = np.asarray(scaling.observations_in(seen), np.float64)
    episode = np.searchsorted(dataset.bounds, rows, side="right") - 1
    basis = decorrelation(normalized)
    states = normalized @ basis
    chosen = farthest_points(states, n_prototypes)
    prototypes = states[chosen]
    own = rng.permutation(len(rows))[:OWN_STATES]
    squares = _squared_distances(states[own], prototypes)
    origin = (
        episode if len(np.unique(episode[chosen])) > 1 else rows
    )  # with a single episode, leave out only the state itself
    squares = np.where(origin[own][:, None] == origin[chosen][None], np.inf, squares)
    levels = np.quantile(np.sqrt(np.min(squares, axis=1)), np.linspace(0, 1, LEVELS))
    return Support(*(part.astype(np.float32) for part in (basis, prototypes, levels)))


def decorrelation(states: np.ndarray) -> np.ndarray:
    """The matrix that gives states uncorrelated entries of unit variance.

    The sensors of one body move together. Two values that are each common may never have been seen together.
    """
    variances, directions = np.linalg.eigh(np.atleast_2d(np.cov(states.T, bias=True)))
    typical = float(np.mean(variances)) or 1.0
    scaled: np.ndarray = directions / np.sqrt(np.maximum(variances, 0) + SMALLEST_VARIANCE * typical)
    return scaled


def farthest_points(states: np.ndarray, n: int) -> np.ndarray:
    """Choose rows one by one, each the farthest from all before it. They cover rare states as well as common ones."""
    chosen = [0]
    squares = _squared_distances(states, states[:1])[:, 0]
    while len(chosen) < min(n, len(states)):
        chosen.append(int(np.argmax(squares)))
        squares = np.minimum(squares, _squared_distances(states, states[chosen[-1:]])[:, 0])
    return np.array(chosen)


def support_shapes(observation_size: int, n_prototypes: int) -> Support:
    """The shapes of the arrays in a file. Nothing is allocated."""
    shape: Any = jax.ShapeDtypeStruct
    sizes = (observation_size, observation_size), (n_prototypes, observation_size), (LEVELS,)
    return Support(*(shape(size, np.float32) for size in sizes))


def _squared_distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    squares = np.sum(a**2, axis=1)[:, None] + np.sum(b**2, axis=1)[None] - 2 * a @ b.T
    return np.maximum(squares, 0.0)

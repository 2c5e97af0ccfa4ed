"""Fitted Q evaluation: Q(s, a) ← r + γ Q(s', π(s')), round by round, until it stands still.

Each round is a ridge regression on random features of state and action, solved exactly. What a round learns from is
clipped to what the rewards and γ allow, so Q can neither diverge nor promise the impossible. π may differ from the
behaviour in the data, but far away from it Q is a guess.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy.linalg import cho_factor, cho_solve

from droprl.judging.log import Bounds, Log, Steps, pairs

FREQUENCIES = (1.0, 2.0, 4.0)  # of the features, over all dimensions together


class Features(NamedTuple):
    """A constant, the state and the action, and cosines of random directions: a Gaussian kernel, approximately."""

    directions: np.ndarray  # (inputs, features)
    phases: np.ndarray  # (features,)

    @classmethod
    def draw(cls, inputs: int, features: int, seed: int) -> Features:
        rng = np.random.default_rng([seed, 24])
        frequencies = rng.choice(FREQUENCIES, features) / np.sqrt(inputs)
        directions = rng.normal(size=(inputs, features)) * frequencies
        return cls(directions.astype(np.float32), rng.uniform(0, 2 * np.pi, features).astype(np.float32))

    def of(self, points: np.ndarray) -> np.ndarray:
        waves = np.cos(points @ self.directions + self.phases) * np.float32(np.sqrt(2.0))
        return np.concatenate([np.ones((len(points), 1), np.float32), points, waves], axis=1)


class FittedQ(NamedTuple):
    """Q of one policy."""

    features: Features
    weights: np.ndarray
    bounds: Bounds

    def value(self, observations: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """(n,) Q(s, a), inside the bounds."""
        return np.clip(self.features.of(pairs(observations, actions)) @ self.weights, *self.bounds)


def fit_q(
    log: Log, steps: Steps, chosen: np.ndarray, n_features: int, ridge: float, rounds: int, seed: int = 0
) -> FittedQ:
    """`chosen` are the policy's actions in the rows of the log's observations."""
    features = Features.draw(steps.observations.shape[1] + steps.actions.shape[1], n_features, seed)
    now = features.of(pairs(steps.observations, steps.actions))
    after = features.of(pairs(log.observations[steps.successors], chosen[steps.successors]))
    exact = now.astype(np.float64)
    moment = exact.T @ exact / len(exact) + ridge * np.eye(exact.shape[1])
    moment[0, 0] -= ridge  # the constant is free
    solve = cho_solve(cho_factor(moment), exact.T / len(exact))
    weights = _rounds(
        jnp.asarray(solve, jnp.float32),
        jnp.asarray(after),
        jnp.asarray(steps.rewards),
        jnp.asarray(steps.discounts),
        jnp.asarray(log.bounds, jnp.float32),
        jnp.float32(log.logged_returns().mean()),
        jnp.int32(rounds),
    )
    return FittedQ(features, np.asarray(weights), log.bounds)


@jax.jit
def _rounds(
    solve: Array, after: Array, rewards: Array, discounts: Array, bounds: Array, first: Array, rounds: Array
) -> Array:
    """`first` is the constant that the rounds begin with: what the log earned is nearer to the answer than 0."""

    def one_round(i: Array, weights: Array) -> Array:
        return solve @ (rewards + discounts * jnp.clip(after @ weights, bounds[0], bounds[1]))

    return jax.lax.fori_loop(0, rounds, one_round, jnp.zeros(after.shape[1]).at[0].set(first))

"""Returns less what the first state foretells: some episodes begin with an easier task than others.

If the first state foretells the return, a cut by return sorts trajectories by how lucky their first state was.
"""

from __future__ import annotations

import numpy as np

from droprl.data.dataset import Dataset

FOLDS = 5
PENALTIES = (1.0, 10.0, 100.0, 1000.0)
FORETOLD = 0.1  # below this R² on trajectories left out, the first state is taken to say nothing


def behavior_returns(dataset: Dataset) -> np.ndarray:
    """(E,) the returns, or what is left of them after a cross-fitted regression on the first states, if that foretells
    more than a tenth of their variance. The mean stays that of the returns."""
    foretold, r2 = foretold_returns(dataset)
    return dataset.returns - foretold + foretold.mean() if r2 > FORETOLD else dataset.returns


def foretold_returns(dataset: Dataset) -> tuple[np.ndarray, float]:
    """(E,) the return that the first state foretells by ridge regression on the other trajectories, and its R²."""
    returns, n = np.asarray(dataset.returns, np.float64), dataset.n_episodes
    spread = float(returns.var())
    if n < 2 * FOLDS or spread == 0:
        return np.full(n, returns.mean()), 0.0
    first = np.asarray(dataset.observations)[dataset.bounds[:-1]].astype(np.float64)
    states = (first - first.mean(axis=0)) / np.maximum(first.std(axis=0), 1e-6)
    fold = np.random.default_rng(0).permutation(n) % FOLDS
    guesses = [_ridge(states, returns, fold, penalty) for penalty in PENALTIES]
    errors = [float(np.mean((returns - guess) ** 2)) for guess in guesses]
    best = int(np.argmin(errors))
    return guesses[best], 1.0 - errors[best] / spread


def _ridge(states: np.ndarray, returns: np.ndarray, fold: np.ndarray, penalty: float) -> np.ndarray:
    guess = np.empty(len(returns))
    for k in range(FOLDS):
        others = fold != k
        mean, middle = returns[others].mean(), states[others].mean(axis=0)
        seen = states[others] - middle
        weights = np.linalg.solve(seen.T @ seen + penalty * np.eye(seen.shape[1]), seen.T @ (returns[others] - mean))
        guess[fold == k] = mean + (states[fold == k] - middle) @ weights
    return guess

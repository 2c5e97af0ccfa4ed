"""Sums inside episodes: Monte-Carlo and average returns, n-step targets, and the choice of γ that needs only the data.

Nothing here ever looks past an episode's end. A terminal leaves nothing to come; a timeout leaves a future that is
bootstrapped where the data shows the state to bootstrap from, and is not guessed where it does not.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.signal import lfilter
from scipy.stats import spearmanr

from droprl.data.dataset import Dataset
from droprl.data.decompose import SubTasks, sub_task_returns

DISCOUNTS = (0.99, 0.995, 0.997, 0.999)


def discounted_returns(dataset: Dataset, discount: float) -> np.ndarray:
    """(T,) float64: for each row the discounted sum of rewards to the end of its episode."""
    rewards = dataset.rewards.astype(np.float64)
    returns = np.empty_like(rewards)
    for begin, end in zip(dataset.bounds[:-1], dataset.bounds[1:], strict=True):
        returns[begin:end] = lfilter([1.0], [1.0, -discount], rewards[begin:end][::-1])[::-1]
    return returns


def average_returns_to_go(dataset: Dataset, horizon: int) -> np.ndarray:
    """(T,) float64: the rewards to the end of the episode, over the steps that were left: RvS-R's ω.

    After a terminal nothing more is earned, for as long as the clock of `horizon` steps would still have run: those
    steps count. A timeout, or the end of the file, only stops the clock: the average is over what was seen.
    """
    rows = np.arange(dataset.n_steps)
    episode = np.repeat(np.arange(dataset.n_episodes), dataset.lengths)
    seen = dataset.bounds[1:][episode] - rows
    on_the_clock = dataset.bounds[:-1][episode] + horizon - rows
    left = np.where(dataset.ends_in_terminal[episode], np.maximum(on_the_clock, seen), seen)
    return discounted_returns(dataset, 1.0) / left


class Targets(NamedTuple):
    """For each row t: reward + discount · f(the state `horizon` steps on), where `known`."""

    reward: np.ndarray  # (T,) float64: Σ_{i < horizon} γ^i r_{t+i}
    discount: np.ndarray  # (T,) float64: γ^horizon, and 0 where the task ended on the way
    horizon: np.ndarray  # (T,) int64: how many rewards are summed
    known: np.ndarray  # (T,) bool: false only for the last step of a timed-out episode without next_observations
    past_end: np.ndarray  # (T,) bool: the state to bootstrap from is the one after a timeout: no action is logged there


def n_step_targets(dataset: Dataset, discount: float, n_steps: int | np.ndarray | None) -> Targets:
    """n-step targets (n = 1 is the paper's TD(0), None goes to the episode's end: Monte Carlo), or an n a row."""
    rows = np.arange(dataset.n_steps)
    episode = np.repeat(np.arange(dataset.n_episodes), dataset.lengths)
    end = dataset.bounds[1:][episode]
    terminal = dataset.ends_in_terminal[episode]
    # The last row whose reward may be summed before one must bootstrap: without the state after a timeout, the last
    # row of that episode is itself the state to bootstrap from.
    last_summed = end if dataset.next_observations is not None else np.where(terminal, end, end - 1)
    horizon = np.minimum(last_summed - rows, n_steps if n_steps is not None else dataset.n_steps)
    successor = rows + horizon
    reaches_end = successor == end
    returns = np.append(discounted_returns(dataset, discount), 0.0)
    power = discount ** horizon.astype(np.float64)
    beyond = np.where(reaches_end, 0.0, returns[np.minimum(successor, dataset.n_steps)])
    return Targets(
        reward=returns[rows] - power * beyond,
        discount=np.where(reaches_end & terminal, 0.0, power),
        horizon=horizon,
        known=horizon > 0,
        past_end=reaches_end & ~terminal,
    )


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman's ρ; NaN where one side is constant."""
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    return float(spearmanr(a, b).statistic)


def discount_rank_correlation(dataset: Dataset, sub_tasks: SubTasks, discount: float) -> float:
    """How well the *true* discounted return at s₀ ranks the sub-tasks by their returns.

    A score model can be perfect and still prefer the wrong sub-task where this is low: the check needs the data only.
    """
    at_start = discounted_returns(dataset, discount)[dataset.bounds[:-1]]
    return rank_correlation(sub_task_returns(at_start, sub_tasks), sub_task_returns(dataset.returns, sub_tasks))


def choose_discount(dataset: Dataset, sub_tasks: SubTasks, enough: float = 0.95) -> float:
    """The smallest γ whose discounted returns rank the sub-tasks well enough, or else the one that ranks best."""
    correlations = np.nan_to_num([discount_rank_correlation(dataset, sub_tasks, d) for d in DISCOUNTS], nan=1.0)
    good = np.flatnonzero(correlations >= enough)
    return DISCOUNTS[int(good[0]) if good.size else int(np.argmax(correlations))]

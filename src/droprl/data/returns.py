"""Sums inside episodes: Monte-Carlo and average returns, n-step targets, and the choice of γ from the data alone.

No sum goes past the end of an episode. After a terminal, nothing more is earned. After a timeout, a target bootstraps
from the next state, if the data shows that state. If not, the step has no target.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from droprl.data.dataset import Dataset
from droprl.data.decompose import SubTasks, sub_task_returns
from droprl.data.scaling import mean_and_std

DISCOUNTS = (0.99, 0.995, 0.997, 0.999)
REWARDS_AT_ONCE = 64


def discounted_returns(dataset: Dataset, discount: float) -> np.ndarray:
    """(T,) float64: for each row, the discounted sum of rewards to the end of its episode."""
    return np.concatenate([returns for _, returns in returns_by_block(dataset, discount)])


def returns_by_block(dataset: Dataset, discount: float) -> Iterator[tuple[slice, np.ndarray]]:
    """`discounted_returns`, block by block, with the episodes of each block: for data that does not fit into memory."""
    for episodes in dataset.blocks():
        begin, end = dataset.bounds[episodes.start], dataset.bounds[episodes.stop]
        ends = dataset.bounds[episodes.start + 1 : episodes.stop + 1] - begin
        yield episodes, _sums_to_end(dataset.rewards[begin:end].astype(np.float64), ends, discount)


def returns_spread(dataset: Dataset, discount: float) -> float:
    """The standard deviation of the discounted returns of all rows."""
    return float(mean_and_std(returns for _, returns in returns_by_block(dataset, discount))[1])


def _sums_to_end(rewards: np.ndarray, ends: np.ndarray, discount: float) -> np.ndarray:
    """R_t = r_t + γ R_{t+1}, backwards from the end of each episode.

    Many short episodes are summed in parallel. A few long ones are summed one after another.
    """
    lengths = np.diff(ends, prepend=0)
    if len(rewards) < 50 * lengths.max():
        parts = (rewards[end - length : end][::-1].tolist() for end, length in zip(ends, lengths, strict=True))
        sums = (list(accumulate(part, lambda to_go, reward: reward + discount * to_go))[::-1] for part in parts)
        return np.concatenate([np.asarray(part) for part in sums])
    returns = rewards.copy()
    longest_first = np.argsort(-lengths, kind="stable")
    last, longer_than = ends[longest_first] - 1, -lengths[longest_first]
    for back in range(1, int(lengths.max())):
        rows = last[: np.searchsorted(longer_than, -back, side="left")] - back
        returns[rows] += discount * returns[rows + 1]
    return returns


def average_returns_to_go(dataset: Dataset, horizon: int) -> np.ndarray:
    """(T,) float64: the sum of rewards to the end of the episode, divided by the steps left: RvS-R's ω.

    After a terminal, nothing more is earned, but the steps up to the time limit of `horizon` steps still count. A
    timeout, or the end of the file, only cuts the episode: the average is over the steps that were seen.
    """
    averages, terminal = [], dataset.ends_in_terminal
    for episodes, returns in returns_by_block(dataset, 1.0):
        lengths = dataset.lengths[episodes]
        seen = np.repeat(np.cumsum(lengths), lengths) - np.arange(len(returns))
        to_time_limit = seen + np.repeat(horizon - lengths, lengths)
        left = np.where(np.repeat(terminal[episodes], lengths), np.maximum(to_time_limit, seen), seen)
        averages.append(returns / left)
    return np.concatenate(averages)


class Targets(NamedTuple):
    """The target of each row t, if `known`: reward + discount · f(the state `horizon` steps later)."""

    reward: np.ndarray  # (T,) float64: Σ_{i < horizon} γ^i r_{t+i}
    discount: np.ndarray  # (T,) float64: γ^horizon, or 0 if the task ended on the way
    horizon: np.ndarray  # (T,) int64: the number of rewards summed
    known: np.ndarray  # (T,) bool: false only for the last step of a timed-out episode without next_observations
    past_end: np.ndarray  # (T,) bool: the target bootstraps from the state after a timeout, where no action is logged


def n_step_targets(dataset: Dataset, discount: float, n_steps: int | np.ndarray | None) -> Targets:
    """The n-step targets of all rows.

    n = 1 is the paper's TD(0). None sums to the end of the episode (Monte Carlo). An array has one n for each row.
    """
    rows = np.arange(dataset.n_steps)
    episode = np.repeat(np.arange(dataset.n_episodes), dataset.lengths)
    targets = targets_but_rewards(dataset, rows, episode, discount, n_steps)
    returns = np.append(discounted_returns(dataset, discount), 0.0)
    successor = rows + targets.horizon
    beyond = np.where(successor == dataset.bounds[1:][episode], 0.0, returns[np.minimum(successor, dataset.n_steps)])
    return targets._replace(reward=returns[rows] - discount ** targets.horizon.astype(np.float64) * beyond)


def n_step_targets_at(
    dataset: Dataset, rows: np.ndarray, episode: np.ndarray, discount: float, n_steps: int | np.ndarray | None
) -> Targets:
    """The targets of some rows of known episodes. It reads only the rewards that these targets sum."""
    targets = targets_but_rewards(dataset, rows, episode, discount, n_steps)
    rewards, total = np.asarray(dataset.rewards), np.zeros(rows.shape)
    longest = int(targets.horizon.max(initial=0))
    for begin in range(0, longest, REWARDS_AT_ONCE):
        ahead = np.arange(begin, min(begin + REWARDS_AT_ONCE, longest))
        weights = (ahead < targets.horizon[..., None]) * discount ** ahead.astype(np.float64)
        # A sum and not a matrix product: in a product, the rounding of a row may depend on the other rows.
        total += (rewards.take(rows[..., None] + ahead, mode="clip") * weights).sum(axis=-1)
    return targets._replace(reward=total)


def targets_but_rewards(
    dataset: Dataset, rows: np.ndarray, episode: np.ndarray, discount: float, n_steps: int | np.ndarray | None
) -> Targets:
    """The length of the target of each row, and whether it bootstraps. The rewards are left at 0."""
    end, terminal = dataset.bounds[1:][episode], dataset.ends_in_terminal[episode]
    # A target may sum rewards up to the row before this one. If the state after a timeout is unknown, the target
    # bootstraps from the last row of the episode, so the reward of that row is not summed.
    summed_up_to = end if dataset.next_observations is not None else np.where(terminal, end, end - 1)
    horizon = np.minimum(summed_up_to - rows, n_steps if n_steps is not None else dataset.n_steps)
    reaches_end = rows + horizon == end
    return Targets(
        reward=np.zeros(rows.shape),
        discount=np.where(reaches_end & terminal, 0.0, discount ** horizon.astype(np.float64)),
        horizon=horizon,
        known=horizon > 0,
        past_end=reaches_end & ~terminal,
    )


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman's ρ. NaN if one side is constant."""
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    return float(np.corrcoef(_ranks(a), _ranks(b))[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 1. Equal values share the mean of their ranks."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[which]


def discount_rank_correlation(dataset: Dataset, sub_tasks: SubTasks, discount: float) -> float:
    """How well the *true* discounted return at s₀ ranks the sub-tasks by their returns.

    If this is low, even a perfect score model prefers the wrong sub-task. The check needs only the data.
    """
    begins = dataset.bounds[:-1]
    by_block = returns_by_block(dataset, discount)
    at_start = np.concatenate([returns[begins[part] - begins[part.start]] for part, returns in by_block])
    return rank_correlation(sub_task_returns(at_start, sub_tasks), sub_task_returns(dataset.returns, sub_tasks))


def choose_discount(dataset: Dataset, sub_tasks: SubTasks, enough: float = 0.95) -> float:
    """The smallest γ whose discounted returns rank the sub-tasks well enough. If none does, the γ that ranks best."""
    correlations = np.nan_to_num([discount_rank_correlation(dataset, sub_tasks, d) for d in DISCOUNTS], nan=1.0)
    good = np.flatnonzero(correlations >= enough)
    return DISCOUNTS[int(good[0]) if good.size else int(np.argmax(correlations))]

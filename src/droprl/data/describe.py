"""A summary of a dataset in plain numbers: sizes, returns, columns, warnings, the sub-tasks by each rule, and what F-BC
would clone.

The numbers of sub-tasks are the defaults of training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import numpy as np

from droprl.data.best import BEST_RULE, best_episodes, best_fraction
from droprl.data.dataset import Dataset, histogram
from droprl.data.decompose import Rule, decompose
from droprl.data.returns import discounted_returns
from droprl.data.tasks import equal_sub_tasks
from droprl.data.warn import Column, RewardFacts, Warned, column_ranges, reward_facts, warnings_of
from droprl.environments.vectors import Parts

MANY_TIES = 0.1  # the share of trajectories from which on ties are worth a word
TIE_DISCOUNT = 0.99


@dataclass(frozen=True)
class Spread:
    """How a quantity is spread over the episodes."""

    min: float
    lower_quartile: float
    median: float
    upper_quartile: float
    max: float
    mean: float


@dataclass(frozen=True)
class Cut:
    """How one decomposition rule would cut the episodes into sub-tasks."""

    rule: str
    n_sub_tasks: int
    n_trajectories: int
    smallest: int  # trajectories in the smallest sub-task
    largest: int
    first_returns: tuple[float, float]  # lowest and highest return in the first sub-task
    last_returns: tuple[float, float]


@dataclass(frozen=True)
class Ties:
    """Trajectories that earned the same: no rule by return can tell them apart."""

    n_trajectories: int  # that share their return with another one
    n_returns: int  # different returns in the data
    n_alike: int  # sub-tasks of Rank that hold a single return, the same as a sub-task beside it
    best_return: float
    n_best: int
    best_lengths: Spread  # of the trajectories with the best return
    best_discounted: float  # the median of their discounted returns, with γ = 0.99


@dataclass(frozen=True)
class Description:
    """Everything that `drop data info` shows, in types that fit into JSON."""

    name: str
    env: str | None
    n_steps: int
    n_episodes: int
    observation_size: int
    action_size: int
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    n_terminals: int
    n_timeouts: int
    has_next_observations: bool
    last_is_cut_short: bool
    lengths: Spread
    returns: Spread
    score_range: tuple[float, float] | None
    scores: Spread | None  # D4RL-normalised, if the reference returns are known
    time_limit: int | None  # the most steps of an episode when the task is played; None: the environment's own
    sub_tasks_asked: int  # N
    trajectories_asked: int  # M
    sub_tasks_origin: str
    cuts: tuple[Cut, ...]
    ties: Ties | None  # None: fewer than one in ten share their return
    best_fraction: float  # the share of trajectories that F-BC clones
    best_trajectories: int
    best_steps: int
    best_rule: str
    histogram_edges: tuple[float, ...]
    histogram_counts: tuple[int, ...]
    observation_parts: Parts | None
    action_parts: Parts | None
    columns: tuple[Column, ...]
    rewards: RewardFacts
    warnings: tuple[Warned, ...]
    fingerprint: str


def describe(dataset: Dataset, seed: int = 0) -> Description:
    """Summarise a dataset. `seed` is the seed of the random rules."""
    returns = dataset.returns
    scores = dataset.scores(returns)
    preset = equal_sub_tasks(dataset.n_episodes)
    counts, edges = histogram(returns)
    fraction = best_fraction(dataset)
    best = best_episodes(dataset, fraction)
    columns, rewards = column_ranges(dataset), reward_facts(dataset)
    return Description(
        name=dataset.name,
        env=dataset.env,
        n_steps=dataset.n_steps,
        n_episodes=dataset.n_episodes,
        observation_size=dataset.observation_size,
        action_size=dataset.action_size,
        action_low=tuple(float(bound) for bound in dataset.action_low),
        action_high=tuple(float(bound) for bound in dataset.action_high),
        n_terminals=int(dataset.terminals.sum()),
        n_timeouts=int(dataset.timeouts.sum()),
        has_next_observations=dataset.next_observations is not None,
        last_is_cut_short=dataset.last_is_cut_short,
        lengths=_spread(dataset.lengths),
        returns=_spread(returns),
        score_range=dataset.score_range,
        time_limit=dataset.time_limit,
        scores=None if scores is None else _spread(scores),
        sub_tasks_asked=preset.n_sub_tasks,
        trajectories_asked=preset.trajectories_per_sub_task,
        sub_tasks_origin=preset.origin,
        cuts=tuple(
            _cut(returns, rule, preset.n_sub_tasks, preset.trajectories_per_sub_task, seed) for rule in get_args(Rule)
        ),
        ties=_ties(dataset, preset.n_sub_tasks, preset.trajectories_per_sub_task),
        best_fraction=fraction,
        best_trajectories=len(best),
        best_steps=int(dataset.lengths[best].sum()),
        best_rule=BEST_RULE,
        histogram_edges=tuple(float(edge) for edge in edges),
        histogram_counts=tuple(int(count) for count in counts),
        observation_parts=dataset.observation_parts,
        action_parts=dataset.action_parts,
        columns=columns,
        rewards=rewards,
        warnings=warnings_of(dataset, columns, rewards),
        fingerprint=dataset.fingerprint,
    )


def _spread(values: np.ndarray) -> Spread:
    quartiles = np.percentile(values, [0, 25, 50, 75, 100])
    low, lower, median, upper, high = (float(value) for value in quartiles)
    return Spread(low, lower, median, upper, high, float(np.mean(values)))


def _cut(returns: np.ndarray, rule: Rule, n_sub_tasks: int, trajectories_per_sub_task: int, seed: int) -> Cut:
    sub_tasks = decompose(returns, rule, n_sub_tasks, trajectories_per_sub_task, seed)
    sizes = [len(members) for members in sub_tasks]
    first, last = returns[sub_tasks[0]], returns[sub_tasks[-1]]
    return Cut(
        rule=rule,
        n_sub_tasks=len(sub_tasks),
        n_trajectories=sum(sizes),
        smallest=min(sizes),
        largest=max(sizes),
        first_returns=(float(first.min()), float(first.max())),
        last_returns=(float(last.min()), float(last.max())),
    )


def _ties(dataset: Dataset, n_sub_tasks: int, trajectories_per_sub_task: int) -> Ties | None:
    returns = dataset.returns
    values, counts = np.unique(returns, return_counts=True)
    tied = int(counts[counts > 1].sum())
    if tied < MANY_TIES * len(returns):
        return None
    parts = decompose(returns, "rank", n_sub_tasks, trajectories_per_sub_task)
    only = [part[0] if len(part) == 1 else None for part in (np.unique(returns[members]) for members in parts)]
    beside = [only[max(0, i - 1) : i] + only[i + 1 : i + 2] for i in range(len(only))]
    best = returns == values[-1]
    at_start = discounted_returns(dataset, TIE_DISCOUNT)[dataset.bounds[:-1]]
    return Ties(
        n_trajectories=tied,
        n_returns=len(values),
        n_alike=sum(value is not None and value in near for value, near in zip(only, beside, strict=True)),
        best_return=float(values[-1]),
        n_best=int(best.sum()),
        best_lengths=_spread(dataset.lengths[best]),
        best_discounted=float(np.median(at_start[best])),
    )

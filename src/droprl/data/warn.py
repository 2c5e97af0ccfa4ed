"""What fails quietly: data that training accepts, and that teaches nothing or something wrong.

Each warning has a stated limit, names what is concerned, and says what to do. `column_ranges` reads all rows once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from droprl.data.dataset import Dataset
from droprl.data.tasks import SUB_TASKS
from droprl.environments.vectors import column_names

FEWEST_FLOATS = 100  # different float32 numbers between the smallest and the largest value of a column
LARGE = 2.0**24  # from here on, float32 does not tell apart whole numbers that differ by 1
NARROW = 0.1  # of the largest value
WIDEST_SCALES = 1e4  # between the standard deviations of two columns
STUCK_SHARE = 0.5  # of the steps
NEAR_BOUND = 1e-4  # of an action's range
SPREAD = 1e-6  # of the largest return
SINGLE_SHARE = 0.1  # of the episodes
PART_ROWS = 2**16


@dataclass(frozen=True)
class Column:
    """One number of the observations or actions, over all steps."""

    kind: str  # "observation" or "action"
    name: str
    min: float
    max: float
    mean: float
    std: float
    at_bound: float | None  # an action: the share of steps at one of its two bounds


@dataclass(frozen=True)
class RewardFacts:
    """How rewards are spread over the steps."""

    min: float
    max: float
    mean: float
    density: float  # the share of steps whose reward is not 0
    n_distinct: int  # different rewards; counted up to 1,000
    most_in_an_episode: int  # the steps of one episode whose reward is not 0
    one_for_each_episode: bool  # all steps of an episode have the same reward, and episodes differ


@dataclass(frozen=True)
class Warned:
    """One warning."""

    kind: str
    what: str
    limit: str
    do: str


def column_ranges(dataset: Dataset) -> tuple[Column, ...]:
    """The range, mean and spread of every column, in float64."""
    low_high, sums, squares, stuck = _measured(dataset)
    observations = column_names(dataset.observation_parts, dataset.observation_size)
    actions = column_names(dataset.action_parts, dataset.action_size)
    kinds = ["observation"] * len(observations) + ["action"] * len(actions)
    means = sums / dataset.n_steps
    stds = np.sqrt(np.maximum(squares / dataset.n_steps - (means - _offset(low_high)) ** 2, 0.0))
    return tuple(
        Column(
            kind=kind,
            name=name,
            min=float(low_high[0, i]),
            max=float(low_high[1, i]),
            mean=float(means[i]),
            std=float(stds[i]),
            at_bound=None if kind == "observation" else float(stuck[i - len(observations)]),
        )
        for i, (kind, name) in enumerate(zip(kinds, [*observations, *actions], strict=True))
    )


def reward_facts(dataset: Dataset) -> RewardFacts:
    distinct: set[float] = set()
    n_paid = most = 0
    repeated = bool((dataset.lengths > 1).any())
    low, high, total = np.inf, -np.inf, 0.0
    for episodes in dataset.blocks():
        begin, end = dataset.bounds[episodes.start], dataset.bounds[episodes.stop]
        rewards = np.asarray(dataset.rewards[begin:end], np.float64)
        paid = np.add.reduceat((rewards != 0).astype(np.int64), dataset.bounds[episodes] - begin)
        n_paid, most = n_paid + int(paid.sum()), max(most, int(paid.max()))
        inside = np.ones(len(rewards) - 1, bool)
        inside[dataset.bounds[episodes.start + 1 : episodes.stop] - begin - 1] = False
        repeated = repeated and not np.diff(rewards)[inside].any()
        low, high, total = min(low, rewards.min()), max(high, rewards.max()), total + rewards.sum()
        if len(distinct) < 1_000:
            distinct.update(np.unique(rewards)[:1_000].tolist())
    mean = float(total) / dataset.n_steps
    density, n_distinct = n_paid / dataset.n_steps, min(len(distinct), 1_000)
    return RewardFacts(float(low), float(high), mean, density, n_distinct, most, repeated and bool(low < high))


def warnings_of(dataset: Dataset, columns: Sequence[Column], rewards: RewardFacts) -> tuple[Warned, ...]:
    return (
        *_of_columns(columns),
        *_of_actions(columns),
        *_of_rewards(dataset, rewards),
        *_of_episodes(dataset),
    )


def _of_columns(columns: Sequence[Column]) -> Iterator[Warned]:
    flat, constant = list[Column](), list[Column]()
    for column in columns:
        largest, span = max(abs(column.min), abs(column.max)), column.max - column.min
        floats = span / float(np.spacing(np.float32(largest)))
        if (largest >= LARGE and span < NARROW * largest) or 0 < floats < FEWEST_FLOATS:
            flat.append(column)
        elif span == 0:
            constant.append(column)
    for column in flat:
        step = float(np.spacing(np.float32(max(abs(column.min), abs(column.max)))))
        n = round((column.max - column.min) / step) + 1
        values = "one value" if n == 1 else f"at most {n:,} values"
        yield Warned(
            "flattened",
            f"{column.kind} {column.name} has {values} near {column.min:.4g}: float32 keeps steps of {step:g} there",
            f"fewer than {FEWEST_FLOATS} float32 numbers between its smallest and largest value, or values of "
            f"{LARGE:,.0f} or more that differ by less than {NARROW:.0%}",
            "subtract its start (seconds since the episode began, not Unix time), or leave it out",
        )
    if constant:
        yield Warned(
            "constant",
            f"{_names(constant)} never change{'s' if len(constant) == 1 else ''}",
            "the smallest value is the largest",
            "leave constant columns out; a policy learns nothing from them",
        )
    moving = [column for column in columns if column.kind == "observation" and column.std > 0 and column not in flat]
    if moving:
        narrow, wide = min(moving, key=lambda c: c.std), max(moving, key=lambda c: c.std)
        if wide.std / narrow.std > WIDEST_SCALES:
            yield Warned(
                "scales",
                f"observation {wide.name} varies by {wide.std:.2g}, and {narrow.name} by {narrow.std:.2g}",
                f"one standard deviation is more than {WIDEST_SCALES:,.0f} times the other",
                "check their units and look for wrong values; observations are normalised by default, so keep that on",
            )


def _of_actions(columns: Sequence[Column]) -> Iterator[Warned]:
    stuck = [column for column in columns if column.at_bound is not None and column.at_bound >= STUCK_SHARE]
    if stuck:
        most = max(stuck, key=lambda column: column.at_bound or 0)
        yield Warned(
            "actions-at-bound",
            f"{_names(stuck)}: at a bound in {most.at_bound:.0%} of the steps" + (" at most" if stuck[1:] else ""),
            f"{STUCK_SHARE:.0%} of the steps or more are within {NEAR_BOUND:g} of the range from a bound",
            "check --action-low and --action-high; if it is really on or off, a continuous policy fits it badly",
        )


def _of_rewards(dataset: Dataset, rewards: RewardFacts) -> Iterator[Warned]:
    returns = dataset.returns
    if rewards.density == 0:
        yield Warned(
            "zero-rewards",
            "every reward is 0",
            "no reward differs from 0",
            "name the column of the reward; without one, only `--algo bc` makes sense",
        )
    elif rewards.most_in_an_episode == 1 and dataset.n_steps > dataset.n_episodes:
        n_paid = round(rewards.density * dataset.n_steps)
        yield Warned(
            "one-step-rewards",
            f"rewards are paid in one step of an episode at most ({n_paid:,} of {dataset.n_steps:,} steps)",
            "no episode has two rewards that differ from 0",
            "episodes can still be ranked; if they are long, give --discount 0.999 to train, or a denser reward",
        )
    elif rewards.min == rewards.max:
        yield Warned(
            "constant-rewards",
            f"every reward is {rewards.min:g}, so a return only counts steps",
            "the smallest reward is the largest",
            "add what tells good from bad",
        )
    elif rewards.one_for_each_episode:
        yield Warned(
            "repeated-rewards",
            "all steps of an episode have the same reward, so a long episode earns it more often",
            "no reward changes inside an episode, and episodes differ",
            "if it belongs to the episode as a whole, pay it once: drop data import … --reward-at end",
        )
    spread = float(returns.max() - returns.min())
    if dataset.n_episodes > 1 and spread <= SPREAD * max(1.0, float(np.abs(returns).max())) and rewards.density > 0:
        yield Warned(
            "equal-returns",
            f"all episodes have a return of {returns[0]:g}, so none is better than another",
            f"returns differ by at most {SPREAD:g} of the largest",
            "add episodes that went worse or better, or use `--algo bc`",
        )


def _of_episodes(dataset: Dataset) -> Iterator[Warned]:
    n = dataset.n_episodes
    if n < SUB_TASKS:
        yield Warned(
            "few-episodes",
            "there is one episode" if n == 1 else f"there are {n} episodes, fewer than the {SUB_TASKS} sub-tasks",
            f"fewer than {SUB_TASKS} episodes",
            "record more, or cut a log that has no end on purpose: drop data import … --horizon 500",
        )
    single = int(np.sum(dataset.lengths == 1))
    if single > SINGLE_SHARE * n:
        yield Warned(
            "one-step-episodes",
            f"{single:,} of {n:,} episodes have one step",
            f"more than {SINGLE_SHARE:.0%} of the episodes",
            "look at how episodes are marked: an end in every row makes each row an episode",
        )
    copies = n - len(set(_digests(dataset)))
    if copies:
        yield Warned(
            "duplicates",
            f"{copies:,} of {n:,} episodes {'is a copy' if copies == 1 else 'are copies'} of another, number by number",
            "the same observations, actions and rewards",
            "remove the copies: they count more often in training, and cross-fitting takes a copy for new evidence",
        )


def _digests(dataset: Dataset) -> Iterator[bytes]:
    for episodes in dataset.blocks():
        for number in range(episodes.start, episodes.stop):
            rows = slice(dataset.bounds[number], dataset.bounds[number + 1])
            digest = hashlib.blake2b(digest_size=16)
            for column in (dataset.observations, dataset.actions, dataset.rewards):
                digest.update(np.ascontiguousarray(column[rows]).data)
            yield digest.digest()


def _measured(dataset: Dataset) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The smallest and largest values, the sums, the sums of squares around an offset, and the shares at a bound."""
    size = dataset.observation_size + dataset.action_size
    low_high = np.stack([np.full(size, np.inf), np.full(size, -np.inf)])
    span = NEAR_BOUND * (dataset.action_high.astype(np.float64) - dataset.action_low)
    at_bound, sums = np.zeros(dataset.action_size), np.zeros(size)
    for rows in _rows(dataset):
        low_high[0] = np.minimum(low_high[0], rows.min(axis=0))
        low_high[1] = np.maximum(low_high[1], rows.max(axis=0))
        sums += rows.sum(axis=0)
        actions = rows[:, dataset.observation_size :]
        at_bound += np.sum((actions <= dataset.action_low + span) | (actions >= dataset.action_high - span), axis=0)
    offset, squares = _offset(low_high), np.zeros(size)
    for rows in _rows(dataset):
        squares += np.square(rows - offset).sum(axis=0)
    return low_high, sums, squares, at_bound / dataset.n_steps


def _offset(low_high: np.ndarray) -> np.ndarray:
    """The middle of each column: squares around it keep their digits where values are large and near each other."""
    return np.asarray(low_high.mean(axis=0))


def _rows(dataset: Dataset) -> Iterator[np.ndarray]:
    """Observations and actions side by side, a part of a block at a time: one episode may be the whole log."""
    for episodes in dataset.blocks():
        for begin in range(dataset.bounds[episodes.start], end := dataset.bounds[episodes.stop], PART_ROWS):
            rows = slice(begin, min(begin + PART_ROWS, end))
            yield np.hstack([dataset.observations[rows], dataset.actions[rows]]).astype(np.float64)


def _names(columns: Sequence[Column], most: int = 6) -> str:
    shown = ", ".join(f"{column.kind} {column.name}" for column in columns[:most])
    return shown + (f" and {len(columns) - most} more" if len(columns) > most else "")

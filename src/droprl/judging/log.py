"""The log as a judge reads it: steps with their successors, in halves of whole trajectories, and what they allow.

A *half* is a random half of the trajectories. What is fitted on one half is checked on the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from droprl.data.dataset import Dataset
from droprl.data.returns import discounted_returns
from droprl.data.rewards import Treatment
from droprl.data.rows import Recipe, TargetRule, device_rows
from droprl.data.scaling import Scaling, fit_scaling
from droprl.errors import DropError

FEWEST_TRAJECTORIES = 4  # two in each half
MOST_FAR = 6.0  # standard deviations: a state farther out counts as this far out


class Bounds(NamedTuple):
    """What a discounted return can be, by the rewards of the data and γ."""

    low: float
    high: float


def return_bounds(dataset: Dataset, discount: float) -> Bounds:
    """No return lies outside, if no reward lies outside those of the data.

    Without terminals a policy earns for ever: between r_min / (1 − γ) and r_max / (1 − γ). A terminal may end an
    episode after any step, so then a single reward is possible too.
    """
    rewards = [dataset.rewards[dataset.bounds[b.start] : dataset.bounds[b.stop]] for b in dataset.blocks()]
    low, high = float(min(r.min() for r in rewards)), float(max(r.max() for r in rewards))
    if discount == 1.0:
        raise DropError("discount is 1: a return then has no bounds: give less than 1")
    ever = 1.0 / (1.0 - discount)
    if not dataset.ends_in_terminal.any():
        return Bounds(low * ever, high * ever)
    return Bounds(min(low, low * ever), max(high, high * ever))


class Steps(NamedTuple):
    """Some steps of the log. Observations are normalised, and actions lie in [-1, 1]."""

    rows: np.ndarray  # (n,) rows of the data
    trajectory: np.ndarray  # (n,)
    observations: np.ndarray  # (n, ·)
    actions: np.ndarray  # (n, ·)
    rewards: np.ndarray  # (n,) in the data's units
    discounts: np.ndarray  # (n,) γ, or 0 after a terminal
    successors: np.ndarray  # (n,) rows of `Log.observations`


@dataclass(frozen=True, eq=False)
class Log:
    """All steps whose successor is known."""

    dataset: Dataset
    discount: float

    def __post_init__(self) -> None:
        if self.dataset.n_episodes < FEWEST_TRAJECTORIES:
            raise DropError(
                f"{self.dataset.name}: has {self.dataset.n_episodes} trajectories: judging needs at least "
                f"{FEWEST_TRAJECTORIES}, because one part of them checks the other"
            )

    @cached_property
    def scaling(self) -> Scaling:
        return fit_scaling(self.dataset)

    @cached_property
    def bounds(self) -> Bounds:
        return return_bounds(self.dataset, self.discount)

    @cached_property
    def _columns(self) -> tuple[np.ndarray, ...]:
        """Observations, actions, rewards, discounts, successors, and which rows have a successor."""
        recipe = Recipe(self.scaling, Treatment(), self.discount, TargetRule(td_steps=1))
        table = device_rows(self.dataset, recipe)
        assert table.targets is not None, "the recipe asks for targets"
        columns = (table.observations, table.actions, table.targets.reward, table.targets.discount)
        found = (*columns, table.targets.successor, table.targets.has_target > 0)
        return tuple(np.asarray(column) for column in found)

    @property
    def observations(self) -> np.ndarray:
        """(T + X, ·) normalised: the data's own and, in the last X rows, the states after timeouts."""
        return self._columns[0]

    @property
    def actions(self) -> np.ndarray:
        """(T, ·) in [-1, 1]."""
        return self._columns[1]

    @cached_property
    def trajectory(self) -> np.ndarray:
        """(T,)"""
        return np.repeat(np.arange(self.dataset.n_episodes), self.dataset.lengths)

    @property
    def starts(self) -> np.ndarray:
        """(E,) the rows of the initial states."""
        return self.dataset.bounds[:-1]

    def half(self, member: int) -> np.ndarray:
        """(E,) bool: the trajectories that member checks with. The next member swaps the halves of an even one."""
        order = np.random.default_rng([member // 2, 22]).permutation(self.dataset.n_episodes)
        chosen = np.zeros(len(order), bool)
        chosen[order[::2]] = True
        return chosen if member % 2 == 0 else ~chosen

    def steps(self, trajectories: np.ndarray, most: int, seed: int) -> Steps:
        """`most` steps of these trajectories, drawn without replacement. All of them, if they are fewer."""
        observations, actions, rewards, discounts, successors, known = self._columns
        rows = np.flatnonzero(known & trajectories[self.trajectory])
        if len(rows) == 0:
            raise DropError(
                f"{self.dataset.name}: no step of a half of its trajectories has a known successor: give "
                "next_observations, or longer episodes"
            )
        if len(rows) > most:
            rows = np.sort(np.random.default_rng([seed, 23]).choice(rows, most, replace=False))
        return Steps(
            rows, self.trajectory[rows], observations[rows], actions[rows], rewards[rows], discounts[rows],
            successors[rows],
        )  # fmt: skip

    def first_rows(self) -> np.ndarray:
        """For each row of `observations`, the row of its episode's first state."""
        firsts = np.zeros(len(self.observations), np.int64)
        firsts[: self.dataset.n_steps] = self.starts[self.trajectory]
        successors = self._columns[4]
        extra = np.flatnonzero(successors >= self.dataset.n_steps)
        firsts[successors[extra]] = firsts[extra]
        return firsts

    def logged_returns(self) -> np.ndarray:
        """(E,) what each trajectory earned, discounted. A timeout only stopped the clock: after it, the log is taken to
        go on earning as in the second halves of all timed-out trajectories."""
        data = self.dataset
        earned = discounted_returns(data, self.discount)[self.starts]
        ended = data.ends_in_terminal
        if ended.all():
            return earned
        position = np.arange(data.n_steps) - self.starts[self.trajectory]
        late = (2 * position + 1 >= data.lengths[self.trajectory]) & ~ended[self.trajectory]
        rate = float(np.mean(data.rewards[late], dtype=np.float64))
        return earned + np.where(ended, 0.0, self.discount ** data.lengths.astype(float)) * rate / (1.0 - self.discount)


def pairs(observations: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """States and actions side by side, as distances are measured. A single far-out sensor must not decide alone."""
    return np.concatenate([np.clip(observations, -MOST_FAR, MOST_FAR), actions], axis=1).astype(np.float32)

"""Reads rows of the data: the observation, the action, the target and the episode of each row.

There are two readers with the same methods. `DeviceRows` are arrays on the device, read inside compiled programs.
`HostRows` read the dataset's own columns with NumPy, in memory or on the disk, and compute targets for the given rows.
`transitions` and `windows` make batches with either reader. A row is a number. Every method takes an array of row
numbers of any shape.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from droprl.data.dataset import Dataset
from droprl.data.paging import in_pieces
from droprl.data.returns import Targets, n_step_targets, n_step_targets_at, returns_by_block
from droprl.data.rewards import Treatment
from droprl.data.scaling import Scaling

Column = Any  # a JAX array from the device, a NumPy array from the host


class Target(NamedTuple):
    """What a step can learn from: reward + discount · f(next_observation, next_action)."""

    reward: Column  # R: the treated rewards, summed over the steps to the successor
    discount: Column  # γ to the power of the number of these steps, 0 after a terminal
    next_observation: Column  # s'
    next_action: Column  # a'
    next_action_known: Column | None  # False after a timeout: no a' is logged there. None: known wherever needed
    has_target: Column  # 1.0, or 0.0 if the data shows no successor
    fold: Column | None = None  # 0 or 1: the half of the trajectories that the step is in. None: not asked for


class Rows(Protocol):
    """A reader of rows."""

    @property
    def n_places(self) -> Column:
        """The number of places to draw from."""
        ...

    def at(self, place: Column) -> Column:
        """The rows at these places."""
        ...

    def observation(self, row: Column) -> Column: ...

    def action(self, row: Column) -> Column: ...

    def target(self, row: Column) -> Target: ...

    def episode(self, row: Column) -> tuple[Column, Column]:
        """The first and the last row of each row's episode."""
        ...

    def return_to_go(self, row: Column) -> Column:
        """The discounted sum of treated rewards from each row to the end of its episode."""
        ...

    def read(self, look_up: Callable[[Any], Any], places: Any) -> Any:
        """`look_up(places)`. If the columns are larger than memory, look up some places at a time."""
        ...


# --- making rows ---


@dataclass(frozen=True)
class TargetRule:
    """How the target of a step is computed."""

    td_steps: int | None = 1  # rewards summed before bootstrapping; None: all to the end of the episode
    td_lambda: float | None = None  # λ of TD(λ), instead of `td_steps`
    outcomes: Callable[[Dataset], np.ndarray] | None = None  # a number for each row, instead of its reward

    def horizon(self, n_rows: int) -> int | np.ndarray | None:
        """n of the n-step targets: one n for all rows, or one n for each row.

        TD(λ) is a mean over n-step targets with weights (1 − λ) λⁿ⁻¹. Each row draws its n once, with these weights.
        """
        if self.td_lambda is None:
            return self.td_steps
        return np.random.default_rng(0).geometric(1.0 - self.td_lambda, n_rows)


@dataclass(frozen=True)
class Recipe:
    """How a dataset becomes rows for training. Online training makes rows of played steps by the recipe of the run."""

    scaling: Scaling
    rewards: Treatment
    discount: float  # γ, of targets and of returns to go
    targets: TargetRule | None = None  # None: rows have no targets
    episodes: bool = False  # whether rows know their episode and their return to go
    folds: bool = False  # whether rows know their half of the trajectories


def device_rows(dataset: Dataset, recipe: Recipe, episodes: np.ndarray | None = None) -> DeviceRows:
    """`episodes` are the episodes to draw from, in this order. None: all."""
    observations, targets, course = dataset.observations, None, None
    if recipe.targets is not None:
        targets, unseen = _target_columns(dataset, recipe, recipe.targets)
        observations = np.concatenate([observations, unseen]) if len(unseen) else observations
    if recipe.episodes:
        first = np.repeat(dataset.bounds[:-1], dataset.lengths).astype(np.int32)
        last = np.repeat(dataset.bounds[1:] - 1, dataset.lengths).astype(np.int32)
        course = EpisodeColumns(first, last, _returns_to_go(dataset, recipe))
    order = None
    if episodes is not None:
        parts = [np.arange(dataset.bounds[e], dataset.bounds[e + 1]) for e in episodes]
        order = np.concatenate(parts).astype(np.int32)
    rows = DeviceRows(
        observations=recipe.scaling.observations_in(observations),
        actions=recipe.scaling.actions_in(dataset.actions),
        n_places=np.int32(dataset.n_steps if order is None else len(order)),
        order=order,
        targets=targets,
        course=course,
    )
    on_device: DeviceRows = jax.tree.map(jnp.asarray, rows)
    return on_device


def host_rows(dataset: Dataset, recipe: Recipe, episodes: np.ndarray | None = None) -> HostRows:
    """The same for the host. It stores no new columns except outcomes and returns to go."""
    rule = recipe.targets
    outcomes = None if rule is None or rule.outcomes is None else rule.outcomes(dataset).astype(np.float32)
    begins = None if episodes is None else np.cumsum(dataset.lengths[episodes]) - dataset.lengths[episodes]
    return HostRows(
        dataset=dataset,
        recipe=recipe,
        n_places=dataset.n_steps if episodes is None else int(dataset.lengths[episodes].sum()),
        horizon=None if rule is None else rule.horizon(dataset.n_steps),
        outcomes=outcomes,
        returns_to_go=_returns_to_go(dataset, recipe) if recipe.episodes else None,
        episodes=episodes,
        begins=begins,
        folds=halves(dataset) if recipe.folds else None,
    )


def rows_of(dataset: Dataset, recipe: Recipe, episodes: np.ndarray | None = None) -> Rows:
    """Rows on the device, or on the host if the dataset is on the disk."""
    return (host_rows if dataset.on_disk else device_rows)(dataset, recipe, episodes)


# --- the readers ---


class TargetColumns(NamedTuple):
    """The targets of all rows."""

    reward: Column  # (T,)
    discount: Column  # (T,)
    successor: Column  # (T,) row of `observations`
    next_action: Column  # (T,) row of `actions`
    next_action_known: Column | None
    has_target: Column  # (T,)
    fold: Column | None = None  # (T,)


class EpisodeColumns(NamedTuple):
    """The episode of each row."""

    first: Column  # (T,) the episode's first row
    last: Column  # (T,) the episode's last row
    return_to_go: Column  # (T,)


class DeviceRows(NamedTuple):
    """Columns on the device."""

    observations: Column  # (T + X, ·): the last X are successors that are not the observation of any row
    actions: Column  # (T, ·)
    n_places: Column  # ()
    order: Column | None  # (n_places,) the row at each place; None: all rows, in the order of the data
    targets: TargetColumns | None
    course: EpisodeColumns | None

    def at(self, place: Column) -> Column:
        return place if self.order is None else self.order[place]

    def observation(self, row: Column) -> Column:
        return self.observations[row]

    def action(self, row: Column) -> Column:
        return self.actions[row]

    def target(self, row: Column) -> Target:
        assert self.targets is not None, "these rows were made without targets"
        columns = self.targets
        return Target(
            reward=columns.reward[row],
            discount=columns.discount[row],
            next_observation=self.observations[columns.successor[row]],
            next_action=self.actions[columns.next_action[row]],
            next_action_known=None if columns.next_action_known is None else columns.next_action_known[row],
            has_target=columns.has_target[row],
            fold=None if columns.fold is None else columns.fold[row],
        )

    def episode(self, row: Column) -> tuple[Column, Column]:
        assert self.course is not None, "these rows were made without their episodes"
        return self.course.first[row], self.course.last[row]

    def return_to_go(self, row: Column) -> Column:
        assert self.course is not None, "these rows were made without their episodes"
        return self.course.return_to_go[row]

    def read(self, look_up: Callable[[Any], Any], places: Any) -> Any:
        return look_up(places)


@dataclass(frozen=True, eq=False)
class HostRows:
    """Columns of the dataset, in memory or on the disk."""

    dataset: Dataset
    recipe: Recipe
    n_places: int
    horizon: int | np.ndarray | None
    outcomes: np.ndarray | None  # (T,)
    returns_to_go: np.ndarray | None  # (T,)
    episodes: np.ndarray | None  # the episodes to draw from, in this order; None: all
    begins: np.ndarray | None  # the place at which each of these episodes begins
    folds: np.ndarray | None = None  # (E,) the half of each episode

    def at(self, place: Column) -> Column:
        if self.episodes is None or self.begins is None:
            return place
        which = np.searchsorted(self.begins, place, side="right") - 1
        return self.dataset.bounds[self.episodes[which]] + place - self.begins[which]

    def observation(self, row: Column) -> Column:
        return self.recipe.scaling.observations_in(np.asarray(self.dataset.observations).take(row, axis=0))

    def action(self, row: Column) -> Column:
        return self.recipe.scaling.actions_in(np.asarray(self.dataset.actions).take(row, axis=0))

    def target(self, row: Column) -> Target:
        dataset, recipe = self.dataset, self.recipe
        horizon = self.horizon[row] if isinstance(self.horizon, np.ndarray) else self.horizon
        targets = n_step_targets_at(dataset, row, self._episode(row), recipe.discount, horizon)
        reward = recipe.rewards.treated_sum(targets.reward, targets.horizon, recipe.discount)
        bootstraps = _bootstraps(targets)
        ahead = np.where(bootstraps, row + targets.horizon, row)
        if dataset.next_observations is None:
            following = np.asarray(dataset.observations).take(ahead, axis=0)
        else:
            after = np.asarray(dataset.next_observations).take(np.maximum(ahead - 1, 0), axis=0)
            following = np.where(bootstraps[..., None], after, np.asarray(dataset.observations).take(row, axis=0))
        return Target(
            reward=reward.astype(np.float32) if self.outcomes is None else self.outcomes[row],
            discount=targets.discount.astype(np.float32),
            next_observation=recipe.scaling.observations_in(following),
            next_action=self.action(np.where(targets.past_end, row, ahead)),
            next_action_known=None if dataset.next_observations is None else ~targets.past_end,
            has_target=targets.known.astype(np.float32),
            fold=None if self.folds is None else self.folds[self._episode(row)],
        )

    def episode(self, row: Column) -> tuple[Column, Column]:
        episode = self._episode(row)
        return self.dataset.bounds[episode], self.dataset.bounds[episode + 1] - 1

    def return_to_go(self, row: Column) -> Column:
        assert self.returns_to_go is not None, "these rows were made without their episodes"
        return self.returns_to_go[row]

    def read(self, look_up: Callable[[Any], Any], places: Any) -> Any:
        return in_pieces(self.dataset, look_up, places)

    def _episode(self, row: Column) -> Column:
        return np.searchsorted(self.dataset.bounds, row, side="right") - 1


# --- the columns of all rows ---


def _returns_to_go(dataset: Dataset, recipe: Recipe) -> np.ndarray:
    """(T,) float32."""
    found = []
    for episodes, sums in returns_by_block(dataset, recipe.discount):
        ends, lengths = np.cumsum(dataset.lengths[episodes]), dataset.lengths[episodes]
        left = (np.repeat(ends, lengths) - np.arange(len(sums))).astype(np.float64)
        found.append(recipe.rewards.treated_sum(sums, left, recipe.discount).astype(np.float32))
    return np.concatenate(found)


def _target_columns(dataset: Dataset, recipe: Recipe, rule: TargetRule) -> tuple[TargetColumns, np.ndarray]:
    """The targets of all rows, and the observations to add for their successors."""
    targets = n_step_targets(dataset, recipe.discount, rule.horizon(dataset.n_steps))
    if rule.outcomes is None:
        reward = recipe.rewards.treated_sum(targets.reward, targets.horizon, recipe.discount)
    else:
        reward = rule.outcomes(dataset)
    rows = np.arange(dataset.n_steps)
    last_step = np.maximum(rows + targets.horizon - 1, 0)  # the step that leads to the successor
    unseen, row_after = _successor_rows(dataset)
    # If a target does not bootstrap, or no a' is logged, the row refers to itself. So no look-up leaves the episode.
    bootstraps = _bootstraps(targets)
    next_action = np.where(bootstraps & ~targets.past_end, rows + targets.horizon, rows)
    columns = TargetColumns(
        reward=reward.astype(np.float32),
        discount=targets.discount.astype(np.float32),
        successor=np.where(bootstraps, row_after[last_step], rows).astype(np.int32),
        next_action=next_action.astype(np.int32),
        # Without `next_observations` no target reaches past an episode's last row, whose action is logged.
        next_action_known=None if dataset.next_observations is None else ~targets.past_end,
        has_target=targets.known.astype(np.float32),
        fold=np.repeat(halves(dataset), dataset.lengths) if recipe.folds else None,
    )
    return columns, unseen


def halves(dataset: Dataset) -> np.ndarray:
    """(E,) 0 or 1: every second trajectory in the order of returns, so that both halves have like returns."""
    half = np.zeros(dataset.n_episodes, np.int32)
    half[np.argsort(-dataset.returns, kind="stable")[1::2]] = 1
    return half


def _bootstraps(targets: Targets) -> np.ndarray:
    return targets.known & (targets.discount > 0)


def _successor_rows(dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """The observations to add to the column, and for each row the place of the state after it.

    Every observation is stored once. If a successor is not the observation of the next row (after a timeout, or because
    `next_observations` differs), it is added to the column. Without `next_observations`, the last row of an episode has
    no successor, and `n_step_targets` never asks for one.
    """
    row_after = np.arange(1, dataset.n_steps + 1)
    if dataset.next_observations is None:
        return np.empty((0, dataset.observation_size), np.float32), np.minimum(row_after, dataset.n_steps - 1)
    differs = np.ones(dataset.n_steps, dtype=bool)
    differs[:-1] = np.any(dataset.next_observations[:-1] != dataset.observations[1:], axis=1)
    differs[dataset.bounds[1:] - 1] = True
    row_after[differs] = dataset.n_steps + np.arange(int(differs.sum()))
    return dataset.next_observations[differs], row_after

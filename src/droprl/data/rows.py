"""Rows of the data and what can be read of each: an observation, an action, a target, the episode around it.

There are two readers with the same methods. `DeviceRows` are arrays on the device, read inside compiled programs.
`HostRows` look up the dataset's own columns with NumPy, in memory or on the disk, and sum targets for the rows at hand.
What a batch is made of (`transitions`, `windows`) is written once over either. A row is a number; every method takes an
array of them, of any shape.
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

    reward: Column  # R, summed over the steps to the successor, and treated
    discount: Column  # γ to the power of those steps, 0 after a terminal
    next_observation: Column  # s'
    next_action: Column  # a'
    next_action_known: Column | None  # False after a timeout, where no a' is logged. None: known wherever it is needed
    has_target: Column  # 1.0, or 0.0 where the data shows no successor


class Rows(Protocol):
    """A reader."""

    @property
    def n_places(self) -> Column:
        """How many places there are to draw from."""
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
        """What the episode earned from each row on, discounted and treated."""
        ...

    def read(self, look_up: Callable[[Any], Any], places: Any) -> Any:
        """`look_up(places)`. Of columns larger than memory, some places at a time."""
        ...


# --- how rows are made ---


@dataclass(frozen=True)
class TargetRule:
    """Where the target of a step comes from."""

    td_steps: int | None = 1  # rewards that are summed before bootstrapping; None: all to the end of the episode
    td_lambda: float | None = None  # λ of TD(λ), in place of `td_steps`
    outcomes: Callable[[Dataset], np.ndarray] | None = None  # a number for each row, in place of its reward

    def horizon(self, n_rows: int) -> int | np.ndarray | None:
        """n of the n-step targets: one for all rows, or one for each.

        TD(λ) is a mean over n-step targets with weights (1 − λ) λⁿ⁻¹. Here each row draws its n by these weights, once.
        """
        if self.td_lambda is None:
            return self.td_steps
        return np.random.default_rng(0).geometric(1.0 - self.td_lambda, n_rows)


@dataclass(frozen=True)
class Recipe:
    """How a dataset becomes rows to learn from. Steps that are played later become rows by the recipe of the run."""

    scaling: Scaling
    rewards: Treatment
    discount: float  # γ, of targets and of returns to go
    targets: TargetRule | None = None  # None: rows have no targets
    episodes: bool = False  # whether rows know their episode and their return to go


def device_rows(dataset: Dataset, recipe: Recipe, episodes: np.ndarray | None = None) -> DeviceRows:
    """`episodes` are those that are drawn from, one after another; None: all."""
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
    """The same without a column of its own for anything but outcomes and returns to go."""
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
    )


def rows_of(dataset: Dataset, recipe: Recipe, episodes: np.ndarray | None = None) -> Rows:
    """On the device, unless the dataset is on the disk."""
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


class EpisodeColumns(NamedTuple):
    """Where each row stands in its episode."""

    first: Column  # (T,) the episode's first row
    last: Column  # (T,) its last
    return_to_go: Column  # (T,)


class DeviceRows(NamedTuple):
    """Columns on the device."""

    observations: Column  # (T + X, ·): the X last are successors that no row of the data shows
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
        of = self.targets
        return Target(
            reward=of.reward[row],
            discount=of.discount[row],
            next_observation=self.observations[of.successor[row]],
            next_action=self.actions[of.next_action[row]],
            next_action_known=None if of.next_action_known is None else of.next_action_known[row],
            has_target=of.has_target[row],
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
    """Columns of the dataset, in memory or on the disk. Beside them a few numbers for each episode are in memory."""

    dataset: Dataset
    recipe: Recipe
    n_places: int
    horizon: int | np.ndarray | None
    outcomes: np.ndarray | None  # (T,)
    returns_to_go: np.ndarray | None  # (T,)
    episodes: np.ndarray | None  # those that are drawn from, one after another; None: all
    begins: np.ndarray | None  # the place where each of them begins

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
        reward = recipe.rewards.of_sum(targets.reward, targets.horizon, recipe.discount)
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
        found.append(recipe.rewards.of_sum(sums, left, recipe.discount).astype(np.float32))
    return np.concatenate(found)


def _target_columns(dataset: Dataset, recipe: Recipe, rule: TargetRule) -> tuple[TargetColumns, np.ndarray]:
    """The targets of all rows, and the observations that have to be added for their successors."""
    targets = n_step_targets(dataset, recipe.discount, rule.horizon(dataset.n_steps))
    if rule.outcomes is None:
        reward = recipe.rewards.of_sum(targets.reward, targets.horizon, recipe.discount)
    else:
        reward = rule.outcomes(dataset)
    rows = np.arange(dataset.n_steps)
    last_step = np.maximum(rows + targets.horizon - 1, 0)  # the step whose outcome is the successor
    unseen, row_after = _successor_rows(dataset)
    # Where nothing is bootstrapped, or no a' is logged, the row names itself: no look-up ever leaves the episode.
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
    )
    return columns, unseen


def _bootstraps(targets: Targets) -> np.ndarray:
    return targets.known & (targets.discount > 0)


def _successor_rows(dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """The observations to add to the column, and for each row where the state after it is found.

    Every observation is stored once. A successor that is not the next row's observation (after a timeout, or where
    `next_observations` say so) gets a row of its own. Rows that end an episode without `next_observations` have no
    successor, and `n_step_targets` never asks for it.
    """
    row_after = np.arange(1, dataset.n_steps + 1)
    if dataset.next_observations is None:
        return np.empty((0, dataset.observation_size), np.float32), np.minimum(row_after, dataset.n_steps - 1)
    differs = np.ones(dataset.n_steps, dtype=bool)
    differs[:-1] = np.any(dataset.next_observations[:-1] != dataset.observations[1:], axis=1)
    differs[dataset.bounds[1:] - 1] = True
    row_after[differs] = dataset.n_steps + np.arange(int(differs.sum()))
    return dataset.next_observations[differs], row_after

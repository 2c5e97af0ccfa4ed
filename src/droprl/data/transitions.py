"""What training reads: one table of arrays for the device, and how a batch is drawn from it.

A sub-task is drawn uniformly, then a step inside it (Algorithm 1). Every observation is stored once: a successor that
is not the next row's observation (after a timeout, or where `next_observations` say so) gets a row of its own.
Of data on the disk there is no such table: the same draws are looked up, and their targets summed, a batch at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from droprl.data.dataset import Dataset
from droprl.data.decompose import SubTasks, sub_task_returns
from droprl.data.paging import in_pieces
from droprl.data.returns import n_step_targets, n_step_targets_at, returns_spread
from droprl.data.scaling import Scaling, fit_scaling

PROBE_STEPS = 1024
PROBE_STARTS = 16


class Batch(NamedTuple):
    """Steps of the data; a loss is written for one of them and `vmap`ped."""

    observation: Array  # s
    action: Array  # a
    sub_task: Array  # n
    reward: Array  # R, summed over the steps to the successor and scaled
    discount: Array  # γ to the power of those steps, 0 after a terminal
    next_observation: Array  # s'
    next_action: Array  # a'
    next_action_known: Array | None  # False after a timeout: a' is not logged there. None: it is wherever it is needed
    has_target: Array  # 1.0, or 0.0 where the data shows no successor: cloned, but no TD transition


class Sampler(Protocol):
    """Whatever batches are drawn from: of steps (`Batch`), or of what else the algorithm's `update` takes.

    To draw says which, to gather fetches them: the two are apart because data on the disk is fetched by the host.
    """

    def draw(self, key: jax.Array, size: int) -> Any: ...

    def gather(self, drawn: Any) -> Any: ...

    def sample(self, key: jax.Array, size: int) -> Any: ...


class Drawn(NamedTuple):
    """Steps by their place."""

    sub_task: Array
    step: Array  # counted inside the sub-task


def draw_steps(key: jax.Array, sub_task_size: Array, size: int) -> Drawn:
    """Algorithm 1, line 4: D_n ~ D_[N] uniformly, then a step inside it uniformly."""
    sub_task_key, step_key = jax.random.split(key)
    sub_task = jax.random.randint(sub_task_key, (size,), 0, sub_task_size.shape[0])
    return Drawn(sub_task, jax.random.randint(step_key, (size,), 0, sub_task_size[sub_task]))


S = TypeVar("S", bound=Sampler, covariant=True)


class Transitions(NamedTuple):
    """The table on the device."""

    observations: Array  # (T + X, ·): the X last rows are successors that no row of the data shows
    actions: Array  # (T, ·)
    reward: Array
    discount: Array
    successor: Array  # (T,) row of `observations`
    next_action: Array  # (T,) row of `actions`
    next_action_known: Array | None
    has_target: Array
    sub_task_rows: Array  # rows of the data, sub-task after sub-task
    sub_task_begin: Array  # (N,) where each sub-task begins in `sub_task_rows`
    sub_task_size: Array  # (N,) its number of steps

    def take(self, row: Array, sub_task: Array) -> Batch:
        return Batch(
            observation=self.observations[row],
            action=self.actions[row],
            sub_task=sub_task,
            reward=self.reward[row],
            discount=self.discount[row],
            next_observation=self.observations[self.successor[row]],
            next_action=self.actions[self.next_action[row]],
            next_action_known=None if self.next_action_known is None else self.next_action_known[row],
            has_target=self.has_target[row],
        )

    def draw(self, key: jax.Array, size: int) -> Drawn:
        return draw_steps(key, self.sub_task_size, size)

    def gather(self, drawn: Drawn) -> Batch:
        return self.take(self.sub_task_rows[self.sub_task_begin[drawn.sub_task] + drawn.step], drawn.sub_task)

    def sample(self, key: jax.Array, size: int) -> Batch:
        return self.gather(self.draw(key, size))

    def with_rewards(self, column: np.ndarray) -> Transitions:
        return self._replace(reward=jnp.asarray(column, jnp.float32))


@dataclass(frozen=True, eq=False)
class TransitionsOnDisk:
    """The same steps looked up in columns on the disk: beside them only a few numbers an episode are in memory.

    Also where a few steps of data in memory are wanted, and no table of all.
    """

    dataset: Dataset
    scaling: Scaling
    gamma: float
    horizon: int | np.ndarray | None
    reward_scale: float
    episodes: np.ndarray  # of all sub-tasks, one after another
    begins: np.ndarray  # where each of them begins, counted in steps of this order
    sub_task_begin: np.ndarray  # (N,) likewise
    sub_task_size: Array  # (N,)
    rewards: np.ndarray | None = None  # (T,) in place of the targets' rewards

    def draw(self, key: jax.Array, size: int) -> Drawn:
        return draw_steps(key, self.sub_task_size, size)

    def gather(self, drawn: Drawn) -> Batch:
        """What `Transitions` holds for these steps, as NumPy arrays of any shape."""
        found: Batch = in_pieces(self.dataset, self._look_up, drawn)
        return found

    def _look_up(self, drawn: Drawn) -> Batch:
        place = self.sub_task_begin[np.asarray(drawn.sub_task)] + np.asarray(drawn.step)
        which = np.searchsorted(self.begins, place, side="right") - 1
        row = self.dataset.bounds[self.episodes[which]] + place - self.begins[which]
        horizon = self.horizon[row] if isinstance(self.horizon, np.ndarray) else self.horizon
        targets = n_step_targets_at(self.dataset, row, self.episodes[which], self.gamma, horizon)
        reward = targets.reward / self.reward_scale if self.rewards is None else self.rewards[row]
        bootstraps = targets.known & (targets.discount > 0)
        ahead = np.where(bootstraps, row + targets.horizon, row)
        observations, actions = np.asarray(self.dataset.observations), np.asarray(self.dataset.actions)
        if self.dataset.next_observations is None:
            following = observations.take(ahead, axis=0)
        else:
            after = np.asarray(self.dataset.next_observations).take(np.maximum(ahead - 1, 0), axis=0)
            following = np.where(bootstraps[..., None], after, observations.take(row, axis=0))
        columns: dict[str, Any] = {
            "observation": self.scaling.observations_in(observations.take(row, axis=0)),
            "action": self.scaling.actions_in(actions.take(row, axis=0)),
            "sub_task": np.asarray(drawn.sub_task, np.int32),
            "reward": reward.astype(np.float32),
            "discount": targets.discount.astype(np.float32),
            "next_observation": self.scaling.observations_in(following),
            "next_action": self.scaling.actions_in(actions.take(np.where(targets.past_end, row, ahead), axis=0)),
            "next_action_known": None if self.dataset.next_observations is None else ~targets.past_end,
            "has_target": targets.known.astype(np.float32),
        }
        return Batch(**columns)

    def sample(self, key: jax.Array, size: int) -> Batch:
        return self.gather(self.draw(key, size))

    def with_rewards(self, column: np.ndarray) -> TransitionsOnDisk:
        return replace(self, rewards=column.astype(np.float32))


class Strata(NamedTuple):
    """As many steps of every sub-task, and what each of them earned."""

    steps: Batch  # every field is (N, steps, …)
    returns: Array  # (N,) mean returns, with zero mean and unit variance over the sub-tasks


class Stratified(NamedTuple):
    """Draws from all sub-tasks evenly: for networks of their own, one a sub-task, that are trained side by side."""

    table: Any  # `Transitions`, or `TransitionsOnDisk`
    returns: Array  # (N,)

    def draw(self, key: jax.Array, size: int) -> Drawn:
        """`size` steps divided by the N sub-tasks, rounded down, and at least one of each."""
        n = self.returns.shape[0]
        sub_task = jnp.broadcast_to(jnp.arange(n, dtype=jnp.int32)[:, None], (n, max(1, size // n)))
        return Drawn(sub_task, jax.random.randint(key, sub_task.shape, 0, self.table.sub_task_size[sub_task]))

    def gather(self, drawn: Drawn) -> Strata:
        return Strata(self.table.gather(drawn), jnp.broadcast_to(self.returns, drawn.sub_task.shape[:-1]))

    def sample(self, key: jax.Array, size: int) -> Strata:
        return self.gather(self.draw(key, size))


class Probe(NamedTuple):
    """A fixed look at the data for the diagnostics: the same steps at every diagnosis of a run."""

    batch: Batch  # with Monte-Carlo targets, to the end of the episode
    starts: Array  # (S, observation_size) initial states s₀
    sub_task_returns: Array  # (N,)


@dataclass(frozen=True)
class Spec:
    """The sizes that a network must know of the data."""

    observation_size: int
    action_size: int
    n_sub_tasks: int


@dataclass(frozen=True)
class Prepared(Generic[S]):
    """A dataset made ready for one algorithm."""

    spec: Spec
    scaling: Scaling
    transitions: S
    probe: Any  # what `diagnose` looks at: a `Probe`, unless the algorithm does not learn from single steps
    sub_tasks: SubTasks
    sub_task_returns: np.ndarray
    reward_scale: float  # rewards are divided by it: the standard deviation of discounted returns


def prepare(
    dataset: Dataset,
    sub_tasks: SubTasks,
    *,
    discount: float = 0.99,
    td_steps: int | None = 1,
    td_lambda: float | None = None,
    normalize_observations: bool = True,
    scale_rewards: bool = True,
    outcomes: np.ndarray | None = None,
) -> Prepared[Any]:
    """Scale, look up successors and sum n-step targets, once, on the host: `Transitions`, or of data on the disk
    `TransitionsOnDisk`, which does this for every batch.

    `outcomes`, a number for each step, take the place of the rewards: what a policy is conditioned on, not a target.
    """
    scaling = fit_scaling(dataset, normalize_observations)
    spread = returns_spread(dataset, discount) if scale_rewards else 1.0
    reward_scale = spread if spread > 1e-8 else 1.0
    means = sub_task_returns(dataset.returns, sub_tasks)
    horizon = target_horizon(dataset.n_steps, td_steps, td_lambda)
    table = disk_table if dataset.on_disk else transition_table
    transitions: Any = table(dataset, sub_tasks, scaling, discount, horizon, reward_scale)
    monte_carlo = disk_table(dataset, sub_tasks, scaling, discount, None, reward_scale)  # for a few steps: looked up
    if outcomes is not None:
        transitions, monte_carlo = transitions.with_rewards(outcomes), monte_carlo.with_rewards(outcomes)
    spec = Spec(dataset.observation_size, dataset.action_size, len(sub_tasks))
    return Prepared(
        spec=spec,
        scaling=scaling,
        transitions=transitions,
        probe=_probe(dataset, monte_carlo, scaling, means),
        sub_tasks=sub_tasks,
        sub_task_returns=means,
        reward_scale=reward_scale,
    )


def target_horizon(n_steps: int, td_steps: int | None, td_lambda: float | None) -> int | np.ndarray | None:
    """n of the n-step targets, or one a row: TD(λ) is a mean over n-step targets with weights (1 − λ) λⁿ⁻¹, and here
    each row draws its n from them, once."""
    if td_lambda is None:
        return td_steps
    return np.random.default_rng(0).geometric(1.0 - td_lambda, n_steps)


def transition_table(
    dataset: Dataset,
    sub_tasks: SubTasks,
    scaling: Scaling,
    discount: float,
    td_steps: int | np.ndarray | None,
    reward_scale: float,
) -> Transitions:
    targets = n_step_targets(dataset, discount, td_steps)
    rows = np.arange(dataset.n_steps)
    last_step = np.maximum(rows + targets.horizon - 1, 0)  # the step whose outcome is the successor
    extra, row_after = _successor_rows(dataset)
    # Where nothing is bootstrapped, or no a' is logged, the row names itself: no look-up ever leaves the episode.
    bootstraps = targets.known & (targets.discount > 0)
    next_action = np.where(bootstraps & ~targets.past_end, rows + targets.horizon, rows)
    observations = np.concatenate([dataset.observations, extra]) if len(extra) else dataset.observations
    steps = [np.concatenate([np.arange(dataset.bounds[e], dataset.bounds[e + 1]) for e in part]) for part in sub_tasks]
    sizes = np.array([len(part) for part in steps], dtype=np.int32)
    columns = {
        "observations": scaling.observations_in(observations),
        "actions": scaling.actions_in(dataset.actions),
        "reward": (targets.reward / reward_scale).astype(np.float32),
        "discount": targets.discount.astype(np.float32),
        "successor": np.where(bootstraps, row_after[last_step], rows).astype(np.int32),
        "next_action": next_action.astype(np.int32),
        # Without `next_observations` no target reaches past an episode's last row, whose action is logged.
        "next_action_known": None if dataset.next_observations is None else ~targets.past_end,
        "has_target": targets.known.astype(np.float32),
        "sub_task_rows": np.concatenate(steps).astype(np.int32),
        "sub_task_begin": np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int32),
        "sub_task_size": sizes,
    }
    on_device: Any = jax.tree.map(jnp.asarray, columns)
    return Transitions(**on_device)


def disk_table(
    dataset: Dataset,
    sub_tasks: SubTasks,
    scaling: Scaling,
    discount: float,
    td_steps: int | np.ndarray | None,
    reward_scale: float,
) -> TransitionsOnDisk:
    episodes = np.concatenate(sub_tasks)
    begins = np.concatenate([[0], np.cumsum(dataset.lengths[episodes])])
    first = np.concatenate([[0], np.cumsum([len(part) for part in sub_tasks])])
    return TransitionsOnDisk(
        dataset=dataset,
        scaling=scaling,
        gamma=discount,
        horizon=td_steps,
        reward_scale=reward_scale,
        episodes=episodes,
        begins=begins[:-1],
        sub_task_begin=begins[first[:-1]],
        sub_task_size=jnp.asarray(np.diff(begins[first]), jnp.int32),
    )


def _successor_rows(dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """The observations to add to the table, and for each row where the state after it is found.

    Rows that end an episode without `next_observations` have none; `n_step_targets` never asks for it.
    """
    row_after = np.arange(1, dataset.n_steps + 1)
    if dataset.next_observations is None:
        return np.empty((0, dataset.observation_size), np.float32), np.minimum(row_after, dataset.n_steps - 1)
    differs = np.ones(dataset.n_steps, dtype=bool)
    differs[:-1] = np.any(dataset.next_observations[:-1] != dataset.observations[1:], axis=1)
    differs[dataset.bounds[1:] - 1] = True
    row_after[differs] = dataset.n_steps + np.arange(int(differs.sum()))
    return dataset.next_observations[differs], row_after


def _probe(dataset: Dataset, monte_carlo: TransitionsOnDisk, scaling: Scaling, means: np.ndarray) -> Probe:
    rng = np.random.default_rng(0)
    sub_task = rng.integers(0, len(means), PROBE_STEPS)
    step = rng.integers(0, np.asarray(monte_carlo.sub_task_size)[sub_task])
    drawn = Drawn(*(np.asarray(column, np.int32) for column in (sub_task, step)))  # type: ignore[arg-type]
    first = dataset.bounds[:-1]
    starts = dataset.observations[first[np.linspace(0, len(first) - 1, min(PROBE_STARTS, len(first))).astype(int)]]
    return Probe(
        batch=jax.tree.map(jnp.asarray, monte_carlo.gather(drawn)),
        starts=jnp.asarray(scaling.observations_in(starts)),
        sub_task_returns=jnp.asarray(means, jnp.float32),
    )

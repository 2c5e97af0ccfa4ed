"""What training reads: one table of arrays for the device, and how a batch is drawn from it.

A sub-task is drawn uniformly, then a step inside it (Algorithm 1). Every observation is stored once: a successor that
is not the next row's observation (after a timeout, or where `next_observations` say so) gets a row of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from droprl.data.dataset import Dataset
from droprl.data.decompose import SubTasks, sub_task_returns
from droprl.data.returns import discounted_returns, n_step_targets
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
    next_action_known: Array  # False after a timeout: a' is not logged there and the policy has to answer
    has_target: Array  # 1.0, or 0.0 where the data shows no successor: cloned, but no TD transition


class Sampler(Protocol):
    """Whatever batches are drawn from: of steps (`Batch`), or of what else the algorithm's `update` takes."""

    def sample(self, key: jax.Array, size: int) -> Any: ...


S = TypeVar("S", bound=Sampler, covariant=True)


class Transitions(NamedTuple):
    """The table on the device."""

    observations: Array  # (T + X, ·): the X last rows are successors that no row of the data shows
    actions: Array  # (T, ·)
    reward: Array
    discount: Array
    successor: Array  # (T,) row of `observations`
    next_action: Array  # (T,) row of `actions`
    next_action_known: Array
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
            next_action_known=self.next_action_known[row],
            has_target=self.has_target[row],
        )

    def sample(self, key: jax.Array, size: int) -> Batch:
        """Algorithm 1, line 4: D_n ~ D_[N] uniformly, then a step inside it uniformly."""
        sub_task_key, step_key = jax.random.split(key)
        sub_task = jax.random.randint(sub_task_key, (size,), 0, self.sub_task_size.shape[0])
        step = jax.random.randint(step_key, (size,), 0, self.sub_task_size[sub_task])
        return self.take(self.sub_task_rows[self.sub_task_begin[sub_task] + step], sub_task)


class Strata(NamedTuple):
    """As many steps of every sub-task, and what each of them earned."""

    steps: Batch  # every field is (N, steps, …)
    returns: Array  # (N,) mean returns, with zero mean and unit variance over the sub-tasks


class Stratified(NamedTuple):
    """Draws from all sub-tasks evenly: for networks of their own, one a sub-task, that are trained side by side."""

    table: Transitions
    returns: Array  # (N,)

    def sample(self, key: jax.Array, size: int) -> Strata:
        """`size` steps divided by the N sub-tasks, rounded down, and at least one of each."""
        n = self.returns.shape[0]
        sub_task = jnp.broadcast_to(jnp.arange(n, dtype=jnp.int32)[:, None], (n, max(1, size // n)))
        step = jax.random.randint(key, sub_task.shape, 0, self.table.sub_task_size[sub_task])
        rows = self.table.sub_task_rows[self.table.sub_task_begin[sub_task] + step]
        return Strata(self.table.take(rows, sub_task), self.returns)


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
) -> Prepared[Transitions]:
    """Scale, look up successors and sum n-step targets, once, on the host.

    `outcomes`, a number for each step, take the place of the rewards: what a policy is conditioned on, not a target.
    """
    scaling = fit_scaling(dataset, normalize_observations)
    spread = float(np.std(discounted_returns(dataset, discount))) if scale_rewards else 1.0
    reward_scale = spread if spread > 1e-8 else 1.0
    means = sub_task_returns(dataset.returns, sub_tasks)
    horizon = target_horizon(dataset.n_steps, td_steps, td_lambda)
    transitions = transition_table(dataset, sub_tasks, scaling, discount, horizon, reward_scale)
    monte_carlo = transition_table(dataset, sub_tasks, scaling, discount, None, reward_scale)
    if outcomes is not None:
        column = jnp.asarray(outcomes, jnp.float32)
        transitions, monte_carlo = transitions._replace(reward=column), monte_carlo._replace(reward=column)
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
        "next_action_known": ~targets.past_end,
        "has_target": targets.known.astype(np.float32),
        "sub_task_rows": np.concatenate(steps).astype(np.int32),
        "sub_task_begin": np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int32),
        "sub_task_size": sizes,
    }
    return Transitions(**{name: jnp.asarray(column) for name, column in columns.items()})


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


def _probe(dataset: Dataset, monte_carlo: Transitions, scaling: Scaling, means: np.ndarray) -> Probe:
    rng = np.random.default_rng(0)
    sub_task = rng.integers(0, len(means), PROBE_STEPS)
    step = rng.integers(0, np.asarray(monte_carlo.sub_task_size)[sub_task])
    rows = monte_carlo.sub_task_rows[monte_carlo.sub_task_begin[sub_task] + step]
    first = dataset.bounds[:-1]
    starts = dataset.observations[first[np.linspace(0, len(first) - 1, min(PROBE_STARTS, len(first))).astype(int)]]
    return Probe(
        batch=monte_carlo.take(rows, jnp.asarray(sub_task, jnp.int32)),
        starts=jnp.asarray(scaling.observations_in(starts)),
        sub_task_returns=jnp.asarray(means, jnp.float32),
    )

"""Replay of old and new: every batch holds a fixed share of online steps, the rest is drawn from the run's dataset.

Online steps are labelled with the sub-task whose embedding was played, because f(s, a, z) is the value of behaving as
z: what z really earned corrects f where the data flattered it. (By their return, a failure of a promising z would count
against another z, and β would learn the failure under it.)
"""

from __future__ import annotations

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from droprl.algorithms import DROP
from droprl.data.dataset import Dataset
from droprl.data.transitions import Batch, Prepared, Transitions, target_horizon, transition_table
from droprl.rollout import Trajectory

LEAST_ROWS = 4096


class Replay(eqx.Module):
    """What online training draws its batches from."""

    offline: Transitions
    online: Transitions  # padded: rows from n_online on mean nothing
    online_sub_tasks: Array  # (rows,) the label of each
    n_online: Array
    online_share: float = eqx.field(static=True)

    def sample(self, key: Array, size: int) -> Batch:
        """`online_share` of the batch are online steps, each as likely as any other."""
        offline_key, online_key = jax.random.split(key)
        n = round(self.online_share * size)
        rows = jax.random.randint(online_key, (n,), 0, self.n_online)
        parts = self.offline.sample(offline_key, size - n), self.online.take(rows, self.online_sub_tasks[rows])
        mixed: Batch = jax.tree.map(lambda *pair: jnp.concatenate(pair), *parts)
        return mixed


def replay(algorithm: DROP, prepared: Prepared, trajectories: Sequence[Trajectory], online_share: float) -> Replay:
    """The same targets, units and scales as in training."""
    low, high = np.asarray(prepared.scaling.action_low), np.asarray(prepared.scaling.action_high)
    dataset = online_dataset(trajectories, low, high)
    if algorithm.discount is None:
        raise ValueError("discount is open: the algorithm of a run is resolved")
    horizon = target_horizon(dataset.n_steps, algorithm.td_steps, algorithm.td_lambda)
    everything = [np.arange(dataset.n_episodes)]
    table = transition_table(dataset, everything, prepared.scaling, algorithm.discount, horizon, prepared.reward_scale)
    labels = np.concatenate([trajectory.sub_tasks for trajectory in trajectories])
    offline = prepared.transitions
    if offline.next_action_known is None:  # of what was played, it is not: behind a timeout the policy has to answer
        offline = offline._replace(next_action_known=jnp.ones_like(offline.has_target, dtype=bool))
    return Replay(
        offline=offline,
        online=jax.tree.map(_padded, table),
        online_sub_tasks=_padded(labels),
        n_online=jnp.asarray(dataset.n_steps, jnp.int32),
        online_share=online_share,
    )


def online_dataset(trajectories: Sequence[Trajectory], action_low: np.ndarray, action_high: np.ndarray) -> Dataset:
    """Whole episodes one after another, in the form of logged ones."""
    ends = np.cumsum([len(trajectory.rewards) for trajectory in trajectories]) - 1
    terminals = np.zeros(ends[-1] + 1, bool)
    terminals[ends] = [bool(trajectory.terminated) for trajectory in trajectories]
    timeouts = np.zeros_like(terminals)
    timeouts[ends] = ~terminals[ends]
    return Dataset(
        observations=np.concatenate([t.observations for t in trajectories]),
        actions=np.concatenate([t.actions for t in trajectories]),
        rewards=np.concatenate([t.rewards for t in trajectories]).astype(np.float32),
        terminals=terminals,
        timeouts=timeouts,
        next_observations=np.concatenate([t.next_observations for t in trajectories]),
        action_low=action_low,
        action_high=action_high,
        name="online",
    )


def _padded(column: np.ndarray | Array) -> Array:
    """To a power of two: as the data grows, a program is compiled a few times and not with every episode."""
    rows = max(LEAST_ROWS, 1 << (len(column) - 1).bit_length())
    return jnp.pad(jnp.asarray(column), [(0, rows - len(column))] + [(0, 0)] * (column.ndim - 1))

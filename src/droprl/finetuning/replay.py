"""Replay of old and new: every batch holds a fixed share of played steps, the rest is drawn from the run's dataset.

Where the data is cut into sub-tasks, a played step is labelled with the sub-task whose embedding acted, because
f(s, a, z) is the value of behaving as z: what z really earned corrects f where the data flattered it. (By their return,
a failure of a promising z would count against another z, and β would learn the failure under it.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from droprl.data.dataset import Dataset
from droprl.data.rows import DeviceRows, device_rows
from droprl.data.transitions import Places, Prepared, Transitions
from droprl.data.windows import Windows
from droprl.rollout import Trajectory

LEAST_ROWS = 4096


class Replay(eqx.Module):
    """What online training draws its batches from."""

    logged: Transitions | Windows
    played: Transitions | Windows  # its columns are padded: rows from `n_places` on mean nothing
    sub_tasks: Array | None  # (rows,) the label of each played row; None where there are no sub-tasks
    online_share: float = eqx.field(static=True)

    def sample(self, key: Array, size: int) -> Any:
        """`online_share` of the batch are played steps, each as likely as any other."""
        logged_key, played_key = jax.random.split(key)
        n = round(self.online_share * size)
        row = jax.random.randint(played_key, (n,), 0, self.played.rows.n_places)
        places = Places(row, None if self.sub_tasks is None else self.sub_tasks[row])
        parts = self.logged.sample(logged_key, size - n), self.played.gather(places)
        return jax.tree.map(lambda *pair: jnp.concatenate(pair), *parts)


def replay(prepared: Prepared, trajectories: Sequence[Trajectory], online_share: float) -> Replay:
    """What was played becomes rows by the recipe of the run: the same targets, units and scales."""
    logged, scaling = prepared.transitions, prepared.scaling
    dataset = played_dataset(trajectories, np.asarray(scaling.action_low), np.asarray(scaling.action_high))
    rows: DeviceRows = jax.tree.map(_padded, device_rows(dataset, prepared.recipe))
    labels = None
    if prepared.sub_tasks is not None:
        labels = _padded(np.concatenate([trajectory.sub_tasks for trajectory in trajectories]))
    return Replay(logged._replace(rows=_says_what_is_known(logged.rows)), logged.over(rows), labels, online_share)


def played_dataset(trajectories: Sequence[Trajectory], action_low: np.ndarray, action_high: np.ndarray) -> Dataset:
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
        name="played",
    )


def _says_what_is_known(rows: DeviceRows) -> DeviceRows:
    """Logged rows may leave unsaid that every a' is known. Played ones say it: a timeout shows no a'."""
    targets = rows.targets
    if targets is None or targets.next_action_known is not None:
        return rows
    known = jnp.ones_like(targets.has_target, dtype=bool)
    return rows._replace(targets=targets._replace(next_action_known=known))


def _padded(column: np.ndarray | Array) -> Array:
    """To a power of two: as the data grows, a program is compiled a few times and not with every episode."""
    if not column.ndim:
        return jnp.asarray(column)
    rows = max(LEAST_ROWS, 1 << (len(column) - 1).bit_length())
    return jnp.pad(jnp.asarray(column), [(0, rows - len(column))] + [(0, 0)] * (column.ndim - 1))

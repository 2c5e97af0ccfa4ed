"""Replay: a fixed share of every batch is played steps, and the rest comes from the run's dataset.

If the data is cut into sub-tasks, the label of a played step is the sub-task whose embedding acted. The reason:
f(s, a, z) is the value of behaving as z. If the data made z look too good, the rewards that z really earned correct f.
A label by the return would be wrong: if a promising z failed, the failure would count against another z, and β would
learn the failure for that other z.
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
    """Online training draws its batches from this."""

    logged: Transitions | Windows
    played: Transitions | Windows  # its columns are padded: ignore the rows from `n_places` on
    sub_tasks: Array | None  # (rows,) the label of each played row; None if there are no sub-tasks
    online_share: float = eqx.field(static=True)

    def sample(self, key: Array, size: int) -> Any:
        """A batch. The share `online_share` of it is played steps, drawn uniformly."""
        logged_key, played_key = jax.random.split(key)
        n = round(self.online_share * size)
        row = jax.random.randint(played_key, (n,), 0, self.played.rows.n_places)
        places = Places(row, None if self.sub_tasks is None else self.sub_tasks[row])
        parts = self.logged.sample(logged_key, size - n), self.played.gather(places)
        return jax.tree.map(lambda *pair: jnp.concatenate(pair), *parts)


def replay(prepared: Prepared, trajectories: Sequence[Trajectory], online_share: float) -> Replay:
    """Make rows of the played episodes by the run's recipe: with the same targets, units and scales."""
    logged, scaling = prepared.transitions, prepared.scaling
    dataset = played_dataset(trajectories, np.asarray(scaling.action_low), np.asarray(scaling.action_high))
    rows: DeviceRows = jax.tree.map(_padded, device_rows(dataset, prepared.recipe))
    labels = None
    if prepared.sub_tasks is not None:
        labels = _padded(np.concatenate([trajectory.sub_tasks for trajectory in trajectories]))
    return Replay(logged._replace(rows=_with_known_actions(logged.rows)), logged.over(rows), labels, online_share)


def played_dataset(trajectories: Sequence[Trajectory], action_low: np.ndarray, action_high: np.ndarray) -> Dataset:
    """The played episodes, one after another, as a dataset."""
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


def _with_known_actions(rows: DeviceRows) -> DeviceRows:
    """Add the column `next_action_known` to logged rows that omit it because every a' is known.

    Played rows always have it: at a timeout, a' is unknown.
    """
    targets = rows.targets
    if targets is None or targets.next_action_known is not None:
        return rows
    known = jnp.ones_like(targets.has_target, dtype=bool)
    return rows._replace(targets=targets._replace(next_action_known=known))


def _padded(column: np.ndarray | Array) -> Array:
    """Pad to a power of two. So growing data compiles a program a few times, not after every episode."""
    if not column.ndim:
        return jnp.asarray(column)
    rows = max(LEAST_ROWS, 1 << (len(column) - 1).bit_length())
    return jnp.pad(jnp.asarray(column), [(0, rows - len(column))] + [(0, 0)] * (column.ndim - 1))

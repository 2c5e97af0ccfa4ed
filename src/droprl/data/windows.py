"""What a sequence model reads: the last K steps of an episode up to any of its rows, gathered on the device.

Rows stay flat, as in `transitions`; beside each stands the row where its episode begins, so that no window reaches
into the episode before it. What is missing in front of an early row is padding, and says so in `valid`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from droprl.data.dataset import Dataset
from droprl.data.paging import in_pieces
from droprl.data.returns import discounted_returns, returns_by_block
from droprl.data.scaling import Scaling

PROBE_WINDOWS = 256


class Window(NamedTuple):
    """K steps, the last one last; of a batch, every field has the window as its first axis."""

    returns_to_go: Array  # (K,) what the episode earned from each step on, undiscounted and scaled
    observations: Array  # (K, observation_size)
    actions: Array  # (K, action_size)
    steps: Array  # (K,) the episode's clock: 0 at its first step
    valid: Array  # (K,) False where the episode had not begun: the other fields mean nothing there


class Windows(NamedTuple):
    """The table on the device."""

    returns_to_go: Array  # (T,)
    observations: Array  # (T, ·)
    actions: Array  # (T, ·)
    begin: Array  # (T,) the first row of the row's episode
    offsets: Array  # (K,) 1 − K … 0: an array, so that K is a shape and not a traced number

    def take(self, last: Array) -> Window:
        """The windows that end at these rows."""
        begin = self.begin[last][:, None]
        rows = last[:, None] + self.offsets
        inside = jnp.maximum(rows, begin)  # padding looks up the episode's own first row, never another episode's
        return Window(
            returns_to_go=self.returns_to_go[inside],
            observations=self.observations[inside],
            actions=self.actions[inside],
            steps=inside - begin,
            valid=rows >= begin,
        )

    def draw(self, key: jax.Array, size: int) -> Array:
        """Every row of the data is equally often the last of a window."""
        return jax.random.randint(key, (size,), 0, self.begin.shape[0])

    def gather(self, drawn: Array) -> Window:
        return self.take(drawn)

    def sample(self, key: jax.Array, size: int) -> Window:
        return self.take(self.draw(key, size))


@dataclass(frozen=True, eq=False)
class WindowsOnDisk:
    """The same windows looked up in columns on the disk; what each step's return to go is stays in memory."""

    dataset: Dataset
    scaling: Scaling
    context: int  # K
    returns_to_go: np.ndarray  # (T,) scaled

    def draw(self, key: jax.Array, size: int) -> Array:
        return jax.random.randint(key, (size,), 0, self.dataset.n_steps)

    def gather(self, drawn: Array) -> Window:
        """What `Windows` holds for these rows, as NumPy arrays of any shape."""
        found: Window = in_pieces(self.dataset, self._look_up, drawn)
        return found

    def _look_up(self, drawn: Array) -> Window:
        last = np.asarray(drawn)
        begin = self.dataset.bounds[np.searchsorted(self.dataset.bounds, last, side="right") - 1][..., None]
        rows = last[..., None] + np.arange(1 - self.context, 1)
        inside = np.maximum(rows, begin)
        observations, actions = np.asarray(self.dataset.observations), np.asarray(self.dataset.actions)
        columns: dict[str, Any] = {
            "returns_to_go": self.returns_to_go[inside],
            "observations": self.scaling.observations_in(observations.take(inside, axis=0)),
            "actions": self.scaling.actions_in(actions.take(inside, axis=0)),
            "steps": (inside - begin).astype(np.int32),
            "valid": rows >= begin,
        }
        return Window(**columns)

    def sample(self, key: jax.Array, size: int) -> Window:
        return self.gather(self.draw(key, size))


def disk_windows(dataset: Dataset, scaling: Scaling, context: int, return_scale: float) -> WindowsOnDisk:
    parts = [(to_go / return_scale).astype(np.float32) for _, to_go in returns_by_block(dataset, 1.0)]
    return WindowsOnDisk(dataset, scaling, context, np.concatenate(parts))


def window_table(dataset: Dataset, scaling: Scaling, context: int, return_scale: float) -> Windows:
    begin = np.repeat(dataset.bounds[:-1], dataset.lengths)
    return Windows(
        returns_to_go=jnp.asarray((discounted_returns(dataset, 1.0) / return_scale).astype(np.float32)),
        observations=jnp.asarray(scaling.observations_in(dataset.observations)),
        actions=jnp.asarray(scaling.actions_in(dataset.actions)),
        begin=jnp.asarray(begin.astype(np.int32)),
        offsets=jnp.arange(1 - context, 1, dtype=jnp.int32),
    )


def probe_windows(table: Windows | WindowsOnDisk) -> Window:
    """A fixed look at the data for the diagnostics."""
    rows = np.random.default_rng(0).integers(0, len(table.returns_to_go), PROBE_WINDOWS)
    return jax.tree.map(jnp.asarray, table.gather(jnp.asarray(rows, jnp.int32)))

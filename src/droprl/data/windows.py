"""Windows of the data: the rows before and after one row, never of another episode.

A method that looks back (dt) takes the rows up to the drawn row. A method that plans ahead takes the rows from it on.
Before the first row of an episode and after its last there is padding. `valid` is false there.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from droprl.data.dataset import Dataset
from droprl.data.rewards import Treatment
from droprl.data.rows import Column, Recipe, Rows, rows_of
from droprl.data.scaling import fit_scaling
from droprl.data.transitions import Places, Prepared, Spec

PROBE_WINDOWS = 256


class Window(NamedTuple):
    """K steps in their order. In a batch, the first axis of every field is the window."""

    returns_to_go: Array  # (K,) the discounted sum of treated rewards from each step to the end of the episode
    observations: Array  # (K, observation_size)
    actions: Array  # (K, action_size)
    steps: Array  # (K,) the number of the step in its episode, from 0
    valid: Array  # (K,) False outside the episode: ignore the other fields there


class Windows(NamedTuple):
    """The windows around all rows."""

    rows: Rows
    offsets: Column  # (K,) from −back to ahead: an array, so that K is a shape and not a traced number

    def draw(self, key: jax.Array, size: int) -> Places:
        """Every row of the data is drawn equally often."""
        return Places(jax.random.randint(key, (size,), 0, self.rows.n_places))

    def gather(self, places: Places) -> Window:
        found: Window = self.rows.read(self._look_up, places)
        return found

    def _look_up(self, places: Places) -> Window:
        row = self.rows.at(places.step)
        first, last = (border[..., None] for border in self.rows.episode(row))
        rows = row[..., None] + self.offsets
        inside = rows.clip(first, last)  # padding repeats the first or last row of the same episode
        return Window(
            returns_to_go=self.rows.return_to_go(inside),
            observations=self.rows.observation(inside),
            actions=self.rows.action(inside),
            steps=(inside - first).astype(np.int32),
            valid=rows == inside,
        )

    def sample(self, key: jax.Array, size: int) -> Window:
        return self.gather(self.draw(key, size))

    def over(self, rows: Rows) -> Windows:
        """The same layout over other rows."""
        return Windows(rows, self.offsets)


def prepare_windows(
    dataset: Dataset,
    *,
    back: int = 0,
    ahead: int = 0,
    discount: float = 1.0,
    rewards: Treatment | None = None,
    normalize_observations: bool = True,
) -> Prepared[Windows]:
    """Windows of `back` rows before each row, the row itself, and `ahead` rows after it.

    `rewards` comes from `Rewards(…).treatment(dataset, discount)`, or from the settings of an algorithm whose policy
    needs it too. Without it, rewards are unchanged.
    """
    scaling = fit_scaling(dataset, normalize_observations)
    recipe = Recipe(scaling, rewards or Treatment(), discount, episodes=True)
    offsets = np.arange(-back, ahead + 1, dtype=np.int32)
    windows = Windows(rows_of(dataset, recipe), offsets if dataset.on_disk else jnp.asarray(offsets))
    probed_rows = np.random.default_rng(0).integers(0, dataset.n_steps, PROBE_WINDOWS).astype(np.int32)
    return Prepared(
        spec=Spec(dataset.observation_size, dataset.action_size),
        recipe=recipe,
        transitions=windows,
        probe=jax.tree.map(jnp.asarray, windows.gather(Places(probed_rows))),
    )

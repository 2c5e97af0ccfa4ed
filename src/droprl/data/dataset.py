"""The one in-memory form of logged trajectories: flat arrays, one row for each step, and the bounds of episodes.

Only this module defines what a row means: a *terminal* ended the task, and a *timeout* only ended the episode.
The arrays may be columns on the disk. So code that runs over all rows works block by block and then releases the block.
Other modules read files, check them (`check`) and cut the data into sub-tasks (`decompose`).
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from droprl.data.held_files import HeldFiles
from droprl.data.minari_export import export_minari
from droprl.data.saving import save_d4rl
from droprl.environments.vectors import Parts
from droprl.errors import DropError
from droprl.notebook import facts_table, histogram_plot, shown

BLOCK_ROWS = 2**20  # the number of steps in one block
HISTOGRAM_BINS = 12


@dataclass(frozen=True, eq=False)
class Dataset:
    """Checked trajectories. Build one with `load_dataset` or `from_arrays`: they refuse unusable data."""

    observations: np.ndarray
    """(T, observation_size) float32."""
    actions: np.ndarray
    """(T, action_size) float32, in the task's own units."""
    rewards: np.ndarray
    """(T,) float32."""
    terminals: np.ndarray
    """(T,) bool: the task ended in this step."""
    timeouts: np.ndarray
    """(T,) bool: the time limit ended the episode after this step. Never true if `terminals` is true."""
    next_observations: np.ndarray | None
    """(T, observation_size) float32, if the source has them."""
    action_low: np.ndarray
    """(action_size,) float32: the lower bound of each action."""
    action_high: np.ndarray
    """(action_size,) float32: the upper bound of each action."""
    name: str = "arrays"
    """For example "walker2d-medium-replay-v2". The name selects presets and reference returns."""
    env: str | None = None
    """The Gymnasium id to evaluate in."""
    score_range: tuple[float, float] | None = None
    """D4RL's reference returns: (score 0, score 100)."""
    time_limit: int | None = None
    """The most steps of an episode when the task is played; None leaves it to the environment."""
    written_fingerprint: str | None = None
    """The fingerprint of columns on the disk, computed when they were written."""
    files: HeldFiles | None = None
    """The files of columns on the disk."""
    observation_parts: Parts | None = None
    """The name and size of each part of an observation, in their order, if the source names them."""
    action_parts: Parts | None = None
    """The same of an action."""
    notes: tuple[str, ...] = ()
    """What was done to the source to make this of it, one sentence each. Not saved."""

    def __repr__(self) -> str:
        return f"<dataset {self.name}: {self.n_steps:,} steps, {self.n_episodes:,} episodes>"

    def _repr_html_(self) -> str:
        """In a notebook: its sizes, and how the returns of its episodes are spread."""
        ends = f"{int(self.terminals.sum()):,} ended the task"
        facts = (
            ("task", self.env or "not known"),
            ("steps", f"{self.n_steps:,}"),
            ("episodes", f"{self.n_episodes:,}, of {self.lengths.min():,} to {self.lengths.max():,} steps; {ends}"),
            ("observations", f"{self.observation_size} numbers"),
            ("actions", f"{self.action_size} numbers"),
            ("returns", f"{self.returns.min():,.4g} to {self.returns.max():,.4g}, mean {self.returns.mean():,.4g}"),
        )
        counts, edges = histogram(self.returns)
        plot = histogram_plot("Episodes by return", edges.tolist(), counts.tolist())
        return shown(facts_table(self.name, facts), plot)

    @cached_property
    def bounds(self) -> np.ndarray:
        """(E + 1,) row numbers: episode `e` is the rows `bounds[e]` to `bounds[e + 1]`.

        The rows after the last marked end are one more episode, which the end of the file cut short.
        """
        ends = np.flatnonzero(self.terminals | self.timeouts) + 1
        if ends.size == 0 or ends[-1] != self.n_steps:
            ends = np.append(ends, self.n_steps)
        return np.concatenate([[0], ends]).astype(np.int64)

    @property
    def n_steps(self) -> int:
        return len(self.rewards)

    @property
    def n_episodes(self) -> int:
        return len(self.bounds) - 1

    @property
    def observation_size(self) -> int:
        return int(self.observations.shape[1])

    @property
    def action_size(self) -> int:
        return int(self.actions.shape[1])

    @cached_property
    def lengths(self) -> np.ndarray:
        return np.diff(self.bounds)

    @cached_property
    def returns(self) -> np.ndarray:
        """(E,) float64: the undiscounted return of each episode."""
        sums = []
        for episodes in self.blocks():
            begin, end = self.bounds[episodes.start], self.bounds[episodes.stop]
            sums.append(np.add.reduceat(self.rewards[begin:end].astype(np.float64), self.bounds[episodes] - begin))
        return np.concatenate(sums)

    @cached_property
    def ends_in_terminal(self) -> np.ndarray:
        """(E,) bool: whether the episode's last step ended the task."""
        return np.asarray(self.terminals[self.bounds[1:] - 1])

    @property
    def last_is_cut_short(self) -> bool:
        """Whether the file ends in the middle of an episode. That episode counts as timed out."""
        return not bool(self.terminals[-1] or self.timeouts[-1])

    def scores(self, returns: np.ndarray) -> np.ndarray | None:
        """D4RL-normalised scores, or None if the task has no reference returns."""
        if self.score_range is None:
            return None
        return normalized_scores(returns, self.score_range)

    @property
    def on_disk(self) -> bool:
        """Whether the arrays are columns on the disk. If so, only the rows that are read come into memory."""
        return isinstance(self.observations, np.memmap)

    @property
    def n_bytes(self) -> int:
        """The size of the columns from which batches are drawn."""
        columns = (self.observations, self.actions, self.rewards, self.next_observations)
        return sum(column.nbytes for column in columns if column is not None)

    def blocks(self) -> Iterator[slice]:
        """All episodes in slices of about BLOCK_ROWS steps. Each block leaves memory before the next one comes."""
        first = 0
        while first < self.n_episodes:
            fits = int(np.searchsorted(self.bounds, self.bounds[first] + BLOCK_ROWS, side="right")) - 1
            with self.reading():
                yield slice(first, max(fits, first + 1))
            self.release()
            first = max(fits, first + 1)

    def reading(self) -> AbstractContextManager[None]:
        """Around a block of reads: columns on the disk that another program changes are an error."""
        return nullcontext() if self.files is None else self.files.reading()

    def release(self) -> None:
        release(self.observations, self.actions, self.rewards, self.next_observations)

    def save(self, path: str | Path, *, force: bool = False) -> Path:
        """Write a .hdf5 file in D4RL's layout. It is a SOURCE for the command line, and `load_dataset` reads it.

        A file that is already there stays, unless `force` is true. The dataset is then named after its file.
        """
        path = Path(path)
        if path.exists() and not force:
            raise DropError(f"{path}: exists already: choose another name, or give force=True (--force)")
        save_d4rl(self, path)
        return path

    def to_minari(self, dataset_id: str) -> str:
        """Write a Minari dataset with this id, such as mine/plant-v0, into the local Minari root.

        A Minari episode ends with the state after its last step. Where that is not known, the last observation is
        repeated, and the dataset says so in its metadata (`droprl_last_observation_repeated`).
        """
        return export_minari(self, dataset_id)

    def in_memory(self) -> Dataset:
        """The same dataset with every column in memory, for code that cannot work from the disk."""
        if not self.on_disk:
            return self
        keys = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations")
        with self.reading():
            read: dict[str, Any] = {key: np.array(column) for key in keys if (column := getattr(self, key)) is not None}
        return replace(self, **read, files=None)

    @cached_property
    def fingerprint(self) -> str:
        """A digest of everything that training reads. A resumed run checks by it that its data is the same."""
        if self.written_fingerprint is not None:
            return self.written_fingerprint
        digest = hashlib.sha256()
        arrays = (self.observations, self.actions, self.rewards, self.terminals, self.timeouts, self.next_observations)
        for array in (*arrays, self.action_low, self.action_high):
            digest.update(b"none" if array is None else repr((array.shape, array.dtype.str)).encode())
            if array is None:
                continue
            for begin in range(0, len(array), BLOCK_ROWS):
                digest.update(np.ascontiguousarray(array[begin : begin + BLOCK_ROWS]).data)
                self.release()
        return digest.hexdigest()[:16]


def release(*arrays: object) -> None:
    """Remove the pages of arrays on the disk from memory. The next access reads them again."""
    for array in arrays:
        if isinstance(array, np.memmap) and array.mode == "r" and isinstance(array.base, mmap.mmap):
            array.base.madvise(mmap.MADV_DONTNEED)


def histogram(returns: np.ndarray, bins: int = HISTOGRAM_BINS) -> tuple[np.ndarray, np.ndarray]:
    """Counts and edges. One bin if all returns are (nearly) equal: a bin cannot be narrower than a float resolves."""
    low, high = float(returns.min()), float(returns.max())
    if high - low <= 1e-9 * max(1.0, abs(low), abs(high)):
        return np.array([len(returns)]), np.array([low, high])
    return np.histogram(returns, bins=bins)


def normalized_scores(returns: np.ndarray, score_range: tuple[float, float]) -> np.ndarray:
    """D4RL's score: 0 for the return of the random policy, 100 for the return of the expert."""
    low, high = score_range
    return 100.0 * (np.asarray(returns, dtype=np.float64) - low) / (high - low)

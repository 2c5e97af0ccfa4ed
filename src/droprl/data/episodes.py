"""Where the episodes of a log begin and end: by an id, at gaps in time, at marked rows, after a fixed length, or cut on
purpose.

`Log` holds the rows in the order of their episodes while these are cut. It notes every step for people, in `said`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from droprl.data.check import fault


class Log:
    """The rows of a source, in the order of their episodes."""

    def __init__(self, n_rows: int, where: str, row_label: Callable[[int], str] = lambda row: f"row {row}") -> None:
        self.rows = np.arange(n_rows)  # for each step, its row in the source
        self.episode = np.zeros(n_rows, np.int64)  # for each step, the number of its episode; it never falls
        self.said: list[str] = []
        self.dropped: list[tuple[int, str]] = []  # how many rows were left out, and why
        self._where, self._label = where, row_label

    @property
    def begins(self) -> np.ndarray:
        """(T,) bool: the first step of each episode."""
        return np.concatenate([[True], self.episode[1:] != self.episode[:-1]]) if len(self.rows) else np.zeros(0, bool)

    @property
    def ends(self) -> np.ndarray:
        return np.concatenate([self.begins[1:], [True]]) if len(self.rows) else np.zeros(0, bool)

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(np.append(np.flatnonzero(self.begins), len(self.rows)))

    @property
    def n_episodes(self) -> int:
        return int(self.begins.sum())

    def group(self, ids: np.ndarray, what: str) -> None:
        """One episode for each id, in the order in which the ids first appear. The rows of one id keep their order.

        `ids` is by the rows of the source.
        """
        found, first, codes = np.unique(ids[self.rows], return_index=True, return_inverse=True)
        rank = np.empty(len(found), np.int64)
        rank[np.argsort(first, kind="stable")] = np.arange(len(found))
        codes = rank[codes.ravel()]
        runs = 1 + int(np.sum(codes[1:] != codes[:-1]))
        order = np.argsort(codes, kind="stable")
        self.rows, self.episode = self.rows[order], codes[order]
        self.said.append(f"one episode for each of the {len(found):,} values of {what}")
        if runs > len(found):
            self.said.append(
                f"{what}: the rows of an episode are not all together in the source ({runs:,} runs); they were brought "
                f"together. If {what} is used again for later episodes, cut these apart at gaps in time"
            )

    def check_times(self, times: np.ndarray, what: str) -> None:
        """Refuse times that go back inside an episode. `times` is by the rows of the source."""
        late = np.diff(times[self.rows])
        back = np.flatnonzero((late < 0) & ~self.begins[1:])
        if back.size:
            row, before = int(self.rows[back[0] + 1]), int(self.rows[back[0]])
            raise fault(
                self._where,
                f"{what} {self._label(row)} is earlier than {self._label(before)} of the same episode "
                f"({back.size:,} such rows)",
                f"sort the rows by {what}, or name the column of the episode",
            )

    def split_at_gaps(self, times: np.ndarray, gap: float, what: str, said: str) -> None:
        """A new episode begins where more than `gap` lies between two rows."""
        late = np.diff(times[self.rows])
        inside = ~self.begins[1:]
        apart = (late > gap) & inside
        typical = float(np.median(late[inside])) if inside.any() else 0.0
        self._split(np.concatenate([[False], apart]))
        self.said.append(
            f"cut at {int(apart.sum()):,} gaps of more than {said} in {what} (half of all steps take at most "
            f"{typical:g}): {self.n_episodes:,} episodes"
        )
        if inside.any() and apart[inside].all():
            raise fault(
                self._where,
                f"every step of {what} is longer than the gap of {said} (half of them take at most {typical:g})",
                "give a longer gap, in the units of the column",
            )

    def split_to_length(self, length: int) -> None:
        """Episodes of this length each. What is left at the end of the log is a shorter one."""
        at = _place_in_episode(self.begins)
        self._split((at % length == 0) & ~self.begins)
        short = int(np.sum(self.lengths != length))
        self.said.append(f"cut after every {length:,} rows: {self.n_episodes:,} episodes")
        if short:
            self.said.append(f"shorter ones, because the log ended: {short:,}")

    def split_to_horizon(self, horizon: int) -> None:
        """Pieces of at most this length, as equal as possible, so that their returns can be compared."""
        before, pieces = self.n_episodes, []
        for n in self.lengths:
            whole, longer = divmod(int(n), count := -(-int(n) // horizon))
            pieces += [whole + 1] * longer + [whole] * (count - longer)
        self.episode = np.repeat(np.arange(len(pieces)), pieces)
        self.said.append(
            f"cut on purpose into pieces of at most {horizon:,} rows: {before:,} became {len(pieces):,} episodes of "
            f"{min(pieces):,} to {max(pieces):,} rows. These cuts are timeouts: the task would have gone on"
        )

    def end_at(self, marks: np.ndarray, what: str) -> np.ndarray:
        """End an episode at the first marked row. Returns which steps are marked, by the steps that are left.

        Rows that follow with the same mark are left out: the flag only stays up. If every row of an episode is marked,
        the mark is a label of the whole episode, and its last step ends it.
        """
        marked = np.asarray(marks, bool)[self.rows]
        sums = np.add.reduceat(marked.astype(np.int64), np.flatnonzero(self.begins))
        labels = (sums == self.lengths) & (self.lengths > 1)
        labelled = np.repeat(labels, self.lengths)
        if labels.any():
            self.said.append(
                f"episodes whose every row {what} marks: {int(labels.sum()):,}; they end at their last row"
            )
        stays = marked & np.concatenate([[False], marked[:-1]]) & ~self.begins & ~labelled
        after = np.concatenate([[False], (marked & ~labelled)[:-1]]) & ~self.begins
        marked = np.where(labelled, self.ends, marked)
        self._split(after)
        self.keep(~stays, f"{what} stayed up after the end of an episode")
        return marked[~stays]

    def keep(self, kept: np.ndarray, why: str) -> None:
        """Leave out the other steps, and note why."""
        if not kept.all():
            self.dropped.append((int(np.sum(~kept)), why))
            self.rows, self.episode = self.rows[kept], self.episode[kept]

    def keep_episodes(self, bad: np.ndarray, why: str) -> np.ndarray:
        """Leave out every episode that has a bad step. Returns which steps are kept."""
        kept = ~np.isin(self.episode, np.unique(self.episode[bad]))
        left_out = self.n_episodes
        self.keep(kept, why)
        if not kept.all():
            self.said.append(f"whole episodes left out: {left_out - self.n_episodes:,} ({why})")
        return kept

    def _split(self, at: np.ndarray) -> None:
        """Begin new episodes at these steps too."""
        self.episode = np.cumsum(self.begins | at) - 1


def _place_in_episode(begins: np.ndarray) -> np.ndarray:
    """(T,) the number of each step in its episode."""
    first = np.flatnonzero(begins)
    return np.arange(len(begins)) - np.repeat(first, np.diff(np.append(first, len(begins))))


def checked_count(value: Any, what: str, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise fault(where, f"{what} is {value!r}", "give a whole number of at least 1")
    return int(value)

"""The budget of one seed, and a file with one line for each episode, written as soon as the episode is over.

An episode begins only if the longest possible episode still fits into the budget. If a task has no time limit, the end
of the budget cuts the episode. The steps of a cut episode count, but its return does not. If a kill interrupts an
episode, it is played again and counts once.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from droprl.errors import DropError
from droprl.files.seals import checked_line, from_checked_line
from droprl.files.settings import from_dict
from droprl.files.storage import read_lines, write_bytes
from droprl.rollout import Trajectory


@dataclass(frozen=True)
class Played:
    """One episode."""

    step: int  # the checkpoint that acted
    ascent_steps: int | None  # k; None if the algorithm infers nothing
    env_seed: int
    episode_return: float
    length: int
    whole: bool  # False: cut by the end of the budget
    sha256: str | None = None  # of the file with its steps, if there is one


def ledger_entry(
    trajectory: Trajectory, step: int, ascent_steps: int | None, env_seed: int, sha256: str | None = None
) -> Played:
    """The line of the ledger for one episode."""
    earned = trajectory.episode_return
    if not np.isfinite(earned):
        raise DropError("the return of an episode is NaN or infinite: check the rewards of --env")
    return Played(step, ascent_steps, env_seed, earned, len(trajectory.rewards), bool(trajectory.whole), sha256)


class Ledger:
    """The episodes that one seed has played, and what is left of its budget."""

    def __init__(self, path: Path, budget: int, longest: int | None) -> None:
        self.budget, self._path, self._longest = budget, path, longest
        # A damaged line is an error. If the ledger skipped it, the budget would pay twice for its episode.
        remedy = f"restore the file, or remove the folder {path.parent} to begin anew"
        self.played = read_lines(path, _entry, remedy)
        # A kill may have left half a line at the end. Remove it, or the next line would be appended to it.
        write_bytes(path, "".join(_line(entry) for entry in self.played).encode())

    @property
    def spent(self) -> int:
        return sum(entry.length for entry in self.played)

    @property
    def left(self) -> int:
        return self.budget - self.spent

    def fits(self, episodes: int = 1) -> bool:
        """Whether the budget pays for this many more episodes."""
        return self.left >= episodes * (self._longest or 1)

    def add(self, entry: Played) -> None:
        if entry.length > self.left:
            raise ValueError(f"{entry.length} steps were played with {self.left} left of the budget")
        try:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(_line(entry))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise DropError(
                f"{self._path}: cannot be written ({error.strerror}): free space and run the same command again"
            ) from error
        self.played.append(entry)


def _line(entry: Played) -> str:
    return checked_line(asdict(entry))


def _entry(line: str) -> Played:
    return from_dict(Played, from_checked_line(line), "it")

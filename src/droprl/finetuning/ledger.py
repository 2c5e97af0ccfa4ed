"""The budget of one seed and the episodes it was spent on: a line for each, written as soon as the episode is over.

An episode begins only if its longest possible course still fits; where a task has no clock, it is cut where the budget
ends. The steps of a cut episode count, its return does not. What a kill interrupts is played again, and counts once.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from droprl.errors import DropError
from droprl.rollout import Trajectory
from droprl.train.config import from_dict
from droprl.train.storage import write_bytes


@dataclass(frozen=True)
class Played:
    """One episode."""

    step: int  # the checkpoint that acted
    ascent_steps: int | None  # k; None where nothing is inferred
    env_seed: int
    episode_return: float
    length: int
    whole: bool  # False: cut by the end of the budget
    sha256: str | None = None  # of the file with its steps, where they are kept


def played(
    trajectory: Trajectory, step: int, ascent_steps: int | None, env_seed: int, sha256: str | None = None
) -> Played:
    """What the ledger notes of an episode."""
    earned = trajectory.episode_return
    if not np.isfinite(earned):
        raise DropError("the task paid a return that is not a number: check --env")
    return Played(step, ascent_steps, env_seed, earned, len(trajectory.rewards), bool(trajectory.whole), sha256)


class Ledger:
    """What one seed has played of its budget."""

    def __init__(self, path: Path, budget: int, longest: int | None) -> None:
        self.budget, self._path, self._longest = budget, path, longest
        self.played = _whole_lines(path)
        # A line that a kill has torn goes, so that the next one does not continue it.
        write_bytes(path, "".join(_line(entry) for entry in self.played).encode())

    @property
    def spent(self) -> int:
        return sum(entry.length for entry in self.played)

    @property
    def left(self) -> int:
        return self.budget - self.spent

    def fits(self, episodes: int = 1) -> bool:
        """Whether so many more episodes may be begun."""
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
    return json.dumps(asdict(entry)) + "\n"


def _whole_lines(path: Path) -> list[Played]:
    """The entries up to the first line that is not one."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise DropError(f"{path}: cannot be read ({error.strerror}): fix permissions, or remove it") from error
    found = []
    for line in lines:
        try:
            found.append(from_dict(Played, json.loads(line), str(path)))
        except (ValueError, DropError):
            break
    return found

"""A disk that loses its power: what would be left of a folder, at every moment of writing.

What the system has promised to keep are the bytes of a file since its last fsync, and the names in a folder since the
folder's last fsync. All else may be there or not, in any combination.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Content = bytes | dict[str, int]  # of a file, or the names in a folder with their inodes
Choice = Callable[[Any, Any], Any]  # between what is kept and what the process sees


@dataclass(frozen=True)
class Moment:
    kept: dict[int, Content]  # by inode: what outlasts a power loss
    live: dict[int, Content]  # what the process sees


class Disk:
    """Notes what a power loss would leave of a folder, at every moment of writing."""

    def __init__(self, root: Path) -> None:
        self.root, self.moments = root, list[Moment]()
        self._inode = os.stat(root).st_ino
        self._held: dict[int, int] = {}  # an open file keeps its inode's number from being used again
        self._kept = self._look()
        self._fsync, self._replace = os.fsync, os.replace

    @contextmanager
    def watched(self) -> Iterator[None]:
        os.fsync, os.replace = self._on_fsync, self._on_replace  # type: ignore[assignment]
        try:
            yield
        finally:
            os.fsync, os.replace = self._fsync, self._replace
            self._note()
            for descriptor in self._held.values():
                os.close(descriptor)

    def _on_fsync(self, descriptor: int) -> None:
        self._note()
        self._fsync(descriptor)
        inode = os.fstat(descriptor).st_ino
        if (found := self._look().get(inode)) is not None:
            self._kept[inode] = found
        self._note()

    def _on_replace(self, source: Any, target: Any) -> None:
        self._note()
        self._replace(source, target)
        self._note()

    def _note(self) -> None:
        moment = Moment(dict(self._kept), self._look())
        if not self.moments or moment != self.moments[-1]:
            self.moments.append(moment)

    def _look(self) -> dict[int, Content]:
        found: dict[int, Content] = {}
        for folder, _, files in os.walk(self.root):
            names = {name: os.lstat(Path(folder) / name).st_ino for name in os.listdir(folder)}
            found[os.stat(folder).st_ino] = names
            for name in files:
                found[names[name]] = (Path(folder) / name).read_bytes()
            for name, inode in names.items():
                if inode not in self._held:
                    self._held[inode] = os.open(Path(folder) / name, os.O_RDONLY)
        return found

    def write(self, moment: Moment, choose: Choice, to: Path) -> None:
        """Make the folder as a power loss at this moment would leave it."""
        self._write(self._inode, moment, choose, to)

    def _write(self, inode: int, moment: Moment, choose: Choice, to: Path) -> None:
        kept, live = moment.kept.get(inode), moment.live.get(inode)
        if isinstance(kept, dict) or isinstance(live, dict):
            before = kept if isinstance(kept, dict) else {}
            now = live if isinstance(live, dict) else {}
            to.mkdir()
            for name in sorted(before.keys() | now.keys()):
                if (chosen := choose(before.get(name), now.get(name))) is not None:
                    self._write(chosen, moment, choose, to / name)
        else:
            to.write_bytes(choose(kept, live) or b"")


def only_kept(kept: Any, live: Any) -> Any:
    return kept


def all_of_it(kept: Any, live: Any) -> Any:
    return live


def by_chance(rng: random.Random) -> Choice:
    """Each name and each file alone: as kept, as seen, or for bytes that were never flushed, cut short."""

    def choose(kept: Any, live: Any) -> Any:
        if kept != live and isinstance(live, bytes) and rng.random() < 0.3:
            return live[: rng.randrange(len(kept or b""), len(live))] if len(live) > len(kept or b"") else kept
        return rng.choice((kept, live))

    return choose


def states(disk: Disk, rng: random.Random, mixed: int) -> Iterator[tuple[Moment, Choice]]:
    """What a power loss may leave: the least and the most at each moment, and mixtures at `mixed` of them."""
    for moment in disk.moments:
        yield moment, only_kept
        yield moment, all_of_it
    for moment in rng.choices(disk.moments, k=mixed):
        yield moment, by_chance(rng)

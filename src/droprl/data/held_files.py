"""The files behind columns on the disk: another program must not change them while they are read.

A program that reads a mapped file past its end is killed by the system (SIGBUS), so a file that is cut short during
training would end it without a word. To copy every row with a system call instead would be safe, but it takes forty
times as long. So the files are compared with what they were, before and after each block of reads. Between the two,
Linux holds back whoever wants to cut them short: that is what a lease does. It works for local files of one's own.
"""

from __future__ import annotations

import fcntl
import os
import signal
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from droprl.errors import DropError

RESTORE = "restore the folder and run the same command again: it goes on from the last checkpoint"
PATIENCE = 1.0  # seconds to wait for a writer to end. One that stays may go on: only a change is an error


class HeldFiles:
    """Files that are open for reading, and their sizes and times when they were opened."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = tuple(paths)
        self._descriptors: list[int] = []
        weakref.finalize(self, _close, self._descriptors)
        for path in self._paths:
            self._descriptors.append(os.open(path, os.O_RDONLY))
        self._known = [_stamp(descriptor) for descriptor in self._descriptors]
        self._readers, self._lock = 0, threading.Lock()
        self._leased = [descriptor for descriptor in self._descriptors if _lease(descriptor)]
        self._let_go()
        self._patience = PATIENCE

    @contextmanager
    def reading(self) -> Iterator[None]:
        """What is read here is as it was when the files were opened, or an error says which file is not."""
        with self._lock:
            self._readers += 1
            if self._readers == 1:
                self._hold()
        try:
            self.check()
            yield
            self.check()
        finally:
            with self._lock:
                self._readers -= 1
                if self._readers == 0:
                    self._let_go()

    def check(self) -> None:
        for path, descriptor, known in zip(self._paths, self._descriptors, self._known, strict=True):
            if (found := _stamp(descriptor)) != known:
                what = "was cut short" if found[0] < known[0] else "was changed"
                raise DropError(f"{path}: {what} while it was read: {RESTORE}")

    def are_still_there(self) -> bool:
        """Whether the paths still lead to these files, and not to others that took their names."""
        with suppress(OSError):
            return all(
                os.path.samestat(os.fstat(descriptor), os.stat(path))
                for path, descriptor in zip(self._paths, self._descriptors, strict=True)
            )
        return False

    def _hold(self) -> None:
        """Hold back writers. If one is just at work, it comes first: the check then sees what it did."""
        for descriptor in self._leased:
            while not _lease(descriptor) and self._patience > 0:
                time.sleep(0.001)
                self._patience -= 0.001

    def _let_go(self) -> None:
        for descriptor in self._leased:
            with suppress(OSError):  # there was none, because a writer has the file open
                fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)


def _lease(descriptor: int) -> bool:
    """Whether the system now holds back writers. Not every system can, and not while one has the file open."""
    try:
        # The signal says that a writer waits. We need none, and of all signals this one is ignored by itself.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except (OSError, AttributeError):
        return False
    return True


def _stamp(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_size, found.st_mtime_ns


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)

"""Locks, so that only one process at a time works in a folder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from droprl.errors import DropError
from droprl.files.durable import make_folder
from droprl.files.plain import lock_file


@contextmanager
def locked(path: Path, file_name: str = ".lock", work: str = "training", passing: bool = False) -> Iterator[None]:
    """Make the folder and hold its lock; another `file_name` locks only one part of the folder. The lock ends with the
    process, even if it is killed. A `passing` lock removes its file."""
    try:
        make_folder(path)
    except OSError as error:
        raise DropError(
            f"{path}: cannot be made ({error.strerror}): fix permissions, or choose another folder"
        ) from error
    try:
        file = lock_file(path / file_name)
    except OSError as error:
        raise DropError(
            f"{path}: cannot be written ({error.strerror}): fix permissions, or choose another folder"
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(file.fileno()), os.lstat(path / file_name)):
                raise BlockingIOError  # its last holder removed the file, and another process may hold a new one
        except (BlockingIOError, FileNotFoundError):
            raise DropError(f"{path}: another process is {work} here: wait for it, or work in another folder") from None
        except OSError as error:
            raise DropError(f"{path}: cannot be locked ({error.strerror}): use a local folder as --out") from error
        try:
            yield
        finally:
            if passing:
                (path / file_name).unlink(missing_ok=True)

"""What must outlast a power loss: the system is asked to write it to the disk now, and not when it likes.

A file and its name are kept apart: `fsync` of a file keeps its bytes, `fsync` of its folder keeps its name. So whoever
makes or renames something must sync the folder too.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

_NO_SUCH_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EACCES)  # some network folders, and folders that cannot be listed


def sync_file(path: Path) -> None:
    """Every byte that was written to this file, by whichever process, is on the disk when this returns.

    A file system that cannot do this says EINVAL (not EIO, which is a loss). It keeps what it can.
    """
    try:
        _sync(path, os.O_RDONLY)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise


def sync_folder(path: Path) -> None:
    """The names in this folder are on the disk when this returns. A system that cannot do this is not asked again."""
    try:
        _sync(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        if error.errno not in _NO_SUCH_SYNC:
            raise


def make_folder(path: Path) -> None:
    """Make the folder and those above it that are missing. Each has its name on the disk when this returns."""
    missing = []
    while not path.is_dir() and path != path.parent:
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

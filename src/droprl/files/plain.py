"""Folders and files that a stranger may have made: nothing in them leads elsewhere, and nothing waits for ever."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import BinaryIO

from droprl.errors import DropError, reason


def check_folder(folder: Path, file_links: bool = True) -> None:
    """Refuse, by name, a folder that holds a link to a folder, or a pipe, a socket or a device, at any depth.

    A link to a file is harmless where a checksum decides what is read, because we never write through a link. Where no
    checksum does, `file_links=False` refuses it too. The folder itself may be a link: that one is the user's own.
    """
    waiting = [str(folder)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    else:
                        _check_entry(entry, file_links)
        except FileNotFoundError:  # another process has just removed it
            continue
        except OSError as error:
            raise DropError(f"{error.filename}: cannot be read ({reason(error)}): fix permissions") from error


def _check_entry(entry: os.DirEntry[str], file_links: bool) -> None:
    if entry.is_symlink():
        if not (file_links and entry.is_file()):
            raise DropError(f"{entry.path}: is a link that may lead anywhere: put the file or folder itself there")
    elif not entry.is_file(follow_symlinks=False) and os.path.lexists(entry.path):
        raise DropError(f"{entry.path}: is a pipe, a socket or a device, not a file: remove it")


def fresh(path: Path) -> BinaryIO:
    """A new, empty file to write. What had its name before is removed: it may be a link to another file."""
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o666), "wb")


def lock_file(path: Path) -> BinaryIO:
    """The file, made if it is missing, and unchanged if not. A link is not followed, a pipe is not waited for."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    if path.is_symlink() or (path.exists() and not stat.S_ISREG(path.lstat().st_mode)):
        raise DropError(f"{path}: is a link, a pipe or a device, not a file: remove it")
    return os.fdopen(os.open(path, flags, 0o666), "r+b", buffering=0)


def clear(path: Path) -> None:
    """Remove a file or a folder. Of a link only the link itself goes."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)

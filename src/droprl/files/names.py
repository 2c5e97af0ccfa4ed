"""Names of strangers as parts of a path: none leads out of the folder that it is put into."""

from __future__ import annotations

import re

from droprl.errors import DropError

MOST_BYTES = 200  # file systems take 255, and we add endings and prefixes


def file_name(text: str) -> str:
    """A name of a task, a method or a play as the name of a file or folder."""
    return path_part(re.sub(r"[^-+.=\w]+", "-", text), text)


def path_part(name: str, given: str | None = None) -> str:
    """The same name, if it is one part of a path and nothing else. Every path made from a name goes through here."""
    given = name if given is None else given
    if not name.strip(".") or "/" in name or "\0" in name or name.startswith(".partial-"):
        raise DropError(f"{given!r}: cannot be the name of a file or folder: choose another name")
    if len(name.encode(errors="replace")) > MOST_BYTES:
        raise DropError(f"{given[:60]!r}…: is too long for the name of a file or folder: choose a shorter name")
    return name

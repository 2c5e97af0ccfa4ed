"""JSON with a checksum of its own, for files that describe a run, a checkpoint, a policy or a dataset."""

from __future__ import annotations

import hashlib
import json
import stat
from pathlib import Path
from typing import Any

from droprl.errors import DropError, reason

FORMAT = 2  # of sealed files; format 1 had no seal
RESTORE = "restore the file or train again"
MOST_BYTES = 16 * 2**20  # of a JSON file: ours have a few kilobytes, and a stranger's file must not fill the memory
_BLANK = "0" * 64  # in place of the seal while the seal is computed


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def sealed(content: dict[str, Any]) -> bytes:
    """JSON that holds the checksum of all its other bytes, so that any changed bit is noticed."""
    blank = json.dumps({"format": FORMAT, "seal": _BLANK, **content}, indent=2, allow_nan=False).encode() + b"\n"
    return blank.replace(_BLANK.encode(), digest(blank).encode(), 1)


def read_sealed(path: Path, remedy: str = RESTORE) -> dict[str, Any]:
    """The content that `sealed` wrote; a changed file is refused. Format 1 has no seal and is not checked."""
    raw, content = _read(path, remedy)
    if not isinstance(content, dict):
        raise DropError(f"{path}: is damaged (it holds no settings): {remedy}")
    seal, found = content.pop("seal", None), content.pop("format", 1)
    if seal is None and found == 1:
        return content
    if found not in (1, FORMAT):
        raise DropError(f"{path}: is not of format {FORMAT}: another version of droprl wrote it, or it is damaged")
    if digest(raw.replace(str(seal).encode(), _BLANK.encode(), 1)) != seal:
        raise DropError(f"{path}: is damaged or was edited (its checksum differs): {remedy}")
    return content


def read_json(path: Path) -> Any:
    return _read(path, RESTORE)[1]


def _read(path: Path, remedy: str) -> tuple[bytes, Any]:
    """The bytes of the file, and its JSON content."""
    try:
        check_size(path, MOST_BYTES, remedy)
        raw = path.read_bytes()
        return raw, json.loads(raw.decode("utf-8"))
    except FileNotFoundError:
        raise DropError(f"{path}: not found: is this a run or policy folder?") from None
    except (OSError, ValueError, RecursionError, MemoryError) as error:  # ValueError: also a number of 5,000 digits
        raise DropError(f"{path}: cannot be read ({reason(error)}): {remedy}") from error


def check_size(path: Path, most: int, remedy: str) -> None:
    """Refuse, before a byte is read, a file that is too large or not a regular file: a pipe may never end."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise DropError(f"{path}: cannot be read (it is not a regular file): {remedy}")
    if found.st_size > most:
        raise DropError(f"{path}: is damaged ({found.st_size:,} bytes instead of at most {most:,}): {remedy}")

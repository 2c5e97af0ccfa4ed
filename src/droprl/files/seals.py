"""JSON with a checksum of its own, for files that describe a run, a checkpoint, a policy, a dataset or a result. A file
that grows line by line has a checksum in each line."""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from droprl.errors import DropError, reason

FORMAT = 2  # of sealed files; format 1 had no seal
RESTORE = "restore the file or train again"
MOST_BYTES = 16 * 2**20  # of a JSON file: ours have a few kilobytes, and a stranger's file must not fill the memory
MOST_DEPTH = 32  # of lists and tables inside each other
_BLANK = "0" * 64  # in place of the seal while the seal is computed


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _indented(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=2, allow_nan=False)


def sealed(content: dict[str, Any], to_text: Callable[[dict[str, Any]], str] = _indented) -> bytes:
    """JSON that holds the checksum of all its other bytes, so that any changed bit is noticed."""
    blank = to_text({"format": FORMAT, "seal": _BLANK, **content}).encode() + b"\n"
    return blank.replace(_BLANK.encode(), digest(blank).encode(), 1)


def read_sealed(path: Path, remedy: str = RESTORE) -> dict[str, Any]:
    """The content that `sealed` wrote; a changed file is refused. Format 1 has no seal and is not checked."""
    return read_marked(path, remedy)[0]


def read_marked(path: Path, remedy: str = RESTORE) -> tuple[dict[str, Any], bool]:
    """The content that `sealed` wrote, and whether it has a seal. Without one it is of an older version, unchecked."""
    raw, content = _read(path, remedy)
    if not isinstance(content, dict):
        raise DropError(f"{path}: is damaged (it holds no settings): {remedy}")
    seal, found = content.pop("seal", None), content.pop("format", 1)
    if seal is None and found == 1:
        return content, False
    if found not in (1, FORMAT):
        raise DropError(f"{path}: is not of format {FORMAT}: another version of droprl wrote it, or it is damaged")
    if digest(raw.replace(str(seal).encode(), _BLANK.encode(), 1)) != seal:
        raise DropError(f"{path}: is damaged or was edited (its checksum differs): {remedy}")
    return content, True


def checked_line(content: dict[str, Any]) -> str:
    """One line of JSON with a checksum of its content, for a file that grows line by line."""
    return json.dumps(content | {"check": _check(content)}) + "\n"


def from_checked_line(line: str) -> Any:
    """The content of a line that `checked_line` wrote. A line of an older version has no checksum: it is unchecked."""
    content = parse_json(line)
    check = content.pop("check", None) if isinstance(content, dict) else None
    if check is not None and check != _check(content):
        raise ValueError("its checksum differs")
    return content


def _check(content: dict[str, Any]) -> str:
    return digest(json.dumps(content).encode())[:16]


def read_json(path: Path, remedy: str = RESTORE, infinity: bool = False) -> Any:
    return _read(path, remedy, infinity)[1]


def parse_json(text: str, infinity: bool = False) -> Any:
    """JSON as the standard has it: without NaN and (unless asked for) infinity, and not nested deeper than our own.

    Every failure is a ValueError. Python itself has other errors for what is nested too deeply.
    """
    try:
        content = json.loads(text, parse_constant=float if infinity else _refuse_constant)
    except (RecursionError, MemoryError) as error:
        raise ValueError("it is nested too deeply") from error
    check_depth(content)
    return content


def check_depth(content: Any) -> None:
    """Refuse what is nested deeper than anything of ours, before anything recurses into it."""
    layer, depth = [content], 0
    while layer := [part for part in layer if isinstance(part, dict | list)]:
        depth += 1
        if depth > MOST_DEPTH:
            raise ValueError("it is nested too deeply")
        layer = [part for whole in layer for part in (whole.values() if isinstance(whole, dict) else whole)]


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number of JSON")


def _read(path: Path, remedy: str, infinity: bool = False) -> tuple[bytes, Any]:
    """The bytes of the file, and its JSON content."""
    try:
        check_size(path, MOST_BYTES, remedy)
        raw = path.read_bytes()
        return raw, parse_json(raw.decode("utf-8"), infinity)
    except FileNotFoundError:
        raise DropError(f"{path}: not found: is this a run or policy folder?") from None
    except (OSError, ValueError, MemoryError) as error:  # ValueError: also a number of 5,000 digits
        raise DropError(f"{path}: cannot be read ({reason(error)}): {remedy}") from error


def check_size(path: Path, most: int, remedy: str) -> None:
    """Refuse, before a byte is read, a file that is too large or not a regular file: a pipe may never end."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise DropError(f"{path}: cannot be read (it is not a regular file): {remedy}")
    if found.st_size > most:
        raise DropError(f"{path}: is damaged ({found.st_size:,} bytes instead of at most {most:,}): {remedy}")

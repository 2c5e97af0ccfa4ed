"""The one kind of error a person is meant to read: a single line that says what was wrong, where, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class DropError(Exception):
    """Shown as one line by the command line; `--debug` adds the traceback."""


class SettingError(DropError, ValueError):
    """A setting that makes no sense, refused where the settings are made."""


def reason(error: BaseException) -> str:
    """What the system or a library complained about, as one line for a message of ours."""
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    lines = said.strip().splitlines()
    return lines[0] if lines else type(error).__name__


_RANGES: dict[str, Callable[[Any], bool]] = {
    "at least 0": lambda value: value >= 0,
    "at least 1": lambda value: value >= 1,
    "above 0": lambda value: value > 0,
    "from 0 to 1": lambda value: 0 <= value <= 1,
    "above 0 and at most 1": lambda value: 0 < value <= 1,
}


def require(settings: object, wanted: str, *names: str) -> None:
    """Refuse a setting outside its range, by name; None is a value left open."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and (isinstance(value, str) or not _RANGES[wanted](value)):
            raise SettingError(f"{name} is {value!r}: it must be {wanted}")

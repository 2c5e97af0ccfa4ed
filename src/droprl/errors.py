"""The one kind of error that people read: a single line that says what was wrong, where, and what to do."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from typing import Any


class DropError(Exception):
    """Shown as one line by the command line; `--debug` adds the traceback."""


class SettingError(DropError, ValueError):
    """A setting that makes no sense. It is refused where the settings are made."""


def reason(error: BaseException) -> str:
    """The complaint of the system or of a library, as one line that fits into our own message."""
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    lines = said.strip().splitlines()
    return lines[0] if lines else type(error).__name__


MOST_PARTS = 100  # layers or networks. They are made one by one: a stranger's file must not ask for millions
_RANGES: dict[str, Callable[[Any], bool]] = {  # of finite numbers
    "a finite number": lambda value: True,
    "at least 0": lambda value: value >= 0,
    "at least 1": lambda value: value >= 1,
    "above 0": lambda value: value > 0,
    "from 0 to 1": lambda value: 0 <= value <= 1,
    "from 1 to 100": lambda value: 1 <= value <= MOST_PARTS,
    "above 0 and at most 1": lambda value: 0 < value <= 1,
    "at least 0 and less than 1": lambda value: 0 <= value < 1,
}


def require(settings: object, wanted: str, *names: str) -> None:
    """Refuse a setting that is outside its range, by name. None is allowed: it leaves the value open."""
    for name in names:
        value = getattr(settings, name)
        for part in value if isinstance(value, tuple) else (value,):
            if part is not None and not (_finite(part) and _RANGES[wanted](part)):
                of_each = "each must" if isinstance(value, tuple) else "it must"
                finite = " and finite" if part == math.inf and "finite" not in wanted else ""
                raise SettingError(f"{name} is {value!r}: {of_each} be {wanted}{finite}")


def _finite(value: Any) -> bool:
    is_real = isinstance(value, numbers.Real)
    return is_real and (isinstance(value, numbers.Integral) or math.isfinite(value))

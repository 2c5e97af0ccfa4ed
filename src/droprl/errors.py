"""The one kind of error that people read: a single line that says what was wrong, where, and what to do."""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Callable
from typing import Any

# What a terminal may obey instead of showing it: control characters and escape sequences; marks that turn the direction
# of writing; and halves of a character, which stand for bytes of a file's name that are no text.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def clean(text: str) -> str:
    """The text as it may be printed: what a terminal would obey is spelled out, for example as \\x1b."""
    return _OBEYED.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


class DropError(Exception):
    """Shown as one line by the command line; `--debug` adds the traceback. Names in it may come from a stranger."""

    def __str__(self) -> str:
        return clean(" ".join(super().__str__().splitlines()))


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
    "from 1 to 1,000": lambda value: 1 <= value <= 1_000,
    "from 0 to 10,000": lambda value: 0 <= value <= 10_000,
    "from 0 to 1,000,000": lambda value: 0 <= value <= 1_000_000,
    "from 1 to 1,000,000": lambda value: 1 <= value <= 1_000_000,
    "above 0 and at most 1": lambda value: 0 < value <= 1,
    "at least 0 and less than 1": lambda value: 0 <= value < 1,
}


def require(settings: object, wanted: str, *names: str) -> None:
    """Refuse a setting that is outside its range, by name. None is allowed: it leaves the value open."""
    for name in names:
        value = getattr(settings, name)
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, numbers.Integral) and abs(int(part)) >= 2**31:
                raise SettingError(f"{name} is {part if abs(int(part)) < 10**20 else 'huge'}: it must be less than 2³¹")
            if part is not None and not (_finite(part) and _RANGES[wanted](part)):
                of_each = "each must" if isinstance(value, tuple) else "it must"
                finite = " and finite" if part == math.inf and "finite" not in wanted else ""
                raise SettingError(f"{name} is {value!r}: {of_each} be {wanted}{finite}")


def _finite(value: Any) -> bool:
    is_real = isinstance(value, numbers.Real)
    return is_real and (isinstance(value, numbers.Integral) or math.isfinite(value))

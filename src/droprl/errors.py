"""The one kind of error that people read: a single line that says what was wrong, where, and what to do."""

from __future__ import annotations

import difflib
import math
import numbers
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

# What a terminal may obey instead of showing it: control characters and escape sequences; marks that turn the direction
# of writing; and halves of a character, which stand for bytes of a file's name that are no text.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def clean(text: str) -> str:
    """The text as it may be printed: what a terminal would obey is spelled out, for example as \\x1b."""
    return _OBEYED.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


class DropError(Exception):
    """Shown as one line by the command line; `--debug` adds the traceback. Names in it may come from a stranger.

    Messages are written for the command line. In Python they name arguments and functions instead (`in_python`).
    """

    def __str__(self) -> str:
        text = " ".join(super().__str__().splitlines())
        return clean(text if _commands_under_way else in_python(text))


class SettingError(DropError, ValueError):
    """A setting that makes no sense. It is refused where the settings are made."""


class UsageError(DropError):
    """A command line that makes no sense: exit code 2."""


_commands_under_way: list[str] = []


@contextmanager
def at_the_command_line() -> Iterator[None]:
    """While a command runs, errors speak of its options."""
    _commands_under_way.append("drop")
    try:
        yield
    finally:
        _commands_under_way.pop()


def _rules(*pairs: tuple[str, str]) -> tuple[tuple[re.Pattern[str], str], ...]:
    return tuple((re.compile(pattern), words) for pattern, words in pairs)


# Phrases of our own messages that name a command. Other commands stay as they are.
_COMMANDS = _rules(
    (r"run the same `drop train` command( again)?", "make the same call of droprl.fit again"),
    (r"(run|repeat) (the same|its) `drop (train|finetune)` command( again)?", r"make the same call of `drop \3` again"),
    (r"run `drop (evaluate|finetune)` again", r"call `drop \1` again"),
    (r"that `drop train --out` made", "that droprl.fit made"),
    (r"`drop train (\S+) --steps (\d+) --seeds (\d+)`", r"droprl.extend(\1, steps=\2, seeds=\3)"),
    (r"`drop train (\S+) --(steps|seeds) (\d+)`", r"droprl.extend(\1, \2=\3)"),
    (r"`drop train`|\bdrop train\b(?= )", "droprl.fit"),
    (r"`drop (evaluate|finetune)`", r"droprl.\1"),
    (r"\bdrop data map (\S+) --out (\S+)", r"droprl.map_dataset(\1, \2)"),
    (r"`?\bdrop data map\b`?", "droprl.map_dataset"),
)
# An option stands alone: a name such as a--b stays as it is.
_OPTIONS = _rules(
    (r"(?<!\S)--goal X Y\b", "goal=(x, y)"),
    (r"(?<!\S)--(level|rule|preset|env|missing|reward-at|encoding) (?=[\w.])([\w./:-]*\w)", r'\1="\2"'),
    (r"(?<!\S)--successes all\b", 'successes="all"'),
    (r"(?<!\S)--decimal ,", 'decimal=","'),
    (r"(?<!\S)--no-([a-z-]+)(?![\w=-])", r"\1=False"),
    (r"(?<!\S)--download\b", "download=True"),
    (r"(?<![^\s(/])--([a-z][a-z-]*)[ =](?=[A-Z\d])", r"\1="),
    (r"(?<![^\s(/])--([a-z][a-z-]*)", r"\1="),
)
_ARGUMENT = re.compile(r"(?<![^\s(/])([a-z]+(?:-[a-z]+)+)(?==)")


def in_python(text: str) -> str:
    """A message in the terms of the Python API: arguments for options, and functions for commands."""
    for pattern, words in _COMMANDS:
        text = pattern.sub(words, text)
    parts = re.split("(`[^`]*`)", text)  # every second part is a command
    for i in range(0, len(parts), 2):
        for pattern, words in _OPTIONS:
            parts[i] = pattern.sub(words, parts[i])
        parts[i] = _ARGUMENT.sub(lambda found: found.group().replace("-", "_"), parts[i])
    return "".join(parts)


def perhaps(word: str, known: Iterable[str]) -> str:
    """What somebody may have meant, as an addition to an error; empty if nothing is near."""
    near = difflib.get_close_matches(word, list(known), n=2, cutoff=0.6)
    return f" (perhaps {' or '.join(near)})" if near else ""


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

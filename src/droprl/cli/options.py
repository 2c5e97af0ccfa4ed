"""Arguments that several commands share, and how a command line becomes its dataclass."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import re
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import tyro

from droprl.errors import DropError, UsageError
from droprl.terminal import say

T = TypeVar("T")
Source = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="SOURCE")]
Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]  # an option without a --no- of its own
Folder = Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]


WHOLE = re.compile(r"[+-]?\d[\d_,]*(\.\d+)?([eE][+-]?\d{1,3})?")
_numbers = tyro.constructors.ConstructorRegistry()


def whole_number(text: str) -> int:
    """20000, 20_000, 20,000, 2e4 and 2.5e3 are whole numbers; 1.5 is not one."""
    if not WHOLE.fullmatch(text):
        raise ValueError(f"{text!r} is not a whole number")
    number = Decimal(text.replace("_", "").replace(",", ""))
    if number != number.to_integral_value():
        raise ValueError(f"{text!r} is not a whole number")
    return int(number)


@_numbers.primitive_rule
def _whole(found: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec[int] | None:
    if found.type is not int:
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=lambda words: whole_number(words[0]),
        is_instance=lambda value: isinstance(value, int) and not isinstance(value, bool),
        str_from_instance=lambda value: [str(value)],
    )


def parse(kind: type[T], command: str, words: Sequence[str], default: T | None = None) -> T:
    """The options of a command from its words. A mistake becomes one line that names `--help`."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            parsed: Any = tyro.cli(
                kind,
                prog=f"drop {command}",
                args=list(words),
                default=default,
                config=(tyro.conf.OmitArgPrefixes,),
                registry=_numbers,
            )
    except SystemExit as end:
        if not end.code:  # --help
            raise
        raise UsageError(f"{_one_line(printed.getvalue())}: see `drop {command} --help`") from end
    except ValueError as error:
        raise UsageError(f"{error}: see `drop {command} --help`") from error
    return cast(T, parsed)


def _one_line(panel: str) -> str:
    """The first part of tyro's error message, and the options that tyro suggests.

    tyro prints a title and several parts in a box. On a terminal they are coloured; without box characters there is no
    box.
    """
    plain = re.sub(r"\x1b\[[0-9;]*m", "", panel)
    lines = [line.strip(" │") for line in plain.splitlines()[1:]]
    groups = itertools.groupby(lines, lambda line: bool(line.strip("-─╰╯")))
    parts = [list(part) for is_text, part in groups if is_text]
    message = " ".join(" ".join(parts[0] if parts else []).split()).rstrip(".")
    similar = re.findall(r"^[│ ] {5}(--[-\w]+)", plain, re.MULTILINE) if message.startswith("Unrecognized") else []
    return message + (f" (perhaps {', '.join(similar)})" if similar else "")


def refuse_to_replace(path: Path, force: bool) -> None:
    """Nothing that somebody made is replaced without being asked for."""
    if not force and os.path.lexists(path):
        raise DropError(f"{path}: exists already: choose another place, or give --force to replace it")


def print_json(content: Any) -> None:
    say(json.dumps(content, allow_nan=False))


def use_compilation_cache() -> None:
    """Keep compiled programs on the disk, so that the next command starts at once."""
    import jax

    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    for name, value in (
        ("jax_compilation_cache_dir", str(root / "droprl" / "jax")),
        ("jax_persistent_cache_min_compile_time_secs", 0.05),
    ):
        if name.upper() not in os.environ:  # if it is set, JAX has read it already, and it stays
            jax.config.update(name, value)
            os.environ[name.upper()] = str(value)  # for processes that this one starts

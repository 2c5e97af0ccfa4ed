"""Arguments that several commands share, and how a command line becomes its dataclass."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import tyro

from droprl.errors import DropError
from droprl.terminal import say

T = TypeVar("T")
Source = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="SOURCE")]
Folder = Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]


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
            )
    except SystemExit as end:
        if not end.code:  # --help
            raise
        raise DropError(f"{_one_line(printed.getvalue())}: see `drop {command} --help`") from end
    except ValueError as error:
        raise DropError(f"{error}: see `drop {command} --help`") from error
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

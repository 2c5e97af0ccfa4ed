"""Everything that droprl prints goes through here.

Names of files, data, suites and tasks may come from a stranger. On the screen they are text and nothing else: no markup
of rich, and no escape sequence that a terminal obeys. `tests/test_architecture.py` checks that nobody else prints.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, ConsoleOptions
from rich.console import RenderableType as RenderableType
from rich.progress import TextColumn
from rich.segment import Segment
from rich.text import Text

from droprl.errors import clean


def say(*lines: object, error: bool = False) -> None:
    """Print each line, on standard output or standard error. A line break inside a line is spelled out."""
    for line in lines:
        print(clean(str(line)).replace("\n", "\\n"), file=sys.stderr if error else sys.stdout, flush=True)


_quiet: list[str] = []
WIDE = 10_000  # columns: a table that nobody looks at is not cut to the width of a screen


@contextmanager
def quietly(asked: bool = True) -> Iterator[None]:
    """Leave out progress and remarks (`--quiet`). Results, warnings and errors still appear."""
    added = ["--quiet"] if asked else []
    _quiet.extend(added)
    try:
        yield
    finally:
        del _quiet[len(_quiet) - len(added) :]


def remark(*lines: object) -> None:
    """Say on standard output what only a person needs to know."""
    if not _quiet:
        say(*lines)


class Screen(Console):
    """A console of rich for tables and progress, on which all text is plain.

    What goes to standard error is progress, which `--quiet` leaves out, unless it is `urgent`.
    """

    def __init__(self, error: bool = False, quiet: bool = False, urgent: bool = False, **settings: Any) -> None:
        quiet = quiet or (error and not urgent and bool(_quiet))
        super().__init__(stderr=error, quiet=quiet, markup=False, emoji=False, highlight=False, **settings)
        if not (self.is_terminal or self.is_jupyter or "width" in settings or "COLUMNS" in os.environ):
            self.width = WIDE

    def render_str(self, text: str, **settings: Any) -> Text:
        return super().render_str(clean(text), **settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=clean(segment.text))


def column(text: str, style: str = "none") -> TextColumn:
    """A column of a progress bar."""
    return TextColumn(text, style=style, markup=False)

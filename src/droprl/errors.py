"""The one kind of error a person is meant to read: a single line that says what was wrong, where, and what to do."""

from __future__ import annotations


class DropError(Exception):
    """Shown as one line by the command line; `--debug` adds the traceback."""

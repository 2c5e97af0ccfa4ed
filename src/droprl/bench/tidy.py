"""Tidy tables: entries with lists in them as CSV, one row for each place in the lists, and back without a loss.

An entry is a dictionary like `{"seed": 0, "step": 100, "returns": [1.5, 2.5]}`: it becomes two rows, with the seed and
the step in both.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from droprl.errors import DropError, reason

NULL = "nan"  # an empty cell says that the entry has no such list
Names = tuple[str, ...]


@dataclass(frozen=True)
class TidyTable:
    """How entries of one kind become rows."""

    names: Names  # columns that say whose entries they are
    scalars: Names  # what an entry has once
    index: str  # the column for the place in the lists
    lists: Mapping[str, str] = field(default_factory=dict)  # a list of the entries, and its column; others follow

    def to_csv(self, groups: Iterable[tuple[Names, Sequence[Mapping[str, Any]]]]) -> bytes:
        """Numbers are written so that the same floats are read again."""
        known = [(names, list(entries)) for names, entries in groups]
        found = dict.fromkeys(self.lists)
        for _, entries in known:
            found |= dict.fromkeys(key for entry in entries for key, value in entry.items() if _is_list(value))
        said = io.StringIO()
        writer = csv.writer(said, lineterminator="\n")
        writer.writerow((*self.names, *self.scalars, self.index, *(self.lists.get(key, key) for key in found)))
        for names, entries in known:
            for entry in entries:
                start = (*names, *(entry[key] for key in self.scalars))
                lists = [entry.get(key) for key in found]
                length = next((len(values) for values in lists if values is not None), 0)
                cells = [[""] * length if values is None else map(_cell, values) for values in lists]
                writer.writerows((*start, i, *row) for i, row in enumerate(zip(*cells, strict=True)))
        return said.getvalue().encode()

    def from_csv(self, content: bytes, where: Path) -> dict[Names, list[dict[str, Any]]]:
        """The entries of each group. A list whose cells are empty is left out."""
        head = (*self.names, *self.scalars, self.index)
        try:
            header, *rows = csv.reader(io.StringIO(content.decode("utf-8"), newline=""))
        except (ValueError, csv.Error) as error:
            raise DropError(f"{where}: is no table ({reason(error)}): restore the file") from error
        if tuple(header[: len(head)]) != head:
            raise DropError(f"{where}: does not begin with the columns {', '.join(head)}: restore the file")
        keys = {column: key for key, column in self.lists.items()}
        columns = [keys.get(column, column) for column in header[len(head) :]]
        found: dict[Names, list[dict[str, Any]]] = {}
        entry, before = dict[str, Any](), ([""], -1)
        for line, row in enumerate(rows, start=2):
            try:
                start, place = row[: len(head) - 1], int(row[len(head) - 1])
                cells = [(key, cell) for key, cell in zip(columns, row[len(head) :], strict=True) if cell]
                if place == 0:
                    scalars = map(int, start[len(self.names) :])
                    entry = dict(zip(self.scalars, scalars, strict=True)) | {key: [] for key, _ in cells}
                    found.setdefault(tuple(start[: len(self.names)]), []).append(entry)
                elif (start, place - 1) != before:
                    raise ValueError("a row is missing")
                for key, cell in cells:
                    entry[key].append(_value(cell))
                before = start, place
            except (ValueError, KeyError, IndexError) as error:
                raise DropError(f"{where}: line {line} is damaged ({reason(error)}): restore the file") from error
        return found


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _cell(value: Any) -> Any:
    return NULL if value is None else value


def _value(cell: str) -> float | int | None:
    if cell == NULL:
        return None
    return int(cell) if cell.removeprefix("-").isdigit() else float(cell)

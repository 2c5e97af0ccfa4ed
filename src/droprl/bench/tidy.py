"""Tidy tables: entries with lists as CSV, one row for each place in the lists, and back without a loss.

An entry is a dictionary like `{"seed": 0, "step": 100, "returns": [1.5, 2.5]}`. It becomes two rows, both with the seed
and the step.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from droprl.errors import DropError, reason
from droprl.files.cells import from_cell, to_cell

NULL = "nan"  # for None in a list; an empty cell says that the entry has no such list
Names = tuple[str, ...]


@dataclass(frozen=True)
class TidyTable:
    """How entries of one kind become rows."""

    names: Names  # columns that identify a group of entries
    scalars: Names  # columns with one number for each entry
    index: str  # the column for the place in the lists
    lists: Mapping[str, str] = field(default_factory=dict)  # from the key of a list to its column; other lists follow

    def to_csv(self, groups: Iterable[tuple[Names, Sequence[Mapping[str, Any]]]]) -> bytes:
        """The table of all groups. Floats have all digits, so that the same floats are read again."""
        known = [(names, list(entries)) for names, entries in groups]
        found = dict.fromkeys(self.lists)
        for _, entries in known:
            found |= dict.fromkeys(key for entry in entries for key, value in entry.items() if _is_list(value))
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        columns = (*self.names, *self.scalars, self.index, *(self.lists.get(key, key) for key in found))
        writer.writerow(map(to_cell, columns))
        for names, entries in known:
            for entry in entries:
                start = (*map(to_cell, names), *(entry[key] for key in self.scalars))
                lists = [entry.get(key) for key in found]
                length = next((len(values) for values in lists if values is not None), 0)
                cells = [[""] * length if values is None else map(_cell, values) for values in lists]
                writer.writerows((*start, i, *row) for i, row in enumerate(zip(*cells, strict=True)))
        return text.getvalue().encode()

    def from_csv(self, content: bytes, where: Path) -> dict[Names, list[dict[str, Any]]]:
        """The entries of each group. A list whose cells are empty is left out."""
        head = (*self.names, *self.scalars, self.index)
        try:
            header, *rows = csv.reader(io.StringIO(content.decode("utf-8"), newline=""))
        except (ValueError, csv.Error) as error:
            raise DropError(f"{where}: is not a CSV table ({reason(error)}): restore the file") from error
        if tuple(header[: len(head)]) != head:
            raise DropError(f"{where}: its first columns are not {', '.join(head)}: restore the file")
        keys = {column: key for key, column in self.lists.items()}
        columns = [keys.get(column, column) for column in map(from_cell, header[len(head) :])]
        found: dict[Names, list[dict[str, Any]]] = {}
        entry, before = dict[str, Any](), ([""], -1)
        for line, row in enumerate(rows, start=2):
            try:
                start, place = row[: len(head) - 1], int(row[len(head) - 1])
                cells = [(key, cell) for key, cell in zip(columns, row[len(head) :], strict=True) if cell]
                if place == 0:
                    scalars = map(int, start[len(self.names) :])
                    entry = dict(zip(self.scalars, scalars, strict=True)) | {key: [] for key, _ in cells}
                    found.setdefault(tuple(map(from_cell, start[: len(self.names)])), []).append(entry)
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

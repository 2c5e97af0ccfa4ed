"""A table as data, and its forms: for the screen, Markdown, LaTeX and CSV. Its content is computed elsewhere."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.table import Table as RichTable
from rich.text import Text

from droprl.errors import clean
from droprl.files.cells import to_cell
from droprl.files.storage import write_bytes
from droprl.svg import number

UNKNOWN = "–"
LATEX_WIDTH = 78  # about how many characters of \small fit across an article's page
LATEX_WORDS = 34  # how many of them a column of text has at most; longer text is broken into lines


@dataclass(frozen=True)
class Number:
    """A value and its range, if known: shown as an error (12.3 ± 0.4) or as an interval (12.3 [11.9, 13.1])."""

    value: float
    ends: tuple[float, float] | None = None
    shown: Literal["error", "interval"] = "interval"
    decimals: int = 1
    bold: bool = False

    def __str__(self) -> str:
        known = number(self.value, self.decimals)
        if self.ends is None:
            return known
        low, high = self.ends
        if self.shown == "error":
            return f"{known} ± {number(high - self.value, self.decimals)}"
        return f"{known} [{number(low, self.decimals)}, {number(high, self.decimals)}]"


Cell = Number | str | None  # None: not known


def best_in_bold(cells: Sequence[Cell], lowest: bool = False) -> tuple[Cell, ...]:
    """The cells with the best in bold, and with it every cell whose range overlaps with the range of the best.

    Nothing is bold if there is nothing to compare, or if a number has no range: one seed proves nothing.
    """
    ranges = [(c.value, *c.ends) for c in cells if isinstance(c, Number) and c.ends]
    if len(ranges) < 2 or len(ranges) < sum(isinstance(c, Number) for c in cells):
        return tuple(cells)
    _, best_low, best_high = min(ranges) if lowest else max(ranges)

    def marked(c: Cell) -> Cell:
        if not isinstance(c, Number) or c.ends is None:
            return c
        return replace(c, bold=c.ends[0] <= best_high and best_low <= c.ends[1])

    return tuple(map(marked, cells))


@dataclass(frozen=True)
class Table:
    """Columns of text or of numbers. With `summary` the last row sums up the others and has a rule above it."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    summary: bool = False

    def to_csv(self) -> str:
        """With every digit. A column whose numbers have a range becomes three: the value, its low and its high end."""
        ranged = [any(isinstance(c, Number) and c.ends for c in column) for column in self._by_column()]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        names = ((name, f"{name} low", f"{name} high") for name in self.columns)
        heads = [name for three, wide in zip(names, ranged, strict=True) for name in three[: 3 if wide else 1]]
        writer.writerow(map(to_cell, heads))
        for row in self.rows:
            parts = (_values(c) for c in row)
            writer.writerow([v for three, wide in zip(parts, ranged, strict=True) for v in three[: 3 if wide else 1]])
        return text.getvalue()

    def records(self) -> list[dict[str, float | str | None]]:
        """The rows by column, for JSON, with every digit. A range becomes two more entries."""
        found: list[dict[str, float | str | None]] = []
        for row in self.rows:
            named: dict[str, float | str | None] = {}
            for name, cell in zip(self.columns, row, strict=True):
                if not isinstance(cell, Number):
                    named[name] = cell
                    continue
                parts = {name: cell.value}
                if cell.ends is not None:
                    parts |= {f"{name} low": cell.ends[0], f"{name} high": cell.ends[1]}
                named |= {part: value if math.isfinite(value) else None for part, value in parts.items()}
            found.append(named)
        return found

    def to_markdown(self) -> str:
        def markdown(cell: Cell) -> str:
            text = _plain(cell).replace("|", "\\|")
            return f"**{text}**" if isinstance(cell, Number) and cell.bold else text

        rule = ["---:" if right else "---" for right in self._right()]
        head, *rows = ([markdown(cell) for cell in row] for row in (self.columns, *self.rows))
        lines = [head, rule, *rows]
        body = "".join(f"| {' | '.join(line)} |\n" for line in lines)
        return f"**{self.title}**\n\n{body}" + (f"\n{self.note}\n" if self.note else "")

    def to_latex(self) -> str:
        """A floating table. One that is wider than a page has several parts, one below the other. The document needs
        \\usepackage{booktabs}."""
        parts = "\n\n  \\medskip\n".join(map(self._tabular, self._parts()))
        note = f"\n\n  \\smallskip\n  {{\\footnotesize {latex_escaped(self.note)}}}" if self.note else ""
        return (
            "% needs \\usepackage{booktabs}\n\\begin{table}\n  \\centering\\small\\setlength{\\tabcolsep}{4pt}\n"
            f"  \\caption{{{latex_escaped(self.title)}}}\n{parts}{note}\n\\end{{table}}\n"
        )

    def _parts(self) -> list[list[int]]:
        """Groups of columns that fit beside each other. Every group begins with the text columns at the left."""
        right = self._right()
        lead = list(range(right.index(True) if True in right else 1))
        cells = [(name, *column) for name, column in zip(self.columns, self._by_column(), strict=True)]
        widths = [2 + max(map(_latex_width, column)) for column in cells]
        parts = [lead]
        for i in range(len(lead), len(widths)):
            if len(parts[-1]) > len(lead) and sum(widths[j] for j in parts[-1]) + widths[i] > LATEX_WIDTH:
                parts.append(lead)
            parts[-1] = [*parts[-1], i]
        return parts

    def _tabular(self, columns: Sequence[int]) -> str:
        def line(cells: Sequence[Cell]) -> str:
            text = " & ".join(_latex(cells[i]) for i in columns)
            # A line that begins with [ or * would be read as an argument of the \\ before it.
            return f"    {'{}' if text.startswith(('[', '*')) else ''}{text} \\\\"

        body = [line(row) for row in self.rows]
        if self.summary:
            body.insert(-1, "    \\midrule")
        return "\n".join(
            [
                f"  \\begin{{tabular}}{{{''.join(self._alignment(i) for i in columns)}}}",
                "    \\toprule",
                line(self.columns),
                "    \\midrule",
                *body,
                "    \\bottomrule",
                "  \\end{tabular}",
            ]
        )

    def _alignment(self, column: int) -> str:
        words = [self.columns[column], *map(_plain, self._by_column()[column])]
        if self._right()[column]:
            return "r"
        return "l" if max(map(len, words)) <= LATEX_WORDS else f"p{{{LATEX_WORDS / LATEX_WIDTH:.2f}\\linewidth}}"

    def to_rich(self) -> RichTable:
        table = RichTable(
            title=Text(clean(self.title)),
            caption=Text(clean(self.note)) if self.note else None,
            title_justify="left",
            caption_justify="left",
            box=SIMPLE_HEAD,
            pad_edge=False,
        )
        for name, right in zip(self.columns, self._right(), strict=True):
            table.add_column(Text(clean(name)), justify="right" if right else "left", overflow="fold")
        for i, row in enumerate(self.rows):
            last = self.summary and i == len(self.rows) - 2
            texts = (Text(_plain(c), "bold" if isinstance(c, Number) and c.bold else "") for c in row)
            table.add_row(*texts, end_section=last)
        return table

    def _by_column(self) -> list[tuple[Cell, ...]]:
        return [tuple(row[i] for row in self.rows) for i in range(len(self.columns))]

    def _right(self) -> list[bool]:
        """Which columns hold numbers."""
        return [not any(isinstance(cell, str) for cell in column) for column in self._by_column()]


def save_tables(tables: Mapping[str, Table], folder: Path) -> None:
    """Write FOLDER/NAME.csv and FOLDER/NAME.tex."""
    for name, table in tables.items():
        write_bytes(folder / f"{name}.csv", table.to_csv().encode())
        write_bytes(folder / f"{name}.tex", table.to_latex().encode())


def _plain(cell: Cell) -> str:
    return UNKNOWN if cell is None else clean(" ".join(str(cell).split()))


def _values(cell: Cell) -> tuple[float | str | None, float | None, float | None]:
    """A cell of CSV, and the two that its range needs."""
    if isinstance(cell, Number):
        return cell.value, *(cell.ends or (None, None))
    return None if cell is None else to_cell(cell), None, None


def _latex(cell: Cell) -> str:
    """The cell in LaTeX. The range of a number is small, so that the number is read first."""
    text = latex_escaped(_plain(cell))
    if not isinstance(cell, Number):
        return text
    value, _, ends = text.partition(" ")
    value = f"\\textbf{{{value}}}" if cell.bold else value
    return f"{value} {{\\scriptsize {ends}}}" if ends else value


def _latex_width(cell: Cell) -> float:
    """The width of a cell in characters; those of a range are smaller."""
    value, _, ends = _plain(cell).partition(" ")
    return len(value) + 0.75 * len(ends) if isinstance(cell, Number) else min(len(_plain(cell)), LATEX_WORDS)


_NAMES = (
    "pm cdot times div leq geq neq to infty "
    "alpha beta gamma delta epsilon eta theta lambda mu pi rho sigma tau phi psi omega Delta Sigma"
)
_SYMBOLS = dict(zip("±·×÷≤≥≠→∞αβγδεηθλμπρστφψωΔΣ", _NAMES.split(), strict=True))
_LATEX: dict[str, str | int | None] = {character: f"\\{character}" for character in "&%$#_{}"}
_LATEX |= {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}
_LATEX |= {"<": "\\textless{}", ">": "\\textgreater{}", "|": "\\textbar{}", '"': "''", "…": "\\dots{}"}
_LATEX |= {"−": "$-$", "–": "--", "—": "---"} | {symbol: f"$\\{name}$" for symbol, name in _SYMBOLS.items()}


def latex_escaped(text: str) -> str:
    """Escapes what LaTeX would read as a command. Other letters stay: LaTeX reads UTF-8."""
    return " ".join(text.translate(str.maketrans(_LATEX)).split())

"""A table as data, and how it reads on a screen, in Markdown, in LaTeX and as CSV. What it says is made elsewhere."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table as RichTable
from rich.text import Text

from droprl.report.svg import number

UNKNOWN = "–"


@dataclass(frozen=True)
class Number:
    """A value and, where it is known, its range: shown as an error (12.3 ± 0.4) or an interval (12.3 [11.9, 13.1])."""

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
    """The best, and all whose ranges overlap with that of the best.

    Nothing is bold where there is nothing to compare, or where a number has no range: one seed proves nothing.
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
    """Columns of words or of numbers; with `summary` the last row sums up the others and is ruled off."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    summary: bool = False

    def to_csv(self) -> str:
        """With every digit. A column whose numbers have an error or interval becomes three: its value, low and high."""
        ranged = [any(isinstance(c, Number) and c.ends for c in of) for of in self._by_column()]
        said = io.StringIO()
        writer = csv.writer(said, lineterminator="\n")
        names = ((name, f"{name} low", f"{name} high") for name in self.columns)
        writer.writerow([part for of, wide in zip(names, ranged, strict=True) for part in of[: 3 if wide else 1]])
        for row in self.rows:
            parts = ((c.value, *(c.ends or (None, None))) if isinstance(c, Number) else (c, None, None) for c in row)
            writer.writerow([part for of, wide in zip(parts, ranged, strict=True) for part in of[: 3 if wide else 1]])
        return said.getvalue()

    def to_markdown(self) -> str:
        def said(cell: Cell) -> str:
            text = _plain(cell).replace("|", "\\|")
            return f"**{text}**" if isinstance(cell, Number) and cell.bold else text

        rule = ["---:" if right else "---" for right in self._right()]
        lines = [[said(name) for name in self.columns], rule, *([said(cell) for cell in row] for row in self.rows)]
        body = "".join(f"| {' | '.join(line)} |\n" for line in lines)
        return f"**{self.title}**\n\n{body}" + (f"\n{self.note}\n" if self.note else "")

    def to_latex(self) -> str:
        """A floating table; the document needs \\usepackage{booktabs}."""

        def said(cell: Cell) -> str:
            text = latex_escaped(_plain(cell))
            return f"\\textbf{{{text}}}" if isinstance(cell, Number) and cell.bold else text

        def line(cells: Sequence[Cell]) -> str:
            text = " & ".join(map(said, cells))
            return f"    {'{}' if text.startswith(('[', '*')) else ''}{text} \\\\"  # which \\ would take for its own

        body = [line(row) for row in self.rows]
        if self.summary:
            body.insert(-1, "    \\midrule")
        return "\n".join(
            [
                "% needs \\usepackage{booktabs}",
                "\\begin{table}",
                "  \\centering\\small\\setlength{\\tabcolsep}{4pt}",
                f"  \\caption{{{latex_escaped(self.title)}}}",
                f"  \\begin{{tabular}}{{{''.join('r' if right else 'l' for right in self._right())}}}",
                "    \\toprule",
                line(self.columns),
                "    \\midrule",
                *body,
                "    \\bottomrule",
                "  \\end{tabular}",
                *([f"\n  \\smallskip\n  {{\\footnotesize {latex_escaped(self.note)}}}"] if self.note else []),
                "\\end{table}\n",
            ]
        )

    def to_rich(self) -> RichTable:
        table = RichTable(
            title=escape(self.title),
            caption=escape(self.note) or None,
            title_justify="left",
            caption_justify="left",
            box=SIMPLE_HEAD,
            pad_edge=False,
        )
        for name, right in zip(self.columns, self._right(), strict=True):
            table.add_column(Text(name), justify="right" if right else "left", overflow="fold")
        for i, row in enumerate(self.rows):
            last = self.summary and i == len(self.rows) - 2
            texts = (Text(_plain(c), "bold" if isinstance(c, Number) and c.bold else "") for c in row)
            table.add_row(*texts, end_section=last)
        return table

    def _by_column(self) -> list[tuple[Cell, ...]]:
        return [tuple(row[i] for row in self.rows) for i in range(len(self.columns))]

    def _right(self) -> list[bool]:
        """Which columns are of numbers."""
        return [not any(isinstance(cell, str) for cell in of) for of in self._by_column()]


def _plain(cell: Cell) -> str:
    return UNKNOWN if cell is None else " ".join(str(cell).split())


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
    """What LaTeX would read as a command is printed; letters that are not here are left to its UTF-8."""
    return " ".join(text.translate(str.maketrans(_LATEX)).split())

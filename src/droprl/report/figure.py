"""Figures as separate SVG files: dots with intervals, and panels of lines with bands.

They have a white background, so that they look the same on light and on dark pages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from droprl import svg
from droprl.evaluation.statistics import standard_error
from droprl.report.charts import Frame

WIDTH, MARGIN = 860.0, 18.0
GREY = 6  # .s6: for baselines
COLOURS = ("#0063a0", "#d0410b", "#007a5c", "#9a3f86", "#9a6b00", "#3d8fc4", "#6b7076")
STYLE = (
    'text{font:12px -apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,"Liberation Sans",sans-serif;fill:#1d1f21}'
    "text.title{font-size:15px;font-weight:600}text.panel{font-size:12.5px;font-weight:600;"
    "stroke:#fff;stroke-width:4px;paint-order:stroke}"
    "text.tick,text.note{fill:#5b6065}text.key{fill:currentColor;font-weight:600}"
    ".page{fill:#fff}path{fill:none}path.grid{stroke:#e6e6e1}path.axis{stroke:#85898d}"
    "path.diagonal{stroke:#85898d;stroke-dasharray:4 3}path.line{stroke:currentColor;stroke-width:1.8}"
    "path.band{fill:currentColor;fill-opacity:.14}path.whisker{stroke:currentColor;stroke-width:1.6}"
    "path.mark{fill:currentColor;stroke:#fff}path.run{fill:currentColor;fill-opacity:.45}"
) + "".join(f".s{i}{{color:{c}}}" for i, c in enumerate(COLOURS))


class Drawing(NamedTuple):
    """The SVG of a figure below its title."""

    body: str
    bottom: float
    note: str  # what the marks mean


# --- dots and whiskers: rows × columns ---


@dataclass(frozen=True)
class Mark:
    """A value with its interval, if it has one, and its runs."""

    value: float
    interval: tuple[float, float] | None = None
    runs: tuple[float, ...] = ()
    series: int = 0
    text: str = ""


@dataclass(frozen=True)
class Column:
    """One column of a dot chart: what its marks measure."""

    title: str
    limits: tuple[float, float] | None = None  # a mark below them becomes an arrow at the edge, a mean with its number


@dataclass(frozen=True)
class Row:
    """A row without marks is a heading."""

    name: str
    marks: tuple[tuple[Mark, ...], ...] = ()  # for each column

    @property
    def height(self) -> float:
        return 12 + 12 * max(map(len, self.marks)) if self.marks else 30


def dot_chart(rows: Sequence[Row], columns: Sequence[Column], top: float) -> tuple[str, float]:
    """The drawing from `top` on, and its lower end. At most three columns stand side by side; others go below."""
    across = math.ceil(len(columns) / math.ceil(len(columns) / 3))
    names = 8 + 6.9 * max(len(row.name) for row in rows if row.marks)
    width, parts = (WIDTH - 2 * MARGIN - names) / across, []
    for first in range(0, len(columns), across):
        for place, column in enumerate(columns[first : first + across]):
            left = MARGIN + names + place * width
            parts.append(_dot_column(rows, column, first + place, left + 16, left + width - 16, top))
        top += 26
        for row in rows:
            css, down = ("", row.height / 2 + 4) if row.marks else ("panel", row.height - 8)
            parts.append(svg.text(MARGIN, top + down, row.name, css))
            top += row.height
        top += 34
    return "".join(parts), top - 8


def _dot_column(rows: Sequence[Row], column: Column, c: int, left: float, right: float, top: float) -> str:
    marks = [mark for row in rows if row.marks for mark in row.marks[c]]
    values = [v for m in marks for v in (m.value, *(m.interval or ()), *m.runs)]
    room = 7.0 * max((len(m.text) for m in marks), default=0)
    x = svg.Scale(*column.limits, left, right) if column.limits else svg.scale(values, left, right - room)
    bottom = top + 26 + sum(row.height for row in rows)
    parts = [svg.text(left, top + 12, column.title, "panel")]
    for p, written in x.ticks(4):
        parts += [svg.line(p, top + 22, p, bottom, "grid"), svg.text(p, bottom + 16, written, "tick", "middle")]
    parts.append(svg.line(left, bottom, right, bottom, "axis"))
    if x.low < 0 < x.high and (zero := x(0.0)) is not None:
        parts.append(svg.line(zero, top + 22, zero, bottom, "axis"))
    y = top + 26
    for row in rows:
        in_row = row.marks[c] if row.marks else ()
        for i, mark in enumerate(in_row):
            parts.append(_dot(mark, x, y + row.height / 2 + 12 * (i - (len(in_row) - 1) / 2)))
        y += row.height
    return "".join(parts)


def _dot(mark: Mark, x: svg.Scale, y: float) -> str:
    css, parts = f"s{mark.series}", []
    inside = [p for v in mark.runs if x.low <= v <= x.high and (p := x(v)) is not None]
    parts.append(f'<path class="run {css}" d="{"".join(svg.marker(0, p, y, 2.6) for p in inside)}"/>')
    if mark.interval:
        low, high = (x(min(max(v, x.low), x.high)) or 0.0 for v in mark.interval)
        parts.append(f'<path class="whisker {css}" d="{svg.polyline([(low, y), (high, y)])}"/>')
        parts.append(svg.text(high + 8, y + 4, mark.text, f"key {css}"))
    at = x(mark.value)
    if min(mark.value, *mark.runs, math.inf) < x.low:
        beyond = f"◂ {svg.short(mark.value)}" if mark.value < x.low else "◂"
        parts.append(svg.text(x.start, y + 4, beyond, f"key {css}"))
    if at is not None and mark.value >= x.low:
        parts.append(f'<path class="mark {css}" d="{svg.marker(mark.series, at, y, 4.4)}"/>')
    return "".join(parts)


def mean_mark(runs: np.ndarray, series: int) -> Mark:
    """A mark at the mean of the runs, with a small dot for each run."""
    return Mark(float(runs.mean()), runs=tuple(runs.tolist()), series=series)


# --- panels: one for each dataset ---


def panels(
    datasets: Sequence[str],
    top: float,
    right: float,
    height: float,
    draw: Callable[[str, float, bool], str],
    named: Callable[[str], str] = str,
) -> tuple[str, float]:
    """Three panels side by side. `draw` gets the dataset, the panel's width, and whether it is the last of its line.
    The last one has room for labels at its right."""
    width, parts = (WIDTH - 2 * MARGIN - right) / 3, []
    for i, dataset in enumerate(datasets):
        x, y = MARGIN + i % 3 * width, top + i // 3 * height
        last = i % 3 == 2 or i == len(datasets) - 1
        title = svg.text(4, 12, named(dataset), "panel")
        body = title + draw(dataset, width, last)
        parts.append(f'<g transform="translate({svg.coordinate(x)} {svg.coordinate(y)})">{body}</g>')
    return "".join(parts), top + math.ceil(len(datasets) / 3) * height


def apart(places: Sequence[float], gap: float) -> list[float]:
    """The places, moved apart so that no two labels touch: one pass downwards, then half of the shift back."""
    order, moved = sorted(range(len(places)), key=places.__getitem__), [*places]
    for before, after in pairwise(order):
        moved[after] = max(moved[after], moved[before] + gap)
    shift = max((moved[order[-1]] - places[order[-1]]) / 2, 0) if order else 0.0
    return [place - shift for place in moved]


def key(items: Sequence[tuple[int, int, str]], y: float) -> str:
    """The legend in one line, from (shape, colour, name) of each item."""
    x, parts = MARGIN, []
    for shape, colour, name in items:
        parts.append(f'<path class="mark s{colour}" d="{svg.marker(shape, x + 5, y - 4, 4.4)}"/>')
        parts.append(svg.text(x + 15, y, name, f"key s{colour}"))
        x += 36 + 7.2 * len(name)
    return "".join(parts)


def page(title: str, drawing: Drawing) -> str:
    """The figure as a whole file: name space, size, style, white background and title."""
    size = f'width="{WIDTH:.0f}" height="{drawing.bottom + 10:.0f}"'
    body = f'<style>{STYLE}</style><rect class="page" {size} rx="6"/>' + svg.text(MARGIN, 28, title, "title")
    body += svg.text(MARGIN, 48, drawing.note, "note") + drawing.body
    drawn = svg.drawing(WIDTH, drawing.bottom + 10, f"{title}. {drawing.note}", body)
    return drawn.replace("<svg ", f'<svg xmlns="http://www.w3.org/2000/svg" {size} ', 1) + "\n"


def place_axis(area: Frame, values: Sequence[object], title: str, bottom: float) -> str:
    """An axis with the labels `values` at 0, 1, …; it is not to scale."""
    places = [area.x(i) or 0.0 for i in range(len(values))]
    parts = [svg.text(p, bottom + 17, str(v), "tick", "middle") for p, v in zip(places, values, strict=True)]
    parts += [svg.line(p, bottom, p, bottom + 4, "axis") for p in places]
    return "".join(parts) + svg.text((area.x.start + area.x.end) / 2, bottom + 33, title, "tick", "middle")


def line_with_band(area: Frame, line: dict[int, np.ndarray], series: int) -> str:
    """The mean of the runs at each place, with a band of one standard error."""
    points, css = area.points(line, [float(runs.mean()) for runs in line.values()]), f"s{series % GREY}"
    low, high = ([area.y(runs.mean() + side * standard_error(runs)) for runs in line.values()] for side in (-1, 1))
    marks = "".join(svg.marker(series, x, y) for x, y in points if x is not None and y is not None)
    return (
        f'<path class="band {css}" d="{svg.band([x for x, _ in points], low, high)}"/>'
        f'<path class="line {css}" d="{svg.polyline(points)}"/><path class="mark {css}" d="{marks}"/>'
    )

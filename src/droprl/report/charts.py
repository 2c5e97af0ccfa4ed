"""The static charts as inline SVG: lines with bands, score intervals over single episodes, returns by sub-task.

They are complete without JavaScript; the page only adds a cursor that shows values. No chart has two y axes. No chart
draws bars, so no axis must start at zero. The animated plane of embeddings is in `walks`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from droprl import svg
from droprl.data import returns
from droprl.report.contents import Chart, ScoreRow, Series, SubTaskReturns

WIDTH, HEIGHT = 420.0, 250.0  # about the width of a phone, so that text of 12 units stays readable there
SERIES_COLOURS = 10  # .s0 to .s9 in page.css
PANEL_WIDTH, PANEL_HEIGHT = 320.0, 210.0  # of a chart that has two others beside it
_MOST_POINTS = 480  # of one line; more cannot be seen at this width
_SINGLE_POINTS_UP_TO = 200  # up to so many sub-tasks each point has its own title
_SHADES = 32
WHISKERS_UP_TO = 80  # up to so many sub-tasks; beyond, whiskers would merge, and a band is drawn


@dataclass(frozen=True)
class Frame:
    """The plot area: both scales, and the SVG of its grid and tick labels."""

    x: svg.Scale
    y: svg.Scale
    axes: str

    def points(self, xs: Iterable[float], ys: Iterable[float]) -> list[tuple[float | None, float | None]]:
        return [(self.x(a), self.y(b)) for a, b in zip(xs, ys, strict=True)]


def frame(
    xs: Iterable[float],
    ys: Iterable[float],
    *,
    top: float = 8,
    bottom: float = HEIGHT - 22,
    width: float = WIDTH,
    log_y: bool = False,
    whole_x: bool = False,
    x_ticks: int = 5,
    y_ticks: int = 4,
    x_padding: float = 0.015,
    show_x: bool = True,
    left: float | None = None,
    downwards: bool = False,
) -> Frame:
    """Axes with grid lines. The left margin follows the longest label unless it is given; `downwards` is for ranks."""
    y = svg.scale(ys, *((top, bottom) if downwards else (bottom, top)), log=log_y, padding=0.06)
    y_marks = y.ticks(y_ticks, whole=downwards)
    margin = left if left is not None else 14 + 7.4 * max((len(label) for _, label in y_marks), default=1)
    x = svg.scale(xs, margin, width - 16, padding=x_padding)
    parts = [svg.line(margin, p, width - 6, p, "grid") for p, _ in y_marks]
    parts += [svg.text(margin - 7, p + 4, label, "tick", "end") for p, label in y_marks]
    parts.append(svg.line(margin, bottom, width - 6, bottom, "axis"))
    if show_x:
        for p, label in x.ticks(x_ticks, whole_x):
            parts.append(svg.line(p, bottom, p, bottom + 4, "axis"))
            parts.append(svg.text(p, bottom + 17, label, "tick", "middle"))
    return Frame(x, y, "".join(parts))


# ---- lines with bands


def line_chart(chart: Chart, width: float = WIDTH, height: float = HEIGHT) -> tuple[str, dict[str, Any]]:
    """The chart, and the data from which the page's cursor shows values."""
    series = [_thin(s) for s in chart.series]
    every_y = [v for s in series for part in (s.y, s.low or [], s.high or []) for v in part]
    xs = [v for s in series for v in s.x]
    bottom, x_ticks, padding = height - 22, min(int(width // 80), 10), 0.04 if chart.places else 0.015
    area = frame(
        xs, every_y, log_y=chart.log_y, width=width, bottom=bottom, x_ticks=x_ticks, x_padding=padding,
        show_x=not chart.places,
    )  # fmt: skip
    marked = [(area.x(i), text) for i, text in enumerate(chart.places)]
    names = "".join(svg.text(x, bottom + 17, text, "tick", "middle") for x, text in marked if x is not None)
    bands, lines, marks = [], [], []
    for i, s in enumerate(series):
        colour, shape = _look(s, i)
        css = f"s{colour % SERIES_COLOURS}"
        points = area.points(s.x, s.y)
        if s.low is not None and s.high is not None:
            # A logarithmic axis cannot show 0 or below: there the band goes down to the foot of the axis.
            foot = [area.y.low if chart.log_y and v <= 0 else v for v in s.low]
            outline = svg.band([*map(area.x, s.x)], [*map(area.y, foot)], [*map(area.y, s.high)])
            faint = " faint" if len(series) > 5 else ""  # many bands at full strength hide each other
            bands.append(f'<path class="band {css}{faint}" d="{outline}"/>')
        lines.append(f'<path class="line {css}{_dashes(s)}" d="{svg.polyline(points)}"/>')
        # A short series has a mark at every point, a long one has a few. They are shifted, so that lines differ.
        every = max(1, math.ceil(len(points) / 8))
        chosen = points[(i * every // 3) % every :: every] if every > 1 else points
        shapes = "".join(svg.marker(shape, x, y) for x, y in chosen if x is not None and y is not None)
        marks.append(f'<path class="mark {css}" d="{shapes}"/>')
    cursor = '<path class="cursor" d="" />'
    body = area.axes + names + "".join(bands) + "".join(lines) + "".join(marks) + cursor
    data = {
        "x": [area.x.low, area.x.high, area.x.start, area.x.end],
        "y": [area.y.start, area.y.end],
        "width": width,
        "label": chart.x_label,
        "places": list(chart.places),
        "series": [
            {"label": s.label}
            | {k: [svg.nullable(v) for v in part] for k, part in _parts(s).items() if part is not None}
            for s in series
        ],
    }
    return svg.drawing(width, height, _line_label(chart), body, "chart"), data


def _parts(s: Series) -> dict[str, list[float] | None]:
    return {"x": s.x, "y": s.y, "low": s.low, "high": s.high}


def _line_label(chart: Chart) -> str:
    ends = []
    for s in chart.series:
        known = svg.finite(s.y)
        ends.append(f"{s.label} ends at {svg.short(known[-1])}" if known else f"{s.label} has no values")
    return f"{chart.title}: {chart.y_label} against {chart.x_label}. {'; '.join(ends)}."


def _thin(s: Series) -> Series:
    """Fewer points of a long series. Each stretch keeps its extremes, so that a spike stays visible."""
    n = len(s.x)
    if n <= _MOST_POINTS:
        return s
    stretch = math.ceil(n / (_MOST_POINTS / 4))
    keep = {0, n - 1}
    for start in range(0, n, stretch):
        rows = range(start, min(start + stretch, n))
        for part, pick in ((s.y, min), (s.y, max), (s.low, min), (s.high, max)):
            known = [i for i in rows if part is not None and math.isfinite(part[i])]
            gap = next((i for i in rows if part is not None and not math.isfinite(part[i])), None)
            if known and part is not None:
                keep.add(pick(known, key=part.__getitem__))
            if gap is not None:
                keep.add(gap)
    rows_kept = sorted(keep)
    pick_rows = {k: [part[i] for i in rows_kept] if part is not None else None for k, part in _parts(s).items()}
    return Series(s.label, pick_rows["x"] or [], pick_rows["y"] or [], pick_rows["low"], pick_rows["high"], look=s.look)


def _look(s: Series, index: int) -> tuple[int, int]:
    """The numbers of a series' colour and mark. Series of the same colour have different marks."""
    return (s.look[0], sum(s.look)) if s.look else (index, index)


def _dashes(s: Series) -> str:
    return f" d{s.look[1] % 4}" if s.look else ""


def hidden_by_log(chart: Chart) -> int:
    """How many values a logarithmic axis cannot show. The page says it under the figure."""
    return sum(v <= 0 for s in chart.series for v in svg.finite(s.y)) if chart.log_y else 0


def legend_key(index: int, s: Series | None = None) -> str:
    """The line and mark of a series, drawn small for the legend."""
    colour, shape = _look(s, index) if s else (index, index)
    css, dashes = f"s{colour % SERIES_COLOURS}", _dashes(s) if s else ""
    return (
        f'<svg viewBox="0 0 28 12" class="key" aria-hidden="true"><path class="line {css}{dashes}" d="M1 6H27"/>'
        f'<path class="mark {css}" d="{svg.marker(shape, 14, 6)}"/></svg>'
    )


# ---- scores: every episode, and the interval beside it


def row_name(row: ScoreRow) -> str:
    return f"{row.method} · {row.rule}" if row.rule else row.method


def interval_chart(rows: Sequence[ScoreRow], best: int | None, unit: str, narrow: bool) -> str:
    """One row for each method: above, each episode as a faint dot; below, the interval with mean and IQM.

    The page has two drawings: a wide one with the names at the left, and for phones a narrow one with the names above.
    """
    width, row_height = (380.0, 62.0) if narrow else (960.0, 46.0)
    left, right, top = (10.0, 14.0, 6.0) if narrow else (214.0, 20.0, 6.0)
    bottom = top + row_height * len(rows)
    values = [v for r in rows for v in (*r.episode_scores, r.mean, r.iqm, r.low, r.high)]
    x = svg.scale(values, left, width - right, padding=0.02)
    parts = []
    for p, label in x.ticks(5 if narrow else 10):
        parts.append(svg.line(p, top, p, bottom, "grid"))
        parts.append(svg.text(p, bottom + 17, label, "tick", "middle"))
    parts.append(svg.line(left, bottom, width - right, bottom, "axis"))
    for i, row in enumerate(rows):
        parts.append(_interval_row(row, x, top + i * row_height, row_height, left, i == best, narrow))
    parts.append(svg.text((left + width - right) / 2, bottom + 38, unit, "label", "middle"))
    label = f"{unit} by method: " + "; ".join(
        f"{row_name(r)} mean {svg.short(r.mean)}, 95 % interval {svg.short(r.low)} to {svg.short(r.high)}" for r in rows
    )
    return svg.drawing(width, bottom + 46, label, "".join(parts), "narrow" if narrow else "wide")


def _interval_row(row: ScoreRow, x: svg.Scale, top: float, height: float, left: float, best: bool, narrow: bool) -> str:
    most = (46 if narrow else 27) - (len(row.rule) + 3 if row.rule else 0)
    method = row.method if len(row.method) <= most else row.method[: most - 1] + "…"
    shown = f"{method} · {row.rule}" if row.rule else method
    label_at = (left, top + 15, "start") if narrow else (left - 14, top + height / 2 + 4, "end")
    middle = top + height - 12
    cloud_top, cloud_bottom = (top + 22, middle - 9) if narrow else (top + 6, middle - 9)
    # The golden ratio spreads the dots evenly and without randomness: the same data gives the same page.
    ys = [cloud_top + (0.5 + i * 0.618034) % 1.0 * (cloud_bottom - cloud_top) for i in range(len(row.episode_scores))]
    cloud = svg.dots((x(v), y) for v, y in zip(row.episode_scores, ys, strict=True))
    parts = [
        f"<title>{escape(_row_title(row))}</title>",
        f'<rect class="hit" x="0" y="{svg.coordinate(top)}" width="{x.end:.0f}" height="{height:.0f}"/>',
        svg.text(label_at[0], label_at[1], shown, "name best" if best else "name", label_at[2]),
        f'<path class="episodes" d="{cloud}"/>',
    ]
    low, high, mean, iqm = x(row.low), x(row.high), x(row.mean), x(row.iqm)
    # Caps, and a small mean on top: all three stay visible if they coincide.
    if low is not None and high is not None:
        ends = [[(low, middle), (high, middle)], *([(v, middle - 5), (v, middle + 5)] for v in (low, high))]
        parts.append(f'<path class="interval" d="{"".join(map(svg.polyline, ends))}"/>')
    if iqm is not None:
        parts.append(f'<path class="iqm" d="{svg.marker(3, iqm, middle, 4.2)}"/>')
    if mean is not None:
        parts.append(f'<path class="mean" d="{svg.marker(0, mean, middle, 3)}"/>')
    return f'<g class="{"row best" if best else "row"}">{"".join(parts)}</g>'


def _row_title(row: ScoreRow) -> str:
    return (
        f"{row_name(row)}\nmean {svg.short(row.mean)}, IQM {svg.short(row.iqm)}\n"
        f"95 % interval {svg.short(row.low)} to {svg.short(row.high)}\n{row.episodes} episodes, {row.seeds} seeds"
    )


# ---- sub-tasks


def shares(values: Sequence[float]) -> list[float | None]:
    """Where each value lies between the smallest (0) and the largest (1). This gives its colour."""
    known = svg.finite(values)
    low, spread = (min(known), max(known) - min(known)) if known else (0.0, 0.0)
    return [((v - low) / spread if spread else 0.5) if math.isfinite(v) else None for v in values]


def returns_chart(sub_tasks: SubTaskReturns) -> str:
    """Mean return by rank, with the range of each sub-task's trajectories."""
    means, n = sub_tasks.mean_returns, len(sub_tasks.mean_returns)
    ranks = [float(i) for i in range(n)]
    area = frame(ranks, [*means, *sub_tasks.low, *sub_tasks.high], whole_x=True, x_padding=0.03)
    lows, highs = area.points(ranks, sub_tasks.low), area.points(ranks, sub_tasks.high)
    if n <= WHISKERS_UP_TO:
        pairs = [(a, b) for a, b in zip(lows, highs, strict=True) if None not in (*a, *b)]
        spread = f'<path class="whisker" d="{"".join(svg.polyline([a, b]) for a, b in pairs)}"/>'
    else:
        outline = svg.band([x for x, _ in lows], [y for _, y in lows], [y for _, y in highs])
        spread = f'<path class="range" d="{outline}"/>'
    known = svg.finite(means)
    reach = f", from {svg.short(max(known))} to {svg.short(min(known))}" if known else ""
    label = f"Mean return of {n} sub-tasks by rank{reach}"
    titles = [
        f"sub-task {i}: mean {svg.short(m)}, range {svg.short(a)} to {svg.short(b)}"
        for i, (m, a, b) in enumerate(zip(means, sub_tasks.low, sub_tasks.high, strict=True))
    ]
    points = coloured_points(area.points(ranks, means), means, titles, 4.0 if n <= WHISKERS_UP_TO else 2.0)
    return svg.drawing(WIDTH, HEIGHT, label, area.axes + spread + points, "chart")


def ranking_chart(sub_tasks: SubTaskReturns, predicted: list[float]) -> str:
    """The score f at the start state against the mean return. A scatter: two y axes would make any f look good."""
    means = sub_tasks.mean_returns
    area = frame(means, predicted, x_padding=0.05)
    titles = [
        f"sub-task {i}: mean return {svg.short(m)}, score f {svg.short(f)}"
        for i, (m, f) in enumerate(zip(means, predicted, strict=True))
    ]
    points = area.points(means, predicted)
    chosen = highest(predicted)
    ring = ""
    if chosen is not None:
        x, y = points[chosen]
        ring = f'<path class="ring" d="{svg.marker(0, x, y, 8.0)}"/>' if x is not None and y is not None else ""
    label = "Score f at the start state against mean return, one point for each sub-task"
    radius = 4.4 if len(means) <= WHISKERS_UP_TO else 2.4
    return svg.drawing(WIDTH, HEIGHT, label, area.axes + coloured_points(points, means, titles, radius) + ring, "chart")


def highest(values: Sequence[float]) -> int | None:
    """The index of the highest finite value."""
    known = [i for i, v in enumerate(values) if math.isfinite(v)]
    return max(known, key=values.__getitem__) if known else None


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's ρ over the pairs of finite numbers; None with fewer than three pairs, or if one side is constant."""
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if math.isfinite(a) and math.isfinite(b)]
    if len(pairs) < 3:
        return None
    rho = returns.rank_correlation(*np.array(pairs).T)
    return rho if math.isfinite(rho) else None


def coloured_points(
    points: Sequence[tuple[float | None, float | None]], returns: Sequence[float], titles: Sequence[str], radius: float
) -> str:
    """Sub-tasks as points in the colour of their return. The best ones are drawn last, so that they are visible."""
    if len(points) > _SINGLE_POINTS_UP_TO:
        return _many_points(points, returns, radius)
    rows = list(zip(points, shares(returns), titles, strict=True))
    drawn = [
        f'<circle class="sub-task" cx="{svg.coordinate(x)}" cy="{svg.coordinate(y)}" r="{radius}" '
        f'fill="{svg.colour(share)}"><title>{escape(title)}</title></circle>'
        for (x, y), share, title in rows
        if x is not None and y is not None
    ]
    return "".join(reversed(drawn))


def _many_points(points: Sequence[tuple[float | None, float | None]], returns: Sequence[float], radius: float) -> str:
    """One path for each shade, not one element for each point, which would make the page large and slow."""
    shade = [None if share is None else round(share * (_SHADES - 1)) for share in shares(returns)]
    drawn = []
    for level in (None, *range(_SHADES)):
        group = svg.dots(p for p, own in zip(points, shade, strict=True) if own == level)
        stroke = svg.colour(None if level is None else level / (_SHADES - 1))
        drawn.append(f'<path d="{group}" stroke="{stroke}" stroke-width="{2 * radius}"/>' if group else "")
    return "".join(drawn)

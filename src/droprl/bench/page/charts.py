"""The two drawings that only the page of a suite has: probabilities of improvement, and f against reward."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from droprl import svg
from droprl.bench.page.contents import Improvements, Predictions
from droprl.evaluation.statistics import Estimate
from droprl.report.charts import HEIGHT, SERIES_COLOURS, WIDTH, frame

_DEEPEST = 0.62  # the highest opacity of a cell's colour; above it the number could not be read
_MOST_DOTS = 250  # for each episode
_FEW_DOTS = 12


def settled(estimate: Estimate) -> bool:
    """Whether the interval does not contain one half: the runs show a difference."""
    return not estimate.low <= 0.5 <= estimate.high


def improvement_matrix(improvements: Improvements, narrow: bool) -> str:
    """One row and one column for each entry, in per cent. `narrow`, for a phone, has no names in the drawing."""
    n = len(improvements.entries)
    longest = max(len(entry.name) for entry in improvements.entries)
    left = 22.0 if narrow else 40 + 7.0 * longest
    cell = min((378 - left) / n, 54.0) if narrow else max(min((940 - left) / n, 56.0), 34.0)
    height, top = min(cell, 40.0), 22.0
    parts = []
    for i, (entry, row) in enumerate(zip(improvements.entries, improvements.cells, strict=True)):
        middle = top + (i + 0.5) * height + 4
        parts.append(svg.text(left + (i + 0.5) * cell, 13, str(i + 1), "tick", "middle"))
        parts.append(svg.text(14, middle, str(i + 1), "tick", "end"))
        parts.append("" if narrow else svg.text(24, middle, entry.name, "name"))
        for j, estimate in enumerate(row):
            corner = left + j * cell, top + i * height
            wider = improvements.like_these[i][j] if improvements.like_these else None
            if estimate is not None:
                names = entry.name, improvements.entries[j].name
                parts.append(_cell(names, estimate, wider, corner, cell, height))
    width = 380.0 if narrow else left + n * cell + 2
    label = f"Probability of improvement of each of {n} methods over each other, in per cent"
    drawn = svg.drawing(
        width, top + n * height + 2, label, "".join(parts), "matrix " + ("narrow" if narrow else "wide")
    )
    return drawn if narrow else drawn.replace("<svg ", f'<svg style="max-width:{width:.0f}px" ', 1)


def _cell(
    names: tuple[str, str],
    estimate: Estimate,
    wider: Estimate | None,
    corner: tuple[float, float],
    width: float,
    height: float,
) -> str:
    (row, column), (x, y) = names, corner
    away = 2 * (estimate.value - 0.5)
    colour = 6 if abs(away) < 0.01 else 0 if away > 0 else 1
    share = f"{100 * estimate.value:.0f}"
    title = f"P({row} > {column}) = {share} %, 95 % interval {100 * estimate.low:.0f} to {100 * estimate.high:.0f} %"
    css = "share settled" if settled(estimate) else "share"
    if wider is not None:
        title += f" over these tasks, {100 * wider.low:.0f} to {100 * wider.high:.0f} % over tasks like these"
        css += " widely" if settled(wider) else ""
    return (
        f'<g><title>{escape(title)}</title><rect class="s{colour}" x="{x + 1:.1f}" y="{y + 1:.1f}" '
        f'width="{width - 2:.1f}" height="{height - 2:.1f}" rx="2" fill-opacity="{0.05 + _DEEPEST * abs(away):.2f}"/>'
        f"{svg.text(x + width / 2, y + height / 2 + 4, share, css, 'middle')}</g>"
    )


def prediction_chart(several: Sequence[Predictions]) -> str:
    """The score f against the reward that was earned, one dot for each step. On the dashed line they are equal."""
    thinned = [
        (p.realised[:: max(1, len(p.realised) // _MOST_DOTS)], p.predicted[:: max(1, len(p.realised) // _MOST_DOTS)])
        for p in several
    ]
    xs, ys = ([v for pair in thinned for v in pair[axis]] for axis in (0, 1))
    area = frame(xs, ys, x_padding=0.04)
    low, high = max(area.x.low, area.y.low), min(area.x.high, area.y.high)
    same = svg.polyline([(area.x(v), area.y(v)) for v in (low, high)]) if low < high else ""
    dots = "".join(_steps(i, area.points(*pair)) for i, pair in enumerate(thinned))
    label = f"Score f against reward earned from there on, under {', '.join(p.rule for p in several)}"
    return svg.drawing(WIDTH, HEIGHT, label, area.axes + f'<path class="cursor" d="{same}"/>' + dots, "chart")


def _steps(series: int, points: Sequence[tuple[float | None, float | None]]) -> str:
    """Many steps as a cloud of dots; a few as the marks of the series, so that they can be seen."""
    css = f"s{series % SERIES_COLOURS}"
    if len(points) > _FEW_DOTS:
        return f'<path class="steps {css}" d="{svg.dots(points)}"/>'
    marks = "".join(svg.marker(series, x, y, 4.4) for x, y in points if x is not None and y is not None)
    return f'<path class="mark {css}" d="{marks}"/>'

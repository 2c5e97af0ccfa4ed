"""How values look in a notebook: small tables and plots as HTML that needs no style sheet.

Names may come from a stranger, so every text is escaped here. Colours suit light and dark pages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from droprl import svg
from droprl.errors import clean

WIDTH, HEIGHT, LEFT, BOTTOM = 340.0, 190.0, 52.0, 24.0
COLOURS = ("#3d8fc4", "#d0410b", "#007a5c", "#9a3f86", "#9a6b00")
MOST_POINTS = 300
_TEXT = 'font-size="11" fill="currentColor" opacity="0.75"'
_GRID = 'fill="none" stroke="currentColor" stroke-opacity="0.2"'


def shown(*parts: str) -> str:
    """The parts side by side, as far as there is room."""
    inner = "".join(f'<div style="margin-right:2em">{part}</div>' for part in parts if part)
    return f'<div style="display:flex;flex-wrap:wrap;align-items:flex-start">{inner}</div>'


def facts_table(title: str, facts: Iterable[tuple[str, object]]) -> str:
    rows = "".join(
        f'<tr><th style="text-align:left;font-weight:normal;opacity:0.75">{_text(name)}</th>'
        f'<td style="text-align:left">{_text(value)}</td></tr>'
        for name, value in facts
    )
    return f"<table><caption>{_caption(title)}</caption><tbody>{rows}</tbody></table>"


def rows_table(title: str, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """The first column is text, the others are numbers."""
    head = "".join(f"<th>{_text(name)}</th>" for name in heads)
    body = "".join(f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><caption>{_caption(title)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def lines_plot(title: str, x_name: str, lines: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """One line for each name, from its points. Without any point there is no plot."""
    points = [point for line in lines.values() for point in line]
    if not svg.finite(y for _, y in points):
        return ""
    x = svg.scale((x for x, _ in points), LEFT, WIDTH - 10, padding=0.02)
    y = svg.scale((y for _, y in points), HEIGHT - BOTTOM, 10)
    parts = [_axes(x, y)]
    for i, line in enumerate(lines.values()):
        thin = line[:: max(1, len(line) // MOST_POINTS)]
        path = svg.polyline([(x(a), y(b)) for a, b in thin])
        parts.append(f'<path d="{path}" fill="none" stroke="{COLOURS[i % len(COLOURS)]}" stroke-width="1.6"/>')
    names = (
        ""
        if len(lines) < 2
        else ": "
        + ", ".join(
            f'<span style="color:{COLOURS[i % len(COLOURS)]}">{_text(name)}</span>' for i, name in enumerate(lines)
        )
    )
    return _figure(f"{_caption(title)} against {_text(x_name)}{names}", title, parts)


def histogram_plot(title: str, edges: Sequence[float], counts: Sequence[int]) -> str:
    """How often values fall between two edges."""
    if not counts:
        return ""
    x, y = svg.scale(edges, LEFT, WIDTH - 10, padding=0.02), svg.scale([0.0, max(counts)], HEIGHT - BOTTOM, 10)
    parts = [_axes(x, y)]
    foot = y(0.0) or HEIGHT - BOTTOM
    for low, high, count in zip(edges, edges[1:], counts, strict=False):
        left, right, top = x(low), x(high), y(count)
        if left is not None and right is not None and top is not None and count:
            corner = f'x="{svg.coordinate(left)}" y="{svg.coordinate(top)}"'
            size = f'width="{max(right - left - 1, 1):.1f}" height="{foot - top:.1f}"'
            parts.append(f'<rect {corner} {size} fill="{COLOURS[0]}" fill-opacity="0.8"/>')
    return _figure(_caption(title), title, parts)


def dots_plot(title: str, rows: Mapping[str, Sequence[float]], interval: tuple[float, float] | None = None) -> str:
    """Every value as a dot, one row for each name, and the interval as a band."""
    values = [value for row in rows.values() for value in row]
    if not svg.finite(values):
        return ""
    left, gap = 10 + 6.2 * max(len(str(name)) for name in rows), 22.0
    x, bottom = svg.scale([*values, *(interval or ())], left + 8, WIDTH - 10), 12 + gap * len(rows)
    parts = []
    if interval is not None:
        low, high = x(interval[0]), x(interval[1])
        if low is not None and high is not None:
            size = f'width="{max(high - low, 1):.1f}" height="{bottom - 10:.1f}"'
            parts.append(f'<rect x="{svg.coordinate(low)}" y="10" {size} fill="{COLOURS[0]}" fill-opacity="0.18"/>')
    for i, (name, row) in enumerate(rows.items()):
        y = 12 + gap * (i + 0.5)
        parts.append(f'<text x="4" y="{y + 4:.0f}" {_TEXT}>{_text(name)}</text>')
        parts += [
            f'<circle cx="{svg.coordinate(p)}" cy="{y:.0f}" r="3" fill="{COLOURS[0]}" fill-opacity="0.6"/>'
            for value in row
            if (p := x(value)) is not None
        ]
    parts += [f'<text x="{svg.coordinate(p)}" y="{bottom + 16:.0f}" text-anchor="middle" {_TEXT}>{_text(label)}</text>'
              for p, label in x.ticks(5)]  # fmt: skip
    return _figure(_caption(title), title, parts, bottom + 24)


def _axes(x: svg.Scale, y: svg.Scale) -> str:
    parts = []
    for p, label in y.ticks(4):
        parts.append(f'<path d="M{LEFT:.0f} {svg.coordinate(p)}H{WIDTH - 6:.0f}" {_GRID}/>')
        parts.append(f'<text x="{LEFT - 6:.0f}" y="{p + 4:.0f}" text-anchor="end" {_TEXT}>{_text(label)}</text>')
    for p, label in x.ticks(4):
        place = f'x="{svg.coordinate(p)}" y="{HEIGHT - 6:.0f}"'
        parts.append(f'<text {place} text-anchor="middle" {_TEXT}>{_text(label)}</text>')
    return "".join(parts)


def _figure(caption: str, label: str, parts: Sequence[str], height: float = HEIGHT) -> str:
    drawn = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH:.0f}" height="{height:.0f}" role="img" '
        f'aria-label="{_text(label)}">{"".join(parts)}</svg>'
    )
    return f'<figure style="margin:0"><figcaption>{caption}</figcaption>{drawn}</figure>'


def _caption(text: str) -> str:
    return f'<span style="font-weight:600">{_text(text)}</span>'


def _text(value: object) -> str:
    return escape(clean(str(value)))

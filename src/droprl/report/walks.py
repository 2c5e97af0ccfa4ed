"""One episode over the plane of embeddings: the plane, the maze if there is one, and the traces over time.

Everything that does not move is drawn here. `page.js` only moves the marker, its trail and the cursors, in coordinates
that are computed here. All walks have the same scales, so that rules can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from droprl import svg
from droprl.report.charts import WIDTH, Frame, coloured_points, frame
from droprl.report.contents import EmbeddingWalk, Point

_PLANE_TOP, _PLANE_HEIGHT, _PLANE_LEFT = 50.0, 398.0, 34.0
_MAZE_HEIGHT = 250.0


@dataclass(frozen=True)
class SharedScales:
    """The scales that all walks of a page share."""

    plane_x: svg.Scale
    plane_y: svg.Scale
    steps: int
    scores: list[float]
    totals: list[float]
    ranks: list[float]


def shared_scales(walks: Sequence[EmbeddingWalk]) -> SharedScales:
    points = [p for w in walks for p in (*w.embeddings, *w.path)]
    x, y = _square_scales(points, (_PLANE_LEFT, WIDTH - 8), (_PLANE_HEIGHT - 24, _PLANE_TOP), padding=0.06)
    return SharedScales(
        plane_x=x,
        plane_y=y,
        steps=max(len(w.path) for w in walks),
        scores=[v for w in walks for v in w.scores],
        totals=[v for w in walks for v in running_total(w.rewards)],
        ranks=[float(n) for w in walks for n in w.start_of_path if n >= 0],
    )


def running_total(rewards: Iterable[float]) -> list[float]:
    """The reward so far; a reward that is NaN adds nothing."""
    return list(accumulate(float(r) if math.isfinite(r) else 0.0 for r in rewards))


def walk_drawings(walk: EmbeddingWalk, shared: SharedScales) -> tuple[str, str, str, dict[str, Any]]:
    """The plane, the maze (or an empty text), the traces, and the data with which `page.js` plays them."""
    maze, positions = _maze(walk)
    traces, panels = _traces(walk, shared, low=walk.positions is None)
    data = {
        "rule": walk.rule,
        "z": [_place(p, shared.plane_x, shared.plane_y) for p in walk.embeddings],
        "returns": [svg.nullable(v, 4) for v in walk.sub_task_returns],
        "path": [_place(p, shared.plane_x, shared.plane_y) for p in walk.path],
        "start": [n if 0 <= n < len(walk.embeddings) else -1 for n in walk.start_of_path],
        "scores": [svg.nullable(v, 4) for v in walk.scores],
        "totals": [svg.nullable(v, 5) for v in running_total(walk.rewards)],
        "positions": positions,
        "time": [panels[0].x(0.0), (panels[0].x(1.0) or 0.0) - (panels[0].x(0.0) or 0.0)],
        "panels": [[p.y.low, p.y.high, p.y.start, p.y.end] for p in panels],
    }
    return _plane(walk, shared), maze, traces, data


def _place(point: Point, x: svg.Scale, y: svg.Scale) -> list[float] | None:
    a, b = x(point[0]), y(point[1])
    return None if a is None or b is None else [round(a, 1), round(b, 1)]


def _square_scales(
    points: Sequence[Point], across: tuple[float, float], up: tuple[float, float], padding: float
) -> tuple[svg.Scale, svg.Scale]:
    """Scales in which a unit of data has the same length in x and in y, so that distances can be compared."""
    known = [p for p in points if math.isfinite(p[0]) and math.isfinite(p[1])] or [(0.0, 0.0)]
    xs, ys = [p[0] for p in known], [p[1] for p in known]
    room_x, room_y = across[1] - across[0], up[0] - up[1]
    wide, tall = (max(xs) - min(xs)) * (1 + 2 * padding), (max(ys) - min(ys)) * (1 + 2 * padding)
    unit = max(wide / room_x, tall / room_y) or 1.0 / room_x
    mid_x, mid_y = (max(xs) + min(xs)) / 2, (max(ys) + min(ys)) / 2
    half_x, half_y = unit * room_x / 2, unit * room_y / 2
    return (
        svg.Scale(mid_x - half_x, mid_x + half_x, *across),
        svg.Scale(mid_y - half_y, mid_y + half_y, *up),
    )


def _plane(walk: EmbeddingWalk, shared: SharedScales) -> str:
    x, y = shared.plane_x, shared.plane_y
    parts = [_colour_bar(walk.sub_task_returns)]
    for p, label in x.ticks(6):
        parts.append(svg.line(p, y.end, p, y.start, "grid"))
        parts.append(svg.text(p, y.start + 17, label, "tick", "middle"))
    for p, label in y.ticks(5):
        parts.append(svg.line(x.start, p, x.end, p, "grid"))
        parts.append(svg.text(x.start - 6, p + 4, label, "tick", "end"))
    parts.append(f'<path class="visited" d="{svg.dots((x(a), y(b)) for a, b in walk.path)}"/>')
    points = [(x(a), y(b)) for a, b in walk.embeddings]
    titles = [f"z{_subscript(n)}: mean return {svg.short(r)}" for n, r in enumerate(walk.sub_task_returns)]
    parts.append(coloured_points(points, walk.sub_task_returns, titles, 5.0 if len(points) <= 150 else 3.0))
    parts.append(_top_label(points))
    parts.append('<path class="rise"/><path class="ring"/><g class="trail"></g><path class="walker"/>')
    label = (
        f"Embedding plane under the rule {walk.rule}: {len(walk.embeddings)} sub-task embeddings coloured by return, "
        f"and the inferred embedding at {len(walk.path)} steps of one episode"
    )
    return svg.drawing(WIDTH, _PLANE_HEIGHT, label, "".join(parts), "plane")


def _top_label(points: Sequence[tuple[float | None, float | None]]) -> str:
    """The label "z₀", on the side of its point that faces away from the other points."""
    known = [(a, b) for a, b in points if a is not None and b is not None]
    if not known or None in points[0]:
        return ""
    x, y = known[0]
    away_x, away_y = (v - sum(p[i] for p in known) / len(known) for i, v in enumerate((x, y)))
    far = math.hypot(away_x, away_y) or 1.0
    return svg.text(x + 17 * away_x / far, y + 15 * away_y / far + 4, "z₀", "halo", "middle")


def _subscript(n: int) -> str:
    return str(n).translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"))


def _colour_bar(returns: Sequence[float]) -> str:
    """The colours of the returns. Drawn as rectangles: browsers do not print a CSS gradient, which is a background."""
    known = svg.finite(returns)
    if not known:
        return ""
    pieces, left, width = 32, WIDTH - 8 - 192.0, 192.0
    cells = "".join(
        f'<rect x="{left + i * width / pieces:.1f}" y="6" width="{width / pieces:.1f}" height="9" '
        f'fill="{svg.colour(i / (pieces - 1))}"/>'
        for i in range(pieces)
    )
    return (
        svg.text(left - 10, 15, "mean return of sub-task", "tick", "end")
        + f'<g shape-rendering="crispEdges">{cells}</g>'
        + svg.text(left, 29, svg.short(min(known)), "tick")
        + svg.text(left + width, 29, svg.short(max(known)), "tick", "end")
    )


def _maze(walk: EmbeddingWalk) -> tuple[str, list[list[float] | None] | None]:
    if walk.positions is None:
        return "", None
    walls = walk.walls or []
    corners = [c for a, b, w, h in walls for c in ((a, b), (a + w, b + h))]
    extent = [*walk.positions, *corners, *([walk.goal] if walk.goal else [])]
    x, y = _square_scales(extent, (6, WIDTH - 6), (_MAZE_HEIGHT - 4, 4), padding=0.02)
    # One path for all walls: overlapping rectangles of a translucent grey would show seams.
    parts = [f'<path class="wall" d="{"".join(_wall(x, y, *wall) for wall in walls)}"/>']
    parts.append(f'<path class="way" d="{svg.polyline([(x(a), y(b)) for a, b in walk.positions])}"/>')
    parts.append('<path class="way done"/>')
    start = _place(walk.positions[0], x, y) if walk.positions else None
    if start:
        parts.append(f'<path class="start" d="{svg.marker(1, start[0], start[1], 4.5)}"><title>start</title></path>')
    goal = _place(walk.goal, x, y) if walk.goal else None
    if goal:
        parts.append(f'<g class="goal"><title>goal</title><path d="{svg.marker(0, goal[0], goal[1], 8)}"/>')
        parts.append(f'<path class="inner" d="{svg.marker(0, goal[0], goal[1], 3)}"/></g>')
    parts.append('<path class="walker"/>')
    label = f"Top view of the maze with the agent's path over {len(walk.positions)} steps"
    return svg.drawing(WIDTH, _MAZE_HEIGHT, label, "".join(parts), "maze"), [_place(p, x, y) for p in walk.positions]


def _wall(x: svg.Scale, y: svg.Scale, left: float, bottom: float, width: float, height: float) -> str:
    corner, opposite = _place((left, bottom + height), x, y), _place((left + width, bottom), x, y)
    if corner is None or opposite is None:
        return ""
    # Half a unit wider, so that no thin line shows between two blocks of a wall.
    right, down = opposite[0] - corner[0] + 0.5, opposite[1] - corner[1] + 0.5
    return f"M{corner[0]} {corner[1]}h{right:.1f}v{down:.1f}h{-right:.1f}Z"


def _traces(walk: EmbeddingWalk, shared: SharedScales, low: bool) -> tuple[str, list[Frame]]:
    """Score, reward so far and the sub-task where the ascent began, one above the other over the same steps."""
    steps = [float(i) for i in range(len(walk.path))]
    heights = (116.0, 116.0, 96.0) if low else (62.0, 62.0, 56.0)
    rows: list[tuple[str, list[float], list[float]]] = [
        ("score f(s, β(s, z*), z*)", walk.scores, shared.scores),
        ("reward so far", running_total(walk.rewards), shared.totals),
    ]
    if shared.ranks:
        starts = [float(n) if n >= 0 else math.nan for n in walk.start_of_path]
        rows.append(("n of the sub-task where the ascent began", starts, shared.ranks))
    panels, parts, names, top = [], [], [], 0.0
    for i, (title, values, all_values) in enumerate(rows):
        bottom = top + 24 + heights[i]
        ranks = i == 2
        area = frame(
            [0.0, float(max(shared.steps - 1, 1))], all_values, top=top + 24, bottom=bottom, left=44.0, whole_x=True,
            y_ticks=3 if low else 2, show_x=i == len(rows) - 1, downwards=ranks,
        )  # fmt: skip
        drawn = area.points(steps, values)
        data = svg.dots(drawn) if ranks else svg.polyline(drawn)
        names.append(svg.text(0, top + 13, title, "label"))
        parts.append(area.axes)
        parts.append(f'<path class="{"rose" if ranks else "trace"}" d="{data}"/>')
        panels.append(area)
        top = bottom + 10
    parts.append(svg.text((panels[0].x.start + panels[0].x.end) / 2, top + 24, "step", "label", "middle"))
    parts.append(
        f'<path class="cursor" data-from="24" data-to="{top - 10:.0f}"/>' + '<path class="reading"/>' * len(panels)
    )
    parts += names  # last and with a rim, so that the cursor does not hide them
    label = f"Score and reward so far over {len(walk.path)} steps under the rule {walk.rule}"
    return svg.drawing(WIDTH, top + 30, label, "".join(parts), "traces"), panels

"""Scales, ticks, numbers and the few SVG shapes that every chart needs. Nothing here depends on what is drawn.

Colours are CSS classes and variables of `page.css`, so that a chart follows the reader's light or dark setting. Only
the colours of returns are fixed here, because they encode data.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

# viridis at eleven points. Its lightness is ordered, so it works for colour-blind readers and on a grey printer.
_VIRIDIS = (
    (68, 1, 84), (72, 36, 117), (65, 68, 135), (53, 95, 141), (42, 120, 142), (33, 145, 140),
    (34, 168, 132), (68, 191, 112), (122, 209, 81), (189, 223, 38), (253, 231, 37),
)  # fmt: skip


ROUNDING = 1e-4  # values that differ by a smaller share of themselves are drawn as equal


def finite(values: Iterable[float]) -> list[float]:
    return [float(v) for v in values if math.isfinite(v)]


def nullable(value: float | None, digits: int = 5) -> float | None:
    """For JSON: None for NaN and infinity, otherwise rounded to the digits that a page can show."""
    return None if value is None or not math.isfinite(value) else float(f"{float(value):.{digits}g}")


def coordinate(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


# ---- numbers as text


def number(value: float | None, decimals: int) -> str:
    if value is None or not math.isfinite(value):
        return "–"
    text = f"{value:,.{decimals}f}"
    if not any(c in "123456789" for c in text):
        text = text.removeprefix("-")  # no "−0.0"
    return text.replace("-", "−")


def short(value: float | None) -> str:
    """About three significant digits, for a number outside a column."""
    if value is None or not math.isfinite(value):
        return "–"
    size = abs(value)
    if size and (size < 1e-3 or size >= 1e7):
        return f"{value:.2e}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e").replace("-", "−")
    decimals = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3
    text = number(value, decimals)
    return text.rstrip("0").rstrip(".") if decimals else text


def decimals_for(values: Iterable[float]) -> int:
    """The same number of decimals for a whole column, so that its points are aligned."""
    largest = max((abs(v) for v in finite(values)), default=0.0)
    return 0 if largest >= 1000 else 1 if largest >= 10 else 2 if largest >= 1 else 3


# ---- scales


@dataclass(frozen=True)
class Scale:
    """From data to SVG units; None if the value cannot be drawn."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float | None) -> float | None:
        if value is None or not math.isfinite(value) or (self.log and value <= 0):
            return None
        share = (
            math.log(value / self.low) / math.log(self.high / self.low)
            if self.log
            else (value - self.low) / (self.high - self.low)
        )
        return self.start + share * (self.end - self.start)

    def ticks(self, count: int, whole: bool = False) -> list[tuple[float, str]]:
        """(position, label) of about `count` round values inside the scale."""
        values = _log_ticks(self.low, self.high) if self.log else _linear_ticks(self.low, self.high, count, whole)
        step = min((b - a for a, b in pairwise(values)), default=0.0)
        placed = [(self(v), v) for v in values]
        return [(p, _tick_label(v, 0.0 if self.log else step)) for p, v in placed if p is not None]


def scale(values: Iterable[float], start: float, end: float, log: bool = False, padding: float = 0.04) -> Scale:
    """A scale around the finite values with a small margin. It is never empty."""
    known = [v for v in finite(values) if not log or v > 0]
    low, high = (min(known), max(known)) if known else (1.0, 10.0) if log else (0.0, 1.0)
    if log:
        ratio = max((high / low) ** padding, 1.3)
        return Scale(low / ratio, high * ratio, start, end, log=True)
    # A spread within rounding is no spread: otherwise the noise of a constant series would fill the chart. Results are
    # float32, their means lose digits, and pages show five of them.
    margin = (high - low) * padding if high - low > ROUNDING * max(abs(low), abs(high)) else max(abs(high) * 0.1, 0.5)
    # If zero is near, it is shown: many readers take the foot of an axis for zero.
    foot = 0.0 if 0 < low < 0.2 * high else low - margin
    head = 0.0 if 0.2 * low < high < 0 else high + margin
    return Scale(foot, head, start, end)


def _linear_ticks(low: float, high: float, count: int, whole: bool) -> list[float]:
    raw = (high - low) / max(count, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = min((m * power for m in (1, 2, 2.5, 5, 10)), key=lambda s: abs(math.log(s / raw)))
    if whole:
        step = max(1.0, float(math.ceil(step)))
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    every = max(1, math.ceil((last - first) / 6))
    factors = (1, 2, 5) if last - first <= 2 else (1,)
    values = [v for e in range(first, last + 1, every) for v in (f * 10.0**e for f in factors) if low <= v <= high]
    # In less than half a decade round steps read better than a single power of ten.
    return values if len(values) > 2 else [v for v in _linear_ticks(low, high, 4, whole=False) if v > 0]


def _tick_label(value: float, step: float) -> str:
    if value == 0:
        return "0"
    size = abs(value)
    reach = max(size, step)
    for divisor, suffix in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if reach >= divisor * (10 if suffix == "k" else 1):
            return f"{value / divisor:.6g}{suffix}".replace("-", "−")
    if size < 1e-3:
        return f"{value:.3g}".replace("e-0", "e-").replace("-", "−")
    decimals = max(0, -math.floor(math.log10(step) + 1e-9)) if step else 0
    text = f"{value:.6g}" if not step else f"{value:.{decimals + (round(step / 10**-decimals, 6) == 2.5)}f}"
    return text.replace("-", "−")


# ---- shapes


def text(x: float, y: float, content: str, css: str = "", anchor: str = "start") -> str:
    place = f'x="{coordinate(x)}" y="{coordinate(y)}"'
    return f'<text {place} class="{css}" text-anchor="{anchor}">{escape(content)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, css: str) -> str:
    return f'<path class="{css}" d="M{coordinate(x1)} {coordinate(y1)}L{coordinate(x2)} {coordinate(y2)}"/>'


def polyline(points: Sequence[tuple[float | None, float | None]]) -> str:
    """Path data with gaps. `h0` makes a point between two gaps a visible dot."""
    parts: list[str] = []
    pen_down = False
    for x, y in points:
        if x is None or y is None:
            pen_down = False
            continue
        parts.append(f"{'L' if pen_down else 'M'}{coordinate(x)} {coordinate(y)}{'' if pen_down else 'h0'}")
        pen_down = True
    return "".join(parts)


def dots(points: Iterable[tuple[float | None, float | None]]) -> str:
    """Path data of many dots, ten bytes each: strokes of length 0 with round ends."""
    return "".join(f"M{coordinate(x)} {coordinate(y)}h0" for x, y in points if x is not None and y is not None)


def band(xs: Sequence[float | None], lows: Sequence[float | None], highs: Sequence[float | None]) -> str:
    """Path data of the area between two lines, in one piece between two gaps."""
    pieces: list[list[tuple[float, float, float]]] = [[]]
    for x, low, high in zip(xs, lows, highs, strict=True):
        if x is None or low is None or high is None:
            pieces.append([])
        else:
            pieces[-1].append((x, low, high))
    outlines = ([(x, h) for x, _, h in p] + [(x, low) for x, low, _ in reversed(p)] for p in pieces if len(p) > 1)
    return "".join("M" + "L".join(f"{coordinate(x)} {coordinate(y)}" for x, y in o) + "Z" for o in outlines)


def marker(shape: int, x: float, y: float, r: float = 3.4) -> str:
    """Path data of one of five marks, so that series differ in shape and in colour."""
    x0, y0 = coordinate(x), coordinate(y)
    match shape % 5:
        case 0:
            return f"M{coordinate(x - r)} {y0}a{r} {r} 0 1 0 {2 * r} 0a{r} {r} 0 1 0 {-2 * r} 0Z"
        case 1:
            return f"M{coordinate(x - r * 0.9)} {coordinate(y - r * 0.9)}h{r * 1.8:.1f}v{r * 1.8:.1f}h{-r * 1.8:.1f}Z"
        case 2:
            return f"M{x0} {coordinate(y - r * 1.2)}l{r * 1.15:.1f} {r * 2:.1f}h{-r * 2.3:.1f}Z"
        case 3:
            d = round(r * 1.3, 1)
            return f"M{x0} {coordinate(y - d)}l{d} {d}l{-d} {d}l{-d} {-d}Z"
        case _:
            return f"M{x0} {coordinate(y + r * 1.2)}l{r * 1.15:.1f} {-r * 2:.1f}h{-r * 2.3:.1f}Z"


def colour(share: float | None) -> str:
    """The colour of viridis at a share from 0 to 1; grey if the share is None or NaN."""
    if share is None or not math.isfinite(share):
        return "#888888"
    place = min(max(share, 0.0), 1.0) * (len(_VIRIDIS) - 1)
    left = min(int(place), len(_VIRIDIS) - 2)
    mixed = (a + (b - a) * (place - left) for a, b in zip(_VIRIDIS[left], _VIRIDIS[left + 1], strict=True))
    return "#" + "".join(f"{round(c):02x}" for c in mixed)


def drawing(width: float, height: float, label: str, body: str, css: str = "") -> str:
    return (
        f'<svg viewBox="0 0 {coordinate(width)} {coordinate(height)}" class="{css}" '
        f'role="img" aria-label="{escape(label)}">{body}</svg>'
    )

"""Figures of the speed benchmarks: each panel shows a measure over evenly spaced values, one line for each series."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from droprl import svg
from droprl.report import figure
from droprl.report.charts import frame

BOTTOM, HEIGHT = 180, 230


@dataclass(frozen=True)
class Panel:
    heading: str  # the measure
    title: str  # the meaning of the values
    series: Mapping[str, Mapping[int, float]]  # the measure at each value


def draw(title: str, note: str, panels: Sequence[Panel]) -> str:
    names = list(dict.fromkeys(name for panel in panels for name in panel.series))
    body = figure.key([(i, i, name) for i, name in enumerate(names)], 76)
    by_key = {f"{panel.heading} of {panel.title}": panel for panel in panels}

    def one(key: str, width: float, _: bool) -> str:
        return _panel(by_key[key], names, width)

    drawn, bottom = figure.panels(list(by_key), 92.0, 0, HEIGHT, one, lambda key: by_key[key].heading)
    return figure.page(title, figure.Drawing(body + drawn, bottom, note))


def _panel(panel: Panel, names: Sequence[str], width: float) -> str:
    values = sorted({value for of in panel.series.values() for value in of})
    heights = [0.0] + [height for of in panel.series.values() for height in of.values()]
    area = frame(range(len(values)), heights, top=24, bottom=BOTTOM, width=width, show_x=False, x_padding=0.06)
    parts = [area.axes, figure.place_axis(area, [_power(value) for value in values], panel.title, BOTTOM)]
    for name, of in panel.series.items():
        number = names.index(name)
        places = area.points([values.index(value) for value in of], of.values())
        marks = "".join(svg.marker(number, x, y) for x, y in places if x is not None and y is not None)
        parts.append(f'<path class="line s{number}" d="{svg.polyline(places)}"/>')
        parts.append(f'<path class="mark s{number}" d="{marks}"/>')
    return "".join(parts)


def _power(value: int) -> str:
    """As a power of ten from 10⁴ on."""
    return f"10{'⁰¹²³⁴⁵⁶⁷⁸⁹'[len(str(value)) - 1]}" if value >= 10**4 else f"{value:,}"

"""The figures of docs/recipe.md: `python benchmarks/recipe/figures.py [NAME …] [--results FOLDER] [--out FOLDER]`.

Each figure is declared once, in FIGURES. They are SVG files with a white page of their own, so that they read the same
in GitHub's light and dark mode.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import summary
from jobs import DATASETS, SEARCHED
from summary import Experiment, Played, dataset_named, load_experiment, standard_error

from droprl.errors import DropError
from droprl.report import svg
from droprl.report.charts import Frame, frame
from droprl.train.storage import write_bytes

OUT = Path(__file__).parents[2] / "docs" / "figures"
WIDTH, MARGIN = 860.0, 18.0
GREY = 6  # .s6: what a method is compared with
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
NAMES = {  # what a reader sees for a variant or a play; others stand under their own name
    "bc": "BC", "fbc": "F-BC", "lagrangian": "Lagrangian", "none": "no constraint", "all": "all datasets",
    "rank": "Rank", "behavior": "Behavior", "first": "First", "best": "Best", "grad": "Grad",
    "best-ada": "Best-Ada", "grad-ada": "Grad-Ada",
}  # fmt: skip


@dataclass(frozen=True)
class Figure:
    """What one file shows. What is None takes everything there is, in the order of the tables."""

    draw: Callable[[Experiment], Drawing]
    experiment: str
    title: str
    variants: tuple[str, ...] | None = None
    plays: tuple[str, ...] | None = None
    datasets: tuple[str, ...] | None = None


class Drawing(NamedTuple):
    body: str
    bottom: float
    note: str  # what the marks are


def named(word: str) -> str:
    return NAMES.get(word, word)


# --- dots and whiskers: rows × columns ---


@dataclass(frozen=True)
class Mark:
    """A value with its interval, where it has one, and the runs behind it."""

    value: float
    interval: tuple[float, float] | None = None
    runs: tuple[float, ...] = ()
    series: int = 0
    text: str = ""


@dataclass(frozen=True)
class Column:
    title: str
    limits: tuple[float, float] | None = None  # what lies below is an arrow at the edge, a mean with its number


@dataclass(frozen=True)
class Row:
    """A row without marks is a heading."""

    name: str
    marks: tuple[tuple[Mark, ...], ...] = ()  # of each column

    @property
    def height(self) -> float:
        return 12 + 12 * max(len(of) for of in self.marks) if self.marks else 30


def dot_chart(rows: Sequence[Row], columns: Sequence[Column], top: float) -> tuple[str, float]:
    """The drawing from `top` on, and where it ends. At most three columns side by side; the others go below."""
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
        of = row.marks[c] if row.marks else ()
        for i, mark in enumerate(of):
            parts.append(_dot(mark, x, y + row.height / 2 + 12 * (i - (len(of) - 1) / 2)))
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


def _mark_of_runs(runs: np.ndarray, series: int) -> Mark:
    return Mark(float(runs.mean()), runs=tuple(runs.tolist()), series=series)


# --- panels: one a dataset ---


def panels(
    datasets: Sequence[str], top: float, right: float, height: float, draw: Callable[[str, float, bool], str]
) -> tuple[str, float]:
    """Three in a line; `draw` gets the dataset, the panel's width, and whether it is the last of its line, which has
    room for labels at its right."""
    width, parts = (WIDTH - 2 * MARGIN - right) / 3, []
    for i, dataset in enumerate(datasets):
        x, y = MARGIN + i % 3 * width, top + i // 3 * height
        last = i % 3 == 2 or i == len(datasets) - 1
        title = svg.text(4, 12, dataset_named(dataset), "panel")
        body = title + draw(dataset, width, last)
        parts.append(f'<g transform="translate({svg.coordinate(x)} {svg.coordinate(y)})">{body}</g>')
    return "".join(parts), top + math.ceil(len(datasets) / 3) * height


def apart(places: Sequence[float], gap: float) -> list[float]:
    """The same places, moved as little as a plain pass does so that no two labels touch."""
    order, moved = sorted(range(len(places)), key=places.__getitem__), [*places]
    for before, after in pairwise(order):
        moved[after] = max(moved[after], moved[before] + gap)
    shift = max((moved[order[-1]] - places[order[-1]]) / 2, 0) if order else 0.0
    return [place - shift for place in moved]


def key(items: Sequence[tuple[int, int, str]], y: float) -> str:
    """(shape, colour, name) of each, in one line."""
    x, parts = MARGIN, []
    for shape, colour, name in items:
        parts.append(f'<path class="mark s{colour}" d="{svg.marker(shape, x + 5, y - 4, 4.4)}"/>')
        parts.append(svg.text(x + 15, y, name, f"key s{colour}"))
        x += 36 + 7.2 * len(name)
    return "".join(parts)


def page(title: str, drawing: Drawing) -> str:
    """A file of its own: a name space, a size, a style and a white ground."""
    size = f'width="{WIDTH:.0f}" height="{drawing.bottom + 10:.0f}"'
    body = f'<style>{STYLE}</style><rect class="page" {size} rx="6"/>' + svg.text(MARGIN, 28, title, "title")
    body += svg.text(MARGIN, 48, drawing.note, "note") + drawing.body
    drawn = svg.drawing(WIDTH, drawing.bottom + 10, f"{title}. {drawing.note}", body)
    return drawn.replace("<svg ", f'<svg xmlns="http://www.w3.org/2000/svg" {size} ', 1) + "\n"


def seeds_in(plays: Iterable[Played]) -> str:
    counts = {len(played.last) for played in plays}
    return f"{min(counts)} to {max(counts)} seeds" if len(counts) > 1 else f"{min(counts, default=0)} seeds"


# --- the figures ---


def draw_aggregate(experiment: Experiment) -> Drawing:
    """Only methods that have played everything: an IQM over fewer datasets is another number."""
    sets, rows, shown, left_out = summary.aggregated(experiment), [], [], []
    for variant, play in product(experiment.variants, experiment.plays):
        of = experiment.played(variant, play)
        if of and of.keys() >= {*experiment.scored}:
            series = GREY if play == variant else 0
            marks = tuple((_aggregate_mark(of, datasets, series),) for datasets in sets.values())
            rows.append(Row(method_named(experiment, variant, play), marks))
            shown += list(of.values())
        elif of:
            left_out.append(method_named(experiment, variant, play))
    if not rows or not sets:
        raise DropError("no method has played every dataset that has a reference score")
    note = f"Interquartile mean of D4RL-normalised scores and its 95 % interval, {seeds_in(shown)} a dataset"
    note += f"; not on every dataset: {', '.join(left_out)}" if left_out else ""
    return Drawing(*dot_chart(rows, [Column(f"{named(name)} ({len(of)})") for name, of in sets.items()], 66), note)


def method_named(experiment: Experiment, variant: str, play: str) -> str:
    """The play alone where that tells which variant is meant."""
    alone = len({r.variant for r in experiment.results if play in r.plays}) == 1
    return named(play) if alone else f"{named(variant)} · {named(play)}"


def _aggregate_mark(of: dict[str, Played], datasets: Sequence[str], series: int) -> Mark:
    found = summary.iqm_over({d: played.last for d, played in of.items()}, datasets)
    if found is None:
        return Mark(math.nan)
    return Mark(found.value, (found.low, found.high), series=series, text=svg.number(found.value, 1))


def draw_constraint(experiment: Experiment) -> Drawing:
    variants = experiment.variants
    steps = sorted(int(play[1:]) for play in experiment.plays if re.fullmatch(r"K\d+", play))

    def draw(dataset: str, width: float, last: bool) -> str:
        found = {i: r.plays for i, v in enumerate(variants) if (r := experiment.result(dataset, v))}
        lines = {i: {j: of[f"K{k}"].last for j, k in enumerate(steps) if f"K{k}" in of} for i, of in found.items()}
        edges = [r.mean() + side * standard_error(r) for of in lines.values() for r in of.values() for side in (-1, 1)]
        area = frame(range(len(steps)), edges, top=26, bottom=186, width=width, show_x=False, x_padding=0.03)
        parts = [area.axes, _step_axis(area, steps, 186)] + [_line_with_band(area, of, i) for i, of in lines.items()]
        if last:
            ends = {i: area.y(of[max(of)].mean()) or 0.0 for i, of in lines.items() if of}
            for i, y in zip(ends, apart([*ends.values()], 14), strict=True):
                parts.append(svg.text(width - 4, y + 4, named(variants[i]), f"key s{i % GREY}"))
        return "".join(parts)

    right = 7 * max(len(named(v)) for v in variants)
    seeds = seeds_in(played for r in experiment.results for played in r.plays.values())
    note = f"D4RL-normalised score against ascent steps K (not to scale): mean of {seeds} ± one standard error"
    return Drawing(*panels(experiment.datasets, 66, right, 232, draw), note)


def _step_axis(area: Frame, steps: Sequence[int], bottom: float) -> str:
    places = [area.x(i) or 0.0 for i in range(len(steps))]
    parts = [svg.text(p, bottom + 17, str(k), "tick", "middle") for p, k in zip(places, steps, strict=True)]
    parts += [svg.line(p, bottom, p, bottom + 4, "axis") for p in places]
    return "".join(parts) + svg.text((area.x.start + area.x.end) / 2, bottom + 33, "K", "tick", "middle")


def _line_with_band(area: Frame, of: dict[int, np.ndarray], series: int) -> str:
    points, css = area.points(of, [float(runs.mean()) for runs in of.values()]), f"s{series % GREY}"
    low, high = ([area.y(runs.mean() + side * standard_error(runs)) for runs in of.values()] for side in (-1, 1))
    marks = "".join(svg.marker(series, x, y) for x, y in points if x is not None and y is not None)
    return (
        f'<path class="band {css}" d="{svg.band([x for x, _ in points], low, high)}"/>'
        f'<path class="line {css}" d="{svg.polyline(points)}"/><path class="mark {css}" d="{marks}"/>'
    )


def draw_promise(experiment: Experiment) -> Drawing:
    """Colour is the play, shape the variant."""
    variants, plays = experiment.variants, experiment.plays
    found: dict[str, list[tuple[int, int, float, float]]] = {}  # (variant, play, promised, realised) of every seed
    for shape, colour in np.ndindex(len(variants), len(plays)):
        for dataset, played in experiment.played(variants[shape], plays[colour]).items():
            if played.promised is not None and played.realised is not None:
                pairs = zip(played.promised.mean(axis=-1), played.realised.mean(axis=-1), strict=True)
                found.setdefault(dataset, []).extend((shape, colour, float(p), float(r)) for p, r in pairs)

    def draw(dataset: str, width: float, last: bool) -> str:
        both, bottom = [v for point in found[dataset] for v in point[2:]], width - 30
        area = frame(both, both, top=26, bottom=bottom, width=width, x_padding=0.06, x_ticks=4, left=48)
        parts = [area.axes, svg.line(area.x.start, area.y.start, area.x.end, area.y.end, "diagonal")]
        for shape, colour, promised, realised in found[dataset]:
            x, y = area.x(promised), area.y(realised)
            if x is not None and y is not None:
                parts.append(f'<path class="run s{sorted(shown).index(colour)}" d="{svg.marker(shape, x, y, 4)}"/>')
        parts.append(svg.text((area.x.start + area.x.end) / 2, bottom + 34, "promised", "tick", "middle"))
        turned = svg.text(0, 0, "realised", "tick", "middle")
        return "".join(parts) + f'<g transform="translate(14 {bottom / 2 + 13:.1f}) rotate(-90)">{turned}</g>'

    shown = {colour for of in found.values() for _, colour, *_ in of}
    if not shown or len(shown) > GREY or len(variants) > 5:
        raise DropError(
            "one to six plays with a promise and up to five variants can be told apart; name them in FIGURES"
        )
    items = [(0, i, named(plays[colour])) for i, colour in enumerate(sorted(shown))]
    items += [(i, GREY, named(v)) for i, v in enumerate(variants)] if len(variants) > 1 else []
    datasets = [d for d in experiment.datasets if d in found]
    body, bottom = panels(datasets, 92, 0, (WIDTH - 2 * MARGIN) / 3 + 14, draw)
    note = "f at the first state against the discounted return, in standard deviations of the return; a point a seed. "
    return Drawing(key(items, 74) + body, bottom, note + "Below the diagonal, f promised too much.")


MEASURES = {
    "top_share": Column("states where the top sub-task wins", (0.0, 1.0)),
    "held_out_r2_by_return": Column("held-out R², z by return", (-1.0, 1.0)),
    "held_out_r2_by_behavior": Column("held-out R², z by behaviour", (-1.0, 1.0)),
}


def draw_luck(experiment: Experiment) -> Drawing:
    rows = []
    for dataset in experiment.datasets:
        rows.append(Row(dataset_named(dataset)))
        for i, variant in enumerate(experiment.variants):
            result = experiment.result(dataset, variant)
            known = [result.measures.get(name) if result else None for name in MEASURES]
            marks = tuple((_mark_of_runs(seeds, i % GREY),) if seeds is not None else () for seeds in known)
            rows += [Row(named(variant), marks)] if any(marks) else []
    if not any(row.marks for row in rows):
        raise DropError("no result has any of these measures")
    note = "Small: one seed. Large: their mean. An arrow: below the axis"
    return Drawing(*dot_chart(rows, [*MEASURES.values()], 66), note)


def draw_decomposition(experiment: Experiment) -> Drawing:
    """A colour a play; a variant's play of its own, which is a baseline's, is grey."""
    plays, scored, rows = [p for p in experiment.plays if p not in experiment.variants], experiment.scored, []
    for variant in experiment.variants:
        played = {p: of for p in [*plays, variant] if (of := experiment.played(variant, p))}
        whole = {p: of for p, of in played.items() if scored and of.keys() >= {*scored}}
        cells = [tuple(_aggregate_mark(of, scored, _colour(plays, p)) for p, of in whole.items())]
        for d in experiment.datasets:
            cells.append(tuple(_mark_of_runs(of[d].last, _colour(plays, p)) for p, of in played.items() if d in of))
        rows += [Row(named(variant), tuple(cells))] if any(cells) else []
    columns = [Column("all datasets: IQM, 95 % interval"), *(Column(dataset_named(d)) for d in experiment.datasets)]
    body, bottom = dot_chart(rows, columns, 92)
    items = [(_colour(plays, p), _colour(plays, p), named(p)) for p in plays]
    note = "D4RL-normalised score. Small: one seed, the mean of its episodes. Large: the mean of the seeds"
    return Drawing(key(items, 74) + body, bottom, note)


def _colour(plays: Sequence[str], play: str) -> int:
    return plays.index(play) % GREY if play in plays else GREY


LOCOMOTION = tuple(d for d in DATASETS if d.startswith(("hopper", "walker2d", "halfcheetah")))
RULES_SHOWN = ("first", "best", "grad", "best-ada", "grad-ada")
FIGURES = {
    "aggregate": Figure(
        draw_aggregate,
        "main",
        "What each rule earns",
        ("bc", "fbc", "rank", "behavior"),
        ("bc", "fbc", *RULES_SHOWN),
        LOCOMOTION,
    ),
    "conditioning": Figure(draw_decomposition, "choose", "How z enters the policy", None, ("first", "best-ada")),
    "decomposition": Figure(
        draw_decomposition,
        "main",
        "How the data is cut into sub-tasks",
        ("rank", "behavior"),
        ("first", "best-ada", "grad-ada"),
    ),
    "promise": Figure(
        draw_promise, "main", "What f promises and what is earned", ("rank",), ("best-ada", "grad-ada"), SEARCHED
    ),
    "constraint": Figure(draw_constraint, "constraint", "How far to ascend, with the constraint and without"),
    "luck": Figure(draw_luck, "luck", "Does f know behaviour, or luck?", ("rank", "behavior")),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(FIGURES)} (default: all)")
    parser.add_argument("--results", type=Path, default=summary.RESULTS, help="folder of the results")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    if unknown := set(options.names) - set(FIGURES):
        parser.error(f"no figure {', '.join(unknown)}; there are {', '.join(FIGURES)}")
    for name in options.names or FIGURES:
        figure = FIGURES[name]
        try:
            experiment = load_experiment(figure.experiment, options.results)
            drawing = figure.draw(experiment.only(figure.variants, figure.plays, figure.datasets))
        except DropError as error:
            print(f"{name}: left out: {error}")
            continue
        write_bytes(options.out / f"{name}.svg", page(figure.title, drawing).encode())
        print(options.out / f"{name}.svg")


if __name__ == "__main__":
    main()

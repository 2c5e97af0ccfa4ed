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
from itertools import product
from pathlib import Path

import kept
import numpy as np
import summary
from jobs import DATASETS, SEARCHED
from summary import Experiment, Played, dataset_named, load_experiment

from droprl import svg
from droprl.errors import DropError
from droprl.evaluation.statistics import standard_error
from droprl.files.storage import write_bytes
from droprl.report.charts import frame
from droprl.report.figure import (
    GREY,
    MARGIN,
    WIDTH,
    Column,
    Drawing,
    Mark,
    Row,
    apart,
    dot_chart,
    key,
    line_with_band,
    mean_mark,
    page,
    panels,
    place_axis,
)

OUT = Path(__file__).parents[2] / "docs" / "figures"
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


def named(word: str) -> str:
    return NAMES.get(word, word)


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
        parts = [area.axes, place_axis(area, steps, "K", 186)] + [
            line_with_band(area, of, i) for i, of in lines.items()
        ]
        if last:
            ends = {i: area.y(of[max(of)].mean()) or 0.0 for i, of in lines.items() if of}
            for i, y in zip(ends, apart([*ends.values()], 14), strict=True):
                parts.append(svg.text(width - 4, y + 4, named(variants[i]), f"key s{i % GREY}"))
        return "".join(parts)

    right = 7 * max(len(named(v)) for v in variants)
    seeds = seeds_in(played for r in experiment.results for played in r.plays.values())
    note = f"D4RL-normalised score against ascent steps K (not to scale): mean of {seeds} ± one standard error"
    return Drawing(*panels(experiment.datasets, 66, right, 232, draw, dataset_named), note)


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
    body, bottom = panels(datasets, 92, 0, (WIDTH - 2 * MARGIN) / 3 + 14, draw, dataset_named)
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
            marks = tuple((mean_mark(seeds, i % GREY),) if seeds is not None else () for seeds in known)
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
            cells.append(tuple(mean_mark(of[d].last, _colour(plays, p)) for p, of in played.items() if d in of))
        rows += [Row(named(variant), tuple(cells))] if any(cells) else []
    columns = [Column("all datasets: IQM, 95 % interval"), *(Column(dataset_named(d)) for d in experiment.datasets)]
    body, bottom = dot_chart(rows, columns, 92)
    items = [(_colour(plays, p), _colour(plays, p), named(p)) for p in plays]
    note = "D4RL-normalised score. Small: one seed, the mean of its episodes. Large: the mean of the seeds"
    return Drawing(key(items, 74) + body, bottom, note + (f".{experiment.clocks}" if experiment.clocks else ""))


def _colour(plays: Sequence[str], play: str) -> int:
    return plays.index(play) % GREY if play in plays else GREY


LOCOMOTION = tuple(d for d in DATASETS if d.startswith(("hopper", "walker2d", "halfcheetah")))
RULES_SHOWN = ("first", "best", "grad", "best-ada", "grad-ada")
FIGURES = {
    "aggregate": Figure(
        draw_aggregate,
        "paper_size",
        "What each rule earns",
        ("bc", "fbc", "rank"),
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
    "constraint": Figure(
        draw_constraint,
        "constraint",
        "How far to ascend, with the constraint and without",
        ("lagrangian", "hinge", "none"),
    ),
    "luck": Figure(draw_luck, "luck", "Does f know behaviour, or luck?", ("rank", "behavior")),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(FIGURES)} (default: all)")
    parser.add_argument("--results", type=Path, default=kept.RESULTS, help="folder of the results")
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

"""The figure of a suite, drawn from what was played or logged."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from droprl import svg
from droprl.bench.results import WHEN, Bench
from droprl.bench.suite import Method, label
from droprl.bench.tables import load_scores
from droprl.errors import DropError
from droprl.evaluation.statistics import aggregate, standard_error
from droprl.report.charts import frame
from droprl.report.figure import (
    GREY,
    MARGIN,
    Column,
    Drawing,
    Mark,
    Row,
    apart,
    dot_chart,
    line_with_band,
    mean_mark,
    page,
    panels,
    place_axis,
)

HEIGHT = 232.0
SCORE = f"Score, {WHEN[1]}"
Measure = Callable[[str, Method, str], np.ndarray | None]
Lines = dict[str, dict[int, np.ndarray]]  # for each line and place: one value for each seed


def suite_figure(bench: Bench) -> str:
    """The suite's figure, as the content of an SVG file."""
    suite = bench.suite
    draw: dict[str, Callable[[Bench], Drawing]] = {
        "plays": _along_plays,
        "methods": _along_methods,
        "dots": _dots,
        "training": _training,
    }
    return page(suite.title, draw[suite.figure.kind](bench))


def _along_plays(bench: Bench) -> Drawing:
    suite = bench.suite
    places, values = list(suite.plays), suite.figure.values or tuple(suite.plays)

    def lines_of(measure: Measure) -> Callable[[str], Lines]:
        def of_task(task: str) -> Lines:
            return {
                m.name: {i: s for i, p in enumerate(places) if (s := measure(task, m, p)) is not None}
                for m in suite.methods
            }

        return of_task

    drawn = _panels(bench, lines_of(bench.scores), values, SCORE)
    if not suite.figure.time:
        return drawn
    title = svg.text(MARGIN, drawn.bottom + 14, "Milliseconds for one action", "panel")
    timed = _panels(bench, lines_of(bench.milliseconds), values, "", drawn.bottom + 30)
    return Drawing(drawn.body + title + timed.body, timed.bottom, drawn.note)


def _along_methods(bench: Bench) -> Drawing:
    suite = bench.suite
    values = suite.figure.values or tuple(m.name for m in suite.methods)

    def lines_of(task: str) -> Lines:
        return {
            p: {i: s for i, m in enumerate(suite.methods) if (s := bench.scores(task, m, p)) is not None}
            for p in suite.plays
        }

    return _panels(bench, lines_of, values, SCORE)


def _training(bench: Bench) -> Drawing:
    suite, metric, points = bench.suite, bench.suite.figure.metric, 10
    steps = [suite.steps * (i + 1) // points for i in range(points)]

    def lines_of(task: str) -> Lines:
        return {m.name: _logged(bench, task, m, metric, steps) for m in suite.methods}

    return _panels(bench, lines_of, tuple(f"{s / 1000:g}k" for s in steps), metric)


def _logged(bench: Bench, task: str, method: Method, metric: str, steps: Sequence[int]) -> dict[int, np.ndarray]:
    """For each step the metric of every seed, from the last log entry up to it. Nothing beyond the end of the log."""
    run = bench.run(task, method)
    log = [] if run is None else [entry for entry in run.metrics() if metric in entry]
    found = {}
    for i, step in enumerate(steps):
        earlier = [entry for entry in log if entry["step"] <= step]
        if earlier and step <= log[-1]["step"]:
            found[i] = np.asarray(earlier[-1][metric], float)
    return found


def _panels(
    bench: Bench, lines_of: Callable[[str], Lines], values: Sequence[str], what: str, top: float = 66
) -> Drawing:
    suite = bench.suite
    names = list(lines_of(suite.tasks[0]))

    def draw(task: str, width: float, last: bool) -> str:
        lines = {i: line for i, line in enumerate(lines_of(task).values()) if line}
        if not lines:
            return ""
        runs = [seeds for line in lines.values() for seeds in line.values()]
        edges = [seeds.mean() + side * standard_error(seeds) for seeds in runs for side in (-1, 1)]
        area = frame(range(len(values)), edges, top=26, bottom=186, width=width, show_x=False, x_padding=0.03)
        parts = [area.axes, place_axis(area, values, suite.figure.x, 186)]
        parts += [line_with_band(area, line, i) for i, line in lines.items()]
        if last:
            ends = {i: area.y(line[max(line)].mean()) or 0.0 for i, line in lines.items()}
            for i, y in zip(ends, apart([*ends.values()], 14), strict=True):
                parts.append(svg.text(width - 4, y + 4, names[i], f"key s{i % GREY}"))
        return "".join(parts)

    shown = "one seed" if suite.seeds == 1 else f"mean of {suite.seeds} seeds ± one standard error"
    note = f"{what}: {shown}; places are not to scale"
    right = 7.0 * max(map(len, names), default=0)
    return Drawing(*panels(suite.tasks, top, right, HEIGHT, draw), note)


def _dots(bench: Bench) -> Drawing:
    scores, rows = load_scores(bench), []
    for method in bench.suite.methods:
        for i, play in enumerate(bench.suite.plays_of(method)):
            name = label(method, play)
            known = scores.runs.get(name, {})
            cells = [(mean_mark(known[task], i % GREY),) if task in known else () for task in scores.tasks]
            over_all: tuple[Mark, ...] = ()
            if known and (whole := scores.whole(name)) is not None:
                found = aggregate(whole, "iqm")
                over_all = (Mark(found.value, (found.low, found.high), (), i % GREY, svg.number(found.value, 1)),)
            rows.append(Row(name, (over_all, *cells)))
    if not scores.runs:
        raise DropError(f"{bench.out}: no episode is played yet: run the suite first")
    columns = [Column("all tasks: IQM, 95 % interval"), *(Column(scores.names[task]) for task in scores.tasks)]
    note = f"{SCORE}. Small: one seed, the mean of its episodes. Large: the mean over seeds"
    return Drawing(*dot_chart(rows, columns, 66), note)

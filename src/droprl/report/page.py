"""From a `Report` to one HTML file that needs nothing else: style, script and figures are inside it.

Every text is escaped here or in `svg`; the page's own policy header forbids it to load anything.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from itertools import count
from pathlib import Path
from string import Template
from typing import Any

from droprl.report import charts, svg, walks
from droprl.report.contents import Chart, Diagnostic, EmbeddingWalk, Report, ScoreRow, SubTaskReturns


def write_report(report: Report, path: str | Path) -> Path:
    """Write the page so that a reader never meets half of it."""
    path = Path(path)
    page = render(report)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    try:
        unfinished.write_text(page, encoding="utf-8")
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path


def render(report: Report) -> str:
    figures = Numbering()
    sections = [
        ("scores", "Scores", _scores(report, figures)),
        ("learning", "Learning curves", _chart_grid(report.curves, figures)),
        ("sub-tasks", "Sub-tasks", _sub_tasks(report.sub_tasks, figures) if report.sub_tasks else ""),
        ("walks", "The embedding during an episode", _walks(report.walks, figures)),
        ("diagnostics", "Diagnostics", _diagnostics(report.diagnostics, report.diagnostic_charts, figures)),
    ]
    shown = [(name, heading, body) for name, heading, body in sections if body]
    body = _header(report, [(name, heading) for name, heading, _ in shown]) + "".join(
        f'<section id="{name}" aria-labelledby="{name}-heading"><h2 id="{name}-heading">{heading}</h2>{part}</section>'
        for name, heading, part in shown
    )
    return Template(_resource("page.html")).substitute(
        title=escape(report.title), style=_resource("page.css"), script=_resource("page.js"), body=body
    )


class Numbering:
    """Figures and tables are numbered as they are placed, so that leaving a part out leaves no hole."""

    def __init__(self) -> None:
        self._figures, self._tables = count(1), count(1)

    def figure(self) -> str:
        return f'<span class="number">Figure {next(self._figures)}</span>'

    def table(self) -> str:
        return f'<span class="number">Table {next(self._tables)}</span>'


def _resource(name: str) -> str:
    return files("droprl.report").joinpath(name).read_text(encoding="utf-8")


def _json(data: Any) -> str:
    """Data for the script. `<` is written as an escape, so that no text can close the element it stands in."""
    text = json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json">{text}</script>'


def _listing(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else ""


# ---- top of the page


def _header(report: Report, sections: Sequence[tuple[str, str]]) -> str:
    notes = "".join(f"<li>{escape(note)}</li>" for note in report.notes)
    facts = "".join(f"<div><dt>{escape(label)}</dt><dd>{escape(value)}</dd></div>" for label, value in report.facts)
    links = "".join(f'<li><a href="#{name}">{heading}</a></li>' for name, heading in sections)
    return "".join(
        [
            f'<header><p class="eyebrow">DROP report</p><h1>{escape(report.title)}</h1>',
            f'<p class="subtitle">{escape(report.subtitle)}</p>' if report.subtitle else "",
            f'<nav aria-label="Sections"><ul>{links}</ul></nav>' if len(sections) > 1 else "",
            f'<aside aria-label="Notes"><ul>{notes}</ul></aside>' if notes else "",
            f'<dl class="facts">{facts}</dl>' if facts else "",
            _command(report.command),
            "</header>",
        ]
    )


def _command(command: str) -> str:
    """Broken between words only: browsers would otherwise break after the dashes of an option."""
    words = " ".join(f"<span>{escape(word)}</span>" for word in command.split(" ") if word)
    return f'<p class="command">Made by <code>{words}</code></p>' if words else ""


# ---- scores


def _scores(report: Report, figures: Numbering) -> str:
    rows = report.table
    if not rows:
        return ""
    values = [r.mean if report.interval_of == "mean" else r.iqm for r in rows]
    best = charts.highest(values)
    statistic = "mean" if report.interval_of == "mean" else "IQM"
    unit = escape(report.score_unit)
    table = (
        f'<div class="scroll"><table class="scores"><caption>{figures.table()} {unit}. IQM is the mean of the middle '
        f"half of the episodes; the interval is that of the {statistic}.</caption><thead><tr>"
        '<th scope="col">Method</th><th scope="col">Mean</th><th scope="col">IQM</th>'
        '<th scope="col">95 % interval</th><th scope="col" class="roomy">Seeds</th>'
        '<th scope="col" class="roomy">Episodes</th><th scope="col">ms per action</th></tr></thead>'
        f"<tbody>{_score_rows(rows, best, statistic)}</tbody></table></div>"
    )
    plots = "".join(charts.interval_chart(rows, best, report.score_unit, narrow) for narrow in (False, True))
    figure = (
        f'<figure class="full"><h3>{figures.figure()} Every episode, and the interval they support</h3>{plots}'
        "<figcaption>Faint dots: single episodes, spread in height only to be seen. "
        f"{_mark('mean', 'mean,')} {_mark('iqm', 'IQM,')} {_mark('interval', f'95 % interval of the {statistic}.')}"
        "</figcaption></figure>"
    )
    return _verdict(rows, values, best, statistic) + table + figure


def _mark(kind: str, words: str) -> str:
    shape = {"interval": "M2 6H20M2 2V10M20 2V10", "mean": svg.marker(0, 11, 6, 3), "iqm": svg.marker(3, 11, 6, 4.2)}[
        kind
    ]
    key = f'<svg viewBox="0 0 22 12" class="key" aria-hidden="true"><path class="{kind}" d="{shape}"/></svg>'
    return f'<span class="together">{key}{words}</span>'


def _verdict(rows: Sequence[ScoreRow], values: Sequence[float], best: int | None, statistic: str) -> str:
    """The result in a sentence that claims no more than the intervals do."""
    if best is None:
        return '<p class="lead">No score is known yet.</p>'
    top, decimals = rows[best], svg.decimals_for(values)
    claim = f"has the highest {statistic}," if len(rows) > 1 else f"has a {statistic} of"
    sentence = (
        f"<strong>{escape(charts.row_name(top))}</strong> {claim} {svg.number(values[best], decimals)} "
        f"(95 % interval {_interval(top, decimals)})."
    )
    # `not (high < low)` rather than `high >= low`: an interval that is not known settles nothing.
    rivals = [charts.row_name(r) for i, r in enumerate(rows) if i != best and not r.high < top.low]
    if len(rivals) > 4:
        sentence += f" Its interval overlaps those of {len(rivals)} other rows: these data do not settle the order."
    elif rivals:
        those = "that of" if len(rivals) == 1 else "those of"
        sentence += f" Its interval overlaps {those} {escape(_listing(rivals))}: these data do not settle the order."
    elif len(rows) > 1:
        sentence += " Its interval lies above all the others."
    single = [charts.row_name(r) for r in rows if r.seeds == 1]
    if single:
        who = "Every row" if len(single) == len(rows) > 1 else escape(_listing(single))
        verb = "rest" if 1 < len(single) < len(rows) else "rests"
        sentence += f" {who} {verb} on one seed: the interval cannot show how much trainings differ."
    return f'<p class="lead">{sentence}</p>'


def _interval(row: ScoreRow, decimals: int) -> str:
    if not (math.isfinite(row.low) or math.isfinite(row.high)):
        return "–"
    dash = " to " if row.low < 0 or row.high < 0 else "–"
    return f"{svg.number(row.low, decimals)}{dash}{svg.number(row.high, decimals)}"


def _score_rows(rows: Sequence[ScoreRow], best: int | None, statistic: str) -> str:
    marks = {statistic: "ranked"}  # the column that decides
    decimals = svg.decimals_for(v for r in rows for v in (r.mean, r.iqm))
    time_decimals = svg.decimals_for(r.milliseconds_per_action for r in rows)
    parts = []
    for i, row in enumerate(rows):
        rule = f' <span class="rule">{escape(row.rule)}</span>' if row.rule else ""
        badge = ' <span class="badge">highest</span>' if i == best and len(rows) > 1 else ""
        size = f'<span class="cramped">{_counted(row.seeds, "seed")}, {_counted(row.episodes, "episode")}</span>'
        cells = (
            (svg.number(row.mean, decimals), marks.get("mean", "")),
            (svg.number(row.iqm, decimals), marks.get("IQM", "")), (_interval(row, decimals), ""),
            (f"{row.seeds:,}", "roomy"), (f"{row.episodes:,}", "roomy"),
            (svg.number(row.milliseconds_per_action, time_decimals), ""),
        )  # fmt: skip
        numbers = "".join(f'<td class="{css}">{value}</td>' if css else f"<td>{value}</td>" for value, css in cells)
        name = f'<th scope="row"><span class="method">{escape(row.method)}</span>{rule}{badge}{size}</th>'
        parts.append(f'<tr class="best">{name}{numbers}</tr>' if i == best else f"<tr>{name}{numbers}</tr>")
    return "".join(parts)


def _counted(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


# ---- charts


def _chart_grid(several: Sequence[Chart], figures: Numbering) -> str:
    return f'<div class="figures">{"".join(_chart(c, figures) for c in several)}</div>' if several else ""


def _chart(chart: Chart, figures: Numbering) -> str:
    drawing, data = charts.line_chart(chart)
    keys = "".join(f"<li>{charts.legend_key(i)}{escape(s.label)}</li>" for i, s in enumerate(chart.series))
    legend = f'<ul class="legend">{keys}</ul>' if len(chart.series) > 1 or any(s.label for s in chart.series) else ""
    hidden = charts.hidden_by_log(chart)
    note = chart.note
    if hidden:
        note = f"{note} {_counted(hidden, 'value')} of zero or less cannot be shown on this logarithmic axis.".strip()
    plot = (
        '<div class="plot" data-chart tabindex="0" role="group" '
        f'aria-label="{escape(chart.title)}: arrow keys read values">{drawing}'
        f'<output class="tip" hidden></output>{_json(data)}</div>'
    )
    y_label = chart.y_label + (" (log scale)" if chart.log_y else "")
    return _figure(figures, chart.title, legend, y_label, plot, chart.x_label, escape(note))


def _figure(figures: Numbering, title: str, legend: str, y_label: str, plot: str, x_label: str, note: str) -> str:
    """Axis names are HTML and not SVG text: they wrap instead of being cut off. `note` is HTML already."""
    caption = f"<figcaption>{note}</figcaption>" if note else ""
    return (
        f'<figure><h3>{figures.figure()} {escape(title)}</h3>{legend}<p class="y-label">{escape(y_label)}</p>{plot}'
        f'<p class="x-label">{escape(x_label)}</p>{caption}</figure>'
    )


def _sub_tasks(sub_tasks: SubTaskReturns, figures: Numbering) -> str:
    means = sub_tasks.mean_returns
    if not means:
        return ""
    many = len(means) > charts.WHISKERS_UP_TO
    spread = "the band spans" if many else "the line through it spans"
    first = _figure(
        figures, "Returns by sub-task", "", "return of a trajectory", charts.returns_chart(sub_tasks),
        "sub-task n, in rank order",
        f"A point is the mean return of a sub-task's trajectories; {spread} the smallest to the largest.",
    )  # fmt: skip
    if sub_tasks.predicted is None:
        return f'<div class="figures">{first}</div>'
    predicted = sub_tasks.predicted
    rho, chosen, top = charts.rank_correlation(means, predicted), charts.highest(predicted), charts.highest(means)
    said = [f"Spearman’s ρ = {svg.number(rho, 2)}." if rho is not None else "No rank correlation is defined here."]
    if chosen is not None and top is not None:
        said.append(
            f"Ringed: sub-task {chosen}, the one f prefers at the start; "
            + ("it has the highest return too." if chosen == top else f"the highest return belongs to sub-task {top}.")
        )
    second = _figure(
        figures, "Does f rank the sub-tasks as their returns do?", "", "score f(s₀, β(s₀, zₙ), zₙ)",
        charts.ranking_chart(sub_tasks, predicted), "mean return of sub-task n", escape(" ".join(said)),
    )  # fmt: skip
    return f'<div class="figures">{first}{second}</div>'


# ---- walks


def _walks(several: Sequence[EmbeddingWalk], figures: Numbering) -> str:
    several = [w for w in several if w.path]
    if not several:
        return ""
    shared = walks.shared_scales(several)
    tabs = "".join(
        f'<label><input type="radio" name="walk" value="{i}"{" checked" if i == 0 else ""}>'
        f"<span>{escape(w.rule)}</span></label>"
        for i, w in enumerate(several)
    )
    bar = (
        f'<div class="bar" hidden><fieldset class="tabs"><legend>Rule</legend>{tabs}</fieldset>'
        '<div class="player"><button type="button" class="play">Play</button>'
        f'<input type="range" class="scrub" min="0" max="{shared.steps - 1}" value="0" aria-label="Step">'
        '</div><p class="readout"></p></div>'
    )
    panels = "".join(_walk(i, w, shared) for i, w in enumerate(several))
    return (
        f'<figure class="full" data-walks><h3>{figures.figure()} Where the inferred embedding z* goes</h3>'
        f"{bar}{panels}</figure>"
    )


_PLANE_CAPTION = (
    "Circles: the sub-tasks’ embeddings zₙ, coloured by mean return. Diamond: z* at the present step, with the last "
    "steps as a trail; the dashed line leads back to the zₙ it rose from. Faint dots: z* at every step of the episode. "
    "All rules share their scales."
)


def _walk(index: int, walk: EmbeddingWalk, shared: walks.SharedScales) -> str:
    plane, maze, traces, data = walks.walk_drawings(walk, shared)
    kept = "The axes are those of a projection to two dimensions"
    if math.isfinite(walk.explained):
        kept += f" that keeps {100 * walk.explained:.0f} % of the variance"
    if walk.explained < 0.5:
        kept += ", less than half: points that look close may not be"
    scene = f'<p class="label">Where the agent is (□ start, ◎ goal)</p>{maze}' if maze else ""
    return (
        f'<div class="walk" data-walk="{index}"><h4>{escape(walk.rule)}</h4><div class="columns"><div>{plane}'
        f'<p class="caption">{_PLANE_CAPTION} {kept}.</p></div>'
        f"<div>{scene}{traces}</div></div>{_json(data)}</div>"
    )


# ---- diagnostics

_STATUS = {True: ("good", "✓", "healthy"), False: ("bad", "!", "look here"), None: ("open", "·", "not judged")}


def _diagnostics(checks: Sequence[Diagnostic], several: Sequence[Chart], figures: Numbering) -> str:
    if not checks:
        return _chart_grid(several, figures)
    rows = ""
    for check in checks:
        css, icon, words = _STATUS[check.healthy]
        rows += (
            f'<tr class="{css}"><td class="status"><span class="icon" aria-hidden="true">{icon}</span> {words}</td>'
            f'<th scope="row">{escape(check.name)}<span class="meaning">{escape(check.meaning)}</span></th>'
            f"<td>{svg.short(check.value)}</td></tr>"
        )
    judged, bad = [c for c in checks if c.healthy is not None], [c.name for c in checks if c.healthy is False]
    lead = f"{len(judged) - len(bad)} of {_counted(len(judged), 'judged check')} healthy."
    if bad:
        listed = bad if len(bad) <= 4 else [*bad[:3], f"{len(bad) - 3} more"]
        lead += f" Look at: {escape(_listing(listed))}."
    return (
        f'<p class="lead">{lead}</p><table class="checks"><caption>{figures.table()} What must hold for the scores '
        'to be believed</caption><thead><tr><th scope="col">Status</th><th scope="col">Check</th>'
        f'<th scope="col">Value</th></tr></thead><tbody>{rows}</tbody></table>{_chart_grid(several, figures)}'
    )

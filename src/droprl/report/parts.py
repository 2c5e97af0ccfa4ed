"""What both pages share: the frame of a page, numbered figures, the verdict, line charts and the embedding's walk.

Every text is escaped here or in `svg`. The page's Content-Security-Policy forbids it to load anything.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from itertools import count
from pathlib import Path
from string import Template
from typing import Any

from droprl import svg
from droprl.report import charts, walks
from droprl.report.contents import Chart, EmbeddingWalk, ScoreRow

Section = tuple[str, str, str]  # id, heading and content as HTML; a section without content is left out


def write_page(page: str, path: str | Path) -> Path:
    """Write the page so that nobody can read a half-written one."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    try:
        unfinished.write_text(page, encoding="utf-8")
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path


@dataclass(frozen=True)
class Header:
    """The top of a page, as text."""

    kind: str  # the kind of page, in small letters above the title
    title: str
    subtitle: str
    notes: Sequence[str]
    facts: Sequence[tuple[str, str]]
    command: str
    note: str = ""  # what the people who made the page want to say, under the subtitle


def whole_page(header: Header, sections: Sequence[Section]) -> str:
    shown = [section for section in sections if section[2]]
    body = _header(header, [(name, heading) for name, heading, _ in shown]) + "".join(
        f'<section id="{name}" aria-labelledby="{name}-heading"><h2 id="{name}-heading">{heading}</h2>{part}</section>'
        for name, heading, part in shown
    )
    return Template(_resource("page.html")).substitute(
        title=escape(header.title), style=_resource("page.css"), script=_resource("page.js"), body=body
    )


class Numbering:
    """Numbers figures and tables as they are placed, so that a part that is left out leaves no gap."""

    def __init__(self) -> None:
        self._figures, self._tables = count(1), count(1)

    def figure(self) -> str:
        return f'<span class="number">Figure {next(self._figures)}</span>'

    def table(self) -> str:
        return f'<span class="number">Table {next(self._tables)}</span>'


def _resource(name: str) -> str:
    return files("droprl.report").joinpath(name).read_text(encoding="utf-8")


def json_data(data: Any) -> str:
    """Data for the script. `<` is escaped, so that no text can close the script element."""
    text = json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json">{text}</script>'


def listing(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else ""


def counted(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


# ---- top of the page


def _header(top: Header, sections: Sequence[tuple[str, str]]) -> str:
    notes = "".join(f"<li>{escape(note)}</li>" for note in top.notes)
    facts = "".join(f"<div><dt>{escape(label)}</dt><dd>{escape(value)}</dd></div>" for label, value in top.facts)
    links = "".join(f'<li><a href="#{name}">{heading}</a></li>' for name, heading in sections)
    return "".join(
        [
            f'<header><p class="eyebrow">{escape(top.kind)}</p><h1>{escape(top.title)}</h1>',
            f'<p class="subtitle">{escape(top.subtitle)}</p>' if top.subtitle else "",
            f'<p class="note">{escape(top.note)}</p>' if top.note else "",
            f'<nav aria-label="Sections"><ul>{links}</ul></nav>' if len(sections) > 1 else "",
            f'<aside aria-label="Notes"><ul>{notes}</ul></aside>' if notes else "",
            f'<dl class="facts">{facts}</dl>' if facts else "",
            made_by(top.command),
            "</header>",
        ]
    )


def made_by(command: str) -> str:
    """Lines break between words only: browsers would also break after the dashes of an option."""
    words = " ".join(f"<span>{escape(word)}</span>" for word in command.split(" ") if word)
    return f'<p class="command">Made by <code>{words}</code></p>' if words else ""


# ---- scores


def interval_figure(
    rows: Sequence[ScoreRow], best: int | None, unit: str, figures: Numbering, title: str, dots: str, statistic: str
) -> str:
    """`dots` says what the faint dots are, `statistic` what the intervals are for."""
    plots = "".join(charts.interval_chart(rows, best, unit, narrow) for narrow in (False, True))
    return (
        f'<figure class="full"><h3>{figures.figure()} {title}</h3>{plots}'
        f"<figcaption>Faint dots: {dots}, spread in height only to separate them. "
        f"{_mark('mean', 'mean,')} {_mark('iqm', 'IQM,')} {_mark('interval', f'95 % interval of the {statistic}.')}"
        "</figcaption></figure>"
    )


def _mark(kind: str, words: str) -> str:
    shape = {"interval": "M2 6H20M2 2V10M20 2V10", "mean": svg.marker(0, 11, 6, 3), "iqm": svg.marker(3, 11, 6, 4.2)}[
        kind
    ]
    key = f'<svg viewBox="0 0 22 12" class="key" aria-hidden="true"><path class="{kind}" d="{shape}"/></svg>'
    return f'<span class="together">{key}{words}</span>'


def verdict(rows: Sequence[ScoreRow], values: Sequence[float], best: int | None, statistic: str) -> str:
    """The result in a few sentences that claim no more than the intervals show."""
    if best is None:
        return '<p class="lead">No score is known yet.</p>'
    top, decimals = rows[best], svg.decimals_for(values)
    claim = f"has the highest {statistic}," if len(rows) > 1 else f"has a {statistic} of"
    sentence = (
        f"<strong>{escape(charts.row_name(top))}</strong> {claim} {svg.number(values[best], decimals)} "
        f"(95 % interval {interval(top.low, top.high, decimals)})."
    )
    # `not (high < low)` and not `high >= low`: with NaN the order is not settled.
    rivals = [charts.row_name(r) for i, r in enumerate(rows) if i != best and not r.high < top.low]
    if len(rivals) > 4:
        sentence += f" Its interval overlaps those of {len(rivals)} other rows: these data do not decide the order."
    elif rivals:
        those = "that of" if len(rivals) == 1 else "those of"
        sentence += f" Its interval overlaps {those} {escape(listing(rivals))}: these data do not decide the order."
    elif len(rows) > 1:
        sentence += " Its interval lies above all the others."
    single = [charts.row_name(r) for r in rows if r.seeds == 1]
    if single:
        who = "Every row" if len(single) == len(rows) > 1 else escape(listing(single))
        verb = "rest" if 1 < len(single) < len(rows) else "rests"
        sentence += f" {who} {verb} on one seed: the interval cannot show how much training seeds differ."
    return f'<p class="lead">{sentence}</p>'


def interval(low: float, high: float, decimals: int) -> str:
    if not (math.isfinite(low) or math.isfinite(high)):
        return "–"
    dash = " to " if low < 0 or high < 0 else "–"
    return f"{svg.number(low, decimals)}{dash}{svg.number(high, decimals)}"


# ---- charts


def chart_grid(several: Sequence[Chart], figures: Numbering) -> str:
    return f'<div class="figures">{"".join(chart_figure(c, figures) for c in several)}</div>' if several else ""


def panels_figure(title: str, several: Sequence[Chart], figures: Numbering) -> str:
    """Charts side by side under one legend: a series with the same label must look the same in all of them."""
    series = {s.label: s for chart in several for s in chart.series}
    keys = "".join(f"<li>{charts.legend_key(i, s)}{escape(s.label)}</li>" for i, s in enumerate(series.values()))
    panels = "".join(
        f"<div><h4>{escape(chart.panel[1] if chart.panel else chart.title)}</h4>"
        f"{_plot(chart, *charts.line_chart(chart, charts.PANEL_WIDTH, charts.PANEL_HEIGHT), '')}</div>"
        for chart in several
    )
    first = several[0]
    return (
        f'<figure class="full"><h3>{figures.figure()} {escape(title)}</h3><ul class="legend">{keys}</ul>'
        f'<p class="y-label">{escape(first.y_label)}, against {escape(first.x_label)}</p>'
        f'<div class="panels">{panels}</div><figcaption>{escape(first.note)}</figcaption></figure>'
    )


def chart_figure(chart: Chart, figures: Numbering, full: bool = False) -> str:
    """`full`: as wide as the page, with a second drawing for phones, where the wide one could not be read."""
    plots = _plot(chart, *charts.line_chart(chart), "narrow" if full else "")
    if full:
        plots += _plot(chart, *charts.line_chart(chart, 960.0, 330.0), "wide")
    keys = "".join(f"<li>{charts.legend_key(i, s)}{escape(s.label)}</li>" for i, s in enumerate(chart.series))
    legend = f'<ul class="legend">{keys}</ul>' if len(chart.series) > 1 or any(s.label for s in chart.series) else ""
    hidden = charts.hidden_by_log(chart)
    note = chart.note
    if hidden:
        note = f"{note} {counted(hidden, 'value')} of zero or less cannot be shown on this logarithmic axis.".strip()
    y_label = chart.y_label + (" (log scale)" if chart.log_y else "")
    return figure(figures, chart.title, legend, y_label, plots, chart.x_label, escape(note), "full" if full else "")


def _plot(chart: Chart, drawing: str, data: dict[str, Any], css: str) -> str:
    return (
        f'<div class="plot {css}" data-chart tabindex="0" role="group" '
        f'aria-label="{escape(chart.title)}: arrow keys read values">{drawing}'
        f'<output class="tip" hidden></output>{json_data(data)}</div>'
    )


def figure(
    figures: Numbering, title: str, legend: str, y_label: str, plot: str, x_label: str, note: str, css: str = ""
) -> str:
    """Axis names are HTML, not SVG text, so that they wrap and are not cut off. `note` is HTML already."""
    caption = f"<figcaption>{note}</figcaption>" if note else ""
    return (
        f'<figure class="{css}"><h3>{figures.figure()} {escape(title)}</h3>{legend}'
        f'<p class="y-label">{escape(y_label)}</p>{plot}<p class="x-label">{escape(x_label)}</p>{caption}</figure>'
    )


# ---- walks


def walks_figure(several: Sequence[EmbeddingWalk], figures: Numbering) -> str:
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
    "steps as a trail. The dashed line leads back to the zₙ from which the ascent began. Faint dots: z* at every step "
    "of the episode. All rules have the same scales."
)


def _walk(index: int, walk: EmbeddingWalk, shared: walks.SharedScales) -> str:
    plane, maze, traces, data = walks.walk_drawings(walk, shared)
    axes = "The axes are those of a projection to two dimensions"
    if math.isfinite(walk.explained):
        axes += f" that keeps {100 * walk.explained:.0f} % of the variance"
    if walk.explained < 0.5:
        axes += ", less than half: points that look close may be far apart"
    scene = f'<p class="label">Where the agent is (□ start, ◎ goal)</p>{maze}' if maze else ""
    return (
        f'<div class="walk" data-walk="{index}"><h4>{escape(walk.rule)}</h4><div class="columns"><div>{plane}'
        f'<p class="caption">{_PLANE_CAPTION} {axes}.</p></div>'
        f"<div>{scene}{traces}</div></div>{json_data(data)}</div>"
    )

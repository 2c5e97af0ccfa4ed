"""The page for runs of one dataset: from a `Report` to one self-contained HTML file."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path

from droprl import svg
from droprl.report import charts
from droprl.report.contents import (
    Animation,
    Chart,
    Comparison,
    Diagnostic,
    Report,
    ScoreGroup,
    ScoreRow,
    SubTaskReturns,
)
from droprl.report.parts import (
    Header,
    Numbering,
    chart_grid,
    counted,
    figure,
    interval,
    interval_figure,
    listing,
    verdict,
    walks_figure,
    whole_page,
    write_page,
)


def write_report(report: Report, path: str | Path) -> Path:
    return write_page(render(report), path)


def render(report: Report) -> str:
    figures = Numbering()
    top = Header("DROP report", report.title, report.subtitle, report.notes, report.facts, report.command)
    return whole_page(
        top,
        [
            ("scores", "Scores", _scores(report, figures)),
            ("runs", "What differs", _comparison(report.comparison, figures) if report.comparison else ""),
            ("learning", "Learning curves", chart_grid(report.curves, figures)),
            ("sub-tasks", "Sub-tasks", _sub_tasks(report.sub_tasks, figures) if report.sub_tasks else ""),
            ("episode", "An episode", _animation(report.animation, figures) if report.animation else ""),
            ("walks", "The embedding during an episode", walks_figure(report.walks, figures)),
            ("diagnostics", "Diagnostics", _diagnostics(report.diagnostics, report.diagnostic_charts, figures)),
        ],
    )


# ---- scores


def _scores(report: Report, figures: Numbering) -> str:
    groups = report.groups or [ScoreGroup("", report.score_unit, report.table)]
    statistic = "mean" if report.interval_of == "mean" else "IQM"
    return "".join(
        (f'<h3 class="group">{escape(group.title)}</h3>' if group.title else "") + _group(group, statistic, figures)
        for group in groups
        if group.rows
    )


def _group(group: ScoreGroup, statistic: str, figures: Numbering) -> str:
    rows = group.rows
    values = [r.mean if statistic == "mean" else r.iqm for r in rows]
    best = charts.highest(values)
    unit = escape(group.unit)
    table = (
        f'<div class="scroll"><table class="scores"><caption>{figures.table()} {unit}. IQM is the mean of the middle '
        f"half of the episodes. The interval is for the {statistic}.</caption><thead><tr>"
        '<th scope="col">Method</th><th scope="col">Mean</th><th scope="col">IQM</th>'
        '<th scope="col">95 % interval</th><th scope="col" class="roomy">Seeds</th>'
        '<th scope="col" class="roomy">Episodes</th><th scope="col">ms per action</th></tr></thead>'
        f"<tbody>{_score_rows(rows, best, statistic)}</tbody></table></div>"
    )
    chart = interval_figure(
        rows,
        best,
        group.unit,
        figures,
        f"Every episode, and the interval of the {statistic}",
        "single episodes",
        statistic,
    )
    return verdict(rows, values, best, statistic) + table + chart


def _score_rows(rows: Sequence[ScoreRow], best: int | None, statistic: str) -> str:
    marks = {statistic: "ranked"}  # the column that decides the order
    decimals = svg.decimals_for(v for r in rows for v in (r.mean, r.iqm))
    time_decimals = svg.decimals_for(r.milliseconds_per_action for r in rows)
    parts = []
    for i, row in enumerate(rows):
        rule = f' <span class="rule">{escape(row.rule)}</span>' if row.rule else ""
        badge = ' <span class="badge">highest</span>' if i == best and len(rows) > 1 else ""
        size = f'<span class="cramped">{counted(row.seeds, "seed")}, {counted(row.episodes, "episode")}</span>'
        cells = (
            (svg.number(row.mean, decimals), marks.get("mean", "")),
            (svg.number(row.iqm, decimals), marks.get("IQM", "")), (interval(row.low, row.high, decimals), ""),
            (f"{row.seeds:,}", "roomy"), (f"{row.episodes:,}", "roomy"),
            (svg.number(row.milliseconds_per_action, time_decimals), ""),
        )  # fmt: skip
        numbers = "".join(f'<td class="{css}">{value}</td>' if css else f"<td>{value}</td>" for value, css in cells)
        name = f'<th scope="row"><span class="method">{escape(row.method)}</span>{rule}{badge}{size}</th>'
        parts.append(f'<tr class="best">{name}{numbers}</tr>' if i == best else f"<tr>{name}{numbers}</tr>")
    return "".join(parts)


def _comparison(found: Comparison, figures: Numbering) -> str:
    head = "".join(f'<th scope="col">{escape(name.replace("_", " "))}</th>' for name in found.columns)
    rows = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in row[1:])}</tr>'
        for row in found.rows
    )
    return (
        f'<div class="scroll"><table class="scores runs"><caption>{figures.table()} The runs of this page. Of the '
        "settings, only those that differ between runs of the same algorithm. Days are in UTC, and training time "
        f"includes compilation.</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _animation(animation: Animation | str, figures: Numbering) -> str:
    if isinstance(animation, str):
        return f"<p>No video: {escape(animation)}.</p>"
    data = base64.b64encode(animation.gif).decode()
    return (
        f'<figure class="episode"><h3>{figures.figure()} One episode</h3>'
        f'<img src="data:image/gif;base64,{data}" alt="{escape(animation.caption)}">'
        f"<figcaption>{escape(animation.caption)}</figcaption></figure>"
    )


# ---- charts


def _sub_tasks(sub_tasks: SubTaskReturns, figures: Numbering) -> str:
    means = sub_tasks.mean_returns
    if not means:
        return ""
    many = len(means) > charts.WHISKERS_UP_TO
    spread = "The band" if many else "The line through it"
    first = figure(
        figures, "Returns by sub-task", "", "return of a trajectory", charts.returns_chart(sub_tasks),
        "sub-task n, in rank order",
        f"A point is the mean return of a sub-task's trajectories. {spread} reaches from the smallest to the largest.",
    )  # fmt: skip
    return f'<div class="figures">{first}{ranking_figure(sub_tasks, figures)}</div>'


def ranking_figure(sub_tasks: SubTaskReturns, figures: Numbering) -> str:
    """The figure of f against the returns; empty if f was not computed."""
    means, predicted = sub_tasks.mean_returns, sub_tasks.predicted
    if predicted is None:
        return ""
    rho, chosen, top = charts.rank_correlation(means, predicted), charts.highest(predicted), charts.highest(means)
    notes = ["The rank correlation is not defined here." if rho is None else f"Spearman’s ρ = {svg.number(rho, 2)}."]
    if chosen is not None and top is not None:
        notes.append(
            f"Ring: sub-task {chosen}, which has the highest score f at the start. "
            + ("It also has the highest return." if chosen == top else f"Sub-task {top} has the highest return.")
        )
    return figure(
        figures, "Does f rank the sub-tasks as their returns do?", "", "score f(s₀, β(s₀, zₙ), zₙ)",
        charts.ranking_chart(sub_tasks, predicted), "mean return of sub-task n", escape(" ".join(notes)),
    )  # fmt: skip


# ---- diagnostics

_STATUS = {True: ("good", "✓", "healthy"), False: ("bad", "!", "look here"), None: ("open", "·", "not judged")}


def _diagnostics(checks: Sequence[Diagnostic], several: Sequence[Chart], figures: Numbering) -> str:
    if not checks:
        return chart_grid(several, figures)
    rows = ""
    for check in checks:
        css, icon, words = _STATUS[check.healthy]
        rows += (
            f'<tr class="{css}"><td class="status"><span class="icon" aria-hidden="true">{icon}</span> {words}</td>'
            f'<th scope="row">{escape(check.name)}<span class="meaning">{escape(check.meaning)}</span></th>'
            f"<td>{svg.short(check.value)}</td></tr>"
        )
    judged, bad = [c for c in checks if c.healthy is not None], [c.name for c in checks if c.healthy is False]
    lead = f"{len(judged) - len(bad)} of {counted(len(judged), 'judged check')} healthy."
    if bad:
        listed = bad if len(bad) <= 4 else [*bad[:3], f"{len(bad) - 3} more"]
        lead += f" Look at: {escape(listing(listed))}."
    return (
        f'<p class="lead">{lead}</p><table class="checks"><caption>{figures.table()} Checks that must be healthy '
        'before the scores can be trusted</caption><thead><tr><th scope="col">Status</th><th scope="col">Check</th>'
        f'<th scope="col">Value</th></tr></thead><tbody>{rows}</tbody></table>{chart_grid(several, figures)}'
    )

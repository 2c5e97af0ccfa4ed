"""The page of a suite: from a `SuiteReport` to one HTML file. Frame, style and script are those of the page of runs."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import groupby
from pathlib import Path

from droprl import svg
from droprl.bench.page.charts import improvement_matrix, prediction_chart
from droprl.bench.page.contents import Aggregate, Budget, Entry, PublishedTable, SuiteReport, TaskScores
from droprl.evaluation.statistics import Estimate
from droprl.report import charts
from droprl.report.contents import Chart, Series
from droprl.report.page import ranking_figure
from droprl.report.parts import (
    Header,
    Numbering,
    chart_figure,
    chart_grid,
    counted,
    figure,
    interval,
    interval_figure,
    panels_figure,
    verdict,
    walks_figure,
    whole_page,
    write_page,
)


def write_suite_report(report: SuiteReport, path: str | Path) -> Path:
    return write_page(render_suite(report), path)


def render_suite(report: SuiteReport) -> str:
    numbers = Numbering()
    claim = f"The paper’s claim: {report.claim}" if report.claim else ""
    return whole_page(
        Header("DROP suite", report.title, claim, report.notes, report.facts, report.command, report.note),
        [
            ("overall", "All tasks together", _overall(report, numbers)),
            ("scores", "Task by task", _scores(report, numbers)),
            ("profiles", "How the runs are spread", _profiles(report, numbers)),
            ("improvement", "Which is likely to be better", _improvement(report, numbers)),
            ("budget", "What choosing costs", _budget(report, numbers)),
            ("learning", "Learning curves", _curves(report, numbers)),
            ("walks", "The embedding during an episode", _walks(report, numbers)),
            ("published", "Beside published scores", _published(report, numbers)),
            ("costs", "What it costs", _costs(report, numbers)),
            ("data", "The data", _data(report, numbers)),
        ],
    )


# ---- over all tasks


def _overall(report: SuiteReport, numbers: Numbering) -> str:
    rows = report.overall
    if not rows:
        return ""
    values = [row.iqm for row in rows]
    best = charts.highest(values)
    title = f"Every run of {counted(report.averaged, 'task')}, {report.when}, and the interval of the IQM"
    dots = "single runs, each the mean of a seed’s episodes on one task"
    chart = interval_figure(rows, best, report.score_unit, numbers, title, dots, "IQM over all runs")
    return verdict(rows, values, best, "IQM") + chart


# ---- tables of tasks and methods


def _head(first: str, columns: Sequence[tuple[str, str]]) -> str:
    """Two lines: the name that neighbouring columns share, and below it the name of each column."""
    groups = [(name, [leaf for _, leaf in same]) for name, same in groupby(columns, key=lambda column: column[0])]
    if not any(leaf for _, leaf in columns):
        names = "".join(f'<th scope="col">{escape(name)}</th>' for name, _ in columns)
        return f'<thead><tr><th scope="col">{first}</th>{names}</tr></thead>'
    upper = "".join(
        f'<th scope="colgroup" colspan="{len(leaves)}"><span>{escape(name)}</span></th>'
        if any(leaves)
        else f'<th scope="col" rowspan="2">{escape(name)}</th>'
        for name, leaves in groups
    )
    lower = "".join(f'<th scope="col">{escape(leaf)}</th>' for _, leaf in columns if leaf)
    return f'<thead><tr><th scope="col" rowspan="2">{first}</th>{upper}</tr><tr>{lower}</tr></thead>'


def _name(entry: Entry) -> str:
    play = f' <span class="rule">{escape(entry.play)}</span>' if entry.play else ""
    return f'<span class="method">{escape(entry.method)}</span>{play}'


def _table(css: str, caption: str, head: tuple[str, Sequence[tuple[str, str]]], body: str) -> str:
    return (
        f'<div class="scroll"><table class="grid {css}" style="--columns:{len(head[1])}">'
        f"<caption><span>{caption}</span></caption>{_head(*head)}<tbody>{body}</tbody></table></div>"
    )


def _two_lines(value: str, below: str, label: str, css: str = "") -> str:
    small = f"<small>{below}</small>" if below else ""
    return f'<td class="{css}" data-label="{escape(label)}"><span>{value}</span>{small}</td>'


def _estimate(estimate: Estimate | None, decimals: int, label: str, css: str = "") -> str:
    if estimate is None:
        return _two_lines("–", "", label, css)
    below = interval(estimate.low, estimate.high, decimals)
    return _two_lines(svg.number(estimate.value, decimals), below, label, css)


def _split(task: str) -> tuple[str, str]:
    """A task as its robot and the rest of its name, so that the columns of one robot stand together."""
    family, _, rest = task.partition("-")
    return family, rest.replace("-", "-\u200b")


def _scores(report: SuiteReport, numbers: Numbering) -> str:
    if not report.scores:
        return ""
    decimals = svg.decimals_for(c.value for row in report.scores for c in row.cells if c is not None)
    css, head = "cards many" if len(report.entries) > 6 else "cards", [(e.method, e.play or "") for e in report.entries]

    def table(scores: Sequence[TaskScores], when: str, more: str, css: str) -> str:
        rows = "".join(_score_row(row, report.entries, decimals) for row in scores)
        return _table(css, f"{numbers.table()} {escape(report.score_unit)}, {when}{more}", ("Task", head), rows)

    how = (
        ": the mean over the episodes, and its 95 % interval over seeds and episodes. Bold: the highest of a task. "
        "Shaded: the interval overlaps with that of the highest."
    )
    first = table(report.scores, report.when, how, css)
    return first + (table(report.late_scores, report.late_when, ".", f"{css} below") if report.late_scores else "")


def _score_row(row: TaskScores, entries: Sequence[Entry], decimals: int) -> str:
    known = [c.value if c is not None else float("nan") for c in row.cells]
    best = charts.highest(known)
    top = row.cells[best] if best is not None else None
    cells = ""
    for i, (entry, cell) in enumerate(zip(entries, row.cells, strict=True)):
        near = cell is not None and top is not None and cell.high >= top.low
        css = " ".join([*(["near"] if near else []), *(["highest"] if i == best else [])])
        cells += _estimate(cell, decimals, entry.name, css)
    return f'<tr><th scope="row">{escape(row.task)}</th>{cells}</tr>'


# ---- profiles and probabilities


def _profiles(report: SuiteReport, numbers: Numbering) -> str:
    if report.profile is None:
        return ""
    chart = chart_figure(report.profile, numbers, full=True)
    if not report.aggregates:
        return chart
    decimals = svg.decimals_for(v.value for a in report.aggregates for v in a.values)

    def table(aggregates: Sequence[Aggregate], when: str, more: str) -> str:
        rows = "".join(
            f'<tr><th scope="row">{_name(a.entry)}</th>'
            + "".join(_estimate(v, decimals, s) for v, s in zip(a.values, report.statistics, strict=True))
            + "</tr>"
            for a in aggregates
        )
        return _table(
            "below", f"{numbers.table()} {more} {when}.", ("Method", [(s, "") for s in report.statistics]), rows
        )

    how = (
        "All runs of all tasks summed up in one number, with 95 % intervals. They speak of these tasks with other "
        "seeds, or where it says so of other tasks like these. The optimality gap is the mean distance below 100: less "
        "is better. Scores:"
    )
    chart += table(report.aggregates, report.when, how)
    return chart + (table(report.late_aggregates, report.late_when, "The same:") if report.late_aggregates else "")


def _improvement(report: SuiteReport, numbers: Numbering) -> str:
    found = report.improvements
    if found is None or len(found.entries) < 2:
        return ""
    names = "".join(f"<li>{escape(entry.name)}</li>" for entry in found.entries)
    drawings = "".join(improvement_matrix(found, narrow) for narrow in (False, True))
    return (
        f'<figure class="full"><h3>{numbers.figure()} Probability that the row beats the column, per cent</h3>'
        f'<ol class="names">{names}</ol>{drawings}<figcaption>One run of each on the same task, a tie counts half: '
        "the mean over the tasks. Bold: the 95 % interval over these tasks does not contain 50. Underlined: nor does "
        "the interval over tasks like these, which draws the tasks too. Blue: the row is probably better. "
        "Orange: the row is probably worse.</figcaption></figure>"
    )


# ---- what choosing costs


def _budget(report: SuiteReport, numbers: Numbering) -> str:
    rows = report.budget_rows
    if not rows:
        return ""
    places = tuple(map(str, report.budgets))
    series = [
        Series(
            row.method,
            [float(i) for i in range(len(places))],
            *([getattr(value, part) for value in row.values] for part in ("value", "low", "high")),
            look=(row.place, 0),
        )
        for row in rows
    ]
    note = (
        "The mean over seeds and tasks. Bands: 95 % intervals over seeds, not over the recorded episodes. With few "
        "recorded episodes a curve may fall by chance. The x axis is not to scale."
    )
    title = "Expected score of the chosen candidate"
    chart = Chart(title, "online episodes spent on choosing", report.score_unit, series, note, places=places)
    lead = (
        '<p class="lead">A training run leaves several candidates: each of its checkpoints under each way to play. '
        "To find the best one costs episodes. Without any episode the choice is the last checkpoint under the "
        "method’s default way to play.</p>"
    )
    caption = (
        f"{numbers.table()} The same in numbers. A seed chooses among its own candidates: they play in turn, and the "
        "highest mean is chosen. Half of the recorded episodes choose, the other half judge. Grey: the budget is "
        "larger than the number of episodes to choose by, and the score is that after all of them."
    )
    head = [("Candidates", ""), ("Episodes to choose by", ""), *(("Score after this many", place) for place in places)]
    decimals = svg.decimals_for(v.value for row in rows for v in row.values)
    body = "".join(_budget_row(row, places, decimals) for row in rows)
    return lead + chart_figure(chart, numbers, full=True) + _table("cards below", caption, ("Method", head), body)


def _budget_row(row: Budget, places: Sequence[str], decimals: int) -> str:
    counts = _two_lines(f"{row.candidates:,}", "", "Candidates") + _two_lines(
        f"{row.most:,}", "", "Episodes to choose by"
    )
    scores = "".join(
        _estimate(value, decimals, f"Score after {place}", "capped" if capped else "")
        for value, capped, place in zip(row.values, row.capped, places, strict=True)
    )
    return f'<tr><th scope="row"><span class="method">{escape(row.method)}</span></th>{counts}{scores}</tr>'


# ---- runs


def _curves(report: SuiteReport, numbers: Numbering) -> str:
    first = _panels_or_charts(report.curves, numbers)
    if not report.more_curves:
        return first
    more = _panels_or_charts(report.more_curves, numbers)
    return f"{first}<details><summary>{counted(len(report.more_curves), 'more curve')}</summary>{more}</details>"


def _panels_or_charts(several: Sequence[Chart], numbers: Numbering) -> str:
    """One figure with a panel for each task; a chart of a single task stands in a grid with others."""
    groups = {
        chart.panel[0]: [c for c in several if c.panel and c.panel[0] == chart.panel[0]]
        for chart in several
        if chart.panel
    }
    drawn = "".join(panels_figure(title, group, numbers) for title, group in groups.items() if len(group) > 1)
    return drawn + chart_grid([c for c in several if c.panel is None or len(groups[c.panel[0]]) == 1], numbers)


def _walks(report: SuiteReport, numbers: Numbering) -> str:
    played = walks_figure(report.walks, numbers)
    if not played:
        return ""
    lead = f'<p class="lead">One episode of {escape(report.walks_of)}, under each rule.</p>'
    scatter = ""
    if report.predictions:
        keys = "".join(f"<li>{charts.legend_key(i)}{escape(p.rule)}</li>" for i, p in enumerate(report.predictions))
        scatter = figure(
            numbers, "What f predicted and what was earned", f'<ul class="legend">{keys}</ul>',
            "score f(s, β(s, z*), z*)", prediction_chart(report.predictions),
            "discounted reward earned from there on, in f’s unit",
            "A dot is a step of the episode above at which the rule inferred z. On the dashed line both agree. If a "
            "time limit ended the episode, the reward after it is missing.",
        )  # fmt: skip
    ranking = ranking_figure(report.sub_tasks, numbers) if report.sub_tasks else ""
    return lead + played + (f'<div class="figures">{scatter}{ranking}</div>' if scatter or ranking else "")


# ---- others' numbers, and costs


def _published(report: SuiteReport, numbers: Numbering) -> str:
    if not report.published:
        return ""
    shown = [i for i in range(len(report.scores)) if any(cells[i] for t in report.published for _, cells in t.rows)]
    columns = [_split(report.scores[i].task) for i in shown]
    width = len(columns) + 1
    ours = "".join(_our_row(entry, e, [report.scores[i] for i in shown]) for e, entry in enumerate(report.entries))
    groups = _group(f"Here, on {report.data}", width) + ours
    for table in report.published:
        groups += _group(f"Published, on D4RL’s {table.version} files: {table.table}", width, table.source)
        groups += _published_rows(table, shown, columns)
    lead = (
        '<p class="lead">The published scores come from other data and other code. They show where the field stands, '
        "not which line of this table is better.</p>"
    )
    caption = f"{numbers.table()} Mean score, and its deviation over seeds if one was published. Ours: {report.when}."
    return lead + _table("others", caption, ("Method", columns), groups)


def _group(heading: str, width: int, source: str = "") -> str:
    small = f"<small>{escape(source)}</small>" if source else ""
    return f'<tr class="group"><th scope="rowgroup" colspan="{width}"><span>{escape(heading)}{small}</span></th></tr>'


def _our_row(entry: Entry, index: int, scores: Sequence[TaskScores]) -> str:
    known = [row.cells[index] for row in scores]
    cells = "".join(
        _two_lines(svg.number(c.value if c else None, 1), "", row.task) for c, row in zip(known, scores, strict=True)
    )
    return f'<tr class="ours"><th scope="row">{_name(entry)}</th>{cells}</tr>'


def _published_rows(table: PublishedTable, shown: Sequence[int], columns: Sequence[tuple[str, str]]) -> str:
    rows = ""
    for method, by_task in table.rows:
        cells = ""
        for i, (family, rest) in zip(shown, columns, strict=True):
            cell = by_task[i]
            deviation = f"± {svg.number(cell[1], 1)}" if cell and cell[1] is not None else ""
            cells += _two_lines(svg.number(cell[0], 1) if cell else "–", deviation, f"{family} {rest}")
        rows += f'<tr><th scope="row">{escape(method)}</th>{cells}</tr>'
    return rows


def _costs(report: SuiteReport, numbers: Numbering) -> str:
    if not report.costs:
        return ""
    columns = [
        ("Training, s", [c.train_seconds for c in report.costs]),
        ("Updates per second", [c.updates_per_second for c in report.costs]),
        ("Peak memory, MB", [c.peak_memory_mb for c in report.costs]),
        ("ms per action", [c.milliseconds_per_action for c in report.costs]),
    ]
    shown = [(name, values) for name, values in columns if svg.finite(values)]
    scored = any(cost.score is not None for cost in report.costs)
    devices = list(dict.fromkeys(c.device for c in report.costs if c.device))
    rows = "".join(
        f'<tr><th scope="row">{_name(cost.entry)}</th>'
        + (_estimate(cost.score, 1, "IQM") if scored else "")
        + "".join(_two_lines(svg.short(values[i]), "", name) for name, values in shown)
        + "</tr>"
        for i, cost in enumerate(report.costs)
    )
    trained = " Training: all seeds together." if svg.finite(columns[0][1]) else ""
    where = f" Trained on {escape(', '.join(devices))}." if devices else ""
    beside = f" The IQM is over all runs, {report.when}." if scored else ""
    caption = f"{numbers.table()} The median over the tasks.{trained}{where}{beside}"
    return _table("cards", caption, ("Method", [("IQM", "")] * scored + [(name, "") for name, _ in shown]), rows)


def _data(report: SuiteReport, numbers: Numbering) -> str:
    if not report.data_rows:
        return ""
    columns = ("Learned from", "Steps", "Episodes", "Fingerprint")
    rows = "".join(
        f'<tr><th scope="row">{escape(data.task)}</th>'
        + _two_lines(escape(data.source), escape(data.origin), columns[0], "words")
        + _two_lines(f"{data.steps:,}", "", columns[1])
        + _two_lines(f"{data.episodes:,}", "", columns[2])
        + _two_lines(f"<code>{escape(data.fingerprint)}</code>", "", columns[3])
        + "</tr>"
        for data in report.data_rows
    )
    caption = (
        f"{numbers.table()} The data that the methods learned from, and what its files say about their origin. The "
        "fingerprint is of the arrays; suite.json has the SHA-256 of every file."
    )
    return _table("cards sources", caption, ("Task", [(name, "") for name in columns]), rows)

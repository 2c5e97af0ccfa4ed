"""The tables of a page of runs as data, for CSV and LaTeX: scores, sub-tasks and diagnostics."""

from __future__ import annotations

import math
from collections.abc import Sequence

from droprl.files.names import file_name
from droprl.report.contents import Report, ScoreRow
from droprl.report.table import Cell, Number, Table


def run_tables(report: Report) -> dict[str, Table]:
    """The tables by name. A part that the page leaves out is left out here too."""
    note = " ".join(report.notes)
    tables = {}
    if report.table:
        columns = ("method", "rule", "mean", "IQM", "seeds", "episodes", "ms/action")
        rows = tuple(_scores(row, report.interval_of) for row in report.table)
        tables["scores"] = Table(f"{report.title}: {report.score_unit}", columns, rows, note)
    for group in report.groups:
        columns = ("method", "rule", "mean", "IQM", "seeds", "episodes", "ms/action")
        rows = tuple(_scores(row, report.interval_of) for row in group.rows)
        tables[f"scores-{file_name(group.title)}"] = Table(f"{group.title}: {group.unit}", columns, rows, note)
    if (found := report.comparison) is not None:
        tables["runs"] = Table(f"{report.title}: the runs", found.columns, tuple(found.rows))
    if (parts := report.sub_tasks) is not None:
        predicted: Sequence[float | None] = parts.predicted or [None] * len(parts.mean_returns)
        rows_of_parts = zip(parts.mean_returns, parts.low, parts.high, predicted, strict=True)
        tables["sub_tasks"] = Table(
            f"{report.title}: returns of the sub-tasks, mean and range",
            ("n", "return", "f at the start"),
            tuple(
                (Number(n, decimals=0), Number(mean, (low, high)), None if f is None else Number(f, decimals=2))
                for n, (mean, low, high, f) in enumerate(rows_of_parts)
            ),
        )
    if report.diagnostics:
        rows = tuple(
            (d.name, None if d.value is None else Number(d.value, decimals=3), _verdict(d.healthy), d.meaning)
            for d in report.diagnostics
        )
        tables["diagnostics"] = Table(f"{report.title}: diagnostics", ("check", "value", "healthy", "meaning"), rows)
    return tables


def _scores(row: ScoreRow, interval_of: str) -> tuple[Cell, ...]:
    ends, ms = (row.low, row.high), row.milliseconds_per_action
    return (
        row.method,
        row.rule or "",
        Number(row.mean, ends if interval_of == "mean" else None),
        Number(row.iqm, ends if interval_of == "iqm" else None),
        Number(row.seeds, decimals=0),
        Number(row.episodes, decimals=0),
        Number(ms, decimals=2) if math.isfinite(ms) else None,
    )


def _verdict(healthy: bool | None) -> str:
    return "" if healthy is None else "yes" if healthy else "no"

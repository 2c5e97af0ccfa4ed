"""The report: `contents` is what it says, `write_report` puts it into one HTML file."""

from droprl.report.contents import (
    Chart,
    Diagnostic,
    EmbeddingWalk,
    Report,
    ScoreRow,
    Series,
    SubTaskReturns,
)
from droprl.report.page import render, write_report

__all__ = [
    "Chart",
    "Diagnostic",
    "EmbeddingWalk",
    "Report",
    "ScoreRow",
    "Series",
    "SubTaskReturns",
    "render",
    "write_report",
]

"""The report: `contents` holds what it says, `write_report` writes it as one HTML file."""

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

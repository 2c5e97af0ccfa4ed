"""Scores that others published on D4RL's own files, by the task's name. The numbers are in `published.json`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from droprl.bench.page.contents import PublishedTable


@cache
def _tables() -> list[dict[str, Any]]:
    return json.loads(files("droprl.bench").joinpath("published.json").read_text(encoding="utf-8"))["tables"]


def published_scores(tasks: Sequence[str]) -> list[PublishedTable]:
    """Every table that has one of the tasks. For D4RL's first files (v0) only tasks that no later table has."""
    later = {task for t in _tables() if t["version"] != "v0" for by_task in t["scores"].values() for task in by_task}
    found = []
    for table in _tables():
        shown = [task for task in tasks if table["version"] != "v0" or task not in later]
        rows = []
        for method, by_task in table["scores"].items():
            known = {task: by_task[task] for task in shown if task in by_task}
            if known:
                rows.append((method, [_pair(known[task]) if task in known else None for task in tasks]))
        if rows:
            found.append(PublishedTable(table["table"], table["source"], table["version"], rows))
    return found


def _pair(printed: Sequence[float]) -> tuple[float, float | None]:
    return printed[0], printed[1] if len(printed) > 1 else None

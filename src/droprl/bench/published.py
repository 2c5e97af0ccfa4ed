"""Scores that others published on D4RL's own files, for tasks of the same name. The numbers are in `published.json`."""

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
    """Every table that has one of the tasks. D4RL's first files (v0) stand in only where no later ones were used."""
    later = {task for t in _tables() if t["version"] != "v0" for of in t["scores"].values() for task in of}
    found = []
    for table in _tables():
        shown = [task for task in tasks if table["version"] != "v0" or task not in later]
        rows = []
        for method, of_method in table["scores"].items():
            known = {task: of_method[task] for task in shown if task in of_method}
            if known:
                rows.append((method, [_pair(known[task]) if task in known else None for task in tasks]))
        if rows:
            found.append(PublishedTable(table["table"], table["source"], table["version"], rows))
    return found


def _pair(printed: Sequence[float]) -> tuple[float, float | None]:
    return printed[0], printed[1] if len(printed) > 1 else None

"""How a run looks in a notebook."""

from __future__ import annotations

from typing import Any

import numpy as np

from droprl.notebook import facts_table, lines_plot, rows_table, shown
from droprl.train.config import RunConfig


def run_html(path: str, config: RunConfig, reached: int, log: list[dict[str, Any]]) -> str:
    """Its facts, its verdicts and its first losses. `reached` is the update of the newest checkpoint."""
    state = "finished" if reached >= config.steps else f"unfinished, at update {reached:,}"
    facts = (
        ("algorithm", config.algorithm.name),
        ("data", f"{config.data.name}: {config.data.n_steps:,} steps, {config.data.n_episodes:,} episodes"),
        ("seeds", ", ".join(map(str, config.seeds))),
        ("updates", f"{config.steps:,}, {state}"),
    )
    curves = [curve for curve in config.algorithm.card.curves if not curve.diagnosis]
    plots = [lines_plot(curve.title, "updates", _lines(curve.metric, config, log)) for curve in curves[:2]]
    return shown(facts_table(path, facts), *plots, _checks(config, log))


def _lines(metric: str, config: RunConfig, log: list[dict[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    entries = [(entry["step"], entry[metric]) for entry in log if metric in entry]
    return {
        f"seed {seed}": [(step, values[i]) for step, values in entries if values[i] is not None]
        for i, seed in enumerate(config.seeds[:5])
    }


def _checks(config: RunConfig, log: list[dict[str, Any]]) -> str:
    """The checks of the last values, the mean over seeds."""
    latest: dict[str, Any] = {}
    for entry in log:
        latest |= entry
    means = {
        name: float(np.mean([np.nan if v is None else v for v in value]))
        for name, value in latest.items()
        if isinstance(value, list)
    }
    found = config.algorithm.checks(means)
    rows = [(check.name, f"{check.value:.3g}", "healthy" if check.healthy else "look here") for check in found]
    return rows_table("Checks, mean over seeds", ("check", "value", ""), rows) if rows else ""

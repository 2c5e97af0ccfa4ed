"""How right the selectors were: `python benchmarks/selection/compare.py [--results FOLDER] [--markdown]`.

For every task of `judge.py` and every way to judge a candidate: the rank correlation with the true scores of the
candidates, and the regret, which is the score that the chosen candidate lacks to the truly best one.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import MARKDOWN, SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from scipy.stats import spearmanr

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--markdown", action="store_true", help="for GitHub")
    options = parser.parse_args()
    table = Table(box=MARKDOWN if options.markdown else SIMPLE_HEAD, pad_edge=False)
    for heading in (
        "task",
        "candidates earn",
        "judged by",
        "episodes",
        "rank correlation",
        "chosen",
        "earns",
        "regret",
    ):
        table.add_column(heading, justify="left" if heading in ("task", "judged by") else "right", no_wrap=True)
    regrets: dict[str, list[float]] = {}
    for path in sorted(options.results.glob("*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        truth = true_scores(found)
        for name, worth, episodes in judgements(found):
            known = np.isfinite(worth)
            chosen = int(np.nanargmax(np.where(known, worth, -np.inf)))
            regret = float(truth.max() - truth[chosen])
            regrets.setdefault(name, []).append(regret)
            correlation = spearmanr(worth[known], truth[known]).statistic if known.sum() > 1 else None
            candidate = found["by_data"]["candidates"][chosen]
            table.add_row(
                found["task"],
                f"{truth.min():.1f} … {truth.max():.1f}",
                name,
                str(episodes),
                "–" if correlation is None else f"{correlation:.2f} (of {known.sum()})",
                f"N {candidate['n_sub_tasks']}, K {candidate['ascent_steps']}",
                f"{truth[chosen]:.1f}",
                f"{regret:.1f}",
            )
        regrets.setdefault("one at random", []).append(float(truth.max() - truth.mean()))
    console = Console(width=140, soft_wrap=True)
    console.print(table)
    console.print("Mean regret: " + ", ".join(f"{name} {np.mean(values):.1f}" for name, values in regrets.items()))


def true_scores(found: dict[str, Any]) -> np.ndarray:
    """The mean over seeds and episodes for each candidate, as D4RL's score if the task has reference returns."""
    return np.array([np.mean([r["scores"] or r["returns"] for r in results]) for results in found["truth"]])


def judgements(found: dict[str, Any]) -> list[tuple[str, np.ndarray, int]]:
    """(name, the estimated worth of each candidate, how many episodes were played for it)."""
    by_data, by_episodes = found["by_data"], found["by_episodes"]
    estimates = np.array([c["estimate"] for c in by_data["candidates"]], float)
    losses = np.array([-c["fitting_loss"] for c in by_data["candidates"]])
    played = np.array([np.mean(c["played"]) if c["played"] else np.nan for c in by_episodes["candidates"]])
    default = np.array([float((c["n_sub_tasks"], c["ascent_steps"]) == (10, 10)) for c in by_data["candidates"]])
    return [
        ("the data alone", estimates, 0),
        ("fitting loss alone", losses, 0),
        ("the default, N 10 and K 10", np.where(default > 0, 1.0, np.nan), 0),
        ("fitting loss, then episodes", played, by_episodes["episodes"]),
    ]


if __name__ == "__main__":
    main()

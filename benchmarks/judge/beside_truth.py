"""What `drop judge` found beside the truth: `python benchmarks/judge/beside_truth.py [--markdown]`.

For every set: the rank correlation of the estimates with the true scores, the regret of the policy that is chosen
without an episode (the points that it lacks to the best), and how often the 90 % intervals hold the true return.
`--pack` first puts the files of candidates.py and calibrate.py into the two that are kept.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from candidates import HERE, SETS, Set
from rich.box import MARKDOWN, SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from scipy.stats import spearmanr

from droprl.files.storage import write_bytes
from droprl.judging import Estimate, Estimation, choose
from droprl.judging.estimates import Second
from droprl.judging.log import Bounds

LAST = "drop"  # the last checkpoint of DROP, played by its own rule
COLUMNS = (
    "set", "for", "policies earn", "ρ walks", "ρ FQE", "ρ DR", "chosen", "regret", "highest", "lower end", "random",
    "last", "held",
)  # fmt: skip


class Found:
    """One set."""

    def __init__(self, one: Set, truth: dict[str, Any], judged: dict[str, Any]) -> None:
        self.one = one
        names = list(judged["candidates"])
        self.names = names
        self.scores = np.array([np.mean(truth["candidates"][n]["scores"]) for n in names])
        self.discounted = np.array([np.mean(truth["candidates"][n]["discounted"]) for n in names])
        self.estimates = [estimate_of(judged["candidates"][n]) for n in names]

    def correlation(self, value: Callable[[Estimate], float]) -> float:
        return float(spearmanr([value(e) for e in self.estimates], self.scores).statistic)

    def regret(self, place: int) -> float:
        return float(self.scores.max() - self.scores[place])

    @property
    def held(self) -> np.ndarray:
        """For each policy, whether the interval holds the truth."""
        intervals = np.array([e.interval for e in self.estimates])
        return (intervals[:, 0] <= self.discounted) & (self.discounted <= intervals[:, 1])

    @property
    def numbers(self) -> list[float]:
        """Three correlations, five regrets, and the share of intervals that hold."""
        lower = int(np.argmax([e.interval[0] for e in self.estimates]))
        highest = int(np.argmax([e.value for e in self.estimates]))
        seconds = [self.correlation(lambda e: e.fqe.value if e.fqe else np.nan)]
        seconds += [self.correlation(lambda e: e.doubly_robust.value if e.doubly_robust else np.nan)]
        regrets = [self.regret(place) for place in (choose(self.estimates), highest, lower)]
        regrets += [float(self.scores.max() - self.scores.mean()), self.regret(self.names.index(LAST))]
        return [self.correlation(lambda e: e.value), *seconds, *regrets, float(self.held.mean())]


def estimate_of(content: dict[str, Any]) -> Estimate:
    """The estimate, with the interval of today's settings."""
    seconds = {name: Second(**content[name]) if content[name] else None for name in ("fqe", "doubly_robust")}
    found = Estimate(**{**content, **seconds, "bounds": Bounds(*content["bounds"])})
    return replace(found, widening=Estimation().widening)


def pack(results: Path) -> None:
    for part in ("truth", "judged"):
        files = {one.name: results / part / f"{one.name}.json" for one in SETS}
        content = {name: rounded(json.loads(path.read_text(encoding="utf-8"))) for name, path in files.items()}
        write_bytes(HERE / "results" / f"{part}.json", (json.dumps(content) + "\n").encode())


def rounded(value: Any) -> Any:
    """Six digits are enough for every table."""
    if isinstance(value, dict):
        return {name: rounded(part) for name, part in value.items()}
    if isinstance(value, list):
        return [rounded(part) for part in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pack", type=Path, help="the folder with truth/ and judged/")
    parser.add_argument("--markdown", action="store_true", help="for GitHub")
    options = parser.parse_args()
    if options.pack is not None:
        pack(options.pack)
    truth, judged = (
        json.loads((HERE / "results" / f"{part}.json").read_text(encoding="utf-8")) for part in ("truth", "judged")
    )
    sets = [Found(one, truth[one.name], judged[one.name]) for one in SETS]
    table = Table(box=MARKDOWN if options.markdown else SIMPLE_HEAD, pad_edge=False)
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in ("set", "for", "chosen") else "right", no_wrap=True)
    for found in sets:
        span = f"{found.scores.min():.0f} … {found.scores.max():.0f}"
        chosen = found.names[choose(found.estimates)]
        table.add_row(found.one.name, found.one.purpose, span, *cells(found.numbers, chosen))
    for purpose in ("choose", "confirm"):
        numbers = np.mean([found.numbers for found in sets if found.one.purpose == purpose], axis=0)
        table.add_row("mean", purpose, "", *cells(numbers.tolist(), ""))
    Console(width=180, soft_wrap=True).print(table)


def cells(numbers: list[float], chosen: str) -> list[str]:
    correlations, regrets, held = numbers[:3], numbers[3:-1], numbers[-1]
    return [*(f"{c:.2f}" for c in correlations), chosen, *(f"{r:.1f}" for r in regrets), f"{held:.0%}"]


if __name__ == "__main__":
    main()

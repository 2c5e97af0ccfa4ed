"""Aggregates, profiles and probabilities of improvement against rliable: `python benchmarks/peers/rliable_check.py`.

In its own environment: `pip install droprl rliable==1.2.0 "pandas<3"`. The scores are random, on D4RL's scale, and
rounded so that many are equal. Point values must agree to 1e-9. Both intervals are quantiles of random replicates. The
numbers of replicates leave the level of a quantile in doubt, so each end of our interval must lie between the quantiles
of rliable's replicates at the lowest and the highest possible level. A tolerance in score would not do: with equal
scores a quantile may jump.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import NamedTuple, get_args

import numpy as np
from rich.console import Console
from rich.table import Table
from rliable import library, metrics

from droprl.evaluation.statistics import (
    EXPERT,
    Aggregate,
    Estimate,
    aggregate,
    pairwise_improvement,
    performance_profile,
)

OURS = 50_000  # replicates; rliable's are slower
STANDARD_ERRORS = 4.5  # of the level of a quantile; 170 ends are compared
SIZES = ((1, 4), (2, 5), (5, 5), (7, 4), (12, 10))  # tasks and runs
THRESHOLDS = np.linspace(-5, 130, 10)
LEVELS = np.array([0.025, 0.975])

THEIRS: dict[Aggregate, Callable[[np.ndarray], float]] = {
    "iqm": metrics.aggregate_iqm,
    "median": metrics.aggregate_median,
    "mean": metrics.aggregate_mean,
    "optimality_gap": lambda scores: metrics.aggregate_optimality_gap(scores, gamma=EXPERT),
}


class Compared(NamedTuple):
    what: str
    ours: Estimate
    theirs: float
    replicates: np.ndarray  # rliable's

    @property
    def difference(self) -> float:
        return abs(self.ours.value - self.theirs)

    @property
    def interval(self) -> np.ndarray:
        return np.quantile(self.replicates, LEVELS)

    @property
    def agrees(self) -> bool:
        doubt = STANDARD_ERRORS * np.sqrt(LEVELS * (1 - LEVELS) * (1 / OURS + 1 / len(self.replicates)))
        lowest, highest = (np.quantile(self.replicates, np.clip(LEVELS + s * doubt, 0, 1)) for s in (-1, 1))
        ends = np.array([self.ours.low, self.ours.high])
        return bool(self.difference < 1e-9 and np.all(lowest - 1e-9 <= ends) and np.all(ends <= highest + 1e-9))


def made_up(rng: np.random.Generator, tasks: int, runs: int) -> np.ndarray:
    """(tasks, runs): heavy-tailed scores around a centre for each task, in steps of five."""
    return 5 * np.round((rng.uniform(10, 110, (tasks, 1)) + 12 * rng.standard_t(3, (tasks, runs))) / 5)


def compare(tasks: int, runs: int, replicates: int, seed: int) -> Iterator[Compared]:
    """rliable has runs as the first axis and tasks as the second. It draws only from NumPy's global generator."""
    rng = np.random.default_rng(seed)
    x, y = made_up(rng, tasks, runs), made_up(rng, tasks, runs + 2)
    y[0, :2] = x[0, :2]
    of_x = library.StratifiedBootstrap(x.T)
    for name in get_args(Aggregate):
        drawn = of_x.apply(THEIRS[name], replicates)
        yield Compared(name, aggregate(x, name, replicates=OURS), float(THEIRS[name](x.T)), drawn.ravel())
    profile = performance_profile(x, THRESHOLDS, replicates=OURS)
    theirs = library.score_distributions(x.T, THRESHOLDS)
    drawn = of_x.apply(lambda scores: library.score_distributions(scores, THRESHOLDS), replicates)
    for i, threshold in enumerate(THRESHOLDS):
        ours = Estimate(*(float(of[i]) for of in profile[1:]))
        yield Compared(f"profile at {threshold:g}", ours, float(theirs[i]), drawn[:, i])
    sides = {"x": x, "y": y, "x again": x}
    pairs = pairwise_improvement(sides, replicates=OURS)
    for pair in (("x", "y"), ("y", "x"), ("x", "x again")):
        both, ours = [sides[name].T for name in pair], pairs[pair]
        of_both = library.StratifiedIndependentBootstrap(*both)
        drawn = of_both.apply(metrics.probability_of_improvement, max(1, replicates // 4))
        value = float(metrics.probability_of_improvement(*both))
        yield Compared(f"P({pair[0]} > {pair[1]})", ours, value, drawn.ravel())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--replicates", type=int, default=4_000, help="of rliable's bootstrap; pairs get a quarter")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    np.random.seed(options.seed)
    table = Table(title=f"droprl {version('droprl')} and rliable {version('rliable')}", title_justify="left")
    for heading in ("tasks × runs", "what", "value", "difference", "our interval", "rliable's", ""):
        table.add_column(heading, no_wrap=True)
    found = []
    for tasks, runs in SIZES:
        for one in compare(tasks, runs, options.replicates, options.seed + tasks):
            found.append(one)
            ours, theirs = (f"{low:.3f} … {high:.3f}" for low, high in (one.ours[1:], one.interval))
            verdict = "" if one.agrees else "differs"
            cells = (f"{one.ours.value:.3f}", f"{one.difference:.0e}", ours, theirs, verdict)
            table.add_row(f"{tasks} × {runs}", one.what, *cells)
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    wrong = sum(not one.agrees for one in found)
    print(f"{len(found)} compared, {wrong} differ; largest difference of values {max(c.difference for c in found):.1e}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()

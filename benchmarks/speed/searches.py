"""Which search pays: `python benchmarks/speed/searches.py [--results FOLDER] [--out FILE]`.

The returns are those of the suite beside this file (`drop bench benchmarks/speed/adaptation.toml --data FOLDER --out
benchmarks/speed/results/adaptation`); the latencies are measured now, for networks of the paper's sizes and N = 1000
embeddings. Among searches that keep the return of the literal procedure, the one with the most return a millisecond
should be the default.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from adaptation import N, latency, paper_sizes
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

from droprl.bench import Bench, load_suite
from droprl.bench.suite import Method

HERE = Path(__file__).parent
SUITE = load_suite(HERE / "adaptation.toml")
ENVIRONMENTS = (1, 100)


def returns(bench: Bench, method: Method) -> dict[str, dict[str, float]]:
    """For each search the mean over tasks, its difference to the literal procedure's and two standard errors of that,
    from the seeds: both acted with the same weights in the same episodes."""
    found = {}
    tasks = [t for t in SUITE.tasks if all(bench.scores(t, method, p) is not None for p in SUITE.plays)]
    for play in SUITE.plays:
        seeds = np.stack([_scores(bench, t, method, play) for t in tasks])  # (tasks, seeds)
        apart = seeds - np.stack([_scores(bench, t, method, "literal") for t in tasks])
        error = np.sqrt(np.sum(apart.var(axis=1, ddof=1) / apart.shape[1])) / len(tasks)
        found[play] = {"mean": seeds.mean(), "difference": apart.mean(), "error": 2 * float(error), "tasks": len(tasks)}
    return found


def _scores(bench: Bench, task: str, method: Method, play: str) -> np.ndarray:
    scores = bench.scores(task, method, play)
    assert scores is not None  # asked before
    return scores.reshape(SUITE.seeds, -1).mean(axis=1)


def latencies(seconds: float) -> dict[str, dict[str, float]]:
    settings, found = paper_sizes(), dict[str, dict[str, float]]()
    trained = SUITE.methods[0].algorithm("paper", SUITE.name).adaptation
    assert trained is not None  # DROP adapts
    for play, given in SUITE.plays.items():
        points = [latency(N, replace(trained, **given), n, settings, seconds) for n in ENVIRONMENTS]
        found[play] = {str(p.n_envs): p.median_ms for p in points} | {f"{p.n_envs}, p99": p.p99_ms for p in points}
        Console(stderr=True).print(play, found[play])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=HERE / "results" / "adaptation")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each latency")
    parser.add_argument("--out", type=Path, help="JSON with the latencies; where it exists they are read from it")
    given = parser.parse_args()
    content: dict[str, Any]
    if given.out and given.out.exists():
        content = json.loads(given.out.read_text())
    else:
        content = {"device": jax.devices()[0].device_kind, "jax": jax.__version__, "ms": latencies(given.seconds)}
        if given.out:
            given.out.write_text(json.dumps(content, indent=1) + "\n")
    bench = Bench(SUITE, given.results)
    of = {method.name: returns(bench, method) for method in SUITE.methods}
    show(content, of)


def show(content: dict[str, Any], of: dict[str, dict[str, dict[str, float]]]) -> None:
    names = [f"{name} ({next(iter(found.values()))['tasks']} datasets): mean, − literal" for name, found in of.items()]
    ms = [f"ms, {n} env" + "s" * (n > 1) for n in ENVIRONMENTS]
    table = Table(
        "search", *names, *ms, "return a ms", box=MARKDOWN, title=f"{content['device']}, JAX {content['jax']}"
    )
    for play in SUITE.plays:
        cells = [f"{f[play]['mean']:.1f}, {f[play]['difference']:+.1f} ± {f[play]['error']:.1f}" for f in of.values()]
        times = [content["ms"][play][str(n)] for n in ENVIRONMENTS]
        mean = float(np.mean([f[play]["mean"] for f in of.values()]))
        table.add_row(play, *cells, *(f"{t:.2f}" for t in times), f"{mean / times[0]:.0f}")
    Console(width=200).print(table)


if __name__ == "__main__":
    main()

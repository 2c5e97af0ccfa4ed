"""A suite's folder as if its plays had run: the evaluations are written by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from droprl.bench import Bench
from droprl.bench.suite import Figure, Method, Suite
from droprl.files.storage import write_json

DROP, BC = Method("DROP", "drop"), Method("B&C_1", "bc")
Scores = Mapping[tuple[int, int], Sequence[float]]  # of each episode, by seed and step


def bench_at(out: Path, tasks: Sequence[str] = ("a-medium", "b_random"), plays: Sequence[str] = ("once",)) -> Bench:
    suite = Suite(
        name="mine",
        title="Mine",
        claim="",
        tasks=tuple(tasks),
        methods=(DROP, BC),
        plays={play: {"rule": "best"} for play in plays},
        figure=Figure("dots"),
        steps=10,
        seeds=2,
        episodes=2,
    )
    return Bench(suite, out)


def write_played(
    bench: Bench, task: str, method: Method, play: str, scores: Scores, scored: bool = True, ms: float | None = 0.5
) -> None:
    """Returns are ten times the scores. Without scores (`scored=False`) the given numbers are returns."""
    results = [
        {
            "seed": seed,
            "step": step,
            "returns": [10 * v for v in values] if scored else list(values),
            "lengths": [1] * len(values),
            "scores": list(values) if scored else None,
        }
        for (seed, step), values in scores.items()
    ]
    unit = "D4RL-normalised score" if scored else "return"
    facts = {"protocol": bench.suite.protocol, "adaptation": None, "dataset": task, "env": "Hopper-v4", "unit": unit}
    write_json(bench.play_path(task, method, play), facts | {"results": results, "milliseconds_per_action": ms})

"""`drop demo`: from no data to a report, on two cores in a few minutes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from droprl.adapt import RULES
from droprl.algorithms import BC, DROP, FBC, Algorithm
from droprl.cli.data import make_maze
from droprl.cli.evaluate import print_scores
from droprl.cli.options import parse, use_compilation_cache
from droprl.data import Dataset, load_dataset, save_d4rl
from droprl.evaluation import Evaluation
from droprl.evaluation import evaluate as evaluate_run
from droprl.report import write_report
from droprl.report.build import build_report
from droprl.terminal import Screen
from droprl.train import fit

MAZE = "maze2d-umaze"
NOTE = (
    "Regenerated data: scripted controllers made the maze's walks on this machine; they are not D4RL's file. Two seeds "
    "are too few to rank methods."
)


@dataclass(frozen=True)
class Demo:
    """Make maze2d-umaze, train BC, F-BC and DROP on it, play them and DROP's four rules, and write a report."""

    out: Path = Path("demo")
    """The folder for everything. What is already there is not made again."""
    seeds: int = 2
    """Training seeds."""
    steps: int = 4_000
    """Updates of each algorithm."""
    episodes: int = 10
    """Episodes for each seed and rule."""


def demo(words: list[str]) -> None:
    began = time.perf_counter()
    use_compilation_cache()
    options = parse(Demo, "demo", words)
    console = Screen()
    dataset = _dataset(options.out / f"{MAZE}.hdf5")
    algorithms: list[Algorithm] = [BC.small(), FBC.small(), DROP.small()]
    runs = [
        fit(dataset, a, out=options.out / a.name, seeds=options.seeds, steps=options.steps, source=MAZE)
        for a in algorithms
    ]
    evaluations: list[Evaluation] = []
    for run in runs:
        for rule in RULES if run.config.algorithm.adaptation is not None else (None,):
            evaluations.append(evaluate_run(run, episodes=options.episodes, rule=rule))
    print_scores(evaluations)
    with Screen(error=True).status("playing an episode under each rule and drawing the page …"):
        page = write_report(build_report(runs, "drop demo", [NOTE]), options.out / "report.html")
    minutes = (time.perf_counter() - began) / 60
    console.print(f"{NOTE}\nThe report is {page}; open it in a browser. The demo took {minutes:.1f} minutes.")


def _dataset(path: Path) -> Dataset:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        save_d4rl(make_maze(MAZE, 100_000, seed=0), path)
    return load_dataset(path)

"""`drop demo`: from no data to a report, on two cores in a few minutes."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from droprl.adapt import RULES, InferenceRule
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

NOTE = (
    "Regenerated data: scripted controllers made the maze's walks on this machine; they are not D4RL's file. Two seeds "
    "are too few to rank methods."
)


@dataclass(frozen=True)
class Picture:
    """One maze of the demo: what is trained on its data, how DROP plays, and the page that shows it."""

    maze: str
    algorithms: tuple[Algorithm, ...]
    rules: tuple[InferenceRule, ...]
    folder: str
    page: str


PICTURES = (
    Picture("maze2d-umaze", (BC.small(), FBC.small(), DROP.small()), ("first", *RULES, "auto"), "", "report.html"),
    # Its best trajectories were lucky, and none goes right at every junction. Small: its states are four numbers.
    Picture(
        "maze2d-gates",
        (replace(FBC.small(), width=64), replace(DROP.small(), width=64)),
        ("first", "best", "best-ada", "auto"),
        "gates",
        "gates.html",
    ),
)


@dataclass(frozen=True)
class Demo:
    """Make two mazes, train BC, F-BC and DROP on them, play them and DROP's rules, and write two pages.

    In maze2d-umaze the best trajectories are worth imitating. In maze2d-gates they were lucky.
    """

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
    pages = [_show(picture, options) for picture in PICTURES]
    minutes = (time.perf_counter() - began) / 60
    Screen().print(
        f"{NOTE}\nThe pages are {' and '.join(map(str, pages))}; open them in a browser. The demo took {minutes:.1f} "
        "minutes."
    )


def _show(picture: Picture, options: Demo) -> Path:
    """Train, play, print the table, and write the page."""
    out = options.out / picture.folder
    dataset = _dataset(picture.maze, out / f"{picture.maze}.hdf5")
    runs = [
        fit(dataset, a, out=out / a.name, seeds=options.seeds, steps=options.steps, source=picture.maze)
        for a in picture.algorithms
    ]
    evaluations: list[Evaluation] = []
    for run in runs:
        for rule in picture.rules if run.config.algorithm.adaptation is not None else (None,):
            evaluations.append(evaluate_run(run, episodes=options.episodes, rule=rule))
    print_scores(evaluations)
    with Screen(error=True).status("playing an episode under each rule and drawing the page …"):
        return write_report(build_report(runs, "drop demo", [NOTE]), options.out / picture.page)


def _dataset(maze: str, path: Path) -> Dataset:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        save_d4rl(make_maze(maze, 100_000, seed=0), path)
    return load_dataset(path)

"""`drop bench`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.table import Table

from droprl.bench import Bench, InProcesses, OnRay, load_suite, run_suite
from droprl.bench.cells import Cell, state_of
from droprl.bench.figure import suite_figure
from droprl.bench.runner import missing_cells
from droprl.bench.tables import write_tables
from droprl.cli.options import parse, use_compilation_cache
from droprl.train.storage import write_bytes

HERE = "local"  # --ray without an address
SuiteName = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="SUITE")]


@dataclass(frozen=True)
class BenchOptions:
    """Run a suite: train and play what is missing, then the tables and the figure. The same command goes on."""

    suite: SuiteName
    """A ready-made suite (`drop bench list` names them) or a .toml file of your own."""
    out: Path | None = None
    """Where runs, plays, episodes.csv, tables and figure.svg go; by default bench/SUITE."""
    data: Path | None = None
    """The folder with TASK.hdf5 for each task; mazes are made on the spot."""
    tasks: tuple[str, ...] | None = None
    """Other tasks than the suite's."""
    methods: tuple[str, ...] | None = None
    """Only these of the suite's methods."""
    preset: Literal["paper", "small"] = "paper"
    """paper: the paper's sizes. small: for CPUs."""
    seeds: int | None = None
    """Other than the suite's."""
    steps: int | None = None
    """Other than the suite's."""
    episodes: int | None = None
    """Other than the suite's."""
    note: str | None = None
    """What a reader must know of these results, for the page: in place of the suite's own."""
    workers: int = 1
    """Trainings at once on this machine, each in a process of its own."""
    ray: str | None = None
    """Spread the suite over a Ray cluster instead: its address, or nothing to start Ray on this machine. All machines
    must see OUT and the data under the same path."""
    cpus: float = 1.0
    """Of the cluster, for each training."""
    gpus: float = 0.0
    """Likewise; a part of a GPU will do."""
    draw: bool = False
    """Run nothing: the tables and the figure of what is in OUT."""


def bench(words: list[str]) -> None:
    if words == ["list"]:
        _list()
        return
    use_compilation_cache()
    if "--ray" in words and (words[words.index("--ray") + 1 :] or ["--"])[0].startswith("--"):
        words.insert(words.index("--ray") + 1, HERE)
    options = parse(BenchOptions, "bench", words)
    names = ("tasks", "seeds", "steps", "episodes", "note")
    suite = load_suite(options.suite).changed(**{name: getattr(options, name) for name in names})
    suite = suite if options.methods is None else suite.only(options.methods)
    made = Bench(suite, options.out or Path("bench") / suite.name, options.data, options.preset)
    if not options.draw:
        runner: InProcesses | OnRay = InProcesses(options.workers)
        if options.ray is not None:
            runner = OnRay(None if options.ray == HERE else options.ray, options.cpus, options.gpus)
        missing_cells(made)  # a mistake is said before the table of progress
        with Live(get_renderable=lambda: progress_table(made), console=Console(stderr=True), refresh_per_second=1):
            run_suite(made, runner)
    write_bytes(made.out / "figure.svg", suite_figure(made).encode())
    console = Console()
    for name, table in write_tables(made).items():
        if name.startswith(("scores", "aggregates")):
            console.print(table.to_rich())
    if suite.claim:
        console.print(f"The paper: {suite.claim}", highlight=False, soft_wrap=True)
    console.print(f"{made.out}: figure.svg and tables/ are written", highlight=False, soft_wrap=True)


def _list() -> None:
    from droprl.bench import SUITES

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("suite", no_wrap=True)
    table.add_column("what")
    for name in SUITES:
        table.add_row(name, load_suite(name).title)
    Console().print(table)


def progress_table(made: Bench) -> Table:
    """What every method does on every task, read from the disk."""
    table = Table(title=made.suite.title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("task", *(m.name for m in made.suite.methods)):
        table.add_column(heading, no_wrap=True)
    for task in made.suite.tasks:
        table.add_row(task, *(state_of(made, Cell(task, m)) for m in made.suite.methods))
    return table

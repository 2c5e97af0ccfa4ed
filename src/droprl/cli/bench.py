"""`drop bench`, `drop bench list` and `drop bench pack`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.box import SIMPLE_HEAD
from rich.live import Live
from rich.table import Table

from droprl.bench import Bench, InProcesses, OnRay, load_bench, load_suite, run_suite
from droprl.bench.cells import Cell, state_of
from droprl.bench.figure import suite_figure
from droprl.bench.packed import is_packed
from droprl.bench.packing import PACKED, pack
from droprl.bench.runner import missing_cells
from droprl.bench.tables import write_tables
from droprl.cli.options import parse, print_json, use_compilation_cache
from droprl.errors import UsageError
from droprl.files.names import file_name
from droprl.files.storage import write_bytes
from droprl.terminal import Screen, remark

HERE = "local"  # --ray without an address
SuiteName = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="SUITE")]


@dataclass(frozen=True)
class BenchOptions:
    """Run a suite: train and play what is missing, then write the tables and the figure. The same command resumes.

    `drop bench list` names the ready-made suites. `drop bench pack FOLDER --out DIR` packs a suite's results into a few
    files that are easy to store and to share.
    """

    suite: SuiteName
    """A ready-made suite (`drop bench list` names them) or a .toml file of your own."""
    out: Path | None = None
    """The folder for runs, plays, episodes.csv, tables and figure.svg; by default bench/SUITE."""
    data: Path | None = None
    """The folder with TASK.hdf5 for each task; mazes need no file."""
    tasks: tuple[str, ...] | None = None
    """Run only these tasks; they need not be in the suite. Results of other tasks in OUT stay."""
    methods: tuple[str, ...] | None = None
    """Run only these methods of the suite. Results of other methods in OUT stay."""
    preset: Literal["paper", "small"] = "paper"
    """paper: the paper's sizes. small: for CPUs."""
    seeds: int | None = None
    """Number of seeds, instead of the suite's."""
    steps: int | None = None
    """Number of updates, instead of the suite's."""
    episodes: int | None = None
    """Number of episodes, instead of the suite's."""
    note: str | None = None
    """What a reader of the page must know about these results. It replaces the suite's own note."""
    workers: int = 1
    """How many trainings run at once on this machine, each in its own process."""
    ray: str | None = None
    """Run the suite on a Ray cluster instead: give its address, or no address to start a new Ray on this machine. All
    machines must see OUT and the data under the same path."""
    cpus: float = 1.0
    """With --ray: CPUs for each training."""
    gpus: float = 0.0
    """With --ray: GPUs for each training; may be a fraction."""
    draw: bool = False
    """Run nothing: write the tables and the figure of the results in OUT, by its own suite.json if it has one."""
    json: bool = False
    """Print one JSON object: the folder, and the rows of every table."""


@dataclass(frozen=True)
class PackOptions:
    """Pack the folder of a suite into at most four files. All numbers are in them, but no weights and no pages.

    `drop report DIR` and `drop bench SUITE --out DIR --draw` make the same page and tables from DIR. `drop bench SUITE
    --out DIR` resumes there: if something is missing, it unpacks the folder first.
    """

    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FOLDER")]
    """The folder with the results of `drop bench`. It stays as it is."""
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")]
    """The folder for suite.json, episodes.csv and, if there are any, logs.csv.gz and episode.json."""
    json: bool = False
    """Print one JSON object: the folder and its files."""


@dataclass(frozen=True)
class ListOptions:
    """Show the ready-made suites."""

    json: bool = False
    """Print one JSON object: the title of each suite."""


def bench(words: list[str]) -> None:
    if words[:1] == ["list"]:
        _list(parse(ListOptions, "bench list", words[1:]))
        return
    if words[:1] == ["pack"]:
        _pack(parse(PackOptions, "bench pack", words[1:]))
        return
    use_compilation_cache()
    if "--ray" in words and (words[words.index("--ray") + 1 :] or ["--"])[0].startswith("--"):
        words.insert(words.index("--ray") + 1, HERE)
    options = parse(BenchOptions, "bench", words)
    made = _bench(options)
    if not options.draw:
        runner: InProcesses | OnRay = InProcesses(options.workers)
        if options.ray is not None:
            runner = OnRay(options.ray, options.cpus, options.gpus)
        missing_cells(made)  # report a mistake before the table of progress appears
        with Live(get_renderable=lambda: progress_table(made), console=Screen(error=True), refresh_per_second=1):
            run_suite(made, runner)
    _draw(made, options)


def _bench(options: BenchOptions) -> Bench:
    names = ("seeds", "steps", "episodes", "note")
    suite = load_suite(options.suite).changed(**{name: getattr(options, name) for name in names})
    suite = suite.changed(tasks=tuple(dict.fromkeys([*suite.tasks, *(options.tasks or ())])))
    out = options.out or Path("bench") / file_name(suite.name)
    return Bench(suite, out, options.data, options.preset, options.tasks, options.methods)


def _draw(made: Bench, options: BenchOptions) -> None:
    """Draw all results in OUT, also those that were not run now."""
    if (made.out / "suite.json").exists():
        given = [
            name for name in ("tasks", "methods", "seeds", "steps", "episodes") if getattr(options, name) is not None
        ]
        if options.draw and given:
            raise UsageError(f"{made.out}: --draw takes all settings from its suite.json: leave out --{given[0]}")
        recorded = load_bench(made.out)
        made = replace(recorded, suite=recorded.suite.changed(note=options.note), data=options.data)
    else:
        made = replace(made, suite=made.asked)
    write_bytes(made.out / "figure.svg", suite_figure(made).encode())
    made.write_episodes()
    console, tables = Screen(), write_tables(made)
    if options.json:
        print_json({"out": str(made.out), "tables": {name: table.records() for name, table in tables.items()}})
        return
    for name, table in tables.items():
        if name.startswith(("scores", "aggregates")):
            console.print(table.to_rich())
    if made.suite.claim:
        console.print(f"The paper: {made.suite.claim}", soft_wrap=True)
    names = "figure.svg and tables/" if is_packed(made.out) else "figure.svg, episodes.csv and tables/"
    console.print(f"{made.out}: {names} are written", soft_wrap=True)


def _pack(options: PackOptions) -> None:
    number = pack(options.folder, options.out)
    names = ", ".join(sorted(path.name for path in options.out.iterdir() if path.name in PACKED))
    if options.json:
        print_json({"out": str(options.out), "files": names.split(", "), "packed": number})
    else:
        remark(f"{options.out}: {names} hold the content of {number} files in {options.folder}")


def _list(options: ListOptions) -> None:
    from droprl.bench import SUITES

    if options.json:
        print_json({name: load_suite(name).title for name in SUITES})
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("suite", no_wrap=True)
    table.add_column("what")
    for name in SUITES:
        table.add_row(name, load_suite(name).title)
    Screen().print(table)


def progress_table(made: Bench) -> Table:
    """How far each method is on each task, read from the disk."""
    table = Table(title=made.suite.title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    asked = made.asked
    for heading in ("task", *(m.name for m in asked.methods)):
        table.add_column(heading, no_wrap=True)
    for task in asked.tasks:
        table.add_row(task, *(state_of(made, Cell(task, m)) for m in asked.methods))
    return table

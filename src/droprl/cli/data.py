"""`drop data info`, `drop data make` and `drop data map`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import tyro
from rich.progress import BarColumn, Progress, TaskProgressColumn, TimeRemainingColumn

from droprl.cli.describe import print_description
from droprl.cli.options import Source, parse, print_json
from droprl.data import Dataset, map_dataset, save_d4rl
from droprl.data.describe import describe
from droprl.data.made import make_dataset
from droprl.data.sources import SourceOptions
from droprl.environments.gates import Gates
from droprl.errors import DropError
from droprl.terminal import Screen, column, say


@dataclass(frozen=True)
class Info:
    """Show what is in a dataset: sizes, returns, and how each rule would cut it into sub-tasks."""

    source: Source
    """A D4RL .hdf5 file, an .npz file, a Minari id, several joined with +, or a folder of `drop data map`."""
    reading: SourceOptions = field(default_factory=SourceOptions)
    json: bool = False
    """Print one JSON object instead of tables."""


def info(words: list[str]) -> None:
    options = parse(Info, "data info", words)
    description = describe(options.reading.load(options.source))
    if options.json:
        print_json(asdict(description))
    else:
        print_description(description, Screen())


@dataclass(frozen=True)
class Make:
    """Make a maze dataset in D4RL's layout. This needs no download and no GPU."""

    maze: tyro.conf.Positional[Literal["maze2d-umaze", "maze2d-medium", "maze2d-large", "maze2d-gates"]]
    """Which maze. maze2d-gates is a row of junctions that can tell luck from skill."""
    steps: int = 100_000
    """How many steps, rounded up to whole episodes."""
    seed: int = 0
    """The same seed makes the same file."""
    out: Path | None = None
    """The file to write; by default MAZE.hdf5 in the current folder. The options of gates become part of the name."""
    luck: float | None = None
    """maze2d-gates: the share of chance in the variance of what a junction pays, if a fair coin chooses the way: whole
    hundredths from 0 to 0.9. By default 0.5."""
    junctions: int | None = None
    """maze2d-gates: how many junctions stand in a row. By default 3."""
    cap: int | None = None
    """maze2d-gates: at how many junctions one trajectory goes right, at most. By default at all but one."""

    @property
    def name(self) -> str:
        given: dict[str, Any] = {"luck": self.luck, "junctions": self.junctions, "cap": self.cap}
        given = {option: value for option, value in given.items() if value is not None}
        if self.maze == "maze2d-gates":
            return Gates(**given).data_name
        if given:
            raise DropError(f"{self.maze}: has no {' and no '.join(given)}: leave it out, or make maze2d-gates")
        return self.maze


def make(words: list[str]) -> None:
    options = parse(Make, "data make", words)
    path = options.out or Path(f"{options.name}.hdf5")
    dataset = make_maze(options.name, options.steps, options.seed)
    save_d4rl(dataset, path)
    say(f"{path}: {dataset.n_steps:,} steps in {dataset.n_episodes:,} episodes; look at it with: drop data info {path}")


def make_maze(name: str, steps: int, seed: int) -> Dataset:
    with work_bar(f"making {name}") as progress:
        return make_dataset(name, steps, seed, progress)


@dataclass(frozen=True)
class Map:
    """Write a dataset as a folder of columns that training reads from the disk: for data larger than memory.

    The folder can then be used as SOURCE. A D4RL file is read part by part, and so is your own folder with
    observations.npy, actions.npy, rewards.npy, terminals.npy and, if you have them, timeouts.npy and
    next_observations.npy. Other sources must fit into memory.
    """

    source: Source
    """A D4RL .hdf5 file, a folder of .npy columns, an .npz file, a Minari id, or several joined with +."""
    out: Path
    """The folder to write."""
    reading: SourceOptions = field(default_factory=SourceOptions)


def map_source(words: list[str]) -> None:
    options = parse(Map, "data map", words)
    with work_bar(f"mapping {options.source}") as progress:
        dataset = map_dataset(options.source, options.out, **vars(options.reading), progress=progress)
    say(
        f"{options.out}: {dataset.n_steps:,} steps in {dataset.n_episodes:,} episodes; train on it with: "
        f"drop train {options.out}"
    )


@contextmanager
def work_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    columns = (
        column("{task.description}", "bold"),
        BarColumn(bar_width=24),
        TaskProgressColumn(),
    )
    console = Screen(error=True)
    left = TimeRemainingColumn(compact=True)
    with Progress(*columns, left, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)

"""`drop data info`, `drop data make` and `drop data map`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import tyro

from droprl.cli.describe import print_description
from droprl.cli.options import Source, parse, print_json, refuse_to_replace
from droprl.data import Dataset, map_dataset, save_d4rl
from droprl.data.ant_walks import ANT_DATA, AntWalker, load_walker
from droprl.data.describe import describe
from droprl.data.made import make_dataset
from droprl.data.sources import SourceOptions
from droprl.environments.gates import Gates
from droprl.errors import UsageError
from droprl.progress import bar
from droprl.terminal import Screen, remark


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
    """Make a maze dataset in D4RL's layout. This needs no GPU, and no download except for AntMaze's walker."""

    maze: tyro.conf.Positional[
        Literal[
            "maze2d-umaze",
            "maze2d-medium",
            "maze2d-large",
            "maze2d-gates",
            "antmaze-umaze",
            "antmaze-umaze-diverse",
            "antmaze-medium-play",
            "antmaze-medium-diverse",
            "antmaze-large-play",
            "antmaze-large-diverse",
        ]
    ]
    """Which maze. maze2d-gates is a row of junctions that can tell luck from skill. AntMaze needs a --walker."""
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
    walker: Path | None = None
    """antmaze: an .npz file with a policy that walks the ant to a point: layers W0, b0, W1, b1, … that lead from 27
    observed numbers and a direction to 8 actions."""
    force: bool = False
    """Replace a file that is there already."""
    json: bool = False
    """Print one JSON object: the file, its steps and its episodes."""

    @property
    def name(self) -> str:
        given: dict[str, Any] = {"luck": self.luck, "junctions": self.junctions, "cap": self.cap}
        given = {option: value for option, value in given.items() if value is not None}
        if self.maze == "maze2d-gates":
            return Gates(**given).data_name
        if given:
            raise UsageError(f"{self.maze}: has no {' and no '.join(given)}: leave it out, or make maze2d-gates")
        return self.maze


def make(words: list[str]) -> None:
    options = parse(Make, "data make", words)
    if options.walker is not None and options.maze not in ANT_DATA:
        raise UsageError(f"{options.maze}: nothing walks there: leave --walker out, or make antmaze-umaze")
    walker = None if options.walker is None else load_walker(options.walker)
    path = options.out or Path(f"{options.name}.hdf5")
    refuse_to_replace(path, options.force)
    dataset = make_maze(options.name, options.steps, options.seed, walker)
    save_d4rl(dataset, path)
    _say_what_was_made(dataset, path, "look at it with: drop data info", options.json)


def _say_what_was_made(dataset: Dataset, path: Path, next_command: str, as_json: bool) -> None:
    if as_json:
        print_json({"path": str(path), "n_steps": dataset.n_steps, "n_episodes": dataset.n_episodes})
    else:
        remark(f"{path}: {dataset.n_steps:,} steps in {dataset.n_episodes:,} episodes; {next_command} {path}")


def make_maze(name: str, steps: int, seed: int, walker: AntWalker | None = None) -> Dataset:
    with bar(f"making {name}") as progress:
        return make_dataset(name, steps, seed, progress, walker)


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
    json: bool = False
    """Print one JSON object: the folder, its steps and its episodes."""


def map_source(words: list[str]) -> None:
    options = parse(Map, "data map", words)
    with bar(f"mapping {options.source}") as progress:
        dataset = map_dataset(options.source, options.out, **vars(options.reading), progress=progress)
    _say_what_was_made(dataset, options.out, "train on it with: drop train", options.json)

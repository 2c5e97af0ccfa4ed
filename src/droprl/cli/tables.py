"""`drop data import` and `drop data export`: datasets from tables and robots' folders, and for Minari."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from droprl.cli.describe import print_warnings
from droprl.cli.options import Source, parse, print_json, refuse_to_replace
from droprl.data import Dataset
from droprl.data.frames import import_table
from droprl.data.lerobot import is_lerobot, load_lerobot
from droprl.data.meaning import Meaning
from droprl.data.saving import HDF5_SUFFIXES
from droprl.data.sources import SourceOptions
from droprl.data.tables import CsvOptions
from droprl.data.warn import Warned, column_ranges, reward_facts, warnings_of
from droprl.errors import DropError
from droprl.progress import bar
from droprl.terminal import Screen, say


@dataclass(frozen=True)
class Import:
    """Make a dataset of a CSV or Parquet file with one row for each step, or of a LeRobot folder.

    A table needs --observations, --actions and --reward, and one way to tell episodes apart: --episode, --gap with
    --time, --length, --terminal, or --horizon. A LeRobot folder (v2.0, v2.1 or v3) knows all of this; its reward is the
    label of success. The command says what it did with the rows.
    """

    file: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FILE")]
    """A .csv, .tsv, .txt, .parquet or .pq file, or a LeRobot folder."""
    meaning: Meaning = field(default_factory=Meaning)
    csv: CsvOptions = field(default_factory=CsvOptions)
    successes: str | None = None
    """LeRobot: the successful episodes where the data has no label: all, or for example 0-9,12."""
    out: Path | None = None
    """The .hdf5 file to write; by default FILE's name in the current folder."""
    force: bool = False
    """Replace the file if it is there already."""
    json: bool = False
    """Print one JSON object instead of sentences."""


def import_source(words: list[str]) -> None:
    options = parse(Import, "data import", words)
    name = options.file.expanduser().resolve().name if options.file.is_dir() else options.file.stem
    out = options.out or Path(f"{name}.hdf5")
    if out.suffix.lower() not in HDF5_SUFFIXES:
        raise DropError(f"{out}: does not end in .hdf5 or .h5: name it {out.name}.hdf5")
    refuse_to_replace(out, options.force)  # before anything is read
    with bar(f"reading {options.file}"):
        dataset = _read(options)
        warnings = warnings_of(dataset, column_ranges(dataset), reward_facts(dataset))
    dataset.save(out, force=options.force)
    _tell(options, dataset, warnings, out)


def _read(options: Import) -> Dataset:
    path = options.file.expanduser()
    if path.is_dir():
        if not is_lerobot(path):
            raise DropError(
                f"{path}: is a folder without meta/info.json, so not LeRobot's: name a table or such a folder"
            )
        return load_lerobot(path, options.meaning, options.successes)
    if options.successes is not None:
        raise DropError("--successes is for LeRobot folders: name the column of the reward with --reward")
    return import_table(path, options.meaning, options.csv)


def _tell(options: Import, dataset: Dataset, warnings: tuple[Warned, ...], out: Path) -> None:
    if options.json:
        print_json(
            {
                "out": str(out),
                "n_steps": dataset.n_steps,
                "n_episodes": dataset.n_episodes,
                "observation_parts": dataset.observation_parts,
                "action_parts": dataset.action_parts,
                "notes": dataset.notes,
                "warnings": [asdict(warned) for warned in warnings],
            }
        )
        return
    say(f"{options.file}:", *(f"  {note}" for note in dataset.notes))
    print_warnings(warnings, Screen(width=None if Screen().is_terminal else 10_000))
    say(f"{out} is written; look at it with: drop data info {out}")


@dataclass(frozen=True)
class Export:
    """Write a dataset as a Minari dataset, into the local Minari root."""

    source: Source
    """A D4RL .hdf5 file, an .npz file, a Minari id, several joined with +, or a folder of `drop data map`."""
    minari: str
    """The id of the Minari dataset to make, such as mine/plant-v0."""
    reading: SourceOptions = field(default_factory=SourceOptions)


def export_source(words: list[str]) -> None:
    options = parse(Export, "data export", words)
    dataset = options.reading.load(options.source)
    dataset.to_minari(options.minari)
    say(f"{options.minari}: {dataset.n_steps:,} steps in {dataset.n_episodes:,} episodes are in the local Minari root")
    if dataset.next_observations is None:
        say("the data does not have the state after each episode's last step: its last observation is repeated")

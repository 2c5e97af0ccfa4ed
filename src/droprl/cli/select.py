"""`drop select`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tyro
from rich.box import SIMPLE_HEAD
from rich.table import Table

from droprl.algorithms import DROP
from droprl.cli.options import Source, parse, print_json, use_compilation_cache
from droprl.data.sources import SourceOptions
from droprl.select import Selection
from droprl.select import select as select_settings
from droprl.terminal import Screen


@dataclass(frozen=True)
class SelectOptions:
    """Choose N and K: train DROP once for each N, then choose by the data alone or by a budget of episodes."""

    source: Source
    """A D4RL .hdf5 file, an .npz file, a Minari id, or several joined with +."""
    out: Path
    """A folder for the runs, one for each N, and selection.json. The same command resumes."""
    n_sub_tasks: tuple[int, ...] = (5, 10, 20, 50, 100)
    """The N to choose from. An N above the number of trajectories is left out. M follows from N: equal sizes."""
    ascent_steps: tuple[int, ...] = (5,)
    """The K to choose from. A K needs no training of its own."""
    budget: int = 0
    """How many episodes may be played in total. With 0, the data alone chooses, as drop judge judges. Otherwise the
    paper's way: the fitting loss keeps the four best N, and the episodes choose among these."""
    preset: Literal["paper", "small"] = "paper"
    """paper: the paper's sizes. small: for CPUs."""
    steps: int = 20_000
    """Updates of each run."""
    seeds: int = 1
    """Seeds of each run; the paper uses one."""
    reading: SourceOptions = field(default_factory=SourceOptions)
    json: bool = False
    """Print one JSON object: every candidate, and which one was chosen."""


def select(words: list[str]) -> None:
    use_compilation_cache()
    options: Any = parse(SelectOptions, "select", words, SelectOptions(source=tyro.MISSING, out=tyro.MISSING))
    selection = select_settings(
        options.reading.load(options.source),
        DROP.small() if options.preset == "small" else DROP(),
        out=options.out,
        n_sub_tasks=options.n_sub_tasks,
        ascent_steps=options.ascent_steps,
        budget=options.budget,
        steps=options.steps,
        seeds=options.seeds,
        source=options.source,
    )
    if options.json:
        print_json(asdict(selection) | {"best": asdict(selection.best)})
        return
    console = Screen()
    console.print(selection_table(selection))
    best = selection.best
    cost = f"{selection.episodes} episodes were played" if selection.episodes else "nothing was played"
    console.print(f"N = {best.n_sub_tasks}, K = {best.ascent_steps} ({cost}): {best.run}", soft_wrap=True)


def selection_table(selection: Selection) -> Table:
    """`estimate` is the discounted return as `drop judge` estimates it, with its 90 % interval, and the share of its
    steps that are like the log's; `played` is the mean return of the episodes."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in (
        "",
        "N",
        "M",
        "K",
        "fitting loss",
        "kept",
        "estimate",
        "nominal 90 %",
        "like the log",
        "played",
        "episodes",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for i, c in enumerate(selection.candidates):
        table.add_row(
            "→" if i == selection.chosen else "",
            str(c.n_sub_tasks),
            str(c.trajectories_per_sub_task),
            str(c.ascent_steps),
            f"{c.fitting_loss:.4f}",
            "yes" if c.kept else "no",
            "–" if c.estimate is None else f"{c.estimate:.4g}",
            "–" if c.interval is None else f"{c.interval[0]:.4g} … {c.interval[1]:.4g}",
            "–" if c.supported is None else f"{c.supported:.0%}",
            f"{np.mean(c.played):.1f}" if c.played else "–",
            str(len(c.played)) if c.played else "–",
        )
    return table

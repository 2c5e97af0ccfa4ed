"""`drop report`: one page for runs of one dataset, or for a whole suite."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from droprl.bench import SUITES, Bench, load_bench, load_suite
from droprl.bench.page.build import as_played, build_suite_report
from droprl.bench.page.render import write_suite_report
from droprl.bench.tables import write_tables
from droprl.cli.options import parse, use_compilation_cache
from droprl.errors import DropError
from droprl.report import write_report
from droprl.report.build import build_report
from droprl.report.run_tables import run_tables
from droprl.report.table import save_tables
from droprl.train import Run

Folders = Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN_OR_SUITE …")]


@dataclass(frozen=True)
class ReportOptions:
    """One self-contained HTML page: for runs of one dataset their scores, curves, sub-tasks, diagnostics and z on its
    walk; for the folder of a suite all its tasks and methods side by side. Every table also as CSV and LaTeX."""

    runs: Folders
    """Run directories, evaluated before; or one folder that `drop bench` made."""
    out: Path | None = None
    """The page; by default report.html in the first folder."""
    suite: str | None = None
    """Which suite the folder is of, where neither a suite.json in it nor its name says so: a name or a .toml file."""
    data: Path | None = None
    """Of a suite that did not record its data: the folder with TASK.hdf5, to see whether the files call themselves
    regenerated."""
    note: str | None = None
    """Of a suite: what a reader must know, in place of the suite's own note."""
    episode: bool = True
    """Of a suite: play an episode of DROP's for the picture of its embedding."""


def report(words: list[str]) -> None:
    use_compilation_cache()
    options = parse(ReportOptions, "report", words)
    if not options.runs:
        raise DropError("`drop report` needs at least one run directory, or the folder of a suite")
    command = shlex.join(["drop", "report", *words])
    page = options.out or options.runs[0] / "report.html"
    bench = _bench_of(options.runs[0], options.suite)
    with Console(stderr=True).status("playing an episode under each rule, drawing the page …"):
        if bench is not None:
            if len(options.runs) > 1:
                raise DropError("one page shows one suite: give one folder, or run directories alone")
            bench = replace(bench, data=options.data, suite=bench.suite.changed(note=options.note))
            write_suite_report(build_suite_report(bench, command, episode=options.episode), page)
            as_played(bench).write_episodes()
            write_tables(as_played(bench))
        else:
            report = build_report(_runs_of_one_dataset(options.runs), command)
            write_report(report, page)
            save_tables(run_tables(report), options.runs[0] / "tables")
    print(f"{page} is written")


def _bench_of(folder: Path, named: str | None) -> Bench | None:
    """The suite of a folder: the one that is named, its own suite.json, or a ready-made one of the folder's name."""
    if named is not None:
        return Bench(load_suite(named), folder)
    if (folder / "suite.json").exists():
        return load_bench(folder)
    if (folder / "config.json").exists() or not any((folder / part).is_dir() for part in ("plays", "runs")):
        return None
    if folder.resolve().name in SUITES:
        return Bench(load_suite(folder.resolve().name), folder)
    raise DropError(f"{folder}: is a suite's folder without suite.json: say which suite with --suite")


def _runs_of_one_dataset(paths: tuple[Path, ...]) -> list[Run]:
    runs = [Run(path) for path in paths]
    names = {run.config.data.name for run in runs}
    if len(names) > 1:
        raise DropError(f"the runs learned from different data ({', '.join(sorted(names))}): report one dataset a page")
    return runs

"""`drop report`: one page for runs, or for a whole suite."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro

from droprl.bench import SUITES, Bench, load_bench, load_suite
from droprl.bench.page.build import as_played, build_suite_report
from droprl.bench.page.render import write_suite_report
from droprl.bench.tables import write_tables
from droprl.cli.options import parse, print_json, refuse_to_replace, use_compilation_cache
from droprl.errors import DropError, UsageError
from droprl.report import write_report
from droprl.report.build import build_report
from droprl.report.parts import made_by
from droprl.report.run_tables import run_tables
from droprl.report.table import save_tables
from droprl.terminal import Screen, remark
from droprl.train import Run

Folders = Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN_OR_SUITE …")]


DEEPEST = 4  # folders between the one that was named and a run


@dataclass(frozen=True)
class ReportOptions:
    """Write one self-contained HTML page. For runs it has their scores, what differs between them, curves, sub-tasks,
    diagnostics, a video and the walk of z. For the folder of a suite it compares all tasks and methods. All tables are
    also written as CSV and LaTeX."""

    runs: Folders
    """Run directories that were evaluated, or folders with such runs, as `runs/`; or one folder that `drop bench`
    made."""
    out: Path | None = None
    """The file of the page; by default report.html in the first folder."""
    suite: str | None = None
    """The suite of the folder, a name or a .toml file. Needed if neither suite.json nor the folder's name says it."""
    data: Path | None = None
    """For a suite that did not record its data: the folder with TASK.hdf5. The files say whether they are
    regenerated."""
    note: str | None = None
    """For a suite: what a reader must know. It replaces the suite's own note."""
    episode: bool = True
    """For a suite: play an episode of DROP and draw its embedding."""
    force: bool = False
    """Replace a page that another command made."""
    json: bool = False
    """Print one JSON object: the page, and the rows of its tables."""


def report(words: list[str]) -> None:
    use_compilation_cache()
    options = parse(ReportOptions, "report", words)
    if not options.runs:
        raise UsageError("`drop report` needs at least one run directory, or the folder of a suite")
    command = shlex.join(["drop", "report", *(word for word in words if word not in ("--force", "--json"))])
    page = options.out or options.runs[0] / "report.html"
    if not _is_made_by(page, command):
        refuse_to_replace(page, options.force)
    bench = _bench_of(options.runs[0], options.suite)
    with Screen(error=True).status("playing an episode under each rule and drawing the page …"):
        if bench is not None:
            if len(options.runs) > 1:
                raise DropError("a page shows one suite: give one folder of a suite, or only run directories")
            bench = replace(bench, data=options.data, suite=bench.suite.changed(note=options.note))
            write_suite_report(build_suite_report(bench, command, episode=options.episode), page)
            as_played(bench).write_episodes()
            tables = write_tables(as_played(bench))
        else:
            report = build_report(_runs_in(options.runs), command)
            write_report(report, page)
            tables = run_tables(report)
            save_tables(tables, options.runs[0] / "tables")
    if options.json:
        print_json({"page": str(page), "tables": {name: table.records() for name, table in tables.items()}})
    else:
        remark(f"{page} is written")


def _is_made_by(page: Path, command: str) -> bool:
    """Whether the same command made the page that is there."""
    return page.is_file() and made_by(command) in page.read_text(encoding="utf-8", errors="replace")


def _bench_of(folder: Path, named: str | None) -> Bench | None:
    """The suite of a folder: the named one, that of its suite.json, or the ready-made one with the folder's name."""
    if named is not None:
        return Bench(load_suite(named), folder)
    if (folder / "suite.json").exists():
        return load_bench(folder)
    if (folder / "config.json").exists() or not any((folder / part).is_dir() for part in ("plays", "runs")):
        return None
    if folder.resolve().name in SUITES:
        return Bench(load_suite(folder.resolve().name), folder)
    raise DropError(f"{folder}: is the folder of a suite but has no suite.json: say which suite with --suite")


def _runs_in(paths: tuple[Path, ...]) -> list[Run]:
    """The runs that were named, and all those below the folders that were named."""
    found: dict[Path, Run] = {}
    for path in paths:
        below = [path] if (path / "config.json").exists() else list(_below(path, DEEPEST)) if path.is_dir() else []
        for folder in below or [path]:  # a folder without any run is refused as what it is
            found.setdefault(folder.resolve(), Run(folder))
    return list(found.values())


def _below(folder: Path, depth: int) -> Iterator[Path]:
    for inside in sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()):
        if (inside / "config.json").exists():
            yield inside
        elif depth > 1 and not inside.name.startswith("."):
            yield from _below(inside, depth - 1)

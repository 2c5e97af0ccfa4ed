"""The results in benchmarks/paper come from the suites of the same names."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from droprl.bench import Bench, load_bench, load_suite
from droprl.bench.existing import refuse_other_settings
from droprl.bench.figure import suite_figure
from droprl.bench.results import COLUMNS

PAPER = Path(__file__).parents[2] / "benchmarks" / "paper"
FOLDERS = sorted(path.name for path in PAPER.iterdir() if path.is_dir())


@pytest.mark.parametrize("name", FOLDERS)
def test_what_was_played_is_what_the_ready_made_suite_asks_for(name: str) -> None:
    """A new default must not change what a committed number stands for: the suite fixes the default of that time."""
    kept = load_bench(PAPER / name)
    asked = Bench(load_suite(name), kept.out, preset=kept.preset)
    checked = 0
    for method in asked.suite.methods:
        for play in asked.suite.plays_of(method):
            for task in asked.suite.tasks:
                if (found := asked.evaluation(task, method, play)) is not None:
                    assert asked.adapts_as_asked(found["adaptation"], method, play), (task, method.name, play)
                    assert asked.is_played(task, method, play), (task, method.name, play)
                    checked += 1
    assert checked == len(list(kept.out.glob("plays/*/*/*.json")))


@pytest.mark.parametrize("name", FOLDERS)
def test_suite_json_and_the_runs_agree_with_the_ready_made_suite(name: str) -> None:
    kept = load_bench(PAPER / name)
    ready = load_suite(name)
    if name == "ablation-cloning":  # it ran with smaller sizes, as docs/paper.md says
        assert (kept.preset, kept.suite.seeds, kept.suite.steps) == ("small", 2, 5_000)
        ready = replace(ready, seeds=2, steps=5_000)
    assert kept.suite == replace(ready, note=kept.suite.note)
    refuse_other_settings(kept)


@pytest.mark.parametrize("name", FOLDERS)
def test_the_committed_table_has_every_episode(name: str) -> None:
    kept = load_bench(PAPER / name)
    rows = list(csv.reader((kept.out / "episodes.csv").open(encoding="utf-8")))
    assert rows == [list(COLUMNS), *([str(value) for value in row] for row in kept.rows())]


@pytest.mark.parametrize("name", FOLDERS)
def test_the_figure_in_the_docs_shows_the_committed_results(name: str) -> None:
    drawn = suite_figure(load_bench(PAPER / name))
    assert (PAPER.parents[1] / "docs" / "figures" / f"{name}.svg").read_text(encoding="utf-8") == drawn

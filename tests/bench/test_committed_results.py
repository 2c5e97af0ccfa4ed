"""The results in benchmarks/ are complete, they come from the suites of the same names, and the figures in the docs are
drawn from them."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from droprl.bench import Bench, load_bench, load_suite
from droprl.bench.existing import refuse_other_settings
from droprl.bench.figure import suite_figure
from droprl.bench.packed import packed_files
from droprl.bench.packing import PACKED
from droprl.evaluation.statistics import iqm

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
FIGURES = BENCHMARKS.parent / "docs" / "figures"
PAPER = BENCHMARKS / "paper"
SUITES = sorted(path.name for path in PAPER.iterdir() if path.is_dir())
SPEED = BENCHMARKS / "speed" / "results"
FOLDERS = [*(PAPER / name for name in SUITES), SPEED / "adaptation", SPEED / "bfloat16"]


@pytest.mark.parametrize("name", SUITES)
def test_what_was_played_is_what_the_ready_made_suite_asks_for(name: str) -> None:
    """A new default must not change what a committed number stands for: the suite fixes the default of that time."""
    committed = load_bench(PAPER / name)
    asked = Bench(load_suite(name), committed.out, preset=committed.preset)
    checked = 0
    for method in asked.suite.methods:
        for play in asked.suite.plays_of(method):
            for task in asked.suite.tasks:
                if (found := asked.evaluation(task, method, play)) is not None:
                    assert asked.adapts_as_asked(found["adaptation"], method, play), (task, method.name, play)
                    assert asked.is_played(task, method, play), (task, method.name, play)
                    checked += 1
    assert checked == sum(file.startswith("plays/") for file in packed_files(committed.out))


@pytest.mark.parametrize("name", SUITES)
def test_suite_json_and_the_runs_agree_with_the_ready_made_suite(name: str) -> None:
    committed = load_bench(PAPER / name)
    ready = load_suite(name)
    if name == "ablation-cloning":  # it ran with smaller sizes, as docs/paper.md says
        assert (committed.preset, committed.suite.seeds, committed.suite.steps) == ("small", 2, 5_000)
        ready = replace(ready, seeds=2, steps=5_000)
    assert committed.suite == replace(ready, note=committed.suite.note)
    refuse_other_settings(committed)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_folder_has_few_files_and_its_tables_have_every_row(folder: Path) -> None:
    """The rows in the tables are counted and compared with the numbers that the evaluations and logs recorded."""
    drawn = ("figure.svg", "report.html")  # drawn by a reader; git ignores them
    files = {path.name: path for path in folder.iterdir() if path.is_file() and path.name not in drawn}
    assert "suite.json" in files
    assert set(files) <= set(PACKED)
    held = json.loads(files["suite.json"].read_bytes())["files"]
    logs = gzip.decompress(files["logs.csv.gz"].read_bytes()) if "logs.csv.gz" in files else b"\n"
    episodes = files["episodes.csv"].read_bytes() if "episodes.csv" in files else b"\n"
    rows = Counter({"plays": episodes.count(b"\n") - 1, "logs": logs.count(b"\n") - 1})
    recorded = Counter[str]()
    for name, content in held.items():
        if name.startswith("plays/"):
            recorded["plays"] += content["results"]["rows"]
        elif name.endswith("metrics.jsonl"):
            recorded["logs"] += content["rows"]
    assert recorded.total() > 0
    assert recorded == rows


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_episodes_in_the_table_have_the_recorded_means(folder: Path) -> None:
    """So the rows belong to the evaluations: `drop evaluate` wrote the means, and not the table."""
    plays: dict[str, Any] = {name: held for name, held in packed_files(folder).items() if name.startswith("plays/")}
    assert plays or folder.name == "ablation-cloning"
    for name, played in plays.items():
        values = np.concatenate([result["scores"] or result["returns"] for result in played["results"]])
        assert values.mean() == pytest.approx(played["mean"], rel=1e-12), name
        assert iqm(values) == pytest.approx(played["iqm"], rel=1e-12), name


@pytest.mark.parametrize("name", SUITES)
def test_the_figure_in_the_docs_shows_the_committed_results(name: str) -> None:
    drawn = suite_figure(load_bench(PAPER / name))
    assert (FIGURES / f"{name}.svg").read_text(encoding="utf-8") == drawn

"""A packed folder: nothing is lost, the same tables and pages are made from it, and its suite can go on."""

from __future__ import annotations

import csv
import gzip
import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.benches import TINY
from helpers.played import BC, DROP, bench_at
from helpers.suite_folders import TASKS, make_evaluation, make_run, make_suite, play, shown

from droprl.bench import Bench, load_bench, run_suite
from droprl.bench.cells import Cell, cells_of, is_done
from droprl.bench.figure import suite_figure
from droprl.bench.packing import PACKED, SMALL, pack, unpack
from droprl.bench.runner import missing_cells
from droprl.bench.suite import Figure
from droprl.bench.tables import write_tables
from droprl.cli import main
from droprl.errors import DropError
from droprl.files.seals import checked_line, read_sealed, sealed
from droprl.files.storage import write_json

RETURNS = np.random.default_rng(1).normal(size=(3, 4)) / 3
EPISODE: dict[str, Any] = {"of": "DROP on a task", "walks": [], "sub_tasks": None, "predictions": []}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """A folder with everything that it can have: plays with and without scores, a guard, costs, data, runs with and
    without settings, an episode."""
    made = Bench(make_suite(tmp_path), tmp_path / "out")
    play(made)
    bc, drop = made.suite.methods
    scored = make_evaluation(TASKS[0], RETURNS)["results"]
    unscored = [result | {"scores": None, "guarded": None} for result in scored]
    guarded = [result | {"guarded": [3, 1, 0, 2]} for result in scored]
    write_json(made.play_path(TASKS[2], bc, "BC"), make_evaluation(TASKS[2], RETURNS, results=unscored, unit="return"))
    write_json(made.play_path(TASKS[1], drop, "once"), make_evaluation(TASKS[1], RETURNS, results=guarded))
    for method in made.suite.methods:
        make_run(made, TASKS[0], method)
        write_json(made.cost_path(TASKS[0], method), {"train_seconds": 0.1 + 0.2, "device": "abacus"})
        record: dict[str, Any] = {
            "source": "a.hdf5",
            "sha256": {},
            "origin": None,
            "made": False,
            "fingerprint": "0a",
            "steps": 1,
        }
        write_json(made.data_path(TASKS[1], method), record | {"episodes": 5})
    log = made.run_path(TASKS[2], drop) / "metrics.jsonl"  # the log of a run without settings
    log.parent.mkdir(parents=True)
    entries: list[dict[str, Any]] = [{"step": 7, "multiplier": [0.0, 1e-300]}, {"step": 9, "gap": [None, -0.5]}]
    log.write_text("".join(map(checked_line, entries)), encoding="utf-8")
    write_json(made.out / "episode.json", EPISODE)
    made.write_suite()
    made.write_episodes()
    return made


def small_files(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for pattern in SMALL for path in out.glob(pattern)}


def drawn_from(out: Path) -> dict[str, bytes | str]:
    bench = load_bench(out)
    write_tables(bench)
    tables: dict[str, bytes | str] = {path.name: path.read_bytes() for path in (out / "tables").iterdir()}
    logs = replace(bench, suite=bench.suite.changed(figure=Figure("training", metric="clone_loss")))
    return tables | {"figure": suite_figure(bench), "page": shown(bench), "logs": suite_figure(logs)}


# ---- nothing is lost


def test_every_table_figure_and_page_is_the_same_to_the_byte(bench: Bench, tmp_path: Path) -> None:
    expected = drawn_from(bench.out)
    assert len(expected) > 12
    assert "clone_loss" in expected["logs"]
    main(["bench", "pack", str(bench.out), "--out", str(tmp_path / "packed")])
    assert sorted(path.name for path in (tmp_path / "packed").iterdir()) == sorted(PACKED)
    assert drawn_from(tmp_path / "packed") == expected


def test_unpacking_restores_every_byte(bench: Bench, tmp_path: Path) -> None:
    before = small_files(bench.out)
    assert pack(bench.out, tmp_path / "packed") == len(before)
    unpack(tmp_path / "packed")
    assert small_files(tmp_path / "packed") == before
    for name in ("suite.json", "episode.json", "episodes.csv"):
        assert (tmp_path / "packed" / name).read_bytes() == (bench.out / name).read_bytes()
    assert not (tmp_path / "packed" / "logs.csv.gz").exists()


def test_the_tables_are_tidy(bench: Bench, tmp_path: Path) -> None:
    pack(bench.out, tmp_path)
    rows = list(csv.DictReader((tmp_path / "episodes.csv").open(encoding="utf-8")))
    assert len(rows) == 3 * 3 * 3 * 4  # tasks, plays, seeds, episodes
    found = next(r for r in rows if (r["task"], r["play"], r["seed"], r["episode"]) == (TASKS[1], "once", "2", "3"))
    played = json.loads(bench.play_path(TASKS[1], bench.suite.methods[1], "once").read_bytes())["results"][2]
    assert float(found["return"]) == played["returns"][3]  # exactly
    assert (found["length"], found["guarded"], found["step"]) == ("5", "2", "20")
    assert {r["score"] for r in rows if (r["task"], r["method"]) == (TASKS[2], "BC")} == {""}
    lines = gzip.decompress((tmp_path / "logs.csv.gz").read_bytes()).decode().splitlines()
    assert lines[0] == "task,method,step,seed,clone_loss,score_r2,multiplier,gap"
    assert [line for line in lines if TASKS[2] in line] == [
        f"{TASKS[2]},DROP,7,0,,,0.0,",
        f"{TASKS[2]},DROP,7,1,,,1e-300,",
        f"{TASKS[2]},DROP,9,0,,,,nan",
        f"{TASKS[2]},DROP,9,1,,,,-0.5",
    ]


def test_the_same_results_give_the_same_bytes(bench: Bench, tmp_path: Path) -> None:
    for name in ("one", "two", "two"):  # the second time over itself
        pack(bench.out, tmp_path / name)
    for name in PACKED:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_file_that_would_lose_something_is_refused_before_anything_is_written(bench: Bench, tmp_path: Path) -> None:
    log = bench.run_path(TASKS[0], bench.suite.methods[0]) / "metrics.jsonl"
    log.write_bytes(log.read_bytes() + b'{"step": 30, "rate": []}\n')
    with pytest.raises(DropError, match=r"BC/metrics\.jsonl: cannot be packed without a loss"):
        pack(bench.out, tmp_path / "packed")
    assert not (tmp_path / "packed").exists()


def test_packing_never_overwrites_more_results_with_fewer(bench: Bench, tmp_path: Path) -> None:
    with pytest.raises(DropError, match="is the folder of a suite that is not packed"):
        pack(bench.out, bench.out)
    pack(bench.out, tmp_path / "packed")
    before = (tmp_path / "packed" / "suite.json").read_bytes()
    bench.cost_path(TASKS[0], bench.suite.methods[0]).unlink()
    with pytest.raises(DropError, match=rf"would lose results \(costs/{TASKS[0]}/BC\.json\)"):
        pack(bench.out, tmp_path / "packed")
    assert (tmp_path / "packed" / "suite.json").read_bytes() == before
    with pytest.raises(DropError, match="is packed already"):
        pack(tmp_path / "packed", tmp_path / "again")


# ---- damage is noticed


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def _without_a_row(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:5] + lines[6:]))


def _without_the_last_play(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-12]))


def _out_of_the_folder(path: Path) -> None:
    """With a seal that fits, like an attacker."""
    content = read_sealed(path)
    content["files"]["costs/../BC.json"] = {}
    path.write_bytes(sealed(content))


def _another_score(path: Path) -> None:
    """The first score of the table, or the first number of episodes in suite.json, has another digit."""
    text = path.read_text(encoding="utf-8")
    path.write_text(re.sub(r'(,\d,\d+,0,|"episodes": )(-?\d)', r"\g<1>9\g<2>", text, count=1), encoding="utf-8")


def _remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("episodes.csv", _without_a_row, "line 6 is damaged"),
        ("episodes.csv", _without_the_last_play, "does not fit suite.json"),
        ("episodes.csv", _remove, "does not fit suite.json"),
        ("logs.csv.gz", _cut, "cannot be read"),
        ("suite.json", _out_of_the_folder, "name something that no suite has"),
        ("suite.json", _another_score, "is damaged or was edited"),
        ("episodes.csv", _another_score, "does not fit suite.json"),
    ],
)
def test_a_damaged_table_is_named(
    bench: Bench, tmp_path: Path, name: str, damage: Callable[[Path], None], message: str
) -> None:
    pack(bench.out, tmp_path / "packed")
    packed = load_bench(tmp_path / "packed")
    damage(tmp_path / "packed" / name)
    with pytest.raises(DropError, match=message) as caught:
        packed.evaluation(TASKS[0], packed.suite.methods[0], "BC")
    assert str(tmp_path / "packed" / name) in str(caught.value)
    assert "\n" not in str(caught.value)


# ---- a suite goes on


def packed_copy(tmp_path: Path) -> Bench:
    """A played suite in its packed form."""
    made = bench_at(tmp_path / "loose")
    for task, method in cells_of(made):
        algorithm: Any = method.algorithm("paper", "test").adaptation
        for name, given in made.suite.plays_of(method).items():
            earned = {"returns": [1.0, 2.0], "lengths": [1, 1], "scores": None}
            results = [{"seed": seed, "step": 10} | earned for seed in (0, 1)]
            adaptation = None if algorithm is None else vars(replace(algorithm, **given))
            content = make_evaluation(task, RETURNS, results=results, adaptation=adaptation, unit="return")
            write_json(made.play_path(task, method, name), content)
    made.write_suite()
    pack(made.out, tmp_path / "packed")
    return replace(made, out=tmp_path / "packed")


def test_a_complete_suite_runs_nothing_and_changes_nothing(tmp_path: Path) -> None:
    made = packed_copy(tmp_path)
    before = {path: path.read_bytes() for path in made.out.iterdir()}
    assert missing_cells(made) == []
    run_suite(made)
    assert {path: path.read_bytes() for path in made.out.iterdir()} == before
    run_suite(replace(made, tasks=("a-medium",), methods=(BC.name,)))  # to run a part leaves the rest
    assert {path: path.read_bytes() for path in made.out.iterdir()} == before
    with pytest.raises(DropError, match=r"DROP with other settings \(multiplier_start 0.0 → 1.0\)"):
        missing_cells(
            replace(made, suite=made.suite.changed(methods=(replace(DROP, settings={"multiplier_start": 1.0}), BC)))
        )


def test_if_something_is_missing_the_folder_is_unpacked_first(tmp_path: Path) -> None:
    made = packed_copy(tmp_path)
    episodes = (made.out / "episodes.csv").read_bytes()
    more = replace(made, suite=made.suite.changed(tasks=("a-medium", "b_random", "maze2d-umaze")))
    asked: list[Cell] = []

    def run_nothing(_: Bench, cells: Sequence[Cell]) -> dict[Cell, str]:
        asked.extend(cells)
        return {}

    run_suite(more, run_nothing)
    assert [cell.task for cell in asked] == ["maze2d-umaze"] * 2
    assert small_files(made.out) == small_files(tmp_path / "loose")
    assert "files" not in json.loads((made.out / "suite.json").read_bytes())
    assert (made.out / "episodes.csv").read_bytes() == episodes
    assert all(is_done(made, cell) for cell in cells_of(made))


def test_drawing_or_reporting_never_rewrites_the_table(bench: Bench, tmp_path: Path) -> None:
    """The table is the only copy. A suite with fewer methods would write only its own part of it."""
    packed = tmp_path / "packed"
    pack(bench.out, packed)
    before = {name: (packed / name).read_bytes() for name in PACKED}
    (tmp_path / "less.toml").write_text(TINY.split("[methods.BC]")[0] + TINY[TINY.index("[plays]") :], encoding="utf-8")
    main(["report", str(packed), "--suite", str(tmp_path / "less.toml")])
    main(["bench", "smoke", "--out", str(packed), "--draw"])
    assert {name: (packed / name).read_bytes() for name in PACKED} == before
    shutil.rmtree(bench.out)  # nothing of it was needed
    assert (packed / "figure.svg").exists()

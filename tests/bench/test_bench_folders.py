"""Folders that already hold results: other settings are refused, other parts of the suite stay in the records, and
copies work without weights."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from helpers.played import BC, DROP, bench_at, write_played
from helpers.training import learnable_dataset, save_npz

from droprl.bench import Bench, load_bench, load_suite, run_suite
from droprl.bench.cells import Cell, cells_of, is_done, run_cell, state_of
from droprl.bench.figure import suite_figure
from droprl.bench.page.build import build_suite_report
from droprl.bench.runner import missing_cells
from droprl.bench.suite import Figure, Method
from droprl.cli import main
from droprl.errors import DropError
from droprl.files.seals import read_json, sealed
from droprl.files.storage import write_bytes, write_json
from droprl.train.config import DataConfig, RunConfig, run_config_to_dict


def as_played(bench: Bench, task: str, method: Method) -> None:
    """Write one cell as `drop bench` leaves it, but without its run."""
    algorithm = method.algorithm(bench.preset, "test")
    for play, given in bench.suite.plays_of(method).items():
        steps = bench.suite.steps_of(method)
        write_played(bench, task, method, play, {(seed, steps): [1.0, 2.0] for seed in range(bench.suite.seeds)})
        path = bench.play_path(task, method, play)
        adaptation = None if algorithm.adaptation is None else asdict(replace(algorithm.adaptation, **given))
        message = {"unit": "D4RL-normalised score", "dataset": task}
        write_json(path, json.loads(path.read_bytes()) | {"protocol": "last", "adaptation": adaptation} | message)


@pytest.fixture
def copy(tmp_path: Path) -> Bench:
    """A suite's folder as it is committed: plays and suite.json."""
    made = bench_at(tmp_path / "out")
    for cell in cells_of(made):
        as_played(made, *cell)
    made.write_suite()
    made.write_episodes()
    return made


def write_config(bench: Bench, task: str, method: Method, **settings: Any) -> None:
    """Write the config of the cell's run, with the open settings filled in."""
    asked: Any = method.algorithm(bench.preset, "test")
    algorithm = replace(asked, **settings)
    data = DataConfig("source", task, "0", 100, 10, None, None)
    config = RunConfig(algorithm, data, (0, 1), bench.suite.steps_of(method), 1, 1)
    write_bytes(bench.run_path(task, method) / "config.json", sealed({"run": run_config_to_dict(config)}))


def with_drop(bench: Bench, **settings: Any) -> Bench:
    methods = (replace(DROP, settings=settings), *bench.suite.methods[1:])
    return replace(bench, suite=bench.suite.changed(methods=methods))


# ---- results of other settings


def test_a_copy_without_weights_is_done(copy: Bench) -> None:
    assert missing_cells(copy) == []
    assert {state_of(copy, cell) for cell in cells_of(copy)} == {"done"}
    assert missing_cells(load_bench(copy.out)) == []


def test_an_older_file_without_newer_settings_is_done(copy: Bench) -> None:
    path = copy.play_path("a-medium", DROP, "once")
    content = json.loads(path.read_bytes())
    del content["adaptation"]["guard"], content["adaptation"]["warm_start"]
    write_json(path, content)
    assert is_done(copy, Cell("a-medium", DROP))


@pytest.mark.parametrize(
    ("change", "again"),
    [
        (lambda suite: suite.changed(steps=11), {"DROP", "B&C_1"}),
        (lambda suite: suite.changed(plays={"once": {"rule": "best-ada"}}), {"DROP"}),
        (lambda suite: suite.changed(plays={"once": {"rule": "best", "starts": 1}}), {"DROP"}),
        (lambda suite: suite.changed(episodes=3), {"DROP", "B&C_1"}),
        (lambda suite: suite.changed(protocol="paper"), {"DROP", "B&C_1"}),
    ],
)
def test_a_cell_of_other_settings_is_not_done(copy: Bench, change: Callable[[Any], Any], again: set[str]) -> None:
    other = replace(copy, suite=change(copy.suite))
    assert {cell.method.name for cell in cells_of(other) if not is_done(other, cell)} == again


def refused(bench: Bench) -> str:
    before = {path: path.read_bytes() for path in bench.out.rglob("*.*")}
    with pytest.raises(DropError) as caught:
        run_suite(bench)
    assert {path: path.read_bytes() for path in bench.out.rglob("*.*")} == before
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_fewer_episodes_never_replace_more(copy: Bench) -> None:
    fewer = replace(copy, suite=copy.suite.changed(episodes=1))
    path = copy.play_path("a-medium", DROP, "once")
    assert refused(fewer).startswith(f"{path}: has 4 episodes, and this command would play only 2 instead: ask for at ")


def test_a_changed_result_is_refused_and_one_of_an_older_version_is_marked(copy: Bench) -> None:
    path = copy.play_path("a-medium", DROP, "once")
    content = read_json(path)  # the copy has no seals, as an older version wrote it
    assert "seal" not in content
    assert copy.is_unsealed("a-medium", DROP, "once")
    assert ("checksums", "none for some results: an older version wrote them") in build_suite_report(copy, "").facts
    path.write_bytes(sealed(content))
    assert not copy.is_unsealed("a-medium", DROP, "once")
    assert copy.evaluation("a-medium", DROP, "once") == content
    path.write_text(path.read_text().replace("20.0", "29.0", 1))
    said = re.escape(f"{path}: is damaged or was edited (its checksum differs): restore the file, or remove it and run")
    with pytest.raises(DropError, match=said):
        copy.evaluation("a-medium", DROP, "once")


def test_another_preset_or_setting_is_refused_by_suite_json(copy: Bench) -> None:
    message = refused(replace(copy, preset="small"))
    assert "holds results of preset paper, not of small: choose another out=" in message
    message = refused(with_drop(copy, multiplier_start=1.0))
    assert "a-medium, DROP with other settings (multiplier_start 0.0 → 1.0): choose another out=" in message
    # The same name would have two meanings:
    message = refused(replace(with_drop(copy, multiplier_start=1.0), tasks=("new",)))
    assert "a-medium, DROP with other settings (multiplier_start 0.0 → 1.0)" in message
    assert missing_cells(with_drop(copy, multiplier_start=0.0)) == []  # the same value, given explicitly


def test_another_setting_is_refused_by_the_run_itself(copy: Bench) -> None:
    """suite.json does not count here: its defaults may have changed since the run was made."""
    write_config(copy, "a-medium", DROP, multiplier_start=1.0, discount=0.9, n_sub_tasks=4)
    assert "(multiplier_start 1.0 → 0.0)" in refused(copy)
    write_config(copy, "a-medium", DROP, discount=0.9, n_sub_tasks=4)
    assert missing_cells(copy) == []  # open settings were filled in
    assert "(n_sub_tasks 4 → 5)" in refused(with_drop(copy, n_sub_tasks=5, multiplier_start=0.0))
    longer = replace(copy, suite=copy.suite.changed(steps=11), methods=("DROP",))
    assert "have other sizes (steps 10 → 11)" in refused(longer)
    (copy.out / "suite.json").unlink()
    assert "DROP with other settings (steps 10 → 11)" in refused(longer)


# ---- other parts of the suite


def rows_of(bench: Bench) -> list[dict[str, str]]:
    return list(csv.DictReader((bench.out / "episodes.csv").open(encoding="utf-8")))


@pytest.mark.parametrize("only", [{"methods": ("B&C_1",)}, {"tasks": ("b_random",)}])
def test_a_part_of_the_suite_leaves_the_rest_in_the_records(copy: Bench, only: dict[str, Any]) -> None:
    before = [(copy.out / name).read_bytes() for name in ("suite.json", "episodes.csv")]
    part = replace(copy, **only)
    assert len(cells_of(part)) == 2
    run_suite(part)
    assert [(copy.out / name).read_bytes() for name in ("suite.json", "episodes.csv")] == before


def test_a_part_with_other_sizes_is_refused(copy: Bench) -> None:
    """suite.json has one number of seeds, which would be wrong for the other results."""
    message = refused(replace(copy, suite=copy.suite.changed(seeds=5), methods=("DROP",)))
    assert "have other sizes (seeds 2 → 5): choose another out=, or run the whole suite" in message


def test_parts_add_up_to_the_whole_in_the_suites_order(tmp_path: Path) -> None:
    made = bench_at(tmp_path)
    for method in (BC, DROP):
        for task in ("b_random", "a-medium"):
            as_played(made, task, method)
            run_suite(replace(made, methods=(method.name,), tasks=(task,)))
    assert load_bench(tmp_path).suite == made.suite
    assert len(rows_of(made)) == 2 * 2 * 2 * 2
    # A method without results, for example with a mistyped name, is dropped by the next run.
    write_json(tmp_path / "suite.json", asdict(made.suite.changed(methods=(*made.suite.methods, Method("BCC", "bc")))))
    run_suite(made)
    assert load_bench(tmp_path).suite == made.suite


def test_results_that_the_suite_no_longer_asks_for_stay(copy: Bench) -> None:
    other = replace(copy, suite=copy.suite.changed(methods=(BC,), tasks=("a-medium",), plays={"new": {}}))
    run_suite(other)
    recorded = load_bench(copy.out).suite
    assert [m.name for m in recorded.methods] == ["B&C_1", "DROP"]
    assert (recorded.tasks, recorded.plays) == (("a-medium", "b_random"), {"new": {}, "once": {"rule": "best"}})
    assert len(rows_of(copy)) == 2 * 2 * 2 * 2


# ---- drawing


def test_drawing_takes_the_folders_own_suite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The folder's own suite has 5,000 updates, the ready-made one 12,000."""
    out = tmp_path / "out"
    ready = load_suite("ablation-cloning")
    made = Bench(ready.changed(steps=5_000, seeds=2, tasks=ready.tasks[:1]), out)
    for method in made.suite.methods:
        write_config(made, made.suite.tasks[0], method)
        log = [json.dumps({"step": step, "clone_loss": [1.0 / step, 2.0 / step]}) for step in range(500, 5_001, 500)]
        (made.run_path(made.suite.tasks[0], method) / "metrics.jsonl").write_text("\n".join(log), encoding="utf-8")
    made.write_suite()
    main(["bench", "ablation-cloning", "--out", str(out), "--draw"])
    drawn = (out / "figure.svg").read_text(encoding="utf-8")
    assert ">5k<" in drawn
    assert ">12k<" not in drawn
    assert "mean of 2 seeds" in drawn
    with pytest.raises(SystemExit):
        main(["bench", "ablation-cloning", "--out", str(out), "--draw", "--seeds", "3"])
    assert "leave out --seeds" in capsys.readouterr().err


def test_a_line_ends_where_its_log_ends(copy: Bench) -> None:
    suite = copy.suite.changed(figure=Figure("training", metric="clone_loss"), methods=(BC,), tasks=("a-medium",))
    made = replace(copy, suite=suite)
    write_config(made, "a-medium", BC)
    log = [json.dumps({"step": step, "clone_loss": [1.0 / step, 2.0 / step]}) for step in range(1, 5)]
    (made.run_path("a-medium", BC) / "metrics.jsonl").write_text("\n".join(log), encoding="utf-8")
    assert suite_figure(made).count("0 1 0 -6.8 0Z") == 4  # four dots, although there are ten places


def test_returns_and_unequal_seeds_are_drawn_as_the_tables_have_them(copy: Bench) -> None:
    """A task in returns is not in the IQM. With different numbers of seeds the smallest number counts."""
    made = bench_at(copy.out, tasks=("a-medium", "b_random", "returns"))
    write_played(made, "a-medium", DROP, "once", {(seed, 10): [float(seed)] for seed in range(3)})
    write_played(made, "b_random", DROP, "once", {(seed, 10): [30.0] for seed in range(2)})
    write_played(made, "returns", DROP, "once", {(seed, 10): [3000.0] for seed in range(2)}, scored=False)
    drawn = suite_figure(made)
    assert "returns (return)" in drawn
    assert ">15.5<" in drawn  # the IQM of 0, 1, 30 and 30: the lowest and the highest are cut


@pytest.mark.parametrize("words", [["bench", "SUITE", "--out", "OUT", "--draw"], ["report", "OUT"]])
def test_every_command_that_writes_tables_writes_the_episodes(copy: Bench, words: list[str]) -> None:
    path = copy.out / "episodes.csv"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    main([{"OUT": str(copy.out), "SUITE": "smoke"}.get(word, word) for word in words])
    assert path.read_bytes() == whole


# ---- the cost of training


def test_after_an_interruption_the_cost_counts_only_the_later_updates(tmp_path: Path) -> None:
    source = str(save_npz(learnable_dataset(), tmp_path / "learnable.npz"))
    method = Method("bc", "bc", {"width": 8, "batch_size": 16})
    suite = bench_at(tmp_path).suite.changed(tasks=(source,), methods=(method,), steps=40, episodes=0, plays={})
    made = Bench(suite, tmp_path / "out")
    run_cell(made, Cell(source, method))
    whole = made.cost(source, method)
    assert whole is not None
    assert whole["updates"] == 40
    folder = made.run_path(source, method) / "checkpoints"
    for step in (36, 38, 40):  # as after a kill at about update 35
        shutil.rmtree(folder / f"{step:09d}")
    made.cost_path(source, method).unlink()
    run_cell(made, Cell(source, method))
    part = made.cost(source, method)
    assert part is not None
    assert part["updates"] == 6
    assert part["updates_per_second"] == pytest.approx(6 / part["train_seconds"])

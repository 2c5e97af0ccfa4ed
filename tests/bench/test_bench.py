"""Suites on made-up data with the right names and sizes: what runs, what does not run twice, and what is drawn."""

from __future__ import annotations

import csv
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from helpers.benches import TINY, write_hopper
from helpers.played import BC, DROP, bench_at, write_played

from droprl.bench import SUITES, Bench, load_bench, load_suite, run_suite
from droprl.bench.cells import Cell, state_of
from droprl.bench.figure import suite_figure
from droprl.bench.task_data import data_record, find_task_data, task_source
from droprl.cli import main
from droprl.errors import DropError
from droprl.train import Run


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for seed, name in enumerate(("hopper-medium", "hopper-random")):
        write_hopper(folder / f"{name}.hdf5", seed)
    return folder


@pytest.fixture(scope="module")
def bench(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    out = tmp_path_factory.mktemp("bench")
    (out / "tiny.toml").write_text(TINY, encoding="utf-8")
    made = Bench(load_suite(out / "tiny.toml"), out / "out", data, "small")
    run_suite(made)
    return made


def test_every_episode_is_in_one_tidy_table(bench: Bench) -> None:
    rows = list(csv.DictReader((bench.out / "episodes.csv").open(encoding="utf-8")))
    keys = {(r["task"], r["method"], r["play"], r["seed"], r["episode"]) for r in rows}
    plays = [("DROP", "once"), ("DROP", "always"), ("BC", "BC")]
    tasks = ("hopper-medium", "hopper-random")
    assert keys == {(t, m, p, s, e) for t in tasks for m, p in plays for s in "01" for e in "01"}
    assert len(rows) == len(keys)
    for r in rows:  # D4RL's normalisation for Hopper, by hand
        assert float(r["score"]) == pytest.approx(100 * (float(r["return"]) + 20.272305) / (3234.3 + 20.272305))


def test_scores_are_means_over_each_seeds_episodes(bench: Bench) -> None:
    rows = list(csv.DictReader((bench.out / "episodes.csv").open(encoding="utf-8")))
    own = [r for r in rows if (r["task"], r["method"], r["play"]) == ("hopper-random", "DROP", "always")]
    expected = [np.mean([float(r["score"]) for r in own if r["seed"] == s]) for s in "01"]
    found = bench.scores("hopper-random", bench.suite.methods[0], "always")
    assert found is not None
    np.testing.assert_allclose(found, expected)


def test_nothing_is_done_twice_and_only_what_is_missing_is_done(bench: Bench) -> None:
    drop = bench.suite.methods[0]
    missing = bench.play_path("hopper-random", drop, "once")
    before = missing.read_bytes()
    times = {p: p.stat().st_mtime_ns for p in bench.out.rglob("*.*") if p.suffix in (".safetensors", ".json")}
    missing.unlink()
    assert state_of(bench, Cell("hopper-random", drop)) == "playing 1/2"
    run_suite(bench)
    assert state_of(bench, Cell("hopper-random", drop)) == "done"
    changed = {p for p, t in times.items() if p.stat().st_mtime_ns != t}
    played_again = bench.run_path("hopper-random", drop) / "evaluations"  # the run keeps its evaluations too
    assert missing in changed
    recorded = {bench.out / "suite.json", bench.data_path("hopper-random", drop)}
    assert all(p in (missing, *recorded) or p.parent == played_again for p in changed)
    # It earned the same again; only the times may differ.
    first, again = (json.loads(text) for text in (before, missing.read_bytes()))
    assert first["results"] == again["results"]


def test_a_cell_played_with_fewer_episodes_is_played_again(bench: Bench, tmp_path: Path) -> None:
    copied = shutil.copytree(bench.out, tmp_path / "out")
    more = Bench(bench.suite.changed(episodes=3), copied, bench.data, "small")
    run_suite(more)
    found = more.evaluation("hopper-medium", bench.suite.methods[1], "BC")
    assert found is not None
    assert [len(r["returns"]) for r in found["results"]] == [3, 3]
    before = bench.evaluation("hopper-medium", bench.suite.methods[1], "BC")
    assert before is not None
    assert [r["returns"][:2] for r in found["results"]] == [r["returns"] for r in before["results"]]


def test_a_folder_says_what_was_run_there(bench: Bench) -> None:
    loaded = load_bench(bench.out)
    assert (loaded.suite, loaded.preset) == (bench.suite, "small")
    cost = json.loads(bench.cost_path("hopper-medium", bench.suite.methods[0]).read_text(encoding="utf-8"))
    assert cost["updates_per_second"] == pytest.approx(20 / cost["train_seconds"])
    assert cost["peak_memory_mb"] > 10


def test_the_suite_says_which_data_it_learned_from(bench: Bench) -> None:
    assert bench.data is not None
    records = json.loads((bench.out / "suite.json").read_text(encoding="utf-8"))["data"]
    assert list(records) == ["hopper-medium", "hopper-random"]
    [record] = records["hopper-medium"]  # one, although two methods learned from it
    file = bench.data / "hopper-medium.hdf5"
    assert record["sha256"] == {file.name: hashlib.sha256(file.read_bytes()).hexdigest()}
    assert (record["source"], record["steps"], record["episodes"]) == (file.name, 240, 20)
    assert (record["made"], record["origin"]) == (False, None)
    run = Run(bench.run_path("hopper-medium", bench.suite.methods[0])).config
    assert record["fingerprint"] == run.data.fingerprint
    assert str(bench.data) not in json.dumps(records)


def test_the_record_of_the_data_stays_in_a_copy_without_the_data_folder(bench: Bench, tmp_path: Path) -> None:
    for name in ("plays", "suite.json"):
        copy = shutil.copytree if (bench.out / name).is_dir() else shutil.copy
        copy(bench.out / name, tmp_path / name)
    copied = load_bench(tmp_path)
    assert copied.data_of("hopper-random") == bench.data_of("hopper-random") != []
    run_suite(copied)  # nothing is missing, and the record stays
    assert load_bench(tmp_path).data_of("hopper-random") == bench.data_of("hopper-random")


def test_methods_of_one_task_learn_from_the_same_data(bench: Bench, tmp_path: Path) -> None:
    """A missing method must not learn from another file of the same name."""
    assert bench.data is not None
    copied = shutil.copytree(bench.out, tmp_path / "out")
    (tmp_path / "data").mkdir()
    for name in ("hopper-medium", "hopper-random"):
        shutil.copy(bench.data / "hopper-random.hdf5", tmp_path / "data" / f"{name}.hdf5")
    shutil.rmtree(copied / "runs" / "hopper-medium" / "BC")
    shutil.rmtree(copied / "plays" / "hopper-medium" / "BC")
    (copied / "data" / "hopper-medium" / "BC.json").unlink()
    with pytest.raises(DropError, match=r"hopper-medium\.hdf5 is not the data that other methods here learned from"):
        run_suite(Bench(bench.suite, copied, tmp_path / "data", "small"))


def test_the_record_says_if_data_was_made_or_joined(data: Path) -> None:
    joined = find_task_data("hopper-medium+hopper-random", data)
    record = data_record(task_source("hopper-medium+hopper-random", data), joined)
    assert record.source == "hopper-medium.hdf5 + hopper-random.hdf5"
    assert list(record.sha256) == ["hopper-medium.hdf5", "hopper-random.hdf5"]
    made = data_record(task_source("maze2d-umaze", None), joined)
    assert (made.made, made.sha256) == (True, {})
    assert str(made.origin).startswith("regenerated on the spot")


def test_scores_are_of_the_last_checkpoint_or_of_six_if_asked(tmp_path: Path) -> None:
    """And the figure says which."""
    made = bench_at(tmp_path, tasks=("a-medium",))
    for method, play in ((DROP, "once"), (BC, BC.name)):
        six = {(seed, step): [float(step + seed)] * 2 for seed in (0, 1) for step in range(1, 7)}
        write_played(made, "a-medium", method, play, six)
    np.testing.assert_allclose(made.scores("a-medium", DROP, "once"), [6, 7])  # type: ignore[arg-type]
    np.testing.assert_allclose(made.scores("a-medium", DROP, "once", 6), [3.5, 4.5])  # type: ignore[arg-type]
    drawn = suite_figure(made)
    assert "Score, last checkpoint" in drawn
    assert ">6.5<" in drawn  # the IQM


def test_a_cell_that_fails_is_named_and_stops_no_other(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "hopper-broken.hdf5").write_bytes(b"no data")
    assert bench.data is not None
    shutil.copy(bench.data / "hopper-medium.hdf5", tmp_path)
    suite = bench.suite.changed(tasks=("hopper-broken", "hopper-medium"), methods=bench.suite.methods[1:])
    made = Bench(suite, tmp_path / "out", tmp_path, "small")
    with pytest.raises(DropError, match=r"1 of 2 failed \(hopper-broken, BC: .*hopper-broken\.hdf5"):
        run_suite(made)
    assert made.is_played("hopper-medium", suite.methods[0], "BC")
    assert (made.out / "episodes.csv").read_text(encoding="utf-8").count("hopper-medium,BC") == 4


def test_a_task_without_data_is_refused_before_anything_runs(bench: Bench, tmp_path: Path) -> None:
    made = Bench(bench.suite.changed(tasks=("hopper-medium", "nowhere")), tmp_path / "out", bench.data, "small")
    with pytest.raises(DropError, match=r"has no nowhere\.hdf5"):
        run_suite(made)
    assert not made.out.exists()


def test_settings_reach_the_runs(bench: Bench) -> None:
    run: Any = Run(bench.run_path("hopper-medium", bench.suite.methods[0])).config
    assert (run.algorithm.width, run.algorithm.depths, run.steps, len(run.seeds)) == (8, (1, 1, 1, 1, 1), 20, 2)


@pytest.mark.parametrize("kind", ["dots", "plays", "methods", "training"])
def test_every_kind_of_figure_is_a_drawing_that_names_what_it_shows(bench: Bench, kind: Any) -> None:
    figure = bench.suite.figure.__class__(kind, x="how", time=True)
    drawn = suite_figure(Bench(bench.suite.changed(figure=figure), bench.out, bench.data, "small"))
    root = ElementTree.fromstring(drawn)
    texts = [element.text for element in root.iter() if element.text]
    assert "A small suite" in texts
    assert {"hopper-medium", "hopper-random"} <= set(texts)
    shown = {"dots": "DROP · always", "plays": "DROP", "methods": "once", "training": "BC"}[kind]
    assert shown in texts
    assert "nan" not in drawn.lower()


@pytest.mark.parametrize("name", SUITES)
def test_ready_made_suites_are_whole(name: str) -> None:
    suite = load_suite(name)
    assert suite.claim or suite.note
    places = {"plays": suite.plays, "methods": suite.methods}.get(suite.figure.kind)
    assert places is None or len(suite.figure.values) == len(places)


def test_the_command_of_the_docs_runs_on_a_stand_in(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With less of everything. The other suites differ only in their settings, which the test above loads."""
    words = ["bench", "ablation-cloning", "--data", str(data), "--out", str(tmp_path / "out")]
    less = ["--methods", "N = 50", "--preset", "small", "--seeds", "1", "--steps", "20"]
    main([*words, "--tasks", "hopper-medium", *less])
    printed = capsys.readouterr().out
    assert "figure.svg" in printed
    assert "The paper: many behaviour policies" in printed
    drawn = (tmp_path / "out" / "figure.svg").read_text(encoding="utf-8")
    assert drawn.startswith("<svg")
    assert "N = 50" in drawn
    assert not (tmp_path / "out" / "plays").exists()  # this suite draws losses and plays nothing


def test_the_command_prints_scores_and_aggregates_and_writes_all_tables(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = bench.out.parent / "tiny.toml"
    main(["bench", str(suite), "--out", str(bench.out), "--draw"])
    printed = capsys.readouterr().out
    assert "A small suite: score, last checkpoint" in printed
    assert "A small suite: over all tasks, last checkpoint" in printed
    assert "probability of improvement" not in printed  # it is wide, so it is only in a file
    rows = list(csv.DictReader((bench.out / "tables" / "scores-last.csv").open(encoding="utf-8")))
    assert [row["task"] for row in rows] == ["hopper-medium", "hopper-random", "IQM"]
    scores = bench.scores("hopper-random", bench.suite.methods[1], "BC")
    assert scores is not None
    assert float(rows[1]["BC"]) == pytest.approx(scores.mean())
    costs = list(csv.DictReader((bench.out / "tables" / "costs.csv").open(encoding="utf-8")))
    assert len(costs) == 6
    assert all(float(row["training, s"]) > 0 for row in costs)


def test_from_a_real_suite_to_its_page_with_an_episode(bench: Bench, tmp_path: Path) -> None:
    out = shutil.copytree(bench.out, tmp_path / "out")
    main(["report", str(out)])
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "A small suite" in page
    episode = json.loads((out / "episode.json").read_bytes())
    assert episode["of"] == "DROP on hopper-medium"
    assert {walk["rule"] for walk in episode["walks"]} >= {"best", "grad-ada"}
    assert all(len(walk["rewards"]) == len(walk["scores"]) > 0 for walk in episode["walks"])
    assert (out / "episodes.csv").read_bytes() == (bench.out / "episodes.csv").read_bytes()
    for folder in ("runs", "data"):  # a copy without weights shows the same episode
        shutil.rmtree(out / folder)
    main(["report", str(out), "--out", str(tmp_path / "copy.html")])
    for text in ("DROP on hopper-medium", "hopper-random"):
        assert text in (tmp_path / "copy.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (("seeds = 2", ""), "a suite must have seeds"),
        (("seeds = 2", "seeds = 2\nspeed = 1"), "a suite has no field speed"),
        (('kind = "dots"', 'kind = "pie"'), "figure.kind is 'pie'"),
        (('algo = "bc"', 'algo = "cb"'), "there is no algorithm 'cb'"),
        (("width = 8\nbatch_size = 16\ndepths", "wide = 8\nbatch_size = 16\ndepths"), "wide"),
        (('rule = "best" ', 'role = "best" '), "role"),
        (("steps = 20", "steps = "), "is not valid TOML"),
        (("episodes = 2", 'episodes = 2\nprotocol = "papper"'), "protocol is 'papper': choose one of last, paper"),
        (("steps = 20", 'steps = 5\nprotocol = "paper"'), "5 updates leave too few checkpoints"),
        (("steps = 20", "steps = 0"), "steps is 0: give a whole number, at least 1"),
        (("seeds = 2", "seeds = 2.5"), "seeds is 2.5"),
        (("episodes = 2", "episodes = -1"), "episodes is -1"),
        (('tasks = ["hopper-medium", "hopper-random"]', 'tasks = "hopper-medium"'), "tasks is 'hopper-medium'"),
        (('tasks = ["hopper-medium", "hopper-random"]', "tasks = [1]"), r"tasks are \[1\]: give a list of names"),
        (('kind = "dots"', 'kind = "dots"\ncolour = 1'), "a figure has no field colour"),
        (('kind = "dots"', 'kind = "dots"\ntime = 1'), "time is 1"),
        (('algo = "bc"', 'algo = "bc"\nshare = 0'), "method BC: share is 0"),
        (("[methods.BC]", '[methods."D O P"]\n[methods."D O-P"]\n[methods.BC]'), "would have the same files, D-O-P"),
        (("always =", '"on/ce" = { rule = "grad" }\n"on ce" ='), "the plays 'on/ce' and 'on ce' would have the same"),
        (('once = { rule = "best" }', "once = 3"), "once is 3: give a table of settings"),
    ],
)
def test_a_mistake_in_a_suite_is_named(tmp_path: Path, changed: tuple[str, str], message: str) -> None:
    assert changed[0] in TINY
    (tmp_path / "mine.toml").write_text(TINY.replace(*changed, 1), encoding="utf-8")
    with pytest.raises(DropError, match=message) as caught:
        load_suite(tmp_path / "mine.toml")
    assert "\n" not in str(caught.value)


def test_a_task_without_a_file_is_named(data: Path) -> None:
    with pytest.raises(DropError, match=r"has no walker2d-medium\.hdf5"):
        find_task_data("walker2d-medium", data)
    with pytest.raises(DropError, match="data=FOLDER"):
        find_task_data("walker2d-medium", None)
    with pytest.raises(DropError, match="there is no suite 'nothing'"):
        load_suite("nothing")
    assert find_task_data("hopper-medium+hopper-random", data).n_episodes == 40


def test_medium_expert_is_its_own_file_or_the_two_joined(data: Path, tmp_path: Path) -> None:
    for name in ("medium", "expert"):
        shutil.copy(data / "hopper-medium.hdf5", tmp_path / f"hopper-{name}.hdf5")
    assert find_task_data("hopper-medium-expert", tmp_path).n_episodes == 40
    shutil.copy(data / "hopper-medium.hdf5", tmp_path / "hopper-medium-expert.hdf5")
    assert find_task_data("hopper-medium-expert", tmp_path).n_episodes == 20

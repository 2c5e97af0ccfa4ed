"""The page of a suite: its numbers are those of the episodes; it is complete, escaped and self-contained."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import h5py
import numpy as np
import pytest
from helpers.pages import Page, assert_orderly
from helpers.suite_folders import (
    ENTRIES,
    TASKS,
    cells_of,
    make_evaluation,
    make_suite,
    play,
    play_six,
    shown,
)

from droprl.bench import Bench, load_bench
from droprl.bench.page.build import build_suite_report
from droprl.bench.page.render import render_suite
from droprl.bench.published import published_scores
from droprl.bench.tables import aggregate_table, improvement_table, load_scores
from droprl.cli import main
from droprl.data.tasks import find_task
from droprl.errors import DropError
from droprl.evaluation.statistics import aggregate, pairwise_improvement
from droprl.files.storage import write_json
from droprl.report.table import Number


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(make_suite(tmp_path), tmp_path / "out", tmp_path)


# ---- numbers


def test_the_table_holds_every_mean_and_marks_the_highest(bench: Bench) -> None:
    scores = play(bench)
    page = shown(bench)
    rows = {row[0]: row[1:] for row in cells_of(page, "scores") if row[0] in TASKS}
    marked = re.findall(r'<td class="near highest" data-label="([^"]*)"', page)
    for task, best in zip(TASKS, marked, strict=True):
        means = [scores[task, *entry].mean() for entry in ENTRIES]
        assert [cell.split("|")[0] for cell in rows[task]] == [f"{mean:.1f}" for mean in means]
        assert best == ("BC", "DROP · once", "DROP · always")[int(np.argmax(means))]
        for cell, mean in zip(rows[task], means, strict=True):
            low, high = (float(v) for v in cell.split("|")[1].split("–"))
            assert low <= round(mean, 1) <= high


def test_the_headline_and_the_matrix_are_those_of_the_runs(bench: Bench) -> None:
    scores = play(bench)
    page = shown(bench)
    runs = {entry: [scores[task, *entry].mean(axis=1) for task in TASKS] for entry in ENTRIES}
    iqms = {entry: aggregate(by_task, "iqm") for entry, by_task in runs.items()}
    top = max(iqms, key=lambda entry: iqms[entry].value)
    name = top[0] if top[0] == top[1] else " · ".join(top)
    assert f"<strong>{name}</strong> has the highest IQM, {iqms[top].value:.1f}" in page
    table = {row[0]: row[1:] for row in cells_of(page, "profiles")}
    assert table["DROP always"][3].startswith(f"{aggregate(runs['DROP', 'always'], 'optimality_gap').value:.1f}|")
    found = pairwise_improvement({"·".join(entry): by_task for entry, by_task in runs.items()})
    titles = re.findall(r"<title>P\((.*?) &gt; (.*?)\) = (\d+) %", page)
    assert len(titles) == 2 * 6  # two drawings
    wider = pairwise_improvement({"·".join(e): by_task for e, by_task in runs.items()}, over="tasks like these")
    low, high = wider["DROP·always", "BC·BC"][1:]
    assert f"{100 * low:.0f} to {100 * high:.0f} % over tasks like these" in page
    assert ("DROP · always", "BC", f"{100 * found['DROP·always', 'BC·BC'].value:.0f}") in titles
    assert all(int(p) + int(q) == 100 for x, y, p in titles for a, b, q in titles if (a, b) == (y, x))


def test_the_profile_falls_from_all_runs_to_none(bench: Bench) -> None:
    play(bench)
    profile = build_suite_report(bench, "").profile
    assert profile is not None
    for line in profile.series:
        assert (line.y[0], line.y[-1]) == (1.0, 0.0)
        assert all(b <= a for a, b in pairwise(line.y))
        assert line.low is not None
        assert line.high is not None
        assert all(low <= y <= high for low, y, high in zip(line.low, line.y, line.high, strict=True))


def test_costs_are_the_medians_of_what_was_measured(bench: Bench) -> None:
    scores = play(bench)
    drop = bench.suite.methods[1]
    for task, seconds in zip(TASKS, (10.0, 70.0, 20.0), strict=True):
        cost = {"train_seconds": seconds, "updates_per_second": 2.0, "peak_memory_mb": 512.0, "device": "abacus"}
        write_json(bench.cost_path(task, drop), cost)
    page = shown(bench)
    rows = {row[0]: row[1:] for row in cells_of(page, "costs")}
    assert rows["DROP once"][1:] == ["20", "2", "512", "0.5"]
    iqm = aggregate([scores[task, "DROP", "once"].mean(axis=1) for task in TASKS], "iqm")
    assert rows["DROP once"][0] == f"{iqm.value:.1f}|{iqm.low:.1f}–{iqm.high:.1f}"  # the score beside what it cost
    assert rows["BC"][1:] == ["–", "–", "–", "0.5"]
    assert "abacus" in page


# ---- notes, and parts that are left out


def test_the_page_says_if_the_data_says_it_is_regenerated(bench: Bench) -> None:
    play(bench)
    before = shown(bench)
    assert "Regenerated data" not in before
    assert "It is not recorded whether these are D4RL’s own files" in before
    assert bench.data is not None
    for task in TASKS:
        with h5py.File(bench.data / f"{task}.hdf5", "w") as file:
            file.attrs["origin"] = "regenerated from released policies" if task != TASKS[0] else "D4RL"
    assert f"Regenerated data ({TASKS[1]}, {TASKS[2]})" in shown(bench)
    with h5py.File(bench.data / f"{TASKS[0]}.hdf5", "a") as file:
        file.attrs["origin"] = b"Regenerated by hand"
    after = shown(bench)
    assert "Regenerated data: not D4RL’s files" in after
    assert "Here, on regenerated data" in after


def test_published_scores_stand_apart_and_name_their_source(bench: Bench) -> None:
    play(bench)
    rows = cells_of(shown(bench), "published")
    names = [row[0] for row in rows]
    groups = [i for i, row in enumerate(rows) if len(row) == 1]
    assert names[groups[0]].startswith("Here, on ")
    assert all("Published, on D4RL’s" in names[i] and "|" in names[i] for i in groups[1:])
    ours, paper = (i for i, name in enumerate(names) if name == "BC")
    assert ours < groups[1] < paper
    assert rows[paper][1:] == ["52.9", "26.0", "42.6"]  # the paper's table with F-BC
    assert rows[names.index("DROP-Grad-Ada")][1:] == ["59.5|± 5.1", "61.9|± 2.3", "43.1|± 0.4"]


def test_the_published_tables_are_of_tasks_that_exist() -> None:
    content = json.loads(files("droprl.bench").joinpath("published.json").read_text("utf-8"))
    scores = [(task, s) for t in content["tables"] for by_task in t["scores"].values() for task, s in by_task.items()]
    assert len(scores) > 300
    for task, (mean, *deviation) in scores:
        known = find_task(task)
        assert known is not None
        assert known.name == task
        assert -10 < mean < 150
        assert all(0 <= d < 50 for d in deviation)
    assert published_scores(["maze2d-umaze", "nothing"]) == []
    [first] = published_scores(["door-human"])  # only in the table on D4RL's first files
    assert (first.version, dict(first.rows)["DROP-Grad-Ada"]) == ("v0", [(3, None)])


def test_what_is_missing_is_named_and_not_averaged(bench: Bench) -> None:
    play(bench)
    bench.play_path(TASKS[1], bench.suite.methods[1], "once").unlink()
    report = build_suite_report(bench, "")
    assert [row.rule for row in report.overall] == [None, "always"]
    assert "A method that was not played on every task has no aggregate: DROP · once." in report.notes
    assert "–" in [cell for row in cells_of(render_suite(report), "scores") for cell in row]


def in_returns(bench: Bench, task: str) -> None:
    """Remove the scores of a task, as if it had no reference scores."""
    for method in bench.suite.methods:
        for way in bench.suite.plays_of(method):
            path = bench.play_path(task, method, way)
            content = json.loads(path.read_bytes())
            content["results"] = [result | {"scores": None} for result in content["results"]]
            write_json(path, content | {"unit": "return"})


def test_returns_of_different_tasks_are_not_averaged(bench: Bench) -> None:
    play(bench)
    for task in TASKS:
        in_returns(bench, task)
    page = shown(bench)
    assert re.findall(r'<section id="([\w-]+)"', page) == ["scores", "improvement", "costs"]
    assert "Aggregates leave out the tasks whose results are returns." in page


@pytest.mark.parametrize("mixed", ["a task in returns", "a seed less"])
def test_the_page_and_the_tables_have_the_same_numbers(bench: Bench, mixed: str) -> None:
    play(bench)
    if mixed == "a task in returns":
        in_returns(bench, TASKS[1])
    else:
        path = bench.play_path(TASKS[1], bench.suite.methods[0], "BC")
        content = json.loads(path.read_bytes())
        write_json(path, content | {"results": content["results"][:-1]})
    report, scores = build_suite_report(bench, ""), load_scores(bench)
    table = aggregate_table(scores)
    assert [a.entry.name for a in report.aggregates] == [row[0] for row in table.rows]
    for aggregates, row in zip(report.aggregates, table.rows, strict=True):
        assert [v.value for v in aggregates.values] == [cell.value for cell in row[1:] if isinstance(cell, Number)]
    assert [row.iqm for row in report.overall] == [a.values[0].value for a in report.aggregates]
    pairs = [row[1:] for row in improvement_table(scores).rows]
    assert report.improvements is not None
    assert [[c and c.value for c in row] for row in report.improvements.cells] == [
        [c.value if isinstance(c, Number) else None for c in row] for row in pairs
    ]


def test_checkpoints_become_a_curve(bench: Bench) -> None:
    play(bench)
    bc, both = bench.suite.methods[0], np.array([[1.0, 3.0], [5.0, 7.0]])
    content = make_evaluation(TASKS[0], both)
    later = make_evaluation(TASKS[0], both + 10)["results"]
    content["results"] += [result | {"step": 40} for result in later]
    write_json(bench.play_path(TASKS[0], bc, "BC"), content)
    [chart] = build_suite_report(bench, "").curves
    [line] = chart.series
    assert (line.x, line.y, line.low, line.high) == ([20, 40], [4, 14], [2, 12], [6, 16])


def test_every_number_is_of_the_last_checkpoint_unless_it_says_six(bench: Bench) -> None:
    play_six(bench)
    report = build_suite_report(bench, "")
    assert {cell.value for row in report.scores for cell in row.cells if cell} == {10.0}
    assert {row.iqm for row in report.overall} == {10.0}
    assert {cell.value for row in report.late_scores for cell in row.cells if cell} == {15.0}
    assert {a.values[0].value for a in report.late_aggregates} == {15.0}
    page = render_suite(report)
    captions = re.findall(r"<caption><span>(.*?)</span></caption>", page, re.S)
    numbered = [int(n) for n in re.findall(r"Table (\d+)", " ".join(captions))]
    assert numbered == [*range(1, len(captions) + 1)]
    assert [("last checkpoint" in c, "mean of the last 6" in c) for c in captions[:4]] == [
        (True, False),
        (False, True),
    ] * 2
    assert "Every run of 3 tasks, last checkpoint" in page
    [panels] = re.findall(r'<div class="panels">(.*?)<figcaption>', page, re.S)
    assert re.findall(r"<h4>(.*?)</h4>", panels) == list(TASKS)  # one figure of three panels


def test_the_table_of_the_budget_shows_the_curves(bench: Bench) -> None:
    play_six(bench)
    page = shown(bench)
    [section] = re.findall(r'<section id="budget".*?</section>', page, re.S)
    rows = {row[0]: row[1:] for row in cells_of(page, "budget")}
    # Six checkpoints under one or two plays; two of four episodes each choose. The last checkpoint is the worst.
    assert rows["BC"][:2] == ["6", "12"]
    assert rows["DROP"][:2] == ["12", "24"]
    assert [cell.split("|")[0] for cell in rows["BC"][2:]] == ["10.0", "10.0", "16.0", "16.0", "16.0", "16.0"]
    assert section.count('<td class="capped"') == 2 * 2  # 50 and 200, for both methods
    for place in ("0", "1", "5", "10", "50", "200"):
        assert f'text-anchor="middle">{place}</text>' in section


def test_the_note_and_the_data_are_on_the_page(bench: Bench) -> None:
    play(bench)
    record = {"source": "h & m.hdf5", "sha256": {}, "origin": "regenerated from released policies", "made": False}
    for method in bench.suite.methods:
        for task in TASKS:
            write_json(bench.data_path(task, method), record | {"fingerprint": "0a1b", "steps": 1234, "episodes": 5})
    noted = dataclasses.replace(bench, suite=bench.suite.changed(note="Made for a <test>."), data=None)
    page = shown(noted)
    assert page.index("Made for a &lt;test&gt;.") < page.index("<nav")
    assert "Regenerated data: not D4RL’s files" in page
    rows = cells_of(page, "data")
    assert rows[1] == [TASKS[0], "h &amp; m.hdf5|regenerated from released policies", "1,234", "5", "0a1b"]
    assert len(rows) == 1 + len(TASKS)
    noted.write_suite()  # suite.json keeps the record for a copy without the data folder
    for method in bench.suite.methods:
        for task in TASKS:
            bench.data_path(task, method).unlink()
    assert cells_of(shown(load_bench(bench.out)), "data") == rows


def test_an_empty_folder_is_refused(bench: Bench) -> None:
    with pytest.raises(DropError, match="nothing of suite tiny is trained or played"):
        build_suite_report(bench, "")


# ---- the page


def test_the_page_is_complete_and_self_contained(bench: Bench) -> None:
    play(bench)
    page = shown(bench)
    parsed = Page(page)
    assert_orderly(parsed)
    assert parsed.values("id")[::2] == ["overall", "scores", "profiles", "improvement", "budget", "published", "costs"]
    assert not re.search(r"https?:|@import|url\(", page)
    assert parsed.values("src") == []
    assert all(link.startswith(("#", "data:")) for link in parsed.values("href"))
    assert not re.search(r"\b(nan|NaN|inf|Infinity)\b", re.sub(r"<(style|script)>.*?</\1>", "", page, flags=re.S))


def test_names_are_escaped(bench: Bench) -> None:
    evil = "</script><script>alert(1)</script><b a=\"'&"
    bc, drop = bench.suite.methods
    methods = (dataclasses.replace(bc, name=f"{evil} 1"), dataclasses.replace(drop, name=evil))
    suite = bench.suite.changed(title=evil, claim=evil, tasks=(evil,), methods=methods, plays={evil: {"rule": "best"}})
    bad = dataclasses.replace(bench, suite=suite)
    play(bad, caveat=evil)
    page = render_suite(build_suite_report(bad, evil))
    assert "<script>alert" not in page
    assert "".join(Page(page).text).count("alert(1)") > 10


def test_the_command_finds_the_suite(bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    play(bench)
    out = bench.out
    with pytest.raises(SystemExit):
        main(["report", str(out)])
    assert "say which suite with --suite" in capsys.readouterr().err
    main(["report", str(out), "--suite", str(tmp_path / "tiny.toml"), "--out", str(tmp_path / "named.html")])
    named = (tmp_path / "named.html").read_text(encoding="utf-8")
    assert [row[0] for row in cells_of(named, "scores")][2:] == [TASKS[0], TASKS[2], TASKS[1]]  # folders of other tasks
    scores = list(csv.reader((out / "tables" / "scores-last.csv").open(encoding="utf-8")))
    assert {row[0] for row in scores} >= set(TASKS)
    bench.write_suite()
    main(["report", str(out)])
    assert "<h1>A small suite</h1>" in (out / "report.html").read_text(encoding="utf-8")
    out.rename(tmp_path / "variants")
    (tmp_path / "variants" / "suite.json").unlink()
    (tmp_path / "variants" / "plays" / TASKS[0] / "DROP" / "once.json").rename(
        tmp_path / "variants" / "plays" / TASKS[0] / "DROP" / "Grad-Ada.json"
    )
    main(["report", str(tmp_path / "variants"), "--out", str(tmp_path / "third.html")])
    assert "over the latents of a CVAE" in (tmp_path / "third.html").read_text(encoding="utf-8")

"""The page of a suite that has its run directories: logs and an episode; and the whole page in a real browser."""

from __future__ import annotations

import dataclasses
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.pages import browse, needs_browser, sticks_out
from helpers.suite_folders import (
    TASKS,
    make_run,
    make_suite,
    play,
    play_six,
    shown,
    walk_of,
)

from droprl.bench import Bench
from droprl.bench.page import runs as page_runs
from droprl.bench.page.build import build_suite_report
from droprl.bench.page.contents import Predictions
from droprl.bench.page.render import render_suite
from droprl.bench.page.runs import predictions_of
from droprl.bench.suite import Method
from droprl.errors import DropError
from droprl.report.contents import EmbeddingWalk, SubTaskReturns
from droprl.train import Run


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(make_suite(tmp_path), tmp_path / "out", tmp_path)


def test_logs_become_curves_under_the_names_of_the_methods(bench: Bench) -> None:
    named = dataclasses.replace(bench.suite.methods[1], name="my DROP")
    bench = dataclasses.replace(bench, suite=bench.suite.changed(methods=(bench.suite.methods[0], named)))
    for method in bench.suite.methods:
        make_run(bench, TASKS[0], method)
    report = build_suite_report(bench, "", episode=False)  # nothing is played yet
    [cloning], [calibration] = report.curves, report.more_curves
    assert cloning.title == "hopper-medium: cloning loss"
    assert [s.label for s in cloning.series] == ["BC", "my DROP"]
    assert (cloning.series[1].y, cloning.series[1].high) == ([0.2, 0.1], [0.3, 0.15])
    assert calibration.title == "hopper-medium: calibration of f"
    page = render_suite(report)
    assert re.findall(r'<section id="([\w-]+)"', page) == ["learning"]
    assert "<summary>1 more curve</summary>" in page


def test_the_earned_reward_is_discounted_and_scaled_like_f(bench: Bench) -> None:
    run = make_run(bench, TASKS[0], bench.suite.methods[1])
    found = predictions_of(run, walk_of([5.0, 5.0, 6.0, 6.0], [1.0, 2.0, 4.0, 8.0]))
    assert found is not None
    assert found.predicted == [5.0, 6.0]  # the steps at which z was inferred
    assert found.realised == [(1 + 2 / 2 + 4 / 4 + 8 / 8) / 4, (4 + 8 / 2) / 4]


def test_one_run_that_adapts_is_played(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for method in bench.suite.methods:
        make_run(bench, TASKS[1], method)
    monkeypatch.setattr(Run, "checkpoints", lambda run: ["one"])
    monkeypatch.setattr(Run, "spec", lambda run: SimpleNamespace(n_sub_tasks=2))
    monkeypatch.setattr(page_runs, "walks_of", lambda run: [walk_of([1.0, 2.0], [3.0, 4.0])])
    monkeypatch.setattr(page_runs, "policy_of_run", lambda run: None)
    monkeypatch.setattr(page_runs, "scores_at_start", lambda policy: [0.25, 0.75])
    monkeypatch.setattr(
        page_runs, "sub_tasks_of", lambda run, scores: SubTaskReturns([2.0, 1.0], [1.0] * 2, [2.0] * 2, scores)
    )
    page = shown(bench)
    assert "One episode of DROP on walker2d-medium-replay, under each rule." in page
    assert "What f predicted and what was earned" in page
    assert "which has the highest score f at the start. Sub-task 0 has the highest return." in page

    for method in bench.suite.methods:  # a copy without weights still has the episode
        shutil.rmtree(bench.run_path(TASKS[1], method))
    play(bench)
    copied = shown(bench)
    figures = re.findall(r'<section id="walks".*?</section>', page, re.S)
    unnumbered = [re.sub(r"Figure \d+", "Figure", f) for f in figures]
    assert [
        re.sub(r"Figure \d+", "Figure", f) for f in re.findall(r'<section id="walks".*?</section>', copied, re.S)
    ] == unnumbered
    (bench.out / "episode.json").write_text("{}", encoding="utf-8")
    with pytest.raises(DropError, match=r"episode\.json: is not an episode"):
        shown(bench)
    (bench.out / "episode.json").unlink()
    assert 'id="walks"' not in shown(bench)
    for method in bench.suite.methods:
        make_run(bench, TASKS[1], method)

    def fail(run: Run) -> list[EmbeddingWalk]:
        raise DropError("no such task")

    monkeypatch.setattr(page_runs, "walks_of", fail)
    report = build_suite_report(bench, "")
    assert report.walks == []
    assert "No episode could be played for this page: no such task." in report.notes


@needs_browser
def test_the_page_runs_in_a_browser_and_nothing_overflows(bench: Bench, tmp_path: Path) -> None:
    play(bench)
    make_run(bench, TASKS[0], bench.suite.methods[1])
    report = build_suite_report(bench, "drop report out", episode=False)
    walk = walk_of([1.0, 2.0, 3.0], [1.0, 1.0, 1.0])
    walks = [dataclasses.replace(walk, rule=rule) for rule in ("best", "grad")]
    small = render_suite(dataclasses.replace(report, walks=walks, predictions=[Predictions("best", [1.0], [2.0])]))
    methods = tuple(Method(f"Quantization-{i}", "drop" if i < 6 else "bc") for i in range(12))
    many = dataclasses.replace(bench, suite=bench.suite.changed(methods=methods))
    play_six(many)
    assert sticks_out([small, shown(many)], tmp_path) == [*[""] * 4, *["0"] * 4]
    (tmp_path / "page.html").write_text(small, encoding="utf-8")
    seen = browse(tmp_path / "page.html", tmp_path / "other", "#walk=1&step=2")
    assert seen.values("data-ready") == ["true"]
    assert seen.values("data-error") == []
    assert (seen.values("data-rule"), seen.values("data-step")) == (["grad"], ["2"])

"""From run directories to the contents of a page, also if the task cannot be played here."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from helpers.training import learnable_dataset, tiny

from droprl.report.build import build_report
from droprl.train import Run, fit


@pytest.mark.parametrize("env", ["PointMaze_UMaze-v3", "NoSuchTask-v7"])
def test_if_the_task_cannot_be_played_only_the_walks_are_missing(tmp_path: Path, env: str) -> None:
    dataset = dataclasses.replace(learnable_dataset(), env=env)
    run = fit(dataset, tiny("drop"), out=tmp_path / "run", steps=4, progress=False)
    report = build_report([run], "drop report run")
    assert report.walks == []
    assert any(env in note for note in report.notes)
    assert report.sub_tasks is not None
    assert report.sub_tasks.predicted is None
    assert report.curves
    assert report.diagnostics


def test_sub_tasks_are_shown_by_descending_return_whatever_the_decomposition(tmp_path: Path) -> None:
    algorithm = tiny("drop", decomposition="quantization", n_sub_tasks=4, trajectories_per_sub_task=3, fallback="top")
    run: Run = fit(learnable_dataset(), algorithm, out=tmp_path / "run", steps=2, progress=False)
    shown = build_report([run], "drop report run").sub_tasks
    assert shown is not None
    summary = run.sub_tasks()
    assert summary is not None
    assert shown.mean_returns == sorted(summary.mean, reverse=True)
    assert all(low <= mean <= high for low, mean, high in zip(shown.low, shown.mean_returns, shown.high, strict=True))


def test_runs_without_sub_tasks_or_without_adaptation_have_a_page_too(tmp_path: Path) -> None:
    """Their task cannot be played, but no note says so: they need no episode, because no walk can be drawn."""
    dataset = dataclasses.replace(learnable_dataset(), env="NoSuchTask-v7")
    runs = {n: fit(dataset, tiny(n), out=tmp_path / n, steps=4, progress=False) for n in ("drop-cvae", "ddrop")}
    latent, distilled = (build_report([run], "drop report run") for run in runs.values())
    assert latent.walks == distilled.walks == []
    assert latent.notes == distilled.notes == []
    assert latent.sub_tasks is None
    assert distilled.sub_tasks is not None
    assert latent.diagnostics
    assert any("student" in diagnostic.name for diagnostic in distilled.diagnostics)
    both = build_report(list(runs.values()), "drop report run")
    assert both.sub_tasks == distilled.sub_tasks

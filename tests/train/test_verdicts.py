"""What a person sees during training: progress at 80 columns, and warnings with their update that are taken back."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from helpers.training import learnable_dataset, tiny

from droprl.algorithms.judging import judged
from droprl.progress import TrainProgress, train_bar
from droprl.terminal import Screen
from droprl.train import Run, fit
from droprl.train.config import RunConfig
from droprl.train.times import sessions_of
from droprl.train.verdicts import Verdicts


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    """A run whose one check is healthy while `clone_loss` is below 1."""

    def checks(self: Any, metrics: dict[str, float]) -> Any:
        value = metrics.get("clone_loss", float("nan"))
        return judged("loss", value, value < 1, "all is well", "the loss is high")

    algorithm = tiny("bc")
    monkeypatch.setattr(type(algorithm), "checks", checks)
    run = fit(learnable_dataset(), algorithm, out=tmp_path / "run", seeds=2, steps=10, progress=False)
    return run.config


def said(verdicts: Verdicts, step: int, *losses: float | None) -> list[tuple[str, bool]]:
    return [tuple(verdict) for verdict in verdicts.at(step, {"clone_loss": list(losses)})]  # type: ignore[misc]


def test_a_warning_has_its_update_and_is_taken_back(config: RunConfig) -> None:
    verdicts = Verdicts(config)
    assert said(verdicts, 4, 9.0, 9.0) == []  # in the first half everything is unhealthy
    assert said(verdicts, 5, 2.0, 0.5) == [("update 5: seed 0, the loss is high (loss 2)", True)]
    assert said(verdicts, 6, 3.0, 0.5) == []  # it is said once
    assert said(verdicts, 7, None, 0.5) == []  # an unknown value takes nothing back
    assert said(verdicts, 8, 0.25, 4.0) == [
        ("update 8: seed 0, what update 5 warned of: all is well (loss 0.25)", False),
        ("update 8: seed 1, the loss is high (loss 4)", True),
    ]
    assert said(verdicts, 9, 0.25, 4.0) == []
    assert said(verdicts, 10, 1.5, 4.0) == [("update 10: seed 0, the loss is high (loss 1.5)", True)]


def test_a_resumed_training_knows_what_was_warned_of(config: RunConfig) -> None:
    verdicts = Verdicts(config)
    verdicts.recall([{"step": 5, "clone_loss": [2.0, 2.0]}, {"step": 6, "clone_loss": [2.0, 2.0]}])
    assert said(verdicts, 7, 0.5, 3.0) == [
        ("update 7: seed 0, what update 5 warned of: all is well (loss 0.5)", False),
        ("update 7: seed 1, since update 5, the loss is high (loss 3)", True),
    ]
    assert said(verdicts, 8, 0.5, 3.0) == []


def test_both_appear_on_the_screen_even_without_progress(capsys: pytest.CaptureFixture[str]) -> None:
    with TrainProgress("bc", 0, 10, False, {}) as progress:
        progress.warn("update 5: this")
        progress.retract("update 6: that")
        progress.say("not this")
    assert capsys.readouterr().err == "warning: update 5: this\nretracted: update 6: that\n"


@pytest.mark.parametrize(("label", "total"), [("bc × 1 seed", 100_000), ("drop-cvae × 10 seeds", 2_000_000)])
def test_at_80_columns_nothing_is_cut_off(label: str, total: int) -> None:
    file = io.StringIO()
    screen = Screen(file=file, width=80, force_terminal=True, color_system=None)
    values = "clone 0.0123  td 0.456  R² 0.789"
    with train_bar(screen) as bar:
        task = bar.add_task(label, total=total, completed=0, rate="compiling …", unit="updates", values="")
        bar.update(task, completed=total // 3, rate="12,345/s", values=values)
        bar.refresh()
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue())
    lines = [line.strip() for line in plain.replace("\r", "\n").split("\n")]
    (line,) = {line for line in lines if line.startswith(label) and "12,345/s" in line}
    assert len(line) <= 80
    assert "…" not in line
    assert f"{total // 3:,}/{total:,} updates" in line
    assert line.endswith("left")
    assert "━━" in line
    assert values in lines


def test_the_times_of_a_run_are_kept_and_change_nothing_else(tmp_path: Path) -> None:
    run: Run = fit(learnable_dataset(), tiny("bc"), out=tmp_path / "run", steps=4, progress=False)
    (session,) = sessions_of(run.path)
    assert (session.first, session.last, session.seeds) == (0, 4, 1)
    assert 0 < session.seconds < 600
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", session.began)
    assert json.loads((run.path / "times.json").read_text())["seal"]
    (run.path / "times.json").write_text("damaged")
    (run.checkpoint_folder / "000000004" / "checkpoint.json").unlink()
    (run.checkpoint_folder / "000000004" / "state.safetensors").unlink()
    (run.checkpoint_folder / "000000004").rmdir()
    fit(learnable_dataset(), tiny("bc"), out=tmp_path / "run", steps=4, progress=False)
    assert [(s.first, s.last) for s in sessions_of(run.path)] == [(3, 4)]

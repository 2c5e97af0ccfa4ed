"""`drop export` of an algorithm whose card says that its policy cannot be an ONNX file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from helpers.training import learnable_dataset, refusal, tiny

from droprl import export_onnx, load_policy
from droprl.algorithms import BC
from droprl.cli import main
from droprl.train import Run, fit

REASON = "its step asks a database"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(BC, "card", replace(BC.card, no_export=REASON))
    return fit(learnable_dataset(), tiny("bc"), out=tmp_path / "run", steps=2, progress=False)


def test_the_refusal_gives_the_algorithms_reason_and_comes_before_anything_is_written(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SystemExit) as end:
        main(["export", str(run.path), "--out", str(tmp_path / "policy"), "--onnx", str(tmp_path / "policy.onnx")])
    printed = capsys.readouterr()
    assert (end.value.code, printed.out) == (1, "")
    assert printed.err == (
        f"drop: bc: its policy cannot be an ONNX file ({REASON}): save it as a folder for droprl with --out FOLDER\n"
    )
    assert sorted(tmp_path.rglob("*")) == before
    assert REASON in refusal(export_onnx, load_policy(run.path), tmp_path / "policy.onnx")


def test_what_the_refusal_names_works(run: Run, tmp_path: Path) -> None:
    main(["export", str(run.path), "--out", str(tmp_path / "policy")])
    assert load_policy(tmp_path / "policy").algorithm.name == "bc"

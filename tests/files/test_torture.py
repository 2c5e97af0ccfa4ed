"""`make torture` in its short form. Its judges are tested too: a judge that cannot fail proves nothing."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.training import learnable_dataset, tiny

from droprl import load_policy
from droprl.train import Run, fit

TORTURE = Path(__file__).parents[2] / "benchmarks" / "torture"


def test_the_short_form_survives_everything(tmp_path: Path) -> None:
    words = [sys.executable, TORTURE, "--short", "--kills=2", "--out", tmp_path]
    answer = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    summary = json.loads(answer.stdout.splitlines()[-1])
    assert summary["tried"] == summary["survived"] > 80
    assert summary["lost"] == 0
    rows = json.loads((tmp_path / "torture.json").read_text())["rows"]
    kills = {row["what"]: row["tried"] for row in rows if row["fault"] == "SIGKILL"}
    assert kills == {"evaluation": 1, "export": 1}
    assert {row["what"] for row in rows if row["fault"] == "second process"} == {"evaluation", "export"}


@pytest.fixture
def judges(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(TORTURE))
    import damage
    import work

    return damage, work


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return fit(learnable_dataset(), tiny("bc"), out=tmp_path_factory.mktemp("run") / "run", steps=4, progress=False)


def test_a_damaged_file_that_loads_is_a_loss(judges: Any, tmp_path: Path) -> None:
    damage, work = judges
    (tmp_path / "file").write_bytes(b"nobody checks this")
    trials = list(damage.damages(tmp_path / "file", (tmp_path / "file").read_bytes, 4, random.Random(0)))
    assert len(trials) == 4
    for trial in trials:
        with pytest.raises(work.Lost, match="file was loaded"):
            trial()
    assert (tmp_path / "file").read_bytes() == b"nobody checks this"


def test_a_loss_names_the_damage(judges: Any, tmp_path: Path) -> None:
    damage, work = judges
    (tmp_path / "file").write_bytes(b"nobody checks this")

    def crashes() -> None:
        raise ZeroDivisionError("nobody thought of it")

    labels = (r"bit \d of byte \d+ flipped", r"cut at byte \d+")
    trials = damage.damages(tmp_path / "file", crashes, 8, random.Random(0))
    for number, trial in enumerate(trials):
        with pytest.raises(work.Lost, match=f"file, {labels[number % 4 == 3]}: ZeroDivisionError: nobody thought"):
            trial()


def test_an_unexpected_exception_counts_as_lost(judges: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("torture_main", TORTURE / "__main__.py")
    assert spec is not None
    assert spec.loader is not None
    main = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "torture_main", main)
    spec.loader.exec_module(main)
    tally = main.Tally()
    tally.trial("fault", "what", lambda: 1 / 0)
    assert tally.summary() == {"tried": 1, "survived": 0, "lost": 1}


def test_a_load_that_fills_the_memory_is_noticed(judges: Any, tmp_path: Path) -> None:
    damage, work = judges
    file, canary = tmp_path / "file", tmp_path / "canary"
    file.touch()
    os.truncate(file, 2**40)
    with pytest.raises(MemoryError):
        damage._harmless(Path.read_bytes, file, canary)
    with pytest.raises(work.Lost, match="was loaded"):
        damage._harmless(Path.stat, file, canary)


def test_logs_are_compared_by_value(judges: Any) -> None:
    _, work = judges
    log = [{"step": 10, "loss": [0.5, None]}, {"step": 20, "loss": [0.4, 0.3]}]
    work.same({"log": log}, {"log": [log[0], {"step": 20, "loss": [0.4, 0.3 + 1e-7]}]}, "training")
    for other in (log[:1], [log[0], {"step": 20, "loss": [0.4, 0.2]}], [log[0], {"step": 20}]):
        with pytest.raises(work.Lost, match="log differs"):
            work.same({"log": log}, {"log": other}, "training")


def test_a_torn_run_or_policy_is_a_loss(judges: Any, run: Run, tmp_path: Path) -> None:
    _, work = judges
    place, older = tmp_path / "place", tmp_path / "older"
    shutil.copytree(run.path, place / "run")
    for folder in (older, place / "shipped"):
        load_policy(run.path).save(folder / "policy")
        (folder / "policy.onnx").write_bytes(b"a graph")
    shipping, training = work.export(run.path, older), work.training(tmp_path)
    outcome = shipping.outcome(place)
    shipping.check(place, outcome)
    training.check(place, {})
    (place / "shipped" / "policy.onnx").write_bytes(b"a gra")
    with pytest.raises(work.Lost, match="neither the older nor the new"):
        shipping.check(place, outcome)
    (place / "shipped" / "policy" / "policy.safetensors").write_bytes(b"half")
    with pytest.raises(work.Lost, match="its checksum differs"):
        shipping.check(place, outcome)
    with pytest.raises(work.Lost, match="differs from that of an undisturbed command"):
        work.same(shipping.outcome(place), outcome, "export")
    (place / "run" / "support.safetensors").write_bytes(b"half")
    with pytest.raises(work.Lost, match=r"support.safetensors: is damaged"):
        training.check(place, {})
    shutil.copy(run.path / "support.safetensors", place / "run" / "support.safetensors")
    (Run(place / "run").checkpoint().path / "state.safetensors").write_bytes(b"half")
    with pytest.raises(work.Lost, match="its checksum differs"):
        training.check(place, {})

"""What outlasts a power loss, and what a checkpoint stands on: its config, its data, its log, and the machine."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import random
import shutil
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from helpers.training import learnable_dataset, logged_steps, refusal, state_files, tiny

from droprl import load_policy
from droprl.data import Dataset
from droprl.files import storage
from droprl.files.durable import sync_file
from droprl.files.seals import read_sealed, sealed
from droprl.train import Run, fit
from droprl.train.machine import machines_of, this_machine
from droprl.train.run import MetricsLog

SCHEDULE: dict[str, Any] = {"steps": 30, "checkpoint_every": 10, "log_every": 5, "progress": False}
TORTURE = Path(__file__).parents[2] / "benchmarks" / "torture"


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return learnable_dataset()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, dataset: Dataset) -> Run:
    return fit(dataset, tiny("bc"), out=tmp_path_factory.mktemp("run") / "finished", **SCHEDULE)


@pytest.fixture
def run(finished: Run, tmp_path: Path) -> Run:
    """A copy, as after a kill at update 20."""
    copy = Run(shutil.copytree(finished.path, tmp_path / "run"))
    shutil.rmtree(copy.checkpoint_folder / "000000030")
    return copy


def again(run: Run, dataset: Dataset, **changes: Any) -> Run:
    algorithm = changes.pop("algorithm", tiny("bc"))
    return fit(dataset, algorithm, out=run.path, **SCHEDULE | changes)


# --- power loss ---


@pytest.fixture
def power(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(TORTURE))
    import power

    return power


def test_after_a_power_loss_at_any_moment_the_run_goes_on_to_the_same_bytes(
    power: Any, dataset: Dataset, tmp_path: Path
) -> None:
    disk = power.recorded_run(dataset, tiny("bc"), tmp_path / "recorded")
    expected = tmp_path / "recorded" / "runs" / "run"
    rng = random.Random(0)
    found = list(power.states(disk, rng, mixed=100))
    assert len(disk.moments) > 100
    for number, (moment, choose) in enumerate(rng.sample(found, 40)):
        resumes = None if number % 20 else lambda out: fit(dataset, tiny("bc"), out=out, **power.SCHEDULE)
        power.power_loss(disk, moment, choose, tmp_path / "state", resumes, expected)
    power.finished_run_is_kept(disk, tmp_path / "state", expected)


@pytest.mark.parametrize(
    ("where", "name", "said"),
    [(MetricsLog, "sync", "ahead of the log"), (storage, "sync_folder", "is not on the disk")],
)
def test_without_its_syncs_a_power_loss_would_be_noticed(
    power: Any, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: Any, name: str, said: str
) -> None:
    """The judge can fail: without this one call, something is lost."""
    with monkeypatch.context() as patch:
        patch.setattr(where, name, lambda *_: None)
        disk = power.recorded_run(dataset, tiny("bc"), tmp_path / "recorded")
    state, expected = tmp_path / "state", tmp_path / "recorded" / "runs" / "run"
    trials = [partial(power.power_loss, disk, m, power.only_kept, state, None, expected) for m in disk.moments]
    lost = []
    for trial in (*trials, partial(power.finished_run_is_kept, disk, state, expected)):
        try:
            trial()
        except power.Lost as error:
            lost.append(str(error))
    assert any(said in text for text in lost), lost


# --- a checkpoint belongs to one config and one dataset ---


@pytest.mark.parametrize("other", ["learning rate", "data", "steps"])
def test_without_its_config_a_checkpoint_is_adopted_by_no_other_command(run: Run, dataset: Dataset, other: str) -> None:
    changes: dict[str, Any] = {"learning rate": {"algorithm": tiny("bc", learning_rate=0.5)}, "steps": {"steps": 20}}
    data = dataclasses.replace(dataset, rewards=dataset.rewards + 1) if other == "data" else dataset
    before = state_files(run)
    (run.path / "config.json").unlink()
    message = refusal(again, run, data, **changes.get(other, {}))
    what = "of other data" if other == "data" else "of other settings"
    assert message.startswith(f"{run.checkpoint_folder / '000000010'}: is {what}, and {run.path} has no config.json")
    assert state_files(run) == before
    assert not (run.path / "config.json").exists()


def test_without_its_config_the_same_command_goes_on(run: Run, finished: Run, dataset: Dataset) -> None:
    (run.path / "config.json").unlink()
    assert state_files(again(run, dataset, source="/elsewhere/learnable.npz")) == state_files(finished)


def test_another_runs_config_does_not_fit_the_checkpoints(run: Run, dataset: Dataset, tmp_path: Path) -> None:
    other = fit(dataset, tiny("bc", learning_rate=0.5), out=tmp_path / "other", **SCHEDULE)
    shutil.copy(other.path / "config.json", run.path)
    for use in (lambda: Run(run.path).checkpoints(), lambda: load_policy(run.path)):
        message = refusal(use)
        assert message.startswith(f"{run.checkpoint_folder / '000000010'}: belongs to another run (of other settings")


def unbound(run: Run) -> None:
    """As an older version wrote it."""
    for checkpoint in run.checkpoints():
        header = read_sealed(checkpoint.path / "checkpoint.json")
        del header["run"]
        (checkpoint.path / "checkpoint.json").write_bytes(sealed(header))


def test_a_run_of_an_older_version_goes_on_with_a_notice(
    run: Run, finished: Run, dataset: Dataset, capfd: pytest.CaptureFixture[str]
) -> None:
    unbound(run)
    (run.path / "machines.json").unlink()
    assert state_files(again(run, dataset)) == state_files(finished)
    said = capfd.readouterr().err
    assert "an older version saved its checkpoints, which do not say to which settings they belong" in said
    assert "update 20 was reached by a version that did not note where" in said


def test_checkpoints_of_an_unknown_run_are_not_adopted(run: Run, dataset: Dataset) -> None:
    unbound(run)
    (run.path / "config.json").unlink()
    assert "is of an unknown run, and" in refusal(again, run, dataset)


# --- the machine ---


def test_another_version_or_machine_is_noted_and_said_once(
    run: Run, dataset: Dataset, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [(m.first, m.machine) for m in machines_of(run.path)] == [(0, this_machine())]
    elsewhere = dataclasses.replace(this_machine(), jax="0.0.1", vectors=this_machine().vectors + " avx1024")
    monkeypatch.setattr("droprl.train.machine.this_machine", lambda: elsewhere)
    again(run, dataset)
    said = capfd.readouterr().err
    assert (
        f"{run.path}: update 20 was reached elsewhere (jax {this_machine().jax} → 0.0.1; vectors none → avx1024)"
        in said
    )
    assert "the bytes may differ" in said
    assert [m.first for m in machines_of(run.path)] == [0, 20]
    shutil.rmtree(run.checkpoint_folder / "000000030")
    again(run, dataset)
    assert "the bytes may differ" not in capfd.readouterr().err


def test_a_damaged_record_of_machines_is_named(run: Run, dataset: Dataset) -> None:
    where = run.path / "machines.json"
    where.write_bytes(where.read_bytes().replace(b'"first": 0', b'"first": 1'))
    message = refusal(again, run, dataset)
    assert message.startswith(f"{where}: is damaged or was edited")
    assert message.endswith("or remove it: only the record of earlier machines is lost")


# --- the log ---


def test_a_changed_number_in_the_log_is_named_and_the_lines_behind_it_stay(run: Run, dataset: Dataset) -> None:
    log = run.path / "metrics.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    changed = json.loads(lines[1])
    changed["clone_loss"] = [0.5 + value for value in changed["clone_loss"]]
    damaged = "".join([lines[0], json.dumps(changed) + "\n", *lines[2:]])
    log.write_text(damaged)
    for use in (run.metrics, lambda: again(run, dataset)):
        assert refusal(use).startswith(f"{log}: line 2 is damaged (its checksum differs): restore the file, or remove ")
        assert log.read_text() == damaged


def test_lost_lines_are_counted_and_the_rest_goes_on(
    run: Run, finished: Run, dataset: Dataset, capfd: pytest.CaptureFixture[str]
) -> None:
    log = run.path / "metrics.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join([lines[0], *lines[2:]]))
    resumed = again(run, dataset)
    assert f"{log}: lacks 1 entries up to update 20: they stay lost" in capfd.readouterr().err
    assert logged_steps(resumed) == [5, 15, 20, 25, 30]
    assert state_files(resumed) == state_files(finished)


def test_a_log_of_an_older_version_is_read(run: Run, finished: Run, dataset: Dataset) -> None:
    log = run.path / "metrics.jsonl"
    entries = [{k: v for k, v in json.loads(line).items() if k != "check"} for line in log.read_text().splitlines()]
    log.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    assert run.metrics() == finished.metrics()
    assert again(run, dataset).metrics() == finished.metrics()


def test_what_a_kill_left_of_the_times_is_removed_from_a_finished_run(tmp_path: Path) -> None:
    run = fit(learnable_dataset(), tiny("bc"), out=tmp_path / "run", steps=4, progress=False)
    left = run.path / ".partial-times.json"
    left.write_text("half")
    fit(learnable_dataset(), tiny("bc"), out=tmp_path / "run", steps=4, progress=False)
    assert not left.exists()


@pytest.mark.parametrize(("code", "raised"), [(errno.EINVAL, False), (errno.ENOTSUP, False), (errno.EIO, True)])
def test_a_system_that_cannot_sync_is_no_error_and_a_loss_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, raised: bool
) -> None:
    def refuses(_: int) -> None:
        raise OSError(code, os.strerror(code))

    (tmp_path / "file").write_text("x")
    monkeypatch.setattr(os, "fsync", refuses)
    with pytest.raises(OSError, match=os.strerror(code)) if raised else nullcontext():
        sync_file(tmp_path / "file")

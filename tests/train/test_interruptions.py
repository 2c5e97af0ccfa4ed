"""Real Ctrl-C, kills and full disks. Saved files stay good, and the same command ends with the same bytes as an
undisturbed run."""

from __future__ import annotations

import importlib
import os
import random
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from helpers.training import (
    TINY_BC,
    drop,
    learnable_dataset,
    logged_steps,
    refusal,
    save_npz,
    start_drop,
    state_files,
    tiny,
)

from droprl import load_policy
from droprl.data import Dataset, load_dataset
from droprl.train import Interrupted, Run, fit
from droprl.train.loop import Loop
from droprl.train.run import MetricsLog

SCHEDULE: dict[str, Any] = {"steps": 90, "checkpoint_every": 10, "log_every": 5, "progress": False}
fit_module = importlib.import_module("droprl.train.training")  # `droprl.train.training` itself is the function


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return learnable_dataset()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, dataset: Dataset) -> Run:
    return fit(dataset, tiny("bc"), out=tmp_path_factory.mktemp("run") / "undisturbed", **SCHEDULE)


# --- interruptions at awkward moments ---


@pytest.mark.parametrize("at", [20, 25, 27])  # after this update comes a checkpoint, a line of the log, or nothing
def test_ctrl_c_loses_neither_updates_nor_lines(
    undisturbed: Run, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    run_updates = Loop.run

    def interrupt(self: Loop, states: Any, first: int, count: int) -> Any:
        if first == at - 1:
            os.kill(os.getpid(), signal.SIGINT)
        return run_updates(self, states, first, count)

    with monkeypatch.context() as patch:
        patch.setattr(fit_module, "CALL_SECONDS", 0.0)  # one update in each call
        patch.setattr(Loop, "run", interrupt)
        with pytest.raises(Interrupted, match=f"stopped at update {at} of 90, saved in .*: run the same command again"):
            fit(dataset, tiny("bc"), out=tmp_path / "run", **SCHEDULE)
    left = Run(tmp_path / "run")
    assert [(c.step, c.scheduled) for c in left.checkpoints()][-1] == (at, at == 20)
    resumed = fit(dataset, tiny("bc"), out=left.path, **SCHEDULE)
    assert state_files(resumed) == state_files(undisturbed)
    assert logged_steps(resumed) == logged_steps(undisturbed)


def test_ctrl_c_before_the_first_update_changes_nothing(
    undisturbed: Run, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unfinished = Run(shutil.copytree(undisturbed.path, tmp_path / "run"))
    for step in (80, 90):
        shutil.rmtree(unfinished.checkpoint_folder / f"{step:09d}")
    answers = iter([False, True, True, True])

    @contextmanager
    def interrupted_between_two_looks() -> Iterator[Callable[[], bool]]:
        yield lambda: next(answers, True)

    before = state_files(unfinished)
    monkeypatch.setattr(fit_module, "asked_to_stop", interrupted_between_two_looks)
    with pytest.raises(Interrupted, match="stopped at update 70"):
        fit(dataset, tiny("bc"), out=unfinished.path, **SCHEDULE)
    assert state_files(unfinished) == before
    assert logged_steps(unfinished) == list(range(5, 71, 5))


# --- real processes: the same command, again and again ---


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, dataset: Dataset) -> Path:
    return save_npz(dataset, tmp_path_factory.mktemp("source") / "learnable.npz")


LONG = 4_000


@dataclass(frozen=True)
class Long:
    """A run of a few seconds: long enough to disturb it."""

    command: list[str | Path]  # without --out
    again: Callable[[Path], Run]  # the same command, in this process
    expected: dict[str, bytes]
    logged: list[int]


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory, source: Path) -> Long:
    schedule: dict[str, Any] = {"steps": LONG, "checkpoint_every": LONG // 40, "log_every": LONG // 80}
    options = [f"--{name.replace('_', '-')}={value}" for name, value in schedule.items()]

    def again(out: Path) -> Run:
        return fit(load_dataset(source), tiny("bc"), out=out, seeds=2, progress=False, **schedule)

    run = again(tmp_path_factory.mktemp("long") / "undisturbed")
    command: list[str | Path] = ["train", source, "--seeds=2", "--learning-rate=0.01", *TINY_BC, *options]
    return Long(command, again, state_files(run), logged_steps(run))


def wait_for(process: subprocess.Popen[str], happened: Callable[[], bool]) -> None:
    for _ in range(12_000):
        if happened():
            return
        assert process.poll() is None, f"it ended by itself: {process.communicate()}"
        time.sleep(0.005)
    process.kill()
    pytest.fail("nothing happened for a minute")


def newest(out: Path) -> int:
    return max((int(path.name) for path in out.glob("checkpoints/[0-9]*")), default=0)


def check_end(out: Path, long: Long) -> None:
    assert state_files(out) == long.expected
    assert logged_steps(Run(out)) == long.logged
    assert not list(out.rglob(".partial-*"))


def test_ctrl_c_saves_says_how_to_go_on_and_the_same_command_goes_on(long: Long, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = start_drop(*long.command, "--out", out)
    wait_for(process, lambda: newest(out) > 0)
    assert refusal(long.again, out).startswith(f"{out}: another process is training here")
    process.send_signal(signal.SIGINT)
    said, err = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, "")
    last = err.splitlines()[-1]
    assert last.startswith("drop: stopped at update ")
    assert last.endswith(f"of {LONG:,}, saved in {out}: run the same command again to go on")
    assert "Traceback" not in err
    step = int(last.removeprefix("drop: stopped at update ").split(" ")[0].replace(",", ""))
    assert Run(out).checkpoints()[-1].step == step
    code, said, err = drop(*long.command, "--out", out)
    assert code == 0, err
    assert said.startswith(f"{out} is trained ({LONG:,} updates)")
    check_end(out, long)


def test_a_run_that_is_killed_again_and_again_ends_with_the_same_bytes(long: Long, tmp_path: Path) -> None:
    out = tmp_path / "run"
    somewhere = random.uniform(0.1, 0.6) * LONG
    moments: list[Callable[[], bool]] = [
        lambda: bool(list(out.glob("checkpoints/.partial-*/*"))),  # while a checkpoint is written
        lambda: newest(out) > somewhere and random.random() < 0.1,
    ]
    for moment in moments:
        process = start_drop(*long.command, "--out", out)
        try:
            wait_for(process, moment)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        assert process.returncode == -signal.SIGKILL
        if newest(out):
            load_policy(out)  # the remaining files are usable
    long.again(out)
    check_end(out, long)


# From some moment on, the disk is full: no file may grow beyond a limit. Python reports an OSError.
FULL_DISK = """
import importlib, resource, sys
from droprl.cli import main

fit = importlib.import_module("droprl.train.training")
save = fit.save_checkpoint

def save_on_a_full_disk(folder, step, *rest, **options):
    if step >= 50:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, resource.RLIM_INFINITY))
    return save(folder, step, *rest, **options)

fit.save_checkpoint = save_on_a_full_disk
main(sys.argv[1:])
"""


def test_a_full_disk_ends_training_in_one_line_and_spoils_nothing(
    undisturbed: Run, source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    schedule = ("--steps=90", "--checkpoint-every=10", "--log-every=5")
    words = ("train", source, "--out", out, "--learning-rate=0.01", *TINY_BC, *schedule)
    code, said, err = drop(*words, code=FULL_DISK)
    assert (code, said) == (1, "")
    expected = f"drop: {out / 'checkpoints' / '000000050'}: cannot be written (File too large): free space "
    assert err.splitlines()[-1].startswith(expected)
    assert "Traceback" not in err
    assert [c.step for c in Run(out).checkpoints()] == [10, 20, 30, 40]
    for checkpoint in Run(out).checkpoints():
        load_policy(out, step=checkpoint.step)
    check_same(fit(load_dataset(source), tiny("bc"), out=out, **SCHEDULE), undisturbed)


def check_same(run: Run, undisturbed: Run) -> None:
    assert state_files(run) == state_files(undisturbed)
    assert logged_steps(run) == logged_steps(undisturbed)


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_line_of_the_log_that_the_disk_cuts_short_spoils_nothing(
    undisturbed: Run, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, write = tmp_path / "run", MetricsLog.write

    def write_on_a_full_disk(self: MetricsLog, entry: dict[str, Any]) -> None:
        room = 20 if entry["step"] == 55 else 10_000
        with files_of_at_most((out / "metrics.jsonl").stat().st_size + room):
            write(self, entry)

    with monkeypatch.context() as patch:
        patch.setattr(MetricsLog, "write", write_on_a_full_disk)
        message = refusal(fit, dataset, tiny("bc"), out=out, **SCHEDULE)
    assert message.startswith(f"{out / 'metrics.jsonl'}: cannot be written (File too large): free space ")
    assert not (out / "metrics.jsonl").read_text().endswith("\n")
    assert logged_steps(Run(out)) == list(range(5, 51, 5))
    check_same(fit(dataset, tiny("bc"), out=out, **SCHEDULE), undisturbed)


@pytest.mark.parametrize("existing", [False, True])
def test_a_disk_that_is_full_from_the_start_spoils_nothing(
    undisturbed: Run, dataset: Dataset, tmp_path: Path, existing: bool
) -> None:
    out = tmp_path / "run"
    if existing:
        shutil.copytree(undisturbed.path, out)
        shutil.rmtree(out / "checkpoints" / "000000090")
    with files_of_at_most(0):
        message = refusal(fit, dataset, tiny("bc"), out=out, **SCHEDULE)
    file = out / ("metrics.jsonl" if existing else "data.json")
    assert message.startswith(f"{file}: cannot be written (File too large)")
    check_same(fit(dataset, tiny("bc"), out=out, **SCHEDULE), undisturbed)

"""SIGTERM and SIGHUP, sent to real processes: they save, say how to go on, and end with the signal's exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.benches import TINY, write_hopper
from helpers.training import TINY_BC, learnable_dataset, save_npz, start_drop

from droprl.interrupts import Interrupted, asked_to_stop, ended_by_signals, signal_of
from droprl.train import Run


def wait_for(process: subprocess.Popen[str], happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not happened() and time.monotonic() < deadline:
        assert process.poll() is None, f"it ended by itself: {process.communicate()}"
        time.sleep(0.005)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_training_saves_and_says_how_to_go_on(tmp_path: Path, number: signal.Signals, code: int) -> None:
    source, out = save_npz(learnable_dataset(), tmp_path / "learnable.npz"), tmp_path / "run"
    process = start_drop("train", source, *TINY_BC, "--steps=200000", "--checkpoint-every=90000", "--out", out)
    wait_for(process, lambda: (out / "metrics.jsonl").exists() and (out / "metrics.jsonl").stat().st_size > 0)
    process.send_signal(number)
    process.send_signal(number)  # a second one does not hurry it
    said, err = process.communicate(timeout=60)
    assert (process.returncode, said) == (code, "")
    last = err.splitlines()[-1]
    assert last.startswith("drop: stopped at update ")
    assert last.endswith(f"of 200,000, saved in {out}: run the same command again to go on")
    step = int(last.removeprefix("drop: stopped at update ").split(" ")[0].replace(",", ""))
    assert Run(out).checkpoints()[-1].step == step > 0


def test_a_suite_passes_the_signal_on_to_its_processes(tmp_path: Path) -> None:
    """SIGTERM often reaches only the parent. Every cell saves, and no process stays behind."""
    write_hopper(tmp_path / "hopper-medium.hdf5")
    (tmp_path / "tiny.toml").write_text(TINY.replace("steps = 20", "steps = 500000"), encoding="utf-8")
    words = ("bench", tmp_path / "tiny.toml", "--data", tmp_path, "--out", tmp_path / "out", "--tasks=hopper-medium")
    process = start_drop(*words, "--methods=BC", "--preset=small", "--workers=2")
    run = tmp_path / "out" / "runs" / "hopper-medium" / "BC"
    wait_for(process, lambda: (run / "metrics.jsonl").exists() and (run / "metrics.jsonl").stat().st_size > 0)
    os.kill(process.pid, signal.SIGTERM)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 143, err
    assert "Traceback" not in err
    assert 0 < Run(run).checkpoints()[-1].step < 500_000
    deadline = time.monotonic() + 60
    while _is_there(process.pid):  # a helper of multiprocessing ends a moment later
        assert time.monotonic() < deadline, "something goes on in the background"
        time.sleep(0.01)


def _is_there(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def get(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)
    time.sleep(5)  # the handler interrupts it


def test_a_signal_ends_other_work_by_an_exception_and_the_old_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Interrupted) as stop, ended_by_signals():
        get(signal.SIGTERM)
    assert signal_of(stop.value) == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_first_signal_asks_and_only_a_second_ctrl_c_stops_at_once() -> None:
    with asked_to_stop() as asked:
        assert asked() is None
        for number in (signal.SIGTERM, signal.SIGHUP):
            os.kill(os.getpid(), number)
        assert asked() == signal.SIGTERM
        with pytest.raises(KeyboardInterrupt):
            get(signal.SIGINT)


def test_under_nohup_sighup_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ended_by_signals(), asked_to_stop() as asked:
            os.kill(os.getpid(), signal.SIGHUP)
            assert asked() is None
    finally:
        signal.signal(signal.SIGHUP, before)


def test_other_threads_leave_the_handlers_alone() -> None:
    found: list[object] = []

    def work() -> None:
        with asked_to_stop() as asked:
            found.append(asked())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [None]

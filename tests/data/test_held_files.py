"""Columns on the disk that another program changes while they are read: an error that names the file, no crash."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.builders import on_disk
from helpers.training import learnable_dataset, refusal, state_files, tiny

from droprl.data import Dataset, load_dataset
from droprl.data.held_files import HeldFiles
from droprl.train import Run, fit
from droprl.train.disk_loop import DiskLoop

TORTURE = Path(__file__).parents[2] / "benchmarks" / "torture"
SCHEDULE: dict[str, Any] = {"steps": 500, "checkpoint_every": 50, "progress": False}


@pytest.fixture
def columns(tmp_path: Path) -> Path:
    on_disk(learnable_dataset(), tmp_path)
    return tmp_path / "columns"


def overwrite(path: Path) -> None:
    with open(path, "r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(b"\1\2\3\4")


def cut(path: Path) -> None:
    os.truncate(path, 300)


@pytest.mark.parametrize(("change", "said"), [(overwrite, "was changed"), (cut, "was cut short")])
def test_a_change_during_training_ends_it_and_the_run_goes_on_with_the_old_data(
    columns: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Any, said: str
) -> None:
    column, run_updates = columns / "observations.npy", DiskLoop.run
    content = column.read_bytes()

    def changes(self: DiskLoop, states: Any, first: int, count: int) -> Any:
        if first >= 60 and column.read_bytes() == content:
            change(column)
        return run_updates(self, states, first, count)

    with monkeypatch.context() as patch:
        patch.setattr(DiskLoop, "run", changes)
        message = refusal(fit, columns, tiny("bc"), out=tmp_path / "run", **SCHEDULE)
    assert message.startswith(f"{column}: {said} while it was read: restore the folder and run the same command again")
    assert Run(tmp_path / "run").checkpoints()[-1].step >= 50
    assert "its checksum differs" in refusal(load_dataset, columns)
    if change is cut:
        column.write_bytes(content)
        resumed = fit(columns, tiny("bc"), out=tmp_path / "run", **SCHEDULE)
        assert state_files(resumed) == state_files(fit(columns, tiny("bc"), out=tmp_path / "whole", **SCHEDULE))


def test_a_file_that_is_cut_short_in_the_middle_of_a_read_does_not_end_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the lease, most of these rounds end in SIGBUS."""
    monkeypatch.syspath_prepend(str(TORTURE))
    import power

    power.cut_short_while_read(tmp_path, seed=0, rounds=10)


def test_new_files_under_the_old_names_do_not_matter(columns: Path) -> None:
    """What is mapped are the old files: they are whole until training ends."""
    dataset = load_dataset(columns)
    before = np.array(dataset.observations)
    os.replace(shutil.copy(columns / "rewards.npy", columns / "new.npy"), columns / "observations.npy")
    with dataset.reading():
        np.testing.assert_array_equal(dataset.observations, before)
    assert "its checksum differs" in refusal(load_dataset, columns)


def test_a_writer_waits_only_while_a_block_is_read(tmp_path: Path) -> None:
    path = tmp_path / "column"
    path.write_bytes(b"12345678")
    files = HeldFiles([path])
    writer = threading.Thread(target=overwrite, args=(path,))
    with files.reading():
        writer.start()
        writer.join(0.1)
        assert path.read_bytes() == b"12345678"
        waited = writer.is_alive()
    writer.join(30)
    assert path.read_bytes() == b"\x01\x02\x03\x045678"
    assert "was changed while it was read" in refusal(files.check)
    if not waited:
        pytest.skip("this file system holds back no writer")


def test_a_writer_that_changes_nothing_does_not_stop_the_reading(tmp_path: Path) -> None:
    path = tmp_path / "column"
    path.write_bytes(b"12345678")
    files = HeldFiles([path])
    files._patience = 0.01
    with open(path, "r+b"), files.reading():
        assert path.read_bytes() == b"12345678"


def test_many_readers_at_once_hold_the_files_until_the_last_one_ends(tmp_path: Path) -> None:
    path = tmp_path / "column"
    path.write_bytes(b"12345678")
    files = HeldFiles([path])
    with files.reading():
        with files.reading():
            pass
        writer = threading.Thread(target=cut, args=(path,))
        writer.start()
        writer.join(0.1)
        assert path.stat().st_size == 8 or not files._leased
    writer.join(30)


def test_the_signal_of_a_lease_is_one_that_ends_nothing() -> None:
    assert signal.getsignal(signal.SIGURG) is signal.SIG_DFL  # it is ignored by default


def test_data_in_memory_has_no_files() -> None:
    dataset: Dataset = learnable_dataset()
    assert dataset.files is None
    with dataset.reading():
        pass


def test_columns_that_are_read_into_memory_need_their_files_no_more(columns: Path) -> None:
    dataset = load_dataset(columns)
    in_memory = dataset.in_memory()
    cut(columns / "observations.npy")
    with in_memory.reading():
        assert np.isfinite(in_memory.observations).all()
    with pytest.raises(Exception, match="was cut short"), dataset.reading():
        pass

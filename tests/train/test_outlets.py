"""TensorBoard and Weights & Biases get the log, under the names of metrics.jsonl. Their own libraries read it back."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.training import learnable_dataset, refusal, tiny

from droprl.train import Run, extend, fit
from droprl.train.outlets import outlets

SCHEDULE: dict[str, Any] = {"checkpoint_every": 4, "log_every": 2, "progress": False}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("run") / "bc"
    return fit(learnable_dataset(), tiny("bc"), out=out, seeds=[0, 3], steps=8, tensorboard=True, **SCHEDULE)


def scalars(run: Run, seed: int) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard itself finds in the folder of a seed."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(run.path / "tensorboard" / f"seed-{seed}"))
    found.Reload()
    return {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def logged(run: Run, place: int) -> dict[str, list[tuple[int, Any]]]:
    names = {name for entry in run.metrics() for name in entry if name != "step"}
    return {
        name: [(e["step"], pytest.approx(e[name][place], rel=1e-6)) for e in run.metrics() if name in e]
        for name in names
    }


def test_tensorboard_reads_what_the_log_has(run: Run) -> None:
    for place, seed in enumerate((0, 3)):
        found = scalars(run, seed)
        assert found == logged(run, place)
        assert set(found) == {"clone_loss", "probe_clone_loss"}
        assert [step for step, _ in found["clone_loss"]] == [2, 4, 6, 8]
    assert scalars(run, 0) != scalars(run, 3)


def test_a_resumed_and_a_longer_run_repeat_no_step(run: Run, tmp_path: Path) -> None:
    copy = Run(shutil.copytree(run.path, tmp_path / "run"))
    shutil.rmtree(copy.checkpoint_folder / "000000008")
    resumed = fit(learnable_dataset(), tiny("bc"), out=copy.path, seeds=[0, 3], steps=8, tensorboard=True, **SCHEDULE)
    assert scalars(resumed, 3) == logged(resumed, 1)
    longer = extend(copy, steps=12, dataset=learnable_dataset(), progress=False, tensorboard=True)
    assert scalars(longer, 3) == logged(longer, 1)
    assert [step for step, _ in scalars(longer, 0)["clone_loss"]] == [2, 4, 6, 8, 10, 12]


def test_a_finished_run_can_still_be_shown(run: Run, tmp_path: Path) -> None:
    copy = Run(shutil.copytree(run.path, tmp_path / "run"))
    shutil.rmtree(copy.path / "tensorboard")
    fit(learnable_dataset(), tiny("bc"), out=copy.path, seeds=[0, 3], steps=8, tensorboard=True, **SCHEDULE)
    assert scalars(copy, 0) == logged(copy, 0)


@pytest.mark.parametrize(
    ("module", "asked", "extra"),
    [
        ("tensorboard.summary.writer.event_file_writer", {"tensorboard": True}, "droprl[tensorboard]"),
        ("wandb", {"wandb": "mine"}, "droprl[wandb]"),
    ],
)
def test_without_the_extra_nothing_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, asked: dict[str, Any], extra: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    message = refusal(fit, learnable_dataset(), tiny("bc"), out=tmp_path / "run", steps=2, **asked, **SCHEDULE)
    assert message.endswith(f"pip install '{extra}'")
    assert not (tmp_path / "run").exists()


# In a process of its own: the library keeps threads and a service.
OFFLINE = """
import sys
from helpers.training import learnable_dataset, tiny
from droprl.train import fit
fit(learnable_dataset(), tiny("bc"), out="run", seeds=2, steps=8, checkpoint_every=4, log_every=2, progress=False,
    wandb="droprl-tests")
"""


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("wandb")
    folder = tmp_path_factory.mktemp("wandb")
    helpers = Path(__file__).parents[1]
    subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(helpers)!r})\n{OFFLINE}"],
        cwd=folder,
        env=_offline_environment(folder),
        check=True,
        timeout=300,
    )
    return folder


def _offline_environment(folder: Path) -> dict[str, str]:
    import os

    return os.environ | {"WANDB_MODE": "offline", "WANDB_DIR": str(folder), "HOME": str(folder)}


def records(file: Path) -> Iterator[Any]:
    """The records of an offline run: after 7 bytes in the format of a LevelDB log, in blocks of 32 KiB."""
    from wandb.proto import wandb_internal_pb2

    kinds: Any = wandb_internal_pb2

    content, place, parts = file.read_bytes(), 7, b""
    while place + 7 <= len(content):
        if 2**15 - place % 2**15 < 7:  # no header fits into the rest of a block
            place += 2**15 - place % 2**15
            continue
        size, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        parts += content[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # a whole record, or its last part
            record: Any = kinds.Record()
            record.ParseFromString(parts)
            yield record
            parts = b""


def test_weights_and_biases_keeps_the_log_offline(offline: Path) -> None:
    import json

    run, files = Run(offline / "run"), sorted((offline / "wandb").glob("offline-run-*/*.wandb"))
    assert len(files) == 2
    found = {}
    for file in files:
        history: dict[str, list[tuple[int, float]]] = {}
        for record in records(file):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                config = {item.key: item.value_json for item in record.run.config.update}
                group, name = record.run.run_group, record.run.display_name
            if kind == "history":
                for item in record.history.item:
                    key = item.key or ".".join(item.nested_key)
                    if not key.startswith("_"):
                        history.setdefault(key, []).append((record.history.step.num, json.loads(item.value_json)))
        assert group == "run"
        assert json.loads(config["steps"]) == 8
        found[name] = history
    assert found == {f"run seed {seed}": logged(run, seed) for seed in (0, 1)}


def test_nothing_is_written_if_nothing_is_asked_for(run: Run, tmp_path: Path) -> None:
    with outlets(run, run.metrics(), False, None) as none:
        assert none == []

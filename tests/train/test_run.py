"""Run directories: the same command resumes, other commands are refused, and damage is found and named."""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
import pytest
from helpers.training import learnable_dataset, logged_steps, refusal, state_files, tiny

from droprl import BC, load_policy
from droprl.bench.page.runs import predictions_of
from droprl.data import Dataset
from droprl.files.locks import locked
from droprl.files.seals import read_sealed, sealed
from droprl.report.contents import EmbeddingWalk
from droprl.train import Run, default_out, fit
from droprl.train.loop import Loop

SCHEDULE: dict[str, Any] = {"steps": 90, "checkpoint_every": 10, "log_every": 5, "progress": False}
fit_module = importlib.import_module("droprl.train.training")  # `droprl.train.training` itself is the function


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return learnable_dataset()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, dataset: Dataset) -> Run:
    return fit(dataset, tiny("bc"), out=tmp_path_factory.mktemp("run") / "undisturbed", **SCHEDULE)


@pytest.fixture
def finished(undisturbed: Run, tmp_path: Path) -> Run:
    """A copy to damage."""
    return Run(shutil.copytree(undisturbed.path, tmp_path / "run"))


@pytest.fixture
def unfinished(finished: Run) -> Run:
    """The copy, as after a kill at update 70."""
    for step in (80, 90):
        shutil.rmtree(finished.checkpoint_folder / f"{step:09d}")
    return finished


def again(run: Run, dataset: Dataset, **changes: Any) -> Run:
    algorithm = changes.pop("algorithm", tiny("bc"))
    return fit(dataset, algorithm, out=run.path, **SCHEDULE | changes)


# --- the same call ---


def test_the_same_call_resumes_where_the_last_checkpoint_stands(
    unfinished: Run, undisturbed: Run, dataset: Dataset, capfd: pytest.CaptureFixture[str]
) -> None:
    resumed = again(unfinished, dataset, progress=True)
    assert f"resuming {unfinished.path} at update 70" in capfd.readouterr().err
    assert {k: v for k, v in state_files(resumed).items() if int(k) > 70} == {
        k: v for k, v in state_files(undisturbed).items() if int(k) > 70
    }
    assert logged_steps(resumed) == logged_steps(undisturbed) == list(range(5, 91, 5))


def test_a_finished_run_is_not_trained_again(finished: Run, dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.path.rglob("*.*") if path.name != ".lock"}
    monkeypatch.setattr(fit_module, "_train", None)  # a call of it fails
    assert again(finished, dataset).finished
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"steps": 100}, "steps 90 → 100"),
        ({"seeds": 2}, r"seeds \[0\] → \[0, 1\]"),
        ({"checkpoint_every": 30}, "checkpoint_every 10 → 30"),
        ({"algorithm": tiny("bc", width=16)}, "algorithm.width 8 → 16"),
        ({"algorithm": tiny("fbc")}, "algorithm.name bc → fbc"),
    ],
)
def test_another_config_on_the_same_folder_is_refused_with_the_difference(
    finished: Run, dataset: Dataset, changes: dict[str, Any], named: str
) -> None:
    message = refusal(again, finished, dataset, **changes)
    assert message.startswith(f"{finished.path}: holds another run (")
    assert message.endswith("use another out=, or remove the folder")
    assert re.search(named, message)


def test_other_data_is_refused_and_moved_data_is_not(finished: Run, dataset: Dataset) -> None:
    rewards = dataset.rewards.copy()
    rewards[7] += 1e-3
    other = dataclasses.replace(dataset, rewards=rewards)
    message = refusal(again, finished, other, source="learnable.npz")
    assert message.startswith(f"learnable.npz: is no longer the data that {finished.path} was trained on (data.fingerp")
    assert again(finished, dataset, source="/another/place/learnable.npz").finished


def test_many_differences_are_counted(finished: Run, dataset: Dataset) -> None:
    algorithm = tiny("bc", width=9, batch_size=7, learning_rate=0.5, head="gaussian")
    assert "; and 1 more)" in refusal(again, finished, dataset, algorithm=algorithm)


# --- checkpoints ---


def test_the_last_six_scheduled_checkpoints_stay(undisturbed: Run) -> None:
    assert [(c.step, c.scheduled) for c in undisturbed.checkpoints()] == [(s, True) for s in range(40, 91, 10)]


def test_a_schedule_that_does_not_divide_the_steps_still_ends_with_a_checkpoint(
    dataset: Dataset, tmp_path: Path
) -> None:
    run = fit(dataset, tiny("bc"), out=tmp_path / "run", **SCHEDULE | {"steps": 7, "checkpoint_every": 3})
    assert [c.step for c in run.checkpoints()] == [3, 6, 7]
    assert run.finished


def test_half_written_folders_are_removed_and_never_read(unfinished: Run, dataset: Dataset) -> None:
    whole = [c.step for c in unfinished.checkpoints()]
    for name in (".partial-000000080", ".partial-removed-000000030"):
        torn = unfinished.checkpoint_folder / name
        torn.mkdir()
        (torn / "state.safetensors").write_bytes(b"half a")
    (unfinished.checkpoint_folder / ".partial-file").write_bytes(b"half a")
    assert [c.step for c in unfinished.checkpoints()] == whole
    load_policy(unfinished.path)
    assert again(unfinished, dataset).finished
    assert not list(unfinished.checkpoint_folder.glob(".*"))


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [_truncate, _flip_a_bit, Path.unlink])
def test_a_damaged_state_is_named_and_the_remedy_repairs_the_run(
    unfinished: Run, undisturbed: Run, dataset: Dataset, damage: Callable[[Path], None]
) -> None:
    newest = unfinished.checkpoint_folder / "000000070"
    damage(newest / "state.safetensors")
    for use in (lambda: unfinished.state(0), lambda: load_policy(unfinished.path), lambda: again(unfinished, dataset)):
        message = refusal(use)
        assert message.startswith(f"{newest / 'state.safetensors'}: ")
        assert message.endswith(f"or remove the folder {newest} and run the same command again")
        assert ("its checksum differs" in message) == (damage is not Path.unlink)
    shutil.rmtree(newest)
    assert state_files(again(unfinished, dataset))["000000090"] == state_files(undisturbed)["000000090"]


@pytest.mark.parametrize("name", ["support.json", "support.safetensors", "data.json"])
@pytest.mark.parametrize("damage", [_truncate, _flip_a_bit, Path.unlink])
def test_the_same_command_makes_the_facts_about_the_data_again(
    unfinished: Run, undisturbed: Run, dataset: Dataset, name: str, damage: Callable[[Path], None]
) -> None:
    path = unfinished.path / name
    damage(path)
    if not (name == "support.json" and damage is Path.unlink):  # as in a run of an older version
        message = refusal(load_policy, unfinished.path)
        assert message.startswith(f"{path}: ")
        assert "remove" not in message
    again(unfinished, dataset)
    assert path.read_bytes() == (undisturbed.path / name).read_bytes()
    load_policy(unfinished.path)


def test_a_report_refuses_an_edited_scale(unfinished: Run) -> None:
    path, walk = unfinished.path / "data.json", cast(EmbeddingWalk, None)  # it is read last
    path.write_text(path.read_text().replace('"reward_scale": ', '"reward_scale": 9'))
    assert refusal(predictions_of, unfinished, walk).startswith(f"{path}: is damaged or was edited")


def test_an_old_checkpoint_that_is_damaged_can_be_removed_as_told(unfinished: Run, dataset: Dataset) -> None:
    old = unfinished.checkpoint_folder / "000000040"
    for damage in (_flip_a_bit, Path.unlink):
        damage(old / "checkpoint.json")
        message = refusal(again, unfinished, dataset)
        assert message.startswith(f"{old / 'checkpoint.json'}: ")
        assert f"remove the folder {old} and run the same command again" in message
    shutil.rmtree(old)
    assert again(unfinished, dataset).finished


@pytest.mark.parametrize("header", ["", "{", "[]", "{}", '{"step": "x", "scheduled": true, "sha256": ""}'])
def test_a_damaged_header_is_named(unfinished: Run, dataset: Dataset, header: str) -> None:
    path = unfinished.checkpoint_folder / "000000060" / "checkpoint.json"
    path.write_text(header)
    assert refusal(unfinished.checkpoints).startswith(f"{path}: ")
    assert refusal(again, unfinished, dataset).startswith(f"{path}: ")


@pytest.mark.parametrize("name", ["config.json", "data.json", "checkpoints/000000070/checkpoint.json"])
def test_every_damaged_bit_of_the_settings_of_a_run_is_found(unfinished: Run, name: str) -> None:
    path = unfinished.path / name
    content = path.read_bytes()
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        assert refusal(load_policy, unfinished.path).startswith(f"{path}: ")


def test_a_run_of_the_format_without_seals_still_loads(unfinished: Run) -> None:
    observation = np.ones(3)
    expected = load_policy(unfinished.path).act(observation)
    for path in unfinished.path.rglob("*.json"):
        older = {"format": 1} if path.name == "config.json" else {}
        path.write_text(json.dumps(older | read_sealed(path)))
    np.testing.assert_array_equal(load_policy(unfinished.path).act(observation), expected)


def test_a_reader_survives_a_checkpoint_that_training_removes_meanwhile(
    unfinished: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("droprl.train.checkpoints")
    read_sealed, doomed = module.read_sealed, unfinished.checkpoint_folder / "000000040"

    def remove_first(path: Path, remedy: str) -> Any:
        if path.parent == doomed:
            shutil.rmtree(doomed)
        return read_sealed(path, remedy)

    monkeypatch.setattr(module, "read_sealed", remove_first)
    assert [c.step for c in unfinished.checkpoints()] == [50, 60, 70]


# --- the log ---


@pytest.mark.parametrize("tail", ['{"step": 75, "clone_loss": [0.1', '{"step": 75', "\0\0\0\0", "75", "{}", "\xff\xfe"])
def test_a_log_torn_inside_a_line_is_repaired_and_repeats_no_step(
    unfinished: Run, undisturbed: Run, dataset: Dataset, tail: str
) -> None:
    log = unfinished.path / "metrics.jsonl"
    lines = log.read_text().splitlines(keepends=True)[:15]  # up to update 75. The newest checkpoint is at 70
    log.write_bytes("".join(lines).encode() + tail.encode("latin-1"))
    assert logged_steps(unfinished)[-1] == 75
    assert logged_steps(again(unfinished, dataset)) == logged_steps(undisturbed)
    assert [json.loads(line)["step"] for line in log.read_text().splitlines()] == logged_steps(undisturbed)


@pytest.mark.parametrize("line", ["", "75", "{}", "\xff\xfe", '{"step": "10"}', '{"step": 5}', '{"step": 500}'])
def test_a_damaged_line_in_the_middle_is_named_and_the_lines_after_it_stay(
    unfinished: Run, dataset: Dataset, line: str
) -> None:
    log = unfinished.path / "metrics.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    lines[3] = line.encode("latin-1") + b"\n"
    log.write_bytes(b"".join(lines))
    named = 5 if "500" in line else 4  # after a step that is too large, the next step does not rise
    for use in (unfinished.metrics, lambda: again(unfinished, dataset)):
        assert refusal(use).startswith(f"{log}: line {named} is damaged (")
    assert log.read_bytes() == b"".join(lines)


def test_a_log_that_lost_its_last_newline_loses_no_entry(unfinished: Run, undisturbed: Run, dataset: Dataset) -> None:
    log = unfinished.path / "metrics.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:14]).rstrip("\n"))
    assert logged_steps(again(unfinished, dataset)) == logged_steps(undisturbed)


def test_the_log_is_json_without_nan(undisturbed: Run) -> None:
    for line in (undisturbed.path / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} in the log"))


# --- locks, and folders that cannot be written ---


def test_a_directory_that_is_in_use_is_refused(unfinished: Run, dataset: Dataset) -> None:
    with locked(unfinished.path):
        assert "another process is training here" in refusal(again, unfinished, dataset)
    assert again(unfinished, dataset).finished  # the lock ended with its holder


def test_a_file_in_place_of_the_folder_is_refused(dataset: Dataset, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "run"):
        assert refusal(fit, dataset, tiny("bc"), out=out, **SCHEDULE).startswith(f"{out}: cannot be made")


@contextmanager
def unprivileged() -> Iterator[None]:
    """Root may write anywhere, so act as the user nobody for a while."""
    is_root = os.geteuid() == 0
    try:
        if is_root:
            os.setegid(65534)
            os.seteuid(65534)
        yield
    finally:
        if is_root:
            os.seteuid(0)
            os.setegid(0)


def test_an_unwritable_folder_is_refused(dataset: Dataset) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(stat.S_IRUSR | stat.S_IXUSR | stat.S_IROTH | stat.S_IXOTH)
        with unprivileged():
            messages = [refusal(fit, dataset, tiny("bc"), out=out, **SCHEDULE) for out in (folder, folder / "run")]
        folder.chmod(stat.S_IRWXU)
    assert messages[0].startswith(f"{folder}: cannot be written (Permission denied)")
    assert messages[1].startswith(f"{folder / 'run'}: cannot be made (Permission denied)")


# --- divergence ---


def test_divergence_stops_training_and_keeps_what_is_good(dataset: Dataset, tmp_path: Path) -> None:
    def train() -> Run:
        algorithm = tiny("bc", learning_rate=1e30, head="gaussian")
        return fit(dataset, algorithm, out=tmp_path / "run", **SCHEDULE | {"checkpoint_every": 1, "log_every": 1})

    message = refusal(train)
    assert "of seed 0 is NaN or infinite at update" in message
    assert "training has diverged; earlier checkpoints are unchanged: lower learning_rate" in message
    run = Run(tmp_path / "run")
    assert run.checkpoints()
    assert all(np.isfinite(leaf).all() for c in run.checkpoints() for leaf in jax.tree.leaves(run.state(0, c)))
    assert refusal(train) == message  # a resumed run ends in the same way


def test_weights_with_nan_are_not_saved(dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss is measured before its update. So the new weights may be NaN although no loss shows it."""
    run_updates = Loop.run

    def spoil(self: Loop, states: Any, first: int, count: int) -> Any:
        states, metrics = run_updates(self, states, first, count)
        return (jax.tree.map(lambda leaf: leaf * math.nan, states) if first + count == 20 else states), metrics

    monkeypatch.setattr(Loop, "run", spoil)
    assert "a weight of seed 0 is NaN or infinite at update 20" in refusal(
        fit, dataset, tiny("bc"), out=tmp_path / "run", **SCHEDULE
    )
    assert [c.step for c in Run(tmp_path / "run").checkpoints()] == [10]


# --- wrong arguments and damaged configs ---


def test_wrong_arguments_are_refused(dataset: Dataset, tmp_path: Path) -> None:
    for changes, said in (
        ({"steps": 0}, "steps is 0"),
        ({"steps": 2**31}, "steps is 2147483648"),
        ({"checkpoint_every": -5}, "checkpoint_every is -5"),
        ({"checkpoint_every": 0}, "checkpoint_every is 0"),
        ({"log_every": -1}, "log_every is -1"),
        ({"seeds": 0}, "seeds 0"),
        ({"seeds": [1, 1]}, "seeds [1, 1]"),
        ({"seeds": [2**32]}, "seeds [4294967296]"),
        ({"algorithm": "dorp"}, "there is no algorithm 'dorp'"),
        ({"algorithm": BC}, "BC is a class"),
    ):
        call: dict[str, Any] = {"algorithm": tiny("bc")} | SCHEDULE | changes
        assert refusal(fit, dataset, out=tmp_path / "run", **call).startswith(said)
    assert not list(tmp_path.iterdir())


def test_a_run_has_its_own_folder_by_default(dataset: Dataset) -> None:
    named = dataclasses.replace(dataset, name="mujoco/hopper/medium-v0")
    assert default_out(named, tiny("bc")) == Path("runs/mujoco-hopper-medium-v0/bc")


def edited(run: Run, **changes: Any) -> str:
    """Change it and make a matching seal, like an attacker."""
    content = read_sealed(run.path / "config.json")
    return sealed(content | {"run": content["run"] | changes}).decode()


@pytest.mark.parametrize(
    "content",
    [
        lambda run: "",
        lambda run: "{}",
        lambda run: "[" * 100_000,
        lambda run: '{"format": 2}',
        lambda run: '{"format": 3}',
        lambda run: '{"format": 1}',
        lambda run: '{"format": 1, "run": []}',
        lambda run: edited(run, steps="many"),
        lambda run: edited(run, seeds=7),
        lambda run: edited(run, data={"name": "x"}),
        lambda run: edited(run, algorithm={"name": "unheard-of"}),
        lambda run: edited(run, algorithm={"name": "bc", "width": "8"}),
        lambda run: edited(run, algorithm={"name": "bc", "learning_rate": None}),
        lambda run: edited(run, algorithm={"name": "bc", "head": "crystal"}),
        lambda run: edited(run, algorithm={"name": "bc", "unheard_of": 1}),
        lambda run: edited(run, algorithm=["bc"]),
    ],
)
def test_a_damaged_config_is_named(finished: Run, content: Callable[[Run], str]) -> None:
    path = finished.path / "config.json"
    path.write_text(content(finished))
    assert refusal(Run, finished.path).startswith(f"{path}: ")


@pytest.mark.parametrize("part", ["spec", "scaling", "sub_tasks"])
@pytest.mark.parametrize("value", [None, [], {}, {"observation_mean": [0.0], "unheard_of": 1}])
def test_damaged_data_json_is_named(finished: Run, part: str, value: Any) -> None:
    path = finished.path / "data.json"
    path.write_bytes(sealed(read_sealed(path) | {part: value}))
    use: Callable[[], Any] = getattr(finished, part)
    assert refusal(use).startswith(f"{path}: ")

"""More updates and more seeds for a run: the bytes are those of a run that asked for all of it at once."""

from __future__ import annotations

import importlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from helpers.training import learnable_dataset, logged_steps, refusal, state_files, tiny

from droprl import load_policy
from droprl.algorithms import ALGORITHMS
from droprl.data import Dataset
from droprl.files.seals import sealed
from droprl.train import Run, extend, fit
from droprl.train.extending import MORE, follows_total
from droprl.train.run import JOINING
from droprl.train.times import sessions_of

SCHEDULE: dict[str, Any] = {"checkpoint_every": 10, "log_every": 5, "progress": False}
# Read in their files: the learning rates of Onestep and of IQL's actor, and the warm-up of DT.
SCHEDULED: dict[str, dict[str, Any]] = {"onestep": {"learning_rate": None}, "iql": {}, "dt": {"warmup_steps": None}}
extending = importlib.import_module("droprl.train.extending")


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return learnable_dataset()


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory, dataset: Dataset) -> Run:
    return fit(dataset, tiny("bc"), out=tmp_path_factory.mktemp("run") / "short", steps=30, **SCHEDULE)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, dataset: Dataset) -> Run:
    """What the extended runs must be equal to."""
    out = tmp_path_factory.mktemp("run") / "whole"
    return fit(dataset, tiny("bc"), out=out, steps=50, seeds=3, **SCHEDULE)


@pytest.fixture
def run(short: Run, tmp_path: Path) -> Run:
    return Run(shutil.copytree(short.path, tmp_path / "run"))


def test_more_steps_and_seeds_give_the_bytes_of_a_run_that_asked_for_them_at_once(
    run: Run, whole: Run, dataset: Dataset
) -> None:
    longer = extend(run, steps=50, dataset=dataset, progress=False)
    assert longer.config.steps == 50
    assert logged_steps(longer) == logged_steps(whole)
    wider = extend(longer, seeds=3, dataset=dataset, progress=False)
    assert wider.config.seeds == (0, 1, 2)
    expected = state_files(whole)
    assert state_files(wider) == expected
    assert len(expected) == 5
    for found, wanted in zip(wider.metrics(), whole.metrics(), strict=True):  # sums round by how calls divide them
        assert found == {name: pytest.approx(value, rel=1e-5) for name, value in wanted.items()}
    assert not (wider.path / MORE).exists()
    assert not (wider.path / JOINING).exists()
    assert load_policy(wider.path, seed=2).origin.step == 50
    assert [session.seeds for session in sessions_of(wider.path)] == [1, 1, 2]


def test_going_on_again_from_a_total_that_no_spacing_divides(dataset: Dataset, tmp_path: Path) -> None:
    """A line of the log and a checkpoint stand at every total, and new seeds stop there too."""
    schedule = SCHEDULE | {"checkpoint_every": 20, "log_every": 10}
    run = fit(dataset, tiny("bc"), out=tmp_path / "run", steps=7, **schedule)
    extend(extend(run, steps=23, dataset=dataset, progress=False), steps=31, seeds=2, dataset=dataset, progress=False)
    joined = Run(run.path)
    assert logged_steps(joined) == [7, 10, 20, 23, 30, 31]
    assert [c.step for c in joined.checkpoints()] == [7, 20, 23, 31]
    whole = fit(dataset, tiny("bc"), out=tmp_path / "whole", steps=31, seeds=2, **schedule)
    assert state_files(joined)["000000031"] == state_files(whole)["000000031"]


@pytest.mark.parametrize("fails_in", ["write_checkpoint", "write_config", "remove_folder"])
def test_a_stop_while_seeds_join_loses_nothing(
    run: Run, whole: Run, dataset: Dataset, fails_in: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*arguments: Any) -> None:
        raise KeyboardInterrupt

    extend(run, steps=50, dataset=dataset, progress=False)
    with monkeypatch.context() as patched:
        patched.setattr(extending, fails_in, stop)
        with pytest.raises(KeyboardInterrupt):
            extend(run, seeds=3, dataset=dataset, progress=False)
    assert "more seeds are being added here: make the same call of droprl.fit again" in refusal(Run, run.path)
    extend(run.path, seeds=3, dataset=dataset, progress=False)
    assert state_files(run) == state_files(whole)
    assert Run(run.path).finished


@pytest.mark.parametrize(
    "plan",
    [
        {},
        {"seeds": [0, 1], "checkpoints": [{"step": "../../x", "scheduled": True, "sha256": ""}]},
        {"seeds": ["0"], "checkpoints": []},
        {"seeds": [5], "checkpoints": []},
        {"seeds": [0, 0], "checkpoints": []},
    ],
)
def test_a_plan_from_elsewhere_is_refused_in_one_line(run: Run, dataset: Dataset, plan: dict[str, Any]) -> None:
    before = state_files(run)
    (run.path / JOINING).mkdir()
    (run.path / JOINING / "plan.json").write_bytes(sealed(plan))
    assert refusal(extend, run.path, seeds=2, dataset=dataset).startswith(f"{run.path / JOINING / 'plan.json'}: ")
    assert state_files(run) == before


def test_a_stop_between_the_new_total_and_its_updates_is_resumed(
    run: Run, whole: Run, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = importlib.import_module("droprl.train.training")
    with monkeypatch.context() as patched:
        patched.setattr(training, "_train", None)
        with pytest.raises(TypeError):
            extend(run, steps=50, dataset=dataset, progress=False)
    assert not Run(run.path).finished
    extend(run.path, dataset=dataset, seeds=3, progress=False)
    assert state_files(run) == state_files(whole)


def test_what_cannot_go_on_is_refused(run: Run, dataset: Dataset) -> None:
    before = (run.path / "config.json").read_bytes()
    assert refusal(extend, run, steps=20, dataset=dataset).startswith("steps is 20: ")
    assert refusal(extend, run, seeds=[1], dataset=dataset).startswith("seeds [1]: ")
    assert "was trained on other data: give that data with dataset=" in refusal(
        extend, run, steps=40, dataset=learnable_dataset(seed=1)
    )
    assert "say where it is with dataset=" in refusal(extend, run, steps=40)  # its source was an array
    assert (run.path / "config.json").read_bytes() == before


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_a_schedule_that_depends_on_the_total_is_found(dataset: Dataset, name: str) -> None:
    algorithm = tiny(name, **SCHEDULED.get(name, {})).resolve(dataset)
    assert algorithm.resolve(dataset) == algorithm  # to go on prepares the data from the saved settings
    assert follows_total(algorithm, algorithm.prepare(dataset)) == (name in SCHEDULED)


@pytest.mark.parametrize(("name", "own"), [("iql", {"actor_decay": "none"}), ("dt", {"warmup_steps": 5})])
def test_without_that_schedule_nothing_depends_on_the_total(dataset: Dataset, name: str, own: dict[str, Any]) -> None:
    algorithm = tiny(name, **own).resolve(dataset)
    assert not follows_total(algorithm, algorithm.prepare(dataset))


def test_more_updates_for_a_schedule_are_refused(dataset: Dataset, tmp_path: Path) -> None:
    run = fit(dataset, tiny("iql"), out=tmp_path / "run", steps=10, **SCHEDULE)
    message = refusal(extend, run, steps=20, dataset=dataset)
    assert "iql has a schedule that depends on the total of updates" in message
    assert extend(run, seeds=2, dataset=dataset, progress=False).config.seeds == (0, 1)


def test_the_same_call_with_more_says_how_to_go_on(run: Run, dataset: Dataset) -> None:
    message = refusal(fit, dataset, tiny("bc"), out=run.path, steps=50, seeds=2, **SCHEDULE)
    assert f"go on with it by droprl.extend({run.path}, steps=50, seeds=2), use another out=" in message


def test_checkpoints_of_another_total_are_refused(run: Run, whole: Run, dataset: Dataset, tmp_path: Path) -> None:
    """A checkpoint beyond an earlier total cannot be of that total."""
    extend(run, steps=50, dataset=dataset, progress=False)
    header = run.checkpoint_folder / "000000050" / "checkpoint.json"
    shutil.rmtree(run.checkpoint_folder / "000000030")
    other = fit(dataset, tiny("bc", width=16), out=tmp_path / "other", steps=30, **SCHEDULE)
    shutil.copytree(other.checkpoint_folder / "000000030", run.checkpoint_folder / "000000030")
    assert "belongs to another run (of other settings" in refusal(Run(run.path).checkpoints)
    assert json.loads(header.read_text())["run"] == Run(run.path).identity

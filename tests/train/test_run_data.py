"""`data.json`: the facts about the data, with and without sub-tasks, and in the form of older versions."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.toy import ToyQ
from helpers.training import learnable_dataset, tiny

from droprl import load_policy
from droprl.algorithms import ALGORITHMS
from droprl.data import Dataset
from droprl.data.rewards import Rewards
from droprl.data.transitions import Prepared, Spec, prepare
from droprl.files.seals import read_sealed, sealed
from droprl.report.build import build_report
from droprl.train import Run, fit

SCHEDULE: dict[str, Any] = {"steps": 10, "checkpoint_every": 5, "progress": False}


@pytest.fixture(scope="module")
def cloned(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return fit(learnable_dataset(), tiny("bc"), out=tmp_path_factory.mktemp("data") / "bc", **SCHEDULE)


def test_without_sub_tasks_the_file_does_not_mention_them(cloned: Run, tmp_path: Path) -> None:
    content = read_sealed(cloned.path / "data.json")
    assert set(content) - {"format", "seal"} == {"spec", "scaling", "reward_scale"}
    assert content["spec"] == {"observation_size": 3, "action_size": 2}
    assert cloned.sub_tasks() is None
    assert cloned.spec() == Spec(3, 2)
    report = build_report([cloned], "drop report")
    assert report.sub_tasks is None
    assert "sub-task" not in str(report.facts)
    saved = load_policy(cloned.path).save(tmp_path / "policy")
    assert read_sealed(saved / "policy.json")["spec"] == content["spec"]
    assert load_policy(saved).spec == Spec(3, 2)


def test_a_run_of_an_older_version_still_loads_and_goes_on(cloned: Run, tmp_path: Path) -> None:
    """Its file counts data without sub-tasks as one sub-task."""
    old = Run(shutil.copytree(cloned.path, tmp_path / "old"))
    content = read_sealed(old.path / "data.json")
    content["spec"]["n_sub_tasks"] = 1
    content["sub_tasks"] = {"mean": [5.0], "low": [0.0], "high": [9.0], "n_trajectories": [12]}
    (old.path / "data.json").write_bytes(sealed(content))
    written = (old.path / "data.json").read_bytes()
    shutil.rmtree(old.checkpoints()[-1].path)
    assert old.spec().n_sub_tasks == 1
    resumed = fit(learnable_dataset(), tiny("bc"), out=old.path, **SCHEDULE)
    assert (old.path / "data.json").read_bytes() == written
    observations = np.random.default_rng(0).normal(size=(5, 3))
    acted, expected = (load_policy(run.path).act(observations) for run in (resumed, cloned))
    np.testing.assert_array_equal(acted, expected)
    report = build_report([old], "drop report")
    assert report.sub_tasks is None
    assert "sub-task" not in str(report.facts)


def test_with_sub_tasks_their_returns_are_saved(tmp_path: Path) -> None:
    run = fit(learnable_dataset(), tiny("drop", n_sub_tasks=4, fallback="top"), out=tmp_path / "drop", **SCHEDULE)
    found, returns = run.sub_tasks(), np.sort(learnable_dataset().returns)[::-1].reshape(4, 3)
    assert found is not None
    assert run.spec().n_sub_tasks == 4
    np.testing.assert_allclose(found.mean, returns.mean(axis=1))
    np.testing.assert_allclose(found.low, returns[:, 2])
    np.testing.assert_allclose(found.high, returns[:, 0])
    assert found.n_trajectories == [3] * 4


@dataclass(frozen=True)
class OneLess(ToyQ):
    """An algorithm that subtracts one from every reward."""

    def prepare(self, dataset: Dataset) -> Prepared:
        return prepare(dataset, rewards=Rewards("one", times=2.0, plus=-1.0))


def test_the_treatment_of_rewards_is_saved(cloned: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS, OneLess.name, OneLess)
    run = fit(learnable_dataset(), OneLess(), out=tmp_path / "toy", **SCHEDULE)
    content = read_sealed(run.path / "data.json")
    assert (content["reward_scale"], content["reward_plus"]) == (0.5, -1.0)
    assert "reward_plus" not in read_sealed(cloned.path / "data.json")

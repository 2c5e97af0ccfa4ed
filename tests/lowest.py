"""What must work with the lowest versions that pyproject.toml allows. `make lowest` runs it, `make test` does not."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers.serving import MAZE, client_of
from helpers.training import learnable_dataset, tiny

import droprl
from droprl import export_onnx, fit, load_policy
from droprl.algorithms import ALGORITHMS
from droprl.data import from_frame, load_dataset, save_d4rl
from droprl.data.frames import import_table
from droprl.data.meaning import Meaning
from droprl.deploy.serve.app import Limits
from droprl.environments.simulation import make_env


def test_every_module_can_be_imported() -> None:
    for module in pkgutil.walk_packages(droprl.__path__, "droprl."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_it_trains_saves_and_loads(name: str, tmp_path: Path) -> None:
    run = fit(learnable_dataset(), tiny(name), out=tmp_path / "run", steps=4, progress=False)
    policy = load_policy(run.path)
    states = np.random.default_rng(0).normal(size=(3, 3))
    actions = policy.act(states)
    assert np.isfinite(actions).all()
    np.testing.assert_array_equal(load_policy(policy.save(tmp_path / "policy")).act(states), actions)
    if name in ("drop", "bc"):
        export_onnx(load_policy(run.path), tmp_path / "policy.onnx")  # compares the file with the policy itself
        with client_of(load_policy(run.path), Limits(rows=1)) as client:
            served: Any = client.post("/act", json={"observation": states[0].tolist()}).json()
        np.testing.assert_allclose(served["action"], actions[0], atol=1e-4)


def test_hdf5_is_written_and_read(tmp_path: Path) -> None:
    dataset = learnable_dataset()
    save_d4rl(dataset, tmp_path / "data.hdf5")
    assert load_dataset(tmp_path / "data.hdf5").fingerprint == dataset.fingerprint


@pytest.mark.parametrize("task", [MAZE, "Hopper-v4"])
def test_a_task_can_be_played(task: str) -> None:
    env = make_env(task)
    env.reset(seed=0)
    assert np.isfinite(env.step(env.action_space.sample())[0]).all()
    env.close()


def test_tables_and_frames_are_read(tmp_path: Path) -> None:
    frame = pd.DataFrame({"id": ["a", "a", "b"], "s": [0.5, 1, 2], "a": [-1.0, 0, 1], "r": [1.0, 2, 3]})
    names: dict[str, Any] = {"observations": ("s",), "actions": ("a",), "reward": "r", "episode": "id"}
    wanted = from_frame(frame, **names)
    assert wanted.returns.tolist() == [3, 3]
    frame.to_csv(tmp_path / "log.csv", index=False)
    frame.to_parquet(tmp_path / "log.parquet")
    for name in ("log.csv", "log.parquet"):
        assert import_table(tmp_path / name, Meaning(**names)).fingerprint == wanted.fingerprint

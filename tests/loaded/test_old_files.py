"""Policies and a run that an earlier droprl wrote still load, and act to the last bit as they did then.

`made_by_0.1.0.zip` holds one policy of each algorithm of that time, one run of DROP, and the actions that they took
there at four observations (`acts.json`). The code at commit 4435b22 made it, with networks of four units.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from droprl import load_policy
from droprl.train import Run

ALGORITHMS = ("bc", "fbc", "rvs", "dt", "onestep", "coms", "drop", "ddrop", "drop-cvae")
OBSERVATIONS = np.random.default_rng(5).normal(size=(4, 4)).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("old")
    with zipfile.ZipFile(Path(__file__).with_name("made_by_0.1.0.zip")) as archive:
        archive.extractall(path)
    return path


def actions_of_then(folder: Path, name: str) -> np.ndarray:
    return np.array(json.loads((folder / "acts.json").read_text())[name], np.float32)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_policy_of_then_acts_as_it_did(folder: Path, name: str) -> None:
    """Exactly on the kind of machine that made it. Another instruction set may round otherwise."""
    acted = load_policy(folder / f"{name}-policy").act(OBSERVATIONS)
    np.testing.assert_allclose(acted, actions_of_then(folder, name), rtol=0, atol=1e-5)


def test_a_run_of_then_loads_with_its_settings_its_log_and_its_policy(folder: Path) -> None:
    run = Run(folder / "drop")
    assert run.finished
    assert run.config.algorithm.name == "drop"
    sub_tasks = run.sub_tasks()
    assert sub_tasks is not None
    assert sub_tasks.mean == sorted(sub_tasks.mean, reverse=True)
    assert [entry["step"] for entry in run.metrics()][-1] == 20
    acted = load_policy(run.path, seed=1).act(OBSERVATIONS)
    np.testing.assert_allclose(acted, actions_of_then(folder, "drop"), rtol=0, atol=1e-5)

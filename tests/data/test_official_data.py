"""The commands of docs/paper.md for data that is not made here, on stand-in files with the sizes of D4RL's own.

D4RL's AntMaze observes 29 numbers and takes 8; the Gymnasium task behind it is real here, and so is every step played.
"""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from droprl.cli import main


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve walks of twelve steps; the last of every other one is at the goal."""
    folder, rng, n = tmp_path_factory.mktemp("official"), np.random.default_rng(0), 144
    timeouts, rewards = np.zeros(n, bool), np.zeros(n, np.float32)
    timeouts[11::12], rewards[11::24] = True, 1.0
    arrays = {
        "observations": rng.normal(size=(n, 29)).astype(np.float32),
        "actions": rng.uniform(-0.9, 0.9, size=(n, 8)).astype(np.float32),
        "rewards": rewards,
        "terminals": np.zeros(n, bool),
        "timeouts": timeouts,
    }
    with h5py.File(folder / "antmaze-umaze.hdf5", "w") as file:
        for key, value in arrays.items():
            file[key] = value
    return folder


@pytest.fixture(scope="module")
def run(data: Path) -> Path:
    """What the suite of the AntMaze table trains and plays, with less of everything."""
    out = data / "out"
    less = ["--methods", "F-BC", "--preset", "small", "--seeds", "1", "--steps", "12", "--episodes", "1"]
    main(["bench", "paper-antmaze", "--data", str(data), "--out", str(out), "--tasks", "antmaze-umaze", *less])
    return out / "runs" / "antmaze-umaze" / "F-BC"


def test_the_antmaze_comparison(run: Path) -> None:
    play = run.parents[2] / "plays" / "antmaze-umaze" / "F-BC" / "F-BC.json"
    found = json.loads(play.read_text(encoding="utf-8"))
    assert found["env"] == "droprl/antmaze-umaze-v0"
    assert len(found["results"]) == 6  # the last six checkpoints
    for result in found["results"]:
        assert result["lengths"] == [700]
        assert result["scores"] == [100.0 * r for r in result["returns"]]


def test_the_fine_tuning_table(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The two commands of its row; with one number of ascent steps to look at, six episodes are enough."""
    out = str(data / "run")
    main(["train", str(data / "antmaze-umaze.hdf5"), "--preset", "small", "--steps", "12", "--out", out])
    less = ["--budget", "4200", "--max-ascent-steps", "1", "--episodes", "1"]
    capsys.readouterr()
    main(["finetune", out, "--level", "embedding", *less, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["env"] == "droprl/antmaze-umaze-v0"
    assert [seed["steps_played"] for seed in found["seeds"]] == [4200]

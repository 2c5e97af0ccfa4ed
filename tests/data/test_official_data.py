"""The commands of docs/paper.md for data that is not made here, on stand-in files with the sizes of D4RL's own.

D4RL's AntMaze observes 29 numbers and takes 8; the Gymnasium task behind it is real here, and so is every step played.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from droprl.cli import main
from droprl.environments.simulation import make_env


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve walks of twelve steps; the last of every other one is at the goal."""
    pytest.importorskip("gymnasium_robotics")
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


def test_the_maze_is_d4rls_with_the_start_as_origin(data: Path) -> None:
    """In D4RL's umaze the way leads along x, then along y, then back: the goal lies two cells of 4 above the start."""
    env = make_env("droprl/antmaze-umaze-v0")
    for seed in range(5):
        observation, _ = env.reset(seed=seed)
        assert observation.shape == (29,)
        assert np.all(np.abs(observation[:2]) <= 1.1)  # noise of a quarter of a cell, and the ant's own
        inner: Any = env.unwrapped
        goal = inner.goal - inner.maze.unique_reset_locations[0]
        np.testing.assert_allclose(goal, [0.0, 8.0], atol=1.01)
        # Between them is a wall; the way round is on the side of positive x.
        wall, free = ([0.0, 4.0], [8.0, 4.0])
        cells = {tuple(np.round(xy - inner.maze.unique_reset_locations[0], 3)) for xy in free_cells(inner.maze)}
        assert tuple(free) in cells
        assert tuple(wall) not in cells


def test_reaching_the_goal_pays_one_and_ends_the_episode(data: Path) -> None:
    env: Any = make_env("droprl/antmaze-umaze-v0")
    env.reset(seed=0)
    inner = env.unwrapped
    inner.goal = inner.ant_env.data.qpos[:2].copy()
    _, reward, terminated, _, _ = env.step(np.zeros(8, np.float32))
    assert (reward, terminated) == (1.0, True)


def free_cells(maze: Any) -> list[np.ndarray]:
    rows = [(i, j) for i, row in enumerate(maze.maze_map) for j, cell in enumerate(row) if cell != 1]
    return [maze.cell_rowcol_to_xy(np.array(cell)) for cell in rows]


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

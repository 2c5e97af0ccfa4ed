"""AntMaze data: the walker is the perceptron it says, walks lead along free cells to their goals, rows fit together."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from droprl.cli import main
from droprl.data.ant_walks import ANT_DATA, PLAY_GOALS, AntWalker, load_walker, make_ant_dataset, walk_ant
from droprl.data.sources import load_dataset
from droprl.environments.antmaze import AntMazeEnv
from droprl.environments.mazes import MAPS
from droprl.errors import DropError


def layers(seed: int = 0, sizes: tuple[int, ...] = (29, 6, 5, 8)) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    made = {}
    for i, (before, after) in enumerate(pairwise(sizes)):
        made[f"W{i}"] = rng.normal(size=(after, before)).astype(np.float32)
        made[f"b{i}"] = rng.normal(size=after).astype(np.float32)
    return made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    everything: dict[str, Any] = {**layers(), "source": np.array("a sentence")}
    np.savez(tmp_path / "walker.npz", **everything)
    return tmp_path / "walker.npz"


@dataclass(frozen=True)
class Jumper:
    """Instead of walking, the ant is put 0.4 before where it should go."""

    env: AntMazeEnv
    targets: list[tuple[float, ...]]

    def act(self, observation: np.ndarray, target: np.ndarray) -> np.ndarray:
        self.targets.append(tuple(target.tolist()))
        posture = self.env.data.qpos.copy()
        posture[:2] = target - [0.4, 0.0]
        posture[2] = 0.55
        self.env.set_state(posture, np.zeros(14))
        return np.zeros(8)


def jump(maze: str, style: Any, seed: int) -> tuple[AntMazeEnv, list[tuple[float, ...]], Any]:
    env = AntMazeEnv(maze)
    jumper: Any = Jumper(env, [])
    played = walk_ant(env, jumper, np.random.default_rng(seed), style, noise=0.0)
    return env, jumper.targets, played


def test_the_walker_is_a_perceptron_that_sees_a_direction_of_length_ten(file: Path) -> None:
    walker, made = load_walker(file), layers()
    observation = np.random.default_rng(1).normal(size=29)
    target = observation[:2] + np.array([3.0, 4.0])
    x = np.array([*observation[2:], 6.0, 8.0])
    for i in (0, 1):
        x = np.array([max(0.0, float(row @ x) + b) for row, b in zip(made[f"W{i}"], made[f"b{i}"], strict=True)])
    expected = np.tanh(made["W2"] @ x + made["b2"])
    np.testing.assert_allclose(walker.act(observation, target), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"W1": np.zeros((5, 7))}, "must lead from 29 numbers to 8"),
        ({"b2": np.zeros(7)}, "must lead from 29 numbers to 8"),
        ({"b0": np.zeros((6, 1))}, "must lead from 29 numbers to 8"),
        ({"W0": np.full((6, 29), np.nan)}, "a weight is not finite"),
        ({"W0": np.full((6, 29), "x")}, "holds no policy"),
        ({"W0": np.full((6, 29), None)}, "holds no policy"),  # Python objects: would have to be unpickled
        ({"b1": None}, "holds no policy"),
        ({"W0": np.zeros((10_001, 1001))}, "more than 10,000,000 weights"),
    ],
)
def test_what_is_no_walker_is_refused_in_one_line(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    arrays: dict[str, Any] = {key: value for key, value in {**layers(), **change}.items() if value is not None}
    np.savez(tmp_path / "odd.npz", **arrays)
    with pytest.raises(DropError, match=message) as error:
        load_walker(tmp_path / "odd.npz")
    assert "\n" not in str(error.value)


def test_a_file_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("no archive")
    with pytest.raises(DropError, match="holds no policy"):
        load_walker(tmp_path / "text.npz")
    with pytest.raises(DropError, match="missing"):
        load_walker(tmp_path / "missing.npz")


@pytest.mark.parametrize("maze", sorted(MAPS))
def test_a_fixed_walk_leads_from_the_start_over_free_cells_to_the_goal(maze: str) -> None:
    env, targets, played = jump(maze, "fixed", seed=0)
    assert played.arrived
    assert played.rewards[-1] == 1
    assert not played.rewards[:-1].any()
    np.testing.assert_allclose(targets[-1], env.goal)
    corners = [(0.0, 0.0), *dict.fromkeys(targets[:-1])]
    for (x, y), (next_x, next_y) in pairwise(corners):
        assert (x == next_x) != (y == next_y)  # along one axis
        for share in np.linspace(0, 1, 20):
            point = np.array([x + share * (next_x - x), y + share * (next_y - y)])
            assert env.cell_of(point) in env.free_cells


def test_other_walks_start_anywhere_and_set_out_again() -> None:
    for style, goals in (("play", set(PLAY_GOALS["antmaze-medium"])), ("diverse", None)):
        starts, ends = set(), set()
        for seed in range(12):
            env, targets, played = jump("antmaze-medium", style, seed)
            starts.add(env.cell_of(played.observations[0, :2]))
            if not played.arrived:
                assert len(played.rewards) == 1000
            ends |= {env.cell_of(np.array(target)) for target in targets}
        assert len(starts) > 5
        assert goals is None or goals <= ends
        assert goals is None or not starts & goals


def test_hand_picked_goals_are_free_cells() -> None:
    for maze, cells in PLAY_GOALS.items():
        assert all(MAPS[maze][row][column] != "#" for row, column in cells)
        assert any(MAPS[maze][row][column] == "G" for row, column in cells)


def test_rows_fit_together_and_the_seed_determines_them(file: Path) -> None:
    walker = load_walker(file)
    calls: list[tuple[int, int]] = []
    made = make_ant_dataset("antmaze-umaze", walker, 800, progress=lambda done, total: calls.append((done, total)))
    assert (made.n_steps, made.n_episodes, calls) == (1400, 2, [(700, 800), (800, 800)])
    assert made.next_observations is not None
    follows = (made.next_observations[:-1] == made.observations[1:]).all(axis=1)
    np.testing.assert_array_equal(follows, ~made.timeouts[:-1])
    assert (made.env, made.time_limit, made.score_range) == ("droprl/antmaze-umaze-v0", 700, (0.0, 1.0))
    assert np.abs(made.actions).max() <= 1
    again, other = (make_ant_dataset("antmaze-umaze", walker, 600, seed) for seed in (0, 1))
    np.testing.assert_array_equal(again.observations, made.observations[:700])
    assert not np.array_equal(other.observations, again.observations)


def test_every_dataset_has_a_maze_and_a_style() -> None:
    for name, (maze, style) in ANT_DATA.items():
        assert name.removeprefix(maze).removeprefix("-") in (("",) if style == "fixed" else (style,))
        assert maze in MAPS


def test_the_command_line_makes_it_with_a_walker_and_says_what_is_missing(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "antmaze-umaze-diverse.hdf5"
    main(["data", "make", "antmaze-umaze-diverse", "--steps", "700", "--walker", str(file), "--out", str(out)])
    assert load_dataset(out).env == "droprl/antmaze-umaze-v0"
    for words, message in (
        (["antmaze-large-play"], "give one with --walker FILE.npz"),
        (["maze2d-umaze", "--walker", str(file)], "leave --walker out"),
    ):
        with pytest.raises(SystemExit):
            main(["data", "make", *words, "--out", str(tmp_path / "no.hdf5")])
        told = capsys.readouterr().err.strip()
        assert message in told
        assert "\n" not in told
    assert not (tmp_path / "no.hdf5").exists()


def test_an_unknown_name_or_no_steps_are_refused() -> None:
    walker = AntWalker((np.zeros((8, 29)),), (np.zeros(8),))
    cases: tuple[tuple[Any, str], ...] = (
        (("antmaze-tiny", walker), "choose one of antmaze-umaze"),
        (("antmaze-umaze", walker, 0), "at least 1 step"),
        (("antmaze-umaze", walker, 1, -1), "seed of 0 or more"),
        (("antmaze-umaze", None), "needs a policy that walks the ant"),
    )
    for arguments, message in cases:
        with pytest.raises(DropError, match=message):
            make_ant_dataset(*arguments)

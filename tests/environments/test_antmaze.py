"""The ant is D4RL's: it moves as recorded elsewhere, starts and reaches goals where D4RL's does.

`recorded_ant.npz` was made once by a script that shares no code with this project. Its `Ant` is Gymnasium's ant.xml,
the walls as boxes, a time step of 0.02 and a gear of 30; a released policy walks it, with action noise of 0.2. For each
maze there are the states of one walk (15 positions, then 14 velocities, as float64) and the actions between them: 120
steps on the way to umaze's goal, 80 against a wall of medium, and 40 random actions in large. Those called `d4rl` were
recorded in the same way after `ant.m.geom_solimp[:] = (0.8, 0.8, 0.01, 0.5, 2)`: D4RL's ant.xml has
solimp=".8 .8 .01", and Gymnasium's has none.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from droprl.environments.antmaze import AntMazeEnv, Contacts
from droprl.environments.mazes import MAPS
from droprl.environments.simulation import make_env
from droprl.errors import DropError

RECORDED = Path(__file__).with_name("recorded_ant.npz")
MAZES = ("umaze", "medium", "large")
CONTACTS: tuple[Contacts, ...] = ("d4rl", "gymnasium")


@pytest.fixture(scope="module")
def umaze() -> AntMazeEnv:
    return AntMazeEnv("antmaze-umaze")


def recording(contacts: Contacts, maze: str) -> tuple[np.ndarray, np.ndarray]:
    with np.load(RECORDED, allow_pickle=False) as file:
        return file[f"{contacts}_{maze}_states"], file[f"{contacts}_{maze}_actions"]


def replayed(env: Any, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """For each recorded state, where the recorded action leads from there."""
    env.reset(seed=0)
    inner, found = env.unwrapped, []
    for state, action in zip(states, actions, strict=False):
        inner.set_state(state[:15], state[15:])
        found.append(inner.step(action)[0])
    return np.array(found)


# --- replay ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("maze", MAZES)
@pytest.mark.parametrize("contacts", CONTACTS)
def test_recorded_actions_lead_to_the_recorded_states(contacts: Contacts, maze: str) -> None:
    suffix = {"d4rl": "", "gymnasium": "-stiff"}[contacts]
    env = make_env(f"droprl/antmaze-{maze}{suffix}-v0")
    states, actions = recording(contacts, maze)
    # What is left is the tolerance of MuJoCo's solver, which starts elsewhere than in the recording.
    np.testing.assert_allclose(replayed(env, states, actions), states[1:], atol=1e-4)


@pytest.mark.parametrize("maze", MAZES)
def test_a_whole_walk_repeats_without_looking_at_the_recording(maze: str) -> None:
    states, actions = recording("d4rl", maze)
    env: Any = make_env(f"droprl/antmaze-{maze}-v0").unwrapped
    env.reset(seed=0)
    env.set_state(states[0][:15], states[0][15:])
    walk = np.array([env.step(action)[0] for action in actions[:30]])
    np.testing.assert_allclose(walk, states[1:31], atol=1e-3)


@pytest.mark.parametrize("wrong", ["torque", "clock", "frame skip", "contacts"])
def test_a_replay_notices_another_ant(wrong: str) -> None:
    env = AntMazeEnv("antmaze-umaze", contacts="gymnasium" if wrong == "contacts" else "d4rl")
    if wrong == "torque":
        env.model.actuator_gear[:, 0] = 150
    elif wrong == "clock":
        env.model.opt.timestep = 0.01
    elif wrong == "frame skip":
        env.frame_skip = 4
    states, actions = recording("d4rl", "umaze")
    error = np.abs(replayed(env, states, actions) - states[1:]).max(axis=1)
    assert np.median(error) > 0.01


def test_the_numbers_that_differ_from_gymnasiums_ant(umaze: AntMazeEnv) -> None:
    model = umaze.model
    assert (model.opt.timestep, umaze.frame_skip) == (0.02, 5)
    np.testing.assert_array_equal(model.actuator_gear[:, 0], 30)
    np.testing.assert_array_equal(model.actuator_ctrlrange, [[-1, 1]] * 8)
    np.testing.assert_allclose(model.geom_solimp[:, :3], [[0.8, 0.8, 0.01]] * model.ngeom)
    assert model.opt.integrator == mujoco.mjtIntegrator.mjINT_RK4


# --- starts and goals ------------------------------------------------------------------------------------------------


def test_starts_have_d4rls_posture_and_noise(umaze: AntMazeEnv) -> None:
    starts = np.array([umaze.reset(seed=seed)[0] for seed in range(1500)])
    position, turn, joints, velocities = starts[:, :3], starts[:, 3:7], starts[:, 7:15], starts[:, 15:]
    for values, middle in ((position, [0, 0, 0.55]), (joints, [0, 1, 0, -1, 0, -1, 0, 1])):
        away = values - np.array(middle)
        assert np.abs(away).max() <= 0.1
        np.testing.assert_allclose(away.min(axis=0), -0.1, atol=0.003)
        np.testing.assert_allclose(away.max(axis=0), 0.1, atol=0.003)
        np.testing.assert_allclose(away.std(axis=0), 0.2 / np.sqrt(12), rtol=0.08)
    np.testing.assert_allclose(np.linalg.norm(turn, axis=1), 1.0)
    # Before it was made a unit, the quaternion was 1, 0, 0, 0 with noise of at most 0.1: x / w is at most 0.1 / 0.9.
    assert 0.1 < np.abs(turn[:, 1:] / turn[:, :1]).max() <= 0.1 / 0.9 + 1e-9
    np.testing.assert_allclose(velocities.std(axis=0), 0.1, rtol=0.08)
    assert np.abs(velocities).max() > 0.25  # normal, not uniform


@pytest.mark.parametrize(("maze", "middle"), [("umaze", (0, 8)), ("medium", (20, 20)), ("large", (32, 24))])
def test_goals_are_drawn_at_every_reset_to_one_side_of_their_cell(maze: str, middle: tuple[int, int]) -> None:
    """D4RL adds U(0, 1) and U(0, 0.5): together a trapezoid from 0 to 1.5."""
    env = AntMazeEnv(f"antmaze-{maze}")
    away: list[np.ndarray] = []
    for seed in range(600):
        env.reset(seed=seed)
        away.append(env.goal - middle)
    drawn = np.array(away)
    assert drawn.min() >= 0
    assert drawn.max() <= 1.5
    np.testing.assert_allclose(drawn.mean(axis=0), 0.75, atol=0.05)
    np.testing.assert_allclose(drawn.var(axis=0), 1 / 12 + 0.25 / 12, rtol=0.15)
    assert abs(np.corrcoef(drawn.T)[0, 1]) < 0.15


def test_the_goal_is_reached_within_a_half(umaze: AntMazeEnv) -> None:
    rng, seen = np.random.default_rng(0), set()
    for seed in range(40):
        umaze.reset(seed=seed)
        umaze.goal = umaze.data.qpos[:2] + rng.uniform(0.35, 0.65) * np.array([np.cos(seed), np.sin(seed)])
        observation, reward, terminated, truncated, info = umaze.step(np.zeros(8, np.float32))
        near = bool(np.hypot(*(observation[:2] - umaze.goal)) <= 0.5)
        assert (reward, terminated, truncated, info["success"]) == (float(near), near, False, near)
        seen.add(near)
    assert seen == {True, False}


def test_observations_are_positions_then_velocities(umaze: AntMazeEnv) -> None:
    umaze.reset(seed=0)
    before = umaze.data.qpos.copy()
    observation, *_ = umaze.step(np.zeros(8, np.float32))
    np.testing.assert_array_equal(observation, [*umaze.data.qpos, *umaze.data.qvel])
    # Velocities are those of the positions before them: x moves by its velocity, up to what changed within a step.
    np.testing.assert_allclose(observation[:2] - before[:2], 0.1 * observation[15:17], atol=0.05)


def test_resets_repeat_with_the_seed(umaze: AntMazeEnv) -> None:
    first, goal = umaze.reset(seed=3)[0], umaze.goal.copy()
    again = umaze.reset()[0]
    assert not np.array_equal(again, first)
    np.testing.assert_array_equal(umaze.reset(seed=3)[0], first)
    np.testing.assert_array_equal(umaze.goal, goal)


# --- the maze --------------------------------------------------------------------------------------------------------

# D4RL's maze_env.py, U_MAZE_TEST, BIG_MAZE_TEST and HARDEST_MAZE_TEST: 1 is a wall, and rows go towards positive y.
D4RL = {
    "umaze": ["11111", "1R001", "11101", "1G001", "11111"],
    "medium": ["11111111", "1R011001", "10010001", "11000111", "10010001", "10100101", "100010G1", "11111111"],
    "large": [
        *["111111111111", "1R0001000001", "101101010101", "100000010001", "101111011101"],
        *["100101000001", "110101010111", "100100010G01", "111111111111"],
    ],
}


@pytest.mark.parametrize("maze", MAZES)
def test_walls_are_d4rls(maze: str) -> None:
    assert [row.replace("#", "1").replace(".", "0") for row in MAPS[f"antmaze-{maze}"]] == D4RL[maze]
    model = AntMazeEnv(f"antmaze-{maze}").model
    boxes = np.flatnonzero(model.geom_type == mujoco.mjtGeom.mjGEOM_BOX)
    rows = D4RL[maze]
    # The start, in row 1 and column 1, is the origin; D4RL's walls are 4 wide, and 2 high from the floor.
    expected = {
        (4.0 * (c - 1), 4.0 * (r - 1), 1.0) for r, row in enumerate(rows) for c, m in enumerate(row) if m == "1"
    }
    assert {tuple(position) for position in model.geom_pos[boxes].tolist()} == expected
    np.testing.assert_array_equal(model.geom_size[boxes], [[2, 2, 1]] * len(expected))


def test_the_clock_and_the_checks_of_gymnasium() -> None:
    limits = {"umaze": 700, "medium": 1000, "large": 1000}
    for maze, limit in limits.items():
        for suffix in ("", "-stiff"):
            env = make_env(f"droprl/antmaze-{maze}{suffix}-v0")
            assert env.spec is not None
            assert env.spec.max_episode_steps == limit
    check_env(make_env("droprl/antmaze-umaze-v0").unwrapped, skip_render_check=True)


def test_another_start_can_be_asked_for_but_no_wall(umaze: AntMazeEnv) -> None:
    observation, _ = umaze.reset(seed=0, options={"reset_cell": (2, 3)})
    np.testing.assert_allclose(observation[:2], [8, 4], atol=0.1)
    assert umaze.cell_of(observation[:2]) == (2, 3)
    with pytest.raises(DropError, match=r"cell \(2, 1\) is a wall"):
        umaze.reset(options={"reset_cell": (2, 1)})

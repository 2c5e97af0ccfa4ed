"""The mazes: the environment has D4RL's task, and the recipe makes data on which the rest of the program can rely."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest

pytest.importorskip("gymnasium_robotics")

from gymnasium.utils.env_checker import check_env
from gymnasium_robotics.envs.maze import maps

from droprl.data.dataset import Dataset
from droprl.data.maze_walks import EXPERT, Walker, draw_walker, make_maze_dataset, plan, walk
from droprl.data.tasks import find_task
from droprl.environments.maze2d import GOAL_RADIUS, Maze2DEnv
from droprl.environments.mazes import CELL_OFFSET, MAZES, Cell, Maze, env_id, register_mazes
from droprl.errors import DropError

ALL_MAZES = sorted(MAZES)
D4RL_TASKS = {"maze2d-umaze": ((1, 1), 300), "maze2d-medium": ((6, 6), 600), "maze2d-large": ((7, 9), 800)}


@pytest.fixture(scope="module")
def umaze() -> Dataset:
    return make_maze_dataset("maze2d-umaze", n_steps=60 * 300, seed=0)


def plans_of(maze: Maze) -> dict[Cell, dict[Cell, Cell]]:
    return {cell: plan(maze, cell) for cell in maze.free_cells}


# --- the mazes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL_MAZES)
def test_maze_is_d4rls(name: str) -> None:
    maze = MAZES[name]
    walls = {
        "maze2d-umaze": maps.U_MAZE,
        "maze2d-medium": maps.MEDIUM_MAZE,
        "maze2d-large": maps.LARGE_MAZE,
    }[name]
    assert [[int(mark == "#") for mark in row] for row in maze.rows] == walls
    assert (maze.goal, maze.time_limit) == D4RL_TASKS[name]
    task = find_task(name)
    assert task is not None
    assert task.env == env_id(name)


@pytest.mark.parametrize("name", ALL_MAZES)
def test_plan_leads_from_every_cell_to_every_other(name: str) -> None:
    maze = MAZES[name]
    for target in maze.free_cells:
        waypoints = plan(maze, target)
        assert set(waypoints) == set(maze.free_cells)
        for start in maze.free_cells:
            cell = start
            for _ in range(len(maze.free_cells)):
                ahead = waypoints[cell]
                assert cell[0] == ahead[0] or cell[1] == ahead[1]
                rows = range(min(cell[0], ahead[0]), max(cell[0], ahead[0]) + 1)
                columns = range(min(cell[1], ahead[1]), max(cell[1], ahead[1]) + 1)
                assert all((row, column) in maze.free_cells for row in rows for column in columns)
                cell = ahead
            assert cell == target


# --- the environment -------------------------------------------------------------------------------------------------


def test_registering_twice_is_harmless() -> None:
    register_mazes()
    register_mazes()
    assert {env_id(name) for name in ALL_MAZES} <= set(gymnasium.registry)


@pytest.mark.filterwarnings("ignore::UserWarning")  # infinite observation bounds, as D4RL's
@pytest.mark.parametrize("name", ALL_MAZES)
def test_environment_passes_gymnasiums_own_check(name: str) -> None:
    register_mazes()
    check_env(gymnasium.make(env_id(name)).unwrapped, skip_render_check=True)


@pytest.mark.parametrize("name", ALL_MAZES)
def test_episode_is_truncated_at_the_time_limit_and_never_terminates(name: str) -> None:
    register_mazes()
    env = gymnasium.make(env_id(name))
    env.reset(seed=0, options={"reset_cell": MAZES[name].goal})
    rewards = []
    for step in range(1, MAZES[name].time_limit + 1):
        _, reward, terminated, truncated, _ = env.step(np.zeros(2, dtype=np.float32))
        rewards.append(float(reward))
        assert not terminated
        assert truncated == (step == MAZES[name].time_limit)
    # Without a push the ball may roll away from the goal. While it is there, every step earns a reward.
    assert set(rewards) <= {0.0, 1.0}
    assert rewards[0] == 1.0


@pytest.mark.parametrize("name", ALL_MAZES)
def test_a_position_within_the_radius_of_one_fixed_goal_is_rewarded(name: str) -> None:
    env = Maze2DEnv(name)
    goal = np.array(MAZES[name].goal)
    rng = np.random.default_rng(0)
    seen = set()
    for seed in range(8):
        env.reset(seed=seed, options={"reset_cell": MAZES[name].goal} if seed % 2 else None)
        for _ in range(60):
            observation, reward, *_ = env.step(rng.uniform(-1, 1, 2).astype(np.float32))
            assert reward == float(np.linalg.norm(observation[:2] - goal) <= GOAL_RADIUS)
            seen.add(reward)
    assert seen == {0.0, 1.0}


@pytest.mark.parametrize("name", ALL_MAZES)
def test_starts_are_in_all_free_cells_and_repeat_with_the_seed(name: str) -> None:
    env = Maze2DEnv(name)
    starts = np.array([env.reset(seed=seed)[0] for seed in range(400)])
    cells = np.round(starts[:, :2]).astype(int)
    assert {tuple(cell) for cell in cells.tolist()} == set(MAZES[name].free_cells)
    assert np.abs(starts[:, :2] - cells).max() <= 0.1
    np.testing.assert_array_equal(env.reset(seed=7)[0], starts[7])


def test_actions_push_along_the_observed_axes() -> None:
    # The simulation's axes differ from D4RL's. An error there would swap rows and columns, or forward and backward.
    env = Maze2DEnv("maze2d-umaze")
    for action, axis, sign in (((1, 0), 0, 1), ((-1, 0), 0, -1), ((0, 1), 1, 1), ((0, -1), 1, -1)):
        start, _ = env.reset(seed=0, options={"reset_cell": (2, 3)})
        for _ in range(8):
            observation, *_ = env.step(np.array(action, dtype=np.float32))
        moved = observation - start
        assert np.sign(moved[axis]) == np.sign(moved[2 + axis]) == sign
        assert abs(moved[axis]) > 3 * abs(moved[1 - axis])


@pytest.mark.parametrize("name", ALL_MAZES)
def test_walls_are_where_the_map_says(name: str) -> None:
    maze, env = MAZES[name], Maze2DEnv(name)
    for cell in maze.free_cells:
        for direction in ((-1, 0), (1, 0), (0, -1), (0, 1)):
            beyond = (cell[0] + direction[0], cell[1] + direction[1])
            env.reset(seed=0, options={"reset_cell": cell})
            for _ in range(45):
                observation, *_ = env.step(np.array(direction, dtype=np.float32))
            moved = np.dot(observation[:2] - np.array(cell) + CELL_OFFSET, direction)
            assert (moved > 0.5) == (beyond in maze.free_cells), (cell, direction)


def test_starting_in_a_wall_is_refused() -> None:
    with pytest.raises(DropError, match=r"cell \(0, 0\) is a wall"):
        Maze2DEnv("maze2d-umaze").reset(options={"reset_cell": np.array([0, 0])})


def test_missing_gymnasium_robotics_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium_robotics", None)
    with pytest.raises(DropError, match=r"pip install 'droprl\[robotics\]'"):
        make_maze_dataset("maze2d-umaze", 300)


def test_gymnasium_is_not_imported_until_it_is_needed() -> None:
    code = "import sys, droprl.data.maze_walks; sys.exit('gymnasium' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- the walkers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL_MAZES)
def test_expert_reaches_the_goal_from_everywhere_and_stays(name: str) -> None:
    maze, env = MAZES[name], Maze2DEnv(name)
    plans = plans_of(maze)
    returns = []
    for seed in range(10):
        rewards = walk(env, EXPERT, plans, np.random.default_rng(seed)).rewards
        arrival = int(np.argmax(rewards))
        assert rewards[arrival:].all()
        returns.append(rewards.sum())
    task = find_task(name)
    assert task is not None
    assert np.mean(returns) > task.score_range[1]  # D4RL's own controller plans only once, see the module


def test_skill_pays_and_so_does_an_early_start() -> None:
    env = Maze2DEnv("maze2d-umaze")
    plans = plans_of(env.maze)

    def mean_return(walker: Walker) -> float:
        return float(np.mean([walk(env, walker, plans, np.random.default_rng(i)).rewards.sum() for i in range(12)]))

    best = mean_return(EXPERT)
    assert mean_return(Walker(p_gain=1.0, d_gain=0.7, noise=1.0, wandering=0.0)) < 0.7 * best
    assert mean_return(Walker(p_gain=10.0, d_gain=1.0, noise=0.0, wandering=0.7)) < 0.7 * best


def test_walkers_differ() -> None:
    walkers = [draw_walker(np.random.default_rng(seed)) for seed in range(300)]
    assert 0.02 < np.mean([walker.wandering == 0 for walker in walkers]) < 0.15
    assert 0.15 < np.mean([walker.wandering >= 1 for walker in walkers]) < 0.4
    assert len({walker.p_gain for walker in walkers}) == 300


# --- the dataset -----------------------------------------------------------------------------------------------------


def test_dataset_has_the_promised_form(umaze: Dataset) -> None:
    assert (umaze.n_steps, umaze.n_episodes) == (60 * 300, 60)
    assert (umaze.lengths == 300).all()
    assert not umaze.terminals.any()
    assert umaze.timeouts.sum() == 60
    assert umaze.timeouts[299::300].all()
    assert umaze.next_observations is not None
    for array in (umaze.observations, umaze.next_observations, umaze.actions, umaze.rewards):
        assert array.dtype == np.float32
        assert np.isfinite(array).all()
    assert umaze.actions.min() >= -1
    assert umaze.actions.max() <= 1
    assert (umaze.name, umaze.env, umaze.score_range) == ("maze2d-umaze", "droprl/maze2d-umaze-v0", (23.85, 161.86))


def test_next_observation_is_the_following_row_only_within_an_episode(umaze: Dataset) -> None:
    assert umaze.next_observations is not None
    follows = (umaze.next_observations[:-1] == umaze.observations[1:]).all(axis=1)
    np.testing.assert_array_equal(follows, ~umaze.timeouts[:-1])
    # The velocity is at most 5.3, and a step takes a hundredth of a second: the ball never jumps.
    assert np.abs(umaze.next_observations - umaze.observations)[:, :2].max() < 0.06


def test_rewards_match_the_positions(umaze: Dataset) -> None:
    assert umaze.next_observations is not None
    distance = np.linalg.norm(umaze.next_observations[:, :2] - np.array(MAZES["maze2d-umaze"].goal), axis=1)
    np.testing.assert_array_equal(umaze.rewards, distance <= GOAL_RADIUS)


def test_stored_actions_replay_to_the_stored_observations(monkeypatch: pytest.MonkeyPatch) -> None:
    # The stored actions are those that the simulation got (clipped and rounded), and it remembers no earlier episode.
    env = Maze2DEnv("maze2d-umaze")
    seeds: list[int] = []
    reset = env.reset

    def reset_and_note(*, seed: int) -> tuple[np.ndarray, dict[str, Any]]:
        seeds.append(seed)
        return reset(seed=seed)

    monkeypatch.setattr(env, "reset", reset_and_note)
    rng = np.random.default_rng(0)
    plans = plans_of(env.maze)
    episodes = [walk(env, draw_walker(rng), plans, rng) for _ in range(2)]
    for seed, episode in reversed(list(zip(seeds, episodes, strict=True))):
        replayed = [reset(seed=seed)[0], *(env.step(action)[0] for action in episode.actions)]
        np.testing.assert_array_equal(np.array(replayed, dtype=np.float32), episode.observations)


def test_returns_spread_from_nothing_to_beyond_the_reference(umaze: Dataset) -> None:
    scores = umaze.scores(umaze.returns)
    assert scores is not None
    assert np.mean(umaze.returns == 0) > 0.1
    assert 10 < scores.mean() < 70
    assert scores.max() > 120
    assert np.median(scores) < 0.6 * np.percentile(scores, 90)


def test_the_seed_determines_every_byte() -> None:
    def make(seed: int, n_steps: int = 600) -> Dataset:
        return make_maze_dataset("maze2d-umaze", n_steps, seed)

    assert make(3).fingerprint == make(3).fingerprint
    assert make(3).fingerprint != make(4).fingerprint
    np.testing.assert_array_equal(make(3, 900).observations[:600], make(3).observations)


@pytest.mark.parametrize("name", ALL_MAZES)
def test_every_maze_can_be_made_in_whole_episodes(name: str) -> None:
    calls: list[tuple[int, int]] = []
    limit = MAZES[name].time_limit
    dataset = make_maze_dataset(name, n_steps=limit + 1, progress=lambda done, total: calls.append((done, total)))
    assert dataset.n_steps == 2 * limit
    assert calls == [(limit, 2 * limit), (2 * limit, 2 * limit)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "maze2d-tiny"}, "choose one of maze2d-umaze"),
        ({"name": "maze2d-umaze", "n_steps": 0}, "at least 1 step"),
        ({"name": "maze2d-umaze", "seed": -1}, "seed of 0 or more"),
    ],
)
def test_impossible_requests_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(DropError, match=message):
        make_maze_dataset(**arguments)

"""D4RL's Maze2D tasks as Gymnasium environments, on the PointMaze simulation of gymnasium-robotics.

The same as in D4RL (its v1 tasks): mazes, coordinates, starts, fixed goals, the radius around them and the time limits.
So a policy trained on D4RL's own Maze2D files can be evaluated here, and data made here has the same coordinates. Only
the version of MuJoCo differs. `droprl.data.maze_walks` makes data; `mazes` registers these environments.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, SupportsFloat

import gymnasium
import numpy as np

from droprl.environments.mazes import CELL_OFFSET, MAZES, Cell
from droprl.environments.simulation import make_env
from droprl.errors import DropError

GOAL_RADIUS = 0.5  # D4RL's; PointMaze itself uses 0.45
START_NOISE = 0.1  # of the position (uniform) and of the velocity (normal), as in D4RL


class Maze2DEnv(gymnasium.Env[np.ndarray, np.ndarray]):
    """A ball is pushed through a maze. It observes (row, column, their velocities) and earns 1 per step at the goal.

    Reaching the goal does not end the episode, which runs to its time limit: it pays to arrive early and to stay.
    Position (r, c) is 0.2 beyond the middle of the cell in row r and column c. `reset(options={"reset_cell": (r, c)})`
    chooses the start. Otherwise it is a random free cell, which may be the goal's.
    """

    metadata = {"render_modes": ["human", "rgb_array", "depth_array"], "render_fps": 100}  # noqa: RUF012 - Gymnasium's

    def __init__(self, maze: str, render_mode: str | None = None, **frames: Any) -> None:
        """`frames`: the width and height of rendered frames."""
        self.maze = MAZES[maze]
        self.render_mode = render_mode
        simulation = _point_maze(self.maze.point_maze, render_mode, **frames)
        self.point_env = simulation.point_env
        rows, columns = len(self.maze.rows), len(self.maze.rows[0])
        # PointMaze lies in the plane with x along the columns, y against the rows, and zero in the maze's middle.
        self._row_at_zero = rows / 2 - 0.5 - CELL_OFFSET
        self._column_at_zero = columns / 2 - 0.5 - CELL_OFFSET
        self.goal = np.array(self.maze.goal, dtype=np.float64)
        simulation.goal = self._position_in_simulation(self.goal)
        simulation.update_target_site_pos()  # where the goal is drawn
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float64)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        cells = self.maze.free_cells
        wish = (options or {}).get("reset_cell")
        cell: Cell = cells[self.np_random.integers(len(cells))] if wish is None else (int(wish[0]), int(wish[1]))
        if cell not in cells:
            raise DropError(f"{self.maze.name}: cell {cell} is a wall; start in one of {list(cells)}")
        position = np.array(cell, dtype=np.float64) + self.np_random.uniform(-START_NOISE, START_NOISE, 2)
        velocity = self.np_random.normal(0.0, START_NOISE, 2)
        self.point_env.reset()  # clears what the simulation remembers of the last episode: repeats are bit-identical
        self.point_env.set_state(self._position_in_simulation(position), np.array([velocity[1], -velocity[0]]))
        self.position = position
        return np.concatenate([position, velocity]), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, SupportsFloat, bool, bool, dict[str, Any]]:
        # Only the ball is stepped: PointMaze's own reward, goals and dictionaries would double the cost.
        (x, y, x_velocity, y_velocity), *_ = self.point_env.step(np.array([action[1], -action[0]]))
        observation = np.array([self._row_at_zero - y, self._column_at_zero + x, -y_velocity, x_velocity])
        self.position = observation[:2]
        row, column = observation[:2] - self.goal
        reward = 1.0 if row * row + column * column <= GOAL_RADIUS**2 else 0.0
        return observation, reward, False, False, {}

    def render(self) -> Any:
        return self.point_env.render()

    def close(self) -> None:
        self.point_env.close()

    def _position_in_simulation(self, position: np.ndarray) -> np.ndarray:
        return np.array([position[1] - self._column_at_zero, self._row_at_zero - position[0]])


def _point_maze(env_id: str, render_mode: str | None, **frames: Any) -> Any:
    simulation: Any = make_env(env_id, render_mode=render_mode, **frames).unwrapped
    # PointMaze builds the maze from a file and never deletes it: one file for each environment ever made.
    Path(simulation.tmp_xml_file_path).unlink(missing_ok=True)
    return simulation

"""D4RL's AntMaze on Gymnasium's ant: D4RL's walls, start and goal, and its 29 observed numbers as one vector.

Gymnasium's own AntMaze observes a dictionary, puts the origin in the middle of the maze and counts rows downwards. A
policy that was trained on D4RL's files would see every turn mirrored. Here rows go upwards and the start is the origin.
Three differences from D4RL remain: the goal counts as reached within 0.45 instead of 0.5, starts and goals are drawn
around the middle of their cell instead of to one side of it, and a newer MuJoCo simulates the ant.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from droprl.environments.mazes import CELLS, MAPS


def make_antmaze(maze: str, **options: Any) -> gymnasium.Env[np.ndarray, np.ndarray]:
    from gymnasium_robotics.envs.maze.ant_maze_v4 import AntMazeEnv

    upwards = [[CELLS[cell] for cell in row] for row in reversed(MAPS[maze])]
    return OriginAtStart(AntMazeEnv(maze_map=upwards, continuing_task=False, **options))


class OriginAtStart(gymnasium.ObservationWrapper[np.ndarray, np.ndarray, Any]):
    """Observes the position relative to the middle of the start's cell, then joints and velocities."""

    def __init__(self, env: gymnasium.Env[Any, np.ndarray]) -> None:
        super().__init__(env)
        inner: Any = env.unwrapped
        self._origin = np.asarray(inner.maze.unique_reset_locations[0])
        size = sum(env.observation_space[part].shape[0] for part in ("achieved_goal", "observation"))  # type: ignore[index]
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float64)

    def observation(self, observation: Any) -> np.ndarray:
        return np.concatenate([observation["achieved_goal"] - self._origin, observation["observation"]])

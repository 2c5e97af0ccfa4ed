"""D4RL's AntMaze on D4RL's ant: an ant walks from one end of a maze to a goal at the other.

Gymnasium's own AntMaze has another ant: five times the torque, half the time step and stiffer contacts. It also
observes a dictionary, puts the origin in the middle of the maze and counts rows downwards. A policy that was trained on
D4RL's files does not walk there. What is written here was read in D4RL's source (`d4rl/locomotion`).

Two things differ from D4RL: a newer MuJoCo simulates the ant, and the random numbers are others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import gymnasium
import mujoco
import numpy as np
from gymnasium.envs.mujoco import MujocoEnv, mujoco_env

from droprl.environments.mazes import MAPS, Cell
from droprl.errors import DropError

Contacts = Literal["d4rl", "gymnasium"]

FRAME_SKIP = 5
TIMESTEP = 0.02  # seconds of a step of the physics; Gymnasium's ant has 0.01
TORQUE = 30.0  # at an action of 1; Gymnasium's ant has 150
# How hard contacts are (MuJoCo's solimp). Gymnasium's ant has MuJoCo's default, 0.9 to 0.95 within 0.001: stiffer.
CONTACTS = (0.8, 0.8, 0.01, 0.5, 2.0)
CELL_SIZE, WALL_HEIGHT = 4.0, 2.0
GOAL_RADIUS = 0.5
START_NOISE = 0.1  # of all 15 numbers of the posture (uniform) and of all 14 velocities (normal)
GOAL_SPREAD = (
    1.0,
    0.5,
)  # along x and y, two uniform numbers of at most this are added to the middle of the goal's cell
QUATERNION = slice(3, 7)


class AntMazeEnv(MujocoEnv):
    """It observes 15 numbers of the posture and 14 velocities, and earns 1 at the goal, which ends the episode.

    The first two numbers are x and y, counted from the middle of the start's cell. The goal is drawn at every reset, as
    in D4RL's v2 tasks, and not observed. It is read and written as `goal`. `reset(options={"reset_cell": (r, c)})`
    chooses another cell to start in.
    """

    metadata = {  # noqa: RUF012 - Gymnasium's
        "render_modes": ["human", "rgb_array", "depth_array", "rgbd_tuple"],
        "render_fps": 10,
    }

    def __init__(self, maze: str, contacts: Contacts = "d4rl", render_mode: str | None = None, **frames: Any) -> None:
        """`contacts`: "gymnasium" is for data that was recorded on Gymnasium's ant with D4RL's torques and clock."""
        rows = MAPS[maze]
        self.maze, self.contacts = maze, contacts
        self.free_cells: tuple[Cell, ...] = tuple(_cells(rows, "RG."))
        self.start_cell, self.goal_cell = _cells(rows, "R")[0], _cells(rows, "G")[0]
        self.goal = self.middle_of(self.goal_cell)
        super().__init__(
            str(Path(mujoco_env.__file__).parent / "assets" / "ant.xml"),
            FRAME_SKIP,
            observation_space=gymnasium.spaces.Box(-np.inf, np.inf, (29,), np.float64),
            render_mode=render_mode,
            **frames,
        )
        self._posture = self.model.numeric("init_qpos").data.copy()

    def middle_of(self, cell: Cell) -> np.ndarray:
        return CELL_SIZE * np.array([cell[1] - self.start_cell[1], cell[0] - self.start_cell[0]], dtype=np.float64)

    def cell_of(self, position: np.ndarray) -> Cell:
        column, row = (int(part) for part in np.round(np.asarray(position) / CELL_SIZE))
        return row + self.start_cell[0], column + self.start_cell[1]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        wish = (options or {}).get("reset_cell")
        self._from = self.start_cell if wish is None else (int(wish[0]), int(wish[1]))
        if self._from not in self.free_cells:
            raise DropError(f"{self.maze}: cell {self._from} is a wall; start in one of {list(self.free_cells)}")
        return super().reset(seed=seed)

    def reset_model(self) -> np.ndarray:
        draw = self.np_random
        self.goal = self.middle_of(self.goal_cell) + sum(draw.uniform(0.0, most, 2) for most in GOAL_SPREAD)
        posture = self._posture + draw.uniform(-START_NOISE, START_NOISE, self.model.nq)
        posture[:2] += self.middle_of(self._from)
        # D4RL's MuJoCo did this by itself; today's leaves a quaternion as it is until the first step.
        posture[QUATERNION] /= np.linalg.norm(posture[QUATERNION])
        self.set_state(posture, START_NOISE * draw.standard_normal(self.model.nv))
        return self.state_vector()

    def step(self, action: np.ndarray) -> tuple[np.ndarray, Any, bool, bool, dict[str, Any]]:
        self.do_simulation(action, self.frame_skip)
        observation = self.state_vector()
        reached = bool(np.linalg.norm(observation[:2] - self.goal) <= GOAL_RADIUS)
        if self.render_mode == "human":
            self.render()
        return observation, float(reached), reached, False, {"success": reached}

    def set_state(self, qpos: np.ndarray, qvel: np.ndarray) -> None:
        """Put the ant somewhere. The simulation then remembers nothing of the steps before."""
        mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[:], self.data.qvel[:] = qpos, qvel
        mujoco.mj_forward(self.model, self.data)

    def render(self) -> Any:
        self.model.site("goal").pos[:2] = self.goal
        return super().render()  # type: ignore[no-untyped-call]

    def _initialize_simulation(self) -> tuple[Any, Any]:
        spec = mujoco.MjSpec.from_file(self.fullpath)
        for cell in _cells(MAPS[self.maze], "#"):
            spec.worldbody.add_geom(
                type=mujoco.mjtGeom.mjGEOM_BOX,
                pos=[*self.middle_of(cell), WALL_HEIGHT / 2],
                size=[CELL_SIZE / 2, CELL_SIZE / 2, WALL_HEIGHT / 2],
                contype=1,
                conaffinity=1,
                rgba=[0.7, 0.5, 0.3, 1.0],
            )
        spec.worldbody.add_site(name="goal", pos=[*self.goal, 0.5], size=[GOAL_RADIUS, 0, 0], rgba=[1, 0, 0, 0.7])
        model = spec.compile()
        model.opt.timestep = TIMESTEP
        model.actuator_gear[:, 0] = TORQUE
        if self.contacts == "d4rl":
            model.geom_solimp[:] = CONTACTS
        frame = model.vis.global_
        frame.offwidth, frame.offheight = max(frame.offwidth, self.width), max(frame.offheight, self.height)
        return model, mujoco.MjData(model)


def _cells(rows: tuple[str, ...], marks: str) -> list[Cell]:
    return [(r, c) for r, row in enumerate(rows) for c, mark in enumerate(row) if mark in marks]

"""Maze2D: does the maze here move like D4RL's? D4RL's own is built beside it, from what `maze_model.py` says.

D4RL's: the ball and the walls of `point_maze`, its x axis along the rows, its velocity cut to 5 before each step, and a
step of the physics for each action. Only MuJoCo is today's in both. The walls' frames are the same by construction, so
this also checks that the coordinates are.
"""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np
from differences import spread

from droprl.data.maze_walks import make_maze_dataset
from droprl.environments.mazes import MAZES, Maze

STEPS = 3000


def d4rls(maze: Maze) -> Any:
    """The ball stands at 1.2, 1.2 where its joints are zero, and cell (r, c) at r + 1, c + 1."""
    walls = "".join(
        f'<geom type="box" conaffinity="1" pos="{r + 1} {c + 1} 0" size="0.5 0.5 0.2"/>'
        for r, row in enumerate(maze.rows)
        for c, mark in enumerate(row)
        if mark == "#"
    )
    slides = "".join(f'<joint name="{n}" type="slide" axis="{axis}"/>' for n, axis in (("x", "1 0 0"), ("y", "0 1 0")))
    motors = "".join(f'<motor joint="{n}" gear="100" ctrlrange="-1 1" ctrllimited="true"/>' for n in "xy")
    return mujoco.MjModel.from_xml_string(
        '<mujoco><compiler inertiafromgeom="true" angle="radian"/>'
        '<option timestep="0.01" gravity="0 0 0" iterations="20" integrator="Euler"/>'
        '<default><joint damping="1" limited="false"/><geom friction=".5 .1 .1" density="1000" margin="0.002"'
        ' condim="1" contype="2" conaffinity="1"/></default><worldbody>'
        '<geom type="plane" size="40 40 0.25" pos="0 0 -0.1" contype="1" conaffinity="0"/>'
        f'<body pos="1.2 1.2 0"><geom type="sphere" size="0.1" contype="1"/>{slides}</body>{walls}'
        f"</worldbody><actuator>{motors}</actuator></mujoco>"
    )


def replay(name: str) -> dict[str, Any]:
    maze = MAZES[name]
    dataset = make_maze_dataset(name, STEPS, seed=0)
    assert dataset.next_observations is not None
    model = d4rls(maze)
    data = mujoco.MjData(model)
    found, touches = [], 0
    for observation, action in zip(dataset.observations[:STEPS], dataset.actions, strict=False):
        mujoco.mj_resetData(model, data)
        data.qpos[:], data.qvel[:] = observation[:2], np.clip(observation[2:], -5.0, 5.0)
        data.ctrl[:] = action
        mujoco.mj_step(model, data)
        touches += bool((model.geom_type[data.contact.geom] == mujoco.mjtGeom.mjGEOM_BOX).any())
        found.append([*data.qpos, *data.qvel])
    after = np.array(found)
    near = np.linalg.norm(after[:, :2] - np.array(maze.goal), axis=1) <= 0.5
    return {
        "data": name,
        "rows": len(after),
        "rows_at_a_wall": int(touches),
        "next_state": spread(np.abs(after - dataset.next_observations[:STEPS]).max(axis=1)),
        "rewards_that_differ": int(np.sum(near != dataset.rewards[:STEPS].astype(bool))),
    }

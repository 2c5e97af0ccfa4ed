"""Pictures of a task while it is played. MuJoCo draws without a screen, by EGL or OSMesa; mazes draw themselves."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import mujoco
import numpy as np

from droprl.environments.gates_env import GatesEnv
from droprl.environments.mazes import CELL_OFFSET
from droprl.environments.simulation import make_env
from droprl.errors import DropError

BACKENDS = ("egl", "osmesa", "glfw")
VARIABLE = "MUJOCO_GL"
WIDTH, HEIGHT = 480, 330
MARGIN = 1.12  # around a maze
PIXELS = 32  # of a cell of a maze
BALL, GOAL = 0.22, 0.5  # radii in cells
PAPER, WALL, WEDGE, TRAIL = (250, 250, 247), (70, 76, 82), (150, 155, 160), (170, 200, 222)
BALL_COLOUR, GOAL_COLOUR = (208, 65, 11), (0, 122, 92)
NO_WAY = "MuJoCo finds no way to draw on this machine (EGL or OSMesa)"
_TRIAL = """
import mujoco
model = mujoco.MjModel.from_xml_string("<mujoco><worldbody><geom size='1'/></worldbody></mujoco>")
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
renderer = mujoco.Renderer(model, 16, 16)
renderer.update_scene(data)
renderer.render()
"""
_lock = threading.Lock()
_found: dict[str, str | None] = {}

Environment = gymnasium.Env[Any, Any]
Frame = np.ndarray  # (height, width, 3) uint8
Drawer = Callable[[], Frame]


def drawing_backend() -> str | None:
    """A way for MuJoCo to draw that works on this machine, or None. Another process tries it: a driver may crash.

    If the environment sets `MUJOCO_GL`, only that one is tried.
    """
    with _lock:
        if VARIABLE not in _found:
            asked = os.environ.get(VARIABLE)
            _found[VARIABLE] = next(filter(_works, [asked] if asked else BACKENDS), None)
        return _found[VARIABLE]


def _works(backend: str) -> bool:
    try:
        tried = subprocess.run(
            [sys.executable, "-c", _TRIAL],
            env={**os.environ, VARIABLE: backend},
            capture_output=True,
            timeout=60,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return tried.returncode == 0


def drawn_by_mujoco(env_id: str, time_limit: int | None = None) -> Environment:
    """The task, ready to draw its frames. A task that cannot is refused."""
    backend = drawing_backend()
    if backend is None:
        raise DropError(f"{env_id}: cannot be drawn: {NO_WAY}: install one of them")
    os.environ[VARIABLE] = backend  # Gymnasium reads it when it draws the first frame
    for options in ({"width": WIDTH, "height": HEIGHT}, {}):
        try:
            return make_env(env_id, time_limit, render_mode="rgb_array", **options)
        except (DropError, TypeError):
            continue  # some tasks draw frames of one size only, and some do not draw at all
    make_env(env_id, time_limit).close()  # if the task cannot be made at all, this says why
    raise DropError(f"{env_id}: draws no frames: choose a task that has the render mode rgb_array")


def task_to_film(env_id: str, time_limit: int | None = None) -> tuple[Environment, Drawer]:
    """The task, and what draws its present state."""
    from droprl.environments.maze2d import Maze2DEnv

    if env_id.startswith("droprl/maze2d-"):
        env = make_env(env_id, time_limit)
        inner: Any = env.unwrapped
        if isinstance(inner, GatesEnv):
            return env, MazeDrawer(inner.gates.rows, lambda: inner.position)
        if isinstance(inner, Maze2DEnv):
            return env, MazeDrawer(inner.maze.rows, lambda: _in_cells(inner.position), _in_cells(inner.maze.goal))
        env.close()
    env = drawn_by_mujoco(env_id, time_limit)
    return env, MuJoCoDrawer(env)


def _in_cells(position: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """D4RL's position (r, c) is beyond the middle of that cell."""
    return position[0] + CELL_OFFSET, position[1] + CELL_OFFSET


class MazeDrawer:
    """A maze from above: walls, the goal, the ball and where it has been. It needs no graphics library."""

    def __init__(
        self, rows: Sequence[str], position: Callable[[], Sequence[float]], goal: tuple[float, float] | None = None
    ) -> None:
        """Position (r, c) is the middle of the cell in row r and column c."""
        self._position = position
        cells = np.array([list(row) for row in rows]).repeat(PIXELS, axis=0).repeat(PIXELS, axis=1)
        self._ground = np.full((*cells.shape, 3), PAPER, np.uint8)
        self._ground[cells == "#"] = WALL
        self._row, self._column = np.mgrid[: cells.shape[0], : cells.shape[1]] / PIXELS - 0.5 + 0.5 / PIXELS
        # A wedge is a triangle: its tip points to the left, in the middle of the cell.
        wedge = np.abs(self._row - np.round(self._row)) <= 0.5 * ((self._column + 0.5) % 1.0)
        self._ground[(cells == "<") & wedge] = WEDGE
        if goal is not None:
            distance = self._distance(goal)
            self._ground[(distance < GOAL) & (distance > GOAL - 0.1) & (cells != "#")] = GOAL_COLOUR

    def _distance(self, place: Sequence[float]) -> np.ndarray:
        return np.hypot(self._row - place[0], self._column - place[1])

    def begin(self) -> None:
        self._trail = np.zeros(self._row.shape, bool)

    def __call__(self) -> Frame:
        distance = self._distance(self._position())
        self._trail |= distance < BALL / 3
        frame = self._ground.copy()
        frame[self._trail] = TRAIL
        frame[distance < BALL] = BALL_COLOUR
        return frame


class MuJoCoDrawer:
    """Looks at a task. It sees mazes from above, where no wall hides the agent. It follows an agent that walks away."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        inner: Any = env.unwrapped
        body = next((getattr(inner, name) for name in ("point_env", "ant_env") if hasattr(inner, name)), inner)
        self._renderer: Any = getattr(body, "mujoco_renderer", None)
        self._torso = -1
        self._body, self._is_maze = body, body is not inner or hasattr(inner, "free_cells")
        self._ready = False

    def begin(self) -> None:
        """The camera can be placed only after the task was reset."""
        if self._renderer is None or self._ready:
            return
        self._ready = True
        self._renderer.camera_id = -1  # the free camera: the model's own follows the agent in some Gymnasium versions
        self._env.render()  # makes the viewer
        viewer = self._renderer.viewer
        for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
            viewer.scn.flags[flag] = 0  # without a GPU, these take most of a frame's time
        if self._is_maze:
            _look_down(viewer.cam, self._body.model)
        else:
            self._torso = mujoco.mj_name2id(self._body.model, mujoco.mjtObj.mjOBJ_BODY, "torso")

    def __call__(self) -> Frame:
        if self._torso >= 0:
            self._renderer.viewer.cam.lookat[:2] = self._renderer.data.xpos[self._torso, :2]
        picture: Any = self._env.render()
        return np.asarray(picture, np.uint8)


def _look_down(camera: Any, model: Any) -> None:
    """Look from straight above, just far enough to see all walls."""
    walls = model.geom_type == mujoco.mjtGeom.mjGEOM_BOX
    low = (model.geom_pos - model.geom_size)[walls, :2].min(axis=0)
    high = (model.geom_pos + model.geom_size)[walls, :2].max(axis=0)
    across, up = high - low
    camera.lookat[:2] = (low + high) / 2
    camera.azimuth, camera.elevation = 90.0, -90.0
    camera.distance = MARGIN * max(up, across * HEIGHT / WIDTH) / (2 * np.tan(np.radians(model.vis.global_.fovy) / 2))

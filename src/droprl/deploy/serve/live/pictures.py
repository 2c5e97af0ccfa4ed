"""Frames from the simulator without a screen: which way of drawing works here, and a task that draws its frames."""

from __future__ import annotations

import base64
import io
import os
import subprocess
import sys
import threading
from typing import Any

import gymnasium
import mujoco
import numpy as np
from PIL import Image

from droprl.environments.simulation import make_env
from droprl.errors import DropError

BACKENDS = ("egl", "osmesa", "glfw")
VARIABLE = "MUJOCO_GL"
WIDTH, HEIGHT = 480, 330
MARGIN = 1.12  # around a maze
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


def task_to_watch(env_id: str, time_limit: int | None = None) -> tuple[gymnasium.Env[Any, Any], str | None]:
    """The task, and the reason if it cannot draw frames."""
    backend = drawing_backend()
    if backend is None:
        why = "MuJoCo finds no way to draw on this machine (EGL or OSMesa): watch the plane instead"
        return make_env(env_id, time_limit), why
    os.environ[VARIABLE] = backend  # Gymnasium reads it when it draws the first frame
    for options in ({"width": WIDTH, "height": HEIGHT}, {}):
        try:
            return make_env(env_id, time_limit, render_mode="rgb_array", **options), None
        except (DropError, TypeError):
            continue  # some tasks draw frames of one size only, and some do not draw at all
    return make_env(env_id, time_limit), f"{env_id} draws no frames: watch the plane instead"


class Camera:
    """Looks at a task. It sees mazes from above, where no wall hides the agent. It follows an agent that walks away."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self._env = env
        inner: Any = env.unwrapped
        body = next((getattr(inner, name) for name in ("point_env", "ant_env") if hasattr(inner, name)), inner)
        self._renderer: Any = getattr(body, "mujoco_renderer", None)
        self._torso = -1
        if self._renderer is None:
            return
        self._renderer.camera_id = -1  # the free camera: the model's own follows the agent in some Gymnasium versions
        env.render()  # makes the viewer
        viewer = self._renderer.viewer
        for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
            viewer.scn.flags[flag] = 0  # without a GPU, these take most of a frame's time
        if body is inner and not hasattr(inner, "free_cells"):
            self._torso = mujoco.mj_name2id(body.model, mujoco.mjtObj.mjOBJ_BODY, "torso")
        else:
            _look_down(viewer.cam, body.model)

    def frame(self) -> str:
        """A JPEG as a data URL."""
        if self._torso >= 0:
            self._renderer.viewer.cam.lookat[:2] = self._renderer.data.xpos[self._torso, :2]
        picture: Any = self._env.render()
        file = io.BytesIO()
        Image.fromarray(np.asarray(picture)).save(file, "JPEG", quality=82)
        return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()


def _look_down(camera: Any, model: Any) -> None:
    """Look from straight above, just far enough to see all walls."""
    walls = model.geom_type == mujoco.mjtGeom.mjGEOM_BOX
    low = (model.geom_pos - model.geom_size)[walls, :2].min(axis=0)
    high = (model.geom_pos + model.geom_size)[walls, :2].max(axis=0)
    across, up = high - low
    camera.lookat[:2] = (low + high) / 2
    camera.azimuth, camera.elevation = 90.0, -90.0
    camera.distance = MARGIN * max(up, across * HEIGHT / WIDTH) / (2 * np.tan(np.radians(model.vis.global_.fovy) / 2))

"""Frames from the simulator without a screen: which way of drawing works here, and a task that can be looked at."""

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

from droprl.data.simulation import make_env
from droprl.errors import DropError

BACKENDS = ("egl", "osmesa", "glfw")
VARIABLE = "MUJOCO_GL"
WIDTH, HEIGHT = 480, 360
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
    """MuJoCo's way to draw that works on this machine, tried out in another process: a missing driver may crash it.

    `MUJOCO_GL` in the environment is the only one tried, if it is set. None: there is none.
    """
    with _lock:
        if VARIABLE not in _found:
            wish = os.environ.get(VARIABLE)
            _found[VARIABLE] = next(filter(_works, [wish] if wish else BACKENDS), None)
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


def task_to_watch(env_id: str) -> tuple[gymnasium.Env[Any, Any], str | None]:
    """The task, and why there will be no frames of it, if so."""
    backend = drawing_backend()
    if backend is None:
        return make_env(env_id), "MuJoCo finds no way to draw on this machine (EGL or OSMesa): the plane shows it all"
    os.environ[VARIABLE] = backend  # Gymnasium reads it when it draws the first frame
    for options in ({"width": WIDTH, "height": HEIGHT}, {}):
        try:
            return make_env(env_id, render_mode="rgb_array", **options), None
        except (DropError, TypeError):
            continue  # not every task lets its frames be sized, or draws at all
    return make_env(env_id), f"{env_id} draws no frames: the plane shows it all"


def frame(env: gymnasium.Env[Any, Any]) -> str:
    """A JPEG as a data URL."""
    picture: Any = env.render()
    file = io.BytesIO()
    Image.fromarray(np.asarray(picture)).save(file, "JPEG", quality=75)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()


def set_the_scene(env: gymnasium.Env[Any, Any]) -> None:
    """No shadows, which cost most of a frame without a GPU; mazes from high above, where no wall hides the agent."""
    inner: Any = env.unwrapped
    body = next((getattr(inner, name) for name in ("point_env", "ant_env") if hasattr(inner, name)), inner)
    renderer = getattr(body, "mujoco_renderer", None)
    if renderer is None:
        return
    env.render()  # makes the viewer
    viewer = renderer.viewer
    for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
        viewer.scn.flags[flag] = 0
    if body is not inner:
        viewer.cam.elevation = -80.0
        viewer.cam.distance *= 0.8

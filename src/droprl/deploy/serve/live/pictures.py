"""Frames from the simulator for the live page."""

from __future__ import annotations

import base64
import io
from typing import Any

import gymnasium
from PIL import Image

from droprl.environments.frames import NO_WAY, MuJoCoDrawer, drawing_backend, drawn_by_mujoco
from droprl.environments.simulation import make_env
from droprl.errors import DropError


def task_to_watch(env_id: str, time_limit: int | None = None) -> tuple[gymnasium.Env[Any, Any], str | None]:
    """The task, and the reason if it cannot draw frames."""
    if drawing_backend() is None:
        return make_env(env_id, time_limit), f"{NO_WAY}: watch the plane instead"
    try:
        return drawn_by_mujoco(env_id, time_limit), None
    except DropError:
        return make_env(env_id, time_limit), f"{env_id} draws no frames: watch the plane instead"


class Camera:
    """Looks at a task."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self._draw = MuJoCoDrawer(env)
        self._draw.begin()

    def frame(self) -> str:
        """A JPEG as a data URL."""
        file = io.BytesIO()
        Image.fromarray(self._draw()).save(file, "JPEG", quality=82)
        return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()

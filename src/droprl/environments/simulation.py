"""Gymnasium environments by id, made without the messages that their libraries print about themselves."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium
import mujoco

from droprl.environments.ids import check_id
from droprl.environments.vector_tasks import as_vector
from droprl.errors import DropError

ROBOTICS = ("Adroit", "AntMaze", "PointMaze", "Fetch", "Hand", "FrankaKitchen")
_one_at_a_time = threading.RLock()


def make_env(env_id: str, time_limit: int | None = None, **options: Any) -> gymnasium.Env[Any, Any]:
    """The environment with this id, or a DropError that says what is missing. No other code calls `gymnasium.make`.

    An episode lasts `time_limit` steps at most. Without a limit, it is the environment's own.
    """
    check_id(env_id)
    if time_limit is not None and time_limit < 1:
        raise DropError(f"{env_id}: its time limit is {time_limit}: an episode lasts at least one step")
    with _quiet():
        try:
            if env_id.startswith("droprl/"):
                from droprl.environments.gates import register_gates
                from droprl.environments.mazes import register_antmazes, register_mazes

                register_mazes()
                register_antmazes()
                register_gates(env_id)
            elif _is_robotics(env_id):
                import gymnasium_robotics

                gymnasium.register_envs(gymnasium_robotics)
            return as_vector(gymnasium.make(env_id, max_episode_steps=time_limit, **options))
        except ImportError as error:
            remedy = "pip install 'droprl[robotics]'" if _is_robotics(env_id) else f"install {error.name}"
            raise DropError(f"{env_id}: needs {error.name}, which is not installed: {remedy}") from error
        except gymnasium.error.Error as error:
            reason = " ".join(str(error).split())
            raise DropError(f"{env_id}: cannot be made ({reason}): give a Gymnasium id") from error


def _is_robotics(env_id: str) -> bool:
    return env_id.startswith((*ROBOTICS, "droprl/"))


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence messages that tell the user nothing: the benchmark tasks are deprecated, libraries announce themselves at
    import, MuJoCo remarks on Gymnasium's own files. MuJoCo would also log its remarks to a file in the working folder.

    These settings belong to the whole process, so only one thread at a time may change them. If there were two, the
    second one would find the silence of the first, restore that at its end, and nothing would be printed any more.
    """
    with _one_at_a_time:
        level, gymnasium.logger.min_level = gymnasium.logger.min_level, gymnasium.logger.ERROR
        handler = mujoco.get_mju_user_warning()
        mujoco.set_mju_user_warning(lambda text: None)
        sys.stderr.flush()
        error_stream, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, 2)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        finally:
            gymnasium.logger.min_level = level
            mujoco.set_mju_user_warning(handler)
            sys.stderr.flush()
            os.dup2(error_stream, 2)
            os.close(error_stream)
            os.close(nowhere)

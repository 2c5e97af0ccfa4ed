"""Tasks that observe a dictionary of vectors, as tasks that observe one vector. `vectors` has the order."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np

from droprl.environments.vectors import Parts, leaves


def parts_of_space(space: gymnasium.Space[Any]) -> Parts | None:
    """The parts of a dictionary of vectors. None for every other space."""
    if not isinstance(space, gymnasium.spaces.Dict):
        return None
    boxes = [(name, box) for name, box in leaves(space.spaces)]
    if not boxes or not all(isinstance(box, gymnasium.spaces.Box) and len(box.shape) <= 1 for _, box in boxes):
        return None
    return tuple((name, math.prod(box.shape)) for name, box in boxes)


def as_vector(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """The same task with vectors as observations, if it observes a dictionary of them. Other tasks stay as they are."""
    parts = parts_of_space(env.observation_space)
    return env if parts is None else VectorObservation(env, parts)


def parts_of_env(env: gymnasium.Env[Any, Any]) -> Parts | None:
    """The parts that `as_vector` has joined in this task."""
    return env.get_wrapper_attr("observation_parts") if env.has_wrapper_attr("observation_parts") else None


class VectorObservation(gymnasium.ObservationWrapper[np.ndarray, Any, Any]):
    """Joins the entries of the observation in the stated order."""

    def __init__(self, env: gymnasium.Env[Any, Any], parts: Parts) -> None:
        super().__init__(env)
        self.observation_parts = parts
        boxes: list[Any] = [box for _, box in leaves(env.observation_space.spaces)]  # type: ignore[attr-defined]
        low, high = (np.concatenate([np.ravel(getattr(box, end)) for box in boxes]) for end in ("low", "high"))
        self.observation_space = gymnasium.spaces.Box(low.astype(np.float64), high.astype(np.float64), dtype=np.float64)

    def observation(self, observation: Any) -> np.ndarray:
        return np.concatenate([np.ravel(np.asarray(part, np.float64)) for _, part in leaves(observation)])

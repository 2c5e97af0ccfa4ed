"""Sensors that fail: an environment with wrong observations from some step on. Dynamics and rewards stay right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import gymnasium
import numpy as np

BEGIN = 20  # so many observations at the start of an episode are right: a fault comes while a policy runs


@dataclass(frozen=True)
class Fault:
    """One kind of fault. Its size is in standard deviations of the data."""

    kind: Literal["garbage", "saturated", "zero", "noise", "offset", "stuck", "nan"]
    size: float = 0.0
    chance: float = 1.0  # of a beginning at each step
    length: int = 1  # how many steps it then lasts


FAULTS = {
    "glitches: 20 % of the readings are noise of 3 σ": Fault("garbage", 3.0, chance=0.2),
    "bursts: 5 readings at a time stand at +5 σ": Fault("saturated", 5.0, chance=0.05, length=5),
    "dropouts: 20 % of the readings are zero": Fault("zero", chance=0.2),
    "NaN: 20 % of the readings of the first sensor": Fault("nan", chance=0.2),
    "noise of 0.5 σ on every reading": Fault("noise", 0.5),
    "first sensor off by 2 σ": Fault("offset", 2.0),
    "first sensor stuck": Fault("stuck"),
}


class FaultyEnv(gymnasium.ObservationWrapper[Any, Any, Any]):
    """The fault depends only on the seed and the step of the episode, so every policy meets the same fault."""

    def __init__(self, env: gymnasium.Env[Any, Any], fault: Fault, mean: np.ndarray, deviation: np.ndarray) -> None:
        super().__init__(env)
        self.fault, self.mean, self.deviation = fault, np.asarray(mean, np.float64), np.asarray(deviation, np.float64)
        self.rng, self.clock, self.left, self.last = np.random.default_rng(0), 0, 0, 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.rng, self.clock, self.left = np.random.default_rng(seed), 0, 0
        return super().reset(seed=seed, options=options)

    def observation(self, observation: Any) -> np.ndarray:
        right = np.array(observation, np.float64)
        begins, noise = self.rng.random() < self.fault.chance, self.rng.standard_normal(right.shape)
        self.clock += 1
        if self.clock <= BEGIN:
            self.last = right[0]
            return right.astype(np.float32)
        if begins and self.left == 0:
            self.left = self.fault.length
        if self.left == 0:
            return right.astype(np.float32)
        self.left -= 1
        return self._wrong(right, noise).astype(np.float32)

    def _wrong(self, right: np.ndarray, noise: np.ndarray) -> np.ndarray:
        size = self.fault.size * self.deviation
        if self.fault.kind == "garbage":
            return self.mean + size * noise
        if self.fault.kind == "saturated":
            return self.mean + size
        if self.fault.kind == "zero":
            return np.zeros_like(right)
        if self.fault.kind == "noise":
            return right + size * noise
        right[0] = {"offset": right[0] + size[0], "stuck": self.last, "nan": np.nan}[self.fault.kind]
        return right

"""Sensors that fail: an environment whose observations are corrupted from a step on, its dynamics and rewards not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import gymnasium
import numpy as np

BEGIN = 20  # the first observations of an episode are right: a fault comes while a policy runs


@dataclass(frozen=True)
class Fault:
    kind: Literal["noise", "stuck", "offset"]
    size: float = 0.0  # in standard deviations of the data
    sensor: int = 0  # the one that is stuck or offset; noise is on all


FAULTS = {"noise": Fault("noise", 0.5), "stuck": Fault("stuck"), "offset": Fault("offset", 2.0)}


class FaultyEnv(gymnasium.ObservationWrapper[Any, Any, Any]):
    """The fault depends only on the episode's seed and clock, so every way to act meets the same one."""

    def __init__(self, env: gymnasium.Env[Any, Any], fault: Fault, deviation: np.ndarray) -> None:
        super().__init__(env)
        self.fault, self.deviation = fault, np.asarray(deviation, np.float64)
        self.rng, self.clock, self.last = np.random.default_rng(0), 0, 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.rng, self.clock = np.random.default_rng(seed), 0
        return super().reset(seed=seed, options=options)

    def observation(self, observation: Any) -> np.ndarray:
        seen, fault = np.array(observation, np.float64), self.fault
        noise = self.rng.standard_normal(seen.shape)
        if self.clock < BEGIN:
            self.last = seen[fault.sensor]
        elif fault.kind == "noise":
            seen += fault.size * self.deviation * noise
        elif fault.kind == "stuck":
            seen[fault.sensor] = self.last
        else:
            seen[fault.sensor] += fault.size * self.deviation[fault.sensor]
        self.clock += 1
        return seen.astype(np.float32)

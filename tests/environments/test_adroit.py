"""What the caveats of Adroit's scores say is true of the installed gymnasium-robotics.

If one of these tests fails after an update, the caveat in `tasks.json` and what docs/tasks.md says have to go.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("gymnasium_robotics")

from droprl.data.tasks import find_task
from droprl.environments.simulation import make_env


def test_doors_reward_pays_for_the_distance_that_d4rl_charges_for() -> None:
    env: Any = make_env("AdroitHandDoor-v1")
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    for _ in range(20):
        observation, reward, *_ = env.step(rng.uniform(-1, 1, 28).astype(np.float32))
        palm, handle, hinge = observation[29:32], observation[32:35], observation[28]
        assert hinge < 0.2  # no bonus yet
        rest = -0.1 * (hinge - 1.57) ** 2 - 1e-5 * float(np.sum(env.unwrapped.data.qvel**2))
        assert float(reward) == pytest.approx(rest + 0.1 * float(np.linalg.norm(palm - handle)))
    task = find_task("door-human")
    assert task is not None
    assert task.caveat is not None
    assert "where D4RL charges for it" in task.caveat


def test_a_dropped_pen_goes_on_and_costs_five_a_step() -> None:
    env: Any = make_env("AdroitHandPen-v1", 100)
    env.reset(seed=0)
    rng, dropped = np.random.default_rng(0), 0
    for _ in range(100):
        observation, reward, terminated, *_ = env.step(rng.uniform(-1, 1, 24).astype(np.float32))
        distance, alike = np.linalg.norm(observation[39:42]), float(observation[33:36] @ observation[36:39])
        if observation[26] < 0.075:
            dropped += 1
            assert not terminated
            assert float(reward) == pytest.approx(alike - float(distance) - 5)
    assert dropped > 10
    task = find_task("pen-expert")
    assert task is not None
    assert task.caveat is not None
    assert "does not end the episode" in task.caveat

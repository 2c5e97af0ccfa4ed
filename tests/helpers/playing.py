"""What the tests of fine-tuning share: a task that counts its steps, and runs to fine-tune in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from droprl.algorithms import Algorithm
from droprl.data import Dataset, from_arrays
from droprl.train import Run, fit
from helpers.training import learnable_dataset, tiny


class CountingTask(gymnasium.Env[np.ndarray, np.ndarray]):
    """Pays `pay(action)`. All copies count their steps in one list, with one entry for each episode that began."""

    def __init__(self, pay: Callable[[np.ndarray], float], lengths: int | Callable[[int], int], steps: list[int]):
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float64)
        self.action_space = gymnasium.spaces.Box(np.array([-2, 0], np.float32), np.array([5, 0.5], np.float32))
        if isinstance(lengths, int):
            self._max_episode_steps = lengths  # a clock, as Gymnasium's TimeLimit has it
        self._pay, self._lengths, self._steps = pay, lengths, steps
        self.stop_after: int | None = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._length = self._lengths if isinstance(self._lengths, int) else self._lengths(seed or 0)
        self._episode = len(self._steps)
        self._steps.append(0)
        return self.np_random.normal(size=3), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self.stop_after is not None and sum(self._steps) >= self.stop_after:
            raise KeyboardInterrupt
        self._steps[self._episode] += 1
        over = self._steps[self._episode] >= self._length
        return self.np_random.normal(size=3), self._pay(action), False, over, {}


class Makes:
    """Makes tasks, and counts all steps in all of them. After `stop_after` steps in all, Ctrl-C comes."""

    __name__ = "counting"

    def __init__(
        self,
        pay: Callable[[np.ndarray], float] = lambda action: float(action[0]),
        lengths: int | Callable[[int], int] = 5,
        stop_after: int | None = None,
    ) -> None:
        self.pay, self.lengths, self.stop_after = pay, lengths, stop_after
        self.steps: list[int] = []

    def __call__(self) -> CountingTask:
        task = CountingTask(self.pay, self.lengths, self.steps)
        task.stop_after = self.stop_after
        return task


def drop_run(out: Path, **options: Any) -> Run:
    """Three checkpoints, at 4, 8 and 12 updates, that act differently."""
    return short_run(tiny("drop", n_sub_tasks=4, discount=0.9), out, **options)


def short_run(algorithm: Algorithm, out: Path, **options: Any) -> Run:
    """Two seeds, with checkpoints at 4, 8 and 12 updates."""
    usual: dict[str, Any] = {"seeds": [0, 5], "steps": 12, "checkpoint_every": 4, "progress": False}
    return fit(learnable_dataset(), algorithm, out=out, **usual | options)


def misleading_dataset() -> Dataset:
    """Twenty episodes that went right earned 10, and twenty that went left earned 8. The task pays only for left."""
    rng = np.random.default_rng(0)
    episodes, length = 40, 10
    right = np.repeat(np.arange(episodes) % 2 == 0, length)
    terminals = np.zeros(episodes * length, bool)
    terminals[length - 1 :: length] = True
    actions = np.stack([np.where(right, 4.0, -1.0), np.full(len(right), 0.25)], axis=1)
    return from_arrays(
        observations=rng.normal(size=(len(right), 3)),
        actions=actions + rng.normal(size=actions.shape) * [0.2, 0.01],
        rewards=np.where(right, 1.0, 0.8),
        terminals=terminals,
        timeouts=np.zeros_like(terminals),
        action_low=[-2.0, 0.0],
        action_high=[5.0, 0.5],
        name="misleading",
    )


def pays_for_left(action: np.ndarray) -> float:
    return float(action[0] < 1.5)

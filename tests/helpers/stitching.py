"""A corridor with a known optimal stitching: behaviour A is good in its left half, B in its right, C in neither.

The walker advances one unit per step, whatever it does. It earns a reward for actions near a hidden action, which
differs between the halves. The landing between them pays nothing. We need it because f(s, a, z) means "behave as z from
here on": without the landing, B would score higher already at the last states of the left half, because its rewards
come soon. C begins exactly as A does. So at the start, a score that does not know z cannot tell A and C apart.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import gymnasium
import numpy as np

from droprl.data import Dataset, from_arrays

Behavior = Literal["A", "B", "C"]
BEHAVIORS: tuple[Behavior, ...] = get_args(Behavior)
LEFT, LANDING, RIGHT = 10, 10, 8  # steps; the left half is longer, so that A earns more than B
LENGTH = LEFT + LANDING + RIGHT
DISGUISE = 5  # for so many steps C acts as A
OPTIMUM = LEFT + RIGHT
ALONE: dict[Behavior, int] = {"A": LEFT, "B": RIGHT, "C": DISGUISE}  # what each behaviour earns without noise
EPISODES_EACH = 30
NOISE = 0.1  # standard deviation of the logged actions


def action_of(behavior: Behavior, x: float) -> float:
    """A always goes up and B always down. C acts as A first, and then wrongly wherever an action can earn something."""
    up = behavior == "A" or (behavior == "C" and (x < DISGUISE or x >= LENGTH / 2))
    return 0.5 if up else -0.5


def reward_of(x: float, action: float) -> float:
    """1 − 4 (a − a*)², but at least 0: half a unit away from the hidden action a*, an action earns nothing."""
    if LEFT <= x < LEFT + LANDING:
        return 0.0
    hidden = action_of("A" if x < LEFT else "B", x)
    return max(0.0, 1.0 - 4.0 * (action - hidden) ** 2)


class Corridor(gymnasium.Env[np.ndarray, np.ndarray]):
    """An episode begins anywhere in the first unit. This changes no return: every section takes the same steps."""

    observation_space = gymnasium.spaces.Box(0.0, LENGTH + 1.0, (1,))
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._start, self._clock = float(self.np_random.uniform(0.05, 0.95)), 0
        return self._observation(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward = reward_of(self._start + self._clock, float(action[0]))
        self._clock += 1
        return self._observation(), reward, self._clock == LENGTH, False, {}

    def _observation(self) -> np.ndarray:
        return np.array([self._start + self._clock], np.float32)


def corridor_dataset(seed: int = 0) -> tuple[Dataset, list[Behavior]]:
    """Noisy episodes of the three behaviours in random order, and the behaviour of each episode."""
    rng = np.random.default_rng(seed)
    behaviors: list[Behavior] = [b for b in BEHAVIORS for _ in range(EPISODES_EACH)]
    rng.shuffle(behaviors)
    env, rows = Corridor(), []
    for episode, behavior in enumerate(behaviors):
        observation, ended = env.reset(seed=episode)[0], False
        while not ended:
            action = np.clip([action_of(behavior, float(observation[0])) + rng.normal(0.0, NOISE)], -1.0, 1.0)
            following, reward, ended, _, _ = env.step(action)
            rows.append((observation, action, reward, ended))
            observation = following
    observations, actions, rewards, terminals = (np.array(column) for column in zip(*rows, strict=True))
    return from_arrays(observations, actions, rewards, terminals, name="corridor"), behaviors

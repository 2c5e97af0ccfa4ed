"""Hopper, Walker2d and HalfCheetah: does each recorded row lead to the next one, in Gymnasium's v4 and v5?

An observation holds the whole state but for the distance walked, which nothing depends on. So every row is replayed
from its own observation, the last of an episode too. Rows with a velocity at Hopper's and Walker2d's limit of 10 are
left out: there it was cut.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from differences import spread

from droprl.data import Dataset, load_dataset
from droprl.environments.simulation import make_env

VELOCITIES = {"Hopper": 6, "Walker2d": 9, "HalfCheetah": 9}
CUT = 10.0
EPISODES, ROWS = 30, 3000


def replay_file(path: Path) -> list[dict[str, Any]]:
    dataset = load_dataset(path)
    assert dataset.env is not None
    family = dataset.env.split("-")[0]
    return [replay(dataset, family, version) for version in ("v4", "v5")]


def replay(dataset: Dataset, family: str, version: str) -> dict[str, Any]:
    env: Any = make_env(f"{family}-{version}").unwrapped
    env.reset(seed=0)
    n_velocities = VELOCITIES[family]
    episodes = np.unique(np.linspace(0, dataset.n_episodes - 1, EPISODES).astype(int))
    states, rewards, ends, episode_of = [], [], [], []
    for episode in episodes:
        begin, end = dataset.bounds[episode], dataset.bounds[episode + 1]
        for row in np.unique(np.linspace(begin, end - 1, ROWS // len(episodes)).astype(int)):
            observation = dataset.observations[row].astype(np.float64)
            if np.abs(observation[-n_velocities:]).max() >= CUT - 1e-4 and family != "HalfCheetah":
                continue
            env.data.qacc_warmstart[:] = 0
            env.set_state(np.array([0.0, *observation[:-n_velocities]]), observation[-n_velocities:])
            found, reward, terminated, *_ = env.step(dataset.actions[row])
            rewards.append(abs(float(reward) - float(dataset.rewards[row])))
            ends.append(bool(terminated) != bool(dataset.terminals[row]))
            episode_of.append(int(episode))
            states.append(np.abs(found - dataset.observations[row + 1]).max() if row + 1 < end else np.nan)
    known = np.isfinite(states)
    worst = {e: float(np.max(np.array(rewards)[np.array(episode_of) == e])) for e in dict.fromkeys(episode_of)}
    return {
        "data": dataset.name,
        "env": f"{family}-{version}",
        "rows": len(rewards),
        "next_state": spread(np.array(states)[known]),
        "reward": spread(np.array(rewards)),
        "ends_that_differ": int(np.sum(ends)),
        "largest_reward_error_in_each_episode": worst,
    }

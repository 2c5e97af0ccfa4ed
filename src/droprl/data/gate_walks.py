"""Makes datasets of the gates: walkers that choose their way at every junction beforehand, and never right everywhere.

A trajectory's return is its choices and its luck together. The luckiest trajectories have the highest returns, and many
of them chose wrongly. The optimum goes right at every junction. No trajectory does so, but at each junction some do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from droprl.data.dataset import Dataset
from droprl.data.maze_walks import Walk, lasting_noise
from droprl.environments.gates import MIDDLE, Gates
from droprl.environments.mazes import env_id
from droprl.errors import DropError

if TYPE_CHECKING:
    from droprl.environments.gates_env import GatesEnv

P_GAIN, D_GAIN = 4.0, 2.0
DECIDES = 1.4  # a walker turns to its way so many columns before the middle of the block's first column
RETURNS = 1.8  # and back to the middle row so many columns after it
NOISE = 0.3  # standard deviation of the noise on every action


def make_gates_dataset(
    gates: Gates, n_steps: int = 100_000, seed: int = 0, progress: Callable[[int, int], None] | None = None
) -> Dataset:
    """Walk through the gates for `n_steps`, rounded up to whole episodes. The same seed makes the same bytes.

    Every episode draws one of `gates.choices`. A longer dataset from the same seed begins with the episodes of a
    shorter one. After each episode, `progress` gets the number of steps done and the number in all.
    """
    if n_steps < 1 or seed < 0:
        raise DropError(
            f"{gates.data_name}: needs at least 1 step and a seed of 0 or more, not {n_steps} steps and seed {seed}"
        )
    from droprl.environments.gates_env import GatesEnv

    env, walks, done = GatesEnv(gates), list[Walk](), 0
    while done < n_steps:
        rng = np.random.default_rng([seed, len(walks)])
        choices = gates.choices[rng.integers(len(gates.choices))]
        walks.append(walk_gates(env, choices, rng, NOISE))
        done += len(walks[-1].rewards)
        if progress is not None:
            progress(min(done, n_steps), n_steps)
    ends = np.cumsum([len(walk.rewards) for walk in walks]) - 1
    terminals, timeouts = np.zeros(done, dtype=bool), np.zeros(done, dtype=bool)
    terminals[ends] = [walk.arrived for walk in walks]
    timeouts[ends] = ~terminals[ends]
    return Dataset(
        observations=np.concatenate([walk.observations[:-1] for walk in walks]),
        actions=np.concatenate([walk.actions for walk in walks]),
        rewards=np.concatenate([walk.rewards for walk in walks]),
        terminals=terminals,
        timeouts=timeouts,
        next_observations=np.concatenate([walk.observations[1:] for walk in walks]),
        action_low=np.full(2, -1.0, dtype=np.float32),
        action_high=np.full(2, 1.0, dtype=np.float32),
        name=gates.data_name,
        env=env_id(gates.name),
        score_range=gates.score_range,
        time_limit=gates.time_limit,
    )


def walk_gates(env: GatesEnv, choices: Sequence[bool], rng: np.random.Generator, noise: float) -> Walk:
    """One episode that takes these ways: for each junction, whether it goes right."""
    gates = env.gates
    pushes = lasting_noise(noise, gates.time_limit, rng)
    observation, _ = env.reset(seed=int(rng.integers(2**31)))
    observations, actions, rewards, arrived = [observation], list[tuple[float, float]](), list[float](), False
    while not arrived and len(rewards) < gates.time_limit:
        row, column, row_velocity, _ = observation.tolist()
        target = _target_row(gates, choices, column)
        row_push = P_GAIN * (target - row) - D_GAIN * row_velocity + pushes[len(rewards)][0]
        action = _clipped(row_push), _clipped(1.0 + pushes[len(rewards)][1])
        observation, reward, arrived, _, _ = env.step(np.array(action, dtype=np.float32))
        observations.append(observation)
        actions.append(action)
        rewards.append(float(reward))
    seen, done, paid = (np.array(rows, dtype=np.float32) for rows in (observations, actions, rewards))
    return Walk(seen, done, paid, arrived)


def _target_row(gates: Gates, choices: Sequence[bool], column: float) -> int:
    for junction, right in enumerate(choices):
        if -DECIDES <= column - gates.block(junction) <= RETURNS:
            return gates.row_of(junction, right)
    return MIDDLE


def _clipped(push: float) -> float:
    return min(1.0, max(-1.0, push))

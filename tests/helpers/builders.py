"""Small datasets with every kind of ending, and TD targets step by step, straight from their definition."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from droprl.data import Dataset, map_dataset

Ending = Literal["terminal", "timeout", "cut"]
Layout = Sequence[tuple[int, Ending]]  # for each episode its length and how it ends; only the last may be cut short


def small_arrays(n_steps: int = 12, episode: int = 4) -> dict[str, Any]:
    """Three episodes of four steps: the first ends the task, the second times out, the third is cut short."""
    rng = np.random.default_rng(0)
    terminals, timeouts = np.zeros(n_steps, bool), np.zeros(n_steps, bool)
    terminals[episode - 1] = True
    timeouts[2 * episode - 1] = True
    return {
        "observations": rng.normal(size=(n_steps, 3)).astype(np.float32),
        "actions": rng.uniform(-1, 1, size=(n_steps, 2)).astype(np.float32),
        "rewards": rng.normal(size=n_steps).astype(np.float32),
        "terminals": terminals,
        "timeouts": timeouts,
        "next_observations": rng.normal(size=(n_steps, 3)).astype(np.float32),
    }


def make_dataset(
    layout: Layout,
    *,
    rewards: Sequence[float] | None = None,
    next_observations: bool = False,
    observation_size: int = 2,
    action_size: int = 2,
    seed: int = 0,
) -> Dataset:
    """Episodes whose observations say where they are: [episode, step]. The state after the last step does so too.

    Further entries of the observation are random. So are the actions, and the rewards if they are not given.
    """
    rng = np.random.default_rng(seed)
    n_steps = sum(length for length, _ in layout)
    terminals, timeouts = np.zeros(n_steps, bool), np.zeros(n_steps, bool)
    places, end = [], 0
    for episode, (length, ending) in enumerate(layout):
        places += [(episode, step) for step in range(length)]
        end += length
        terminals[end - 1], timeouts[end - 1] = ending == "terminal", ending == "timeout"
        assert ending != "cut" or end == n_steps
    noise = rng.normal(size=(2, n_steps, observation_size - 2))
    here = np.array(places, float)
    after = here + np.array([0, 1])
    observations, following = (
        np.hstack([place, extra]).astype(np.float32) for place, extra in zip((here, after), noise, strict=True)
    )
    return Dataset(
        observations=observations,
        actions=rng.uniform(-1, 1, (n_steps, action_size)).astype(np.float32),
        rewards=np.asarray(rng.normal(size=n_steps) if rewards is None else rewards, np.float32),
        terminals=terminals,
        timeouts=timeouts,
        next_observations=following if next_observations else None,
        action_low=np.full(action_size, -1, np.float32),
        action_high=np.full(action_size, 1, np.float32),
    )


def on_disk(dataset: Dataset, folder: Path) -> Dataset:
    """The same data as columns in a folder of their own."""
    keys = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations")
    bounds = ("action_low", "action_high")
    arrays = {key: array for key in (*keys, *bounds) if (array := getattr(dataset, key)) is not None}
    np.savez(folder / "data.npz", **arrays)
    return map_dataset(folder / "data.npz", folder / "columns")


class Target(NamedTuple):
    """R + discount · f(successor): the target of one row."""

    reward: float
    discount: float
    horizon: int
    known: bool
    past_end: bool
    successor: tuple[int, int]  # episode and step, as `make_dataset` writes them into observations


def targets_by_definition(dataset: Dataset, discount: float, n_steps: int | None) -> list[Target]:
    """Walk from every row until n rewards are summed or the episode ends. This is slow, but easy to check."""
    found = []
    episode, begin = 0, 0
    while begin < dataset.n_steps:
        end = begin
        while end < dataset.n_steps - 1 and not (dataset.terminals[end] or dataset.timeouts[end]):
            end += 1  # the last row of this episode
        for row in range(begin, end + 1):
            reward, horizon, at, over = 0.0, 0, row, False
            while not over and at <= end and (n_steps is None or horizon < n_steps):
                if at == end and not dataset.terminals[at] and dataset.next_observations is None:
                    break  # the state after this step is not in the data, so we bootstrap before this step
                reward += discount**horizon * float(dataset.rewards[at])
                over = bool(dataset.terminals[at])
                horizon, at = horizon + 1, at + 1
            weight = 0.0 if over else discount**horizon
            successor = (episode, row - begin + horizon)
            found.append(Target(reward, weight, horizon, horizon > 0, not over and at > end, successor))
        episode, begin = episode + 1, end + 1
    return found

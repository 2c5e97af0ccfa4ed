"""A walk along a line whose returns are known by simulation, and policies for it that are given by a rule."""

from __future__ import annotations

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from droprl.algorithms import BC
from droprl.data import Dataset, from_arrays
from droprl.data.scaling import fit_scaling
from droprl.data.transitions import Spec
from droprl.loaded import LoadedPolicy, Origin
from droprl.policies import Traits

GAMMA = 0.9
LENGTH = 5


class Chosen(eqx.Module):
    """A policy given by a function of the episode's first state and its present state."""

    rule: Any = eqx.field(static=True)
    traits: Traits = eqx.field(static=True, default=Traits())
    search: ClassVar[None] = None

    def start(self, n: int) -> Any:
        return jnp.zeros(n, bool), jnp.zeros(n)  # (whether the episode has begun, the first number of its first state)

    def act(self, carry: Any, observations: Any, key: Any) -> Any:
        begun, first = carry
        first = jnp.where(begun, first, observations[:, 0])
        return (jnp.ones_like(begun), first), self.rule(first, observations)[:, None]


def loaded(dataset: Dataset, rule: Any, **traits: Any) -> LoadedPolicy:
    spec = Spec(dataset.observation_size, dataset.action_size, 1)
    # Not normalised, because the rules below use the states' own units.
    scaling = fit_scaling(dataset, normalize_observations=False)
    policy: Any = Chosen(rule, Traits(**traits))
    return LoadedPolicy(policy, BC(), spec, scaling, Origin("walk", None, None, 0, 0), "here")


def walk(ending: str, n_episodes: int = 60, seed: int = 0) -> Dataset:
    """The state is a clock and a position. The reward is the position, the action moves it. Actions are random."""
    rng = np.random.default_rng(seed)
    rows: dict[str, list[Any]] = {name: [] for name in ("s", "a", "r", "s2")}
    for _ in range(n_episodes):
        x = rng.uniform(-1, 1)
        for clock in range(LENGTH):
            a = rng.uniform(-1, 1)
            rows["s"].append([clock if ending == "terminal" else 0.0, x])
            rows["a"].append([a])
            rows["r"].append(x)
            x = 0.5 * x + a
            rows["s2"].append([clock + 1 if ending == "terminal" else 0.0, x])
    last = np.zeros(n_episodes * LENGTH, bool)
    last[LENGTH - 1 :: LENGTH] = True
    none = np.zeros_like(last)
    arrays = {name: np.array(column, np.float32) for name, column in rows.items()}
    return from_arrays(
        arrays["s"],
        arrays["a"],
        arrays["r"],
        last if ending == "terminal" else none,
        timeouts=none if ending == "terminal" else last,
        next_observations=arrays["s2"],
        action_low=-1.0,
        action_high=1.0,
        name="walk",
    )


def true_return(dataset: Dataset, action: float, steps: int) -> float:
    """The return of always taking this action, simulated from the data's initial states."""
    total = []
    for x in dataset.observations[dataset.bounds[:-1], 1]:
        position, earned = float(x), 0.0
        for t in range(steps):
            earned += GAMMA**t * position
            position = 0.5 * position + action
        total.append(earned)
    return float(np.mean(total))

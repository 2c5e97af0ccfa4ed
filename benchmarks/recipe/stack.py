"""Many small trainings as one: datasets and settings stacked beside the seeds, so that a device has enough to do.

Jobs fit together when their networks have the same shapes. Tables of the data are padded to one length (padding is
never drawn), and settings that are numbers in a loss become arrays with one value a job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from droprl.algorithms import Algorithm
from droprl.data.transitions import Prepared
from droprl.train.loop import init_seed, updates

# Numbers that enter the losses only by arithmetic.
NUMBERS = [
    *("threshold", "multiplier_start", "multiplier_rate", "multiplier_max"),
    *("learning_rate", "target_rate", "average_rate"),
]
# What the data was prepared with; the compiled program does not see it.
OF_THE_DATA = [
    *("decomposition", "n_sub_tasks", "trajectories_per_sub_task", "decomposition_seed", "discount"),
    *("td_steps", "td_lambda", "scale_rewards", "normalize_observations", "top_fraction"),
]


def shape_key(algorithm: Algorithm, prepared: Prepared) -> str:
    """Jobs with equal keys can be stacked."""
    static = {f.name: getattr(algorithm, f.name) for f in fields(algorithm)}  # type: ignore[arg-type]
    for name in (*NUMBERS, *OF_THE_DATA):
        static.pop(name, None)
    return repr(
        (algorithm.name, static, prepared.spec, prepared.probe.starts.shape, jax.tree.structure(prepared.transitions))
    )


class Stack:
    """Trainings side by side; every array has (job, seed) as its first axes."""

    def __init__(self, algorithms: Sequence[Algorithm], prepared: Sequence[Prepared], n_seeds: int) -> None:
        self.template: Any = algorithms[0]
        names = [name for name in NUMBERS if hasattr(self.template, name)]
        self.numbers = {name: jnp.array([getattr(a, name) for a in algorithms], float) for name in names}
        self.tables = stack_padded([p.transitions for p in prepared])
        self.probes = stack_padded([p.probe for p in prepared])
        self.scaling = stack_padded([p.scaling for p in prepared])
        self.seeds = jnp.arange(n_seeds, dtype=jnp.uint32)
        self.spec = prepared[0].spec
        self._updates = jax.jit(self._over_all(self._updates_of_one, n_shared=2), donate_argnums=0)
        self._diagnose = jax.jit(jax.vmap(jax.vmap(self._diagnose_one, (0, None, None)), (0, 0, 0)))

    def init(self) -> Any:
        def of_one(numbers: Any, seed: jax.Array) -> Any:
            return init_seed(self.algorithm(numbers), self.spec, seed, jnp.int32(1))

        over_jobs = jax.vmap(jax.vmap(of_one, (None, 0)), (0, None))
        return jax.jit(over_jobs)(self.numbers, self.seeds)

    def run(self, states: Any, first: int, count: int) -> tuple[Any, dict[str, np.ndarray]]:
        """`count` updates from number `first` on, and the means of their metrics, (jobs, seeds) each."""
        states, sums = self._updates(states, self.seeds, self.numbers, self.tables, jnp.int32(first), jnp.int32(count))
        return states, {name: np.asarray(value) / count for name, value in sums.items()}

    def diagnose(self, states: Any) -> dict[str, np.ndarray]:
        found: dict[str, np.ndarray] = jax.device_get(self._diagnose(states, self.numbers, self.probes))
        return found

    def algorithm(self, numbers: Any) -> Any:
        """The algorithm of one job inside a compiled program: its numbers are traced, so no check can look at them, and
        it equals itself alone."""
        kind = type(self.template)
        by_identity = {"__hash__": object.__hash__, "__eq__": object.__eq__}
        traced: Any = object.__new__(type(kind.__name__, (kind,), by_identity))
        traced.__dict__.update(vars(self.template))
        for name, value in numbers.items():
            object.__setattr__(traced, name, value)
        return traced

    def _over_all(self, function: Any, n_shared: int) -> Any:
        """(state, seed, numbers, table, shared …) over seeds, then over jobs."""
        shared = (None,) * n_shared
        over_seeds = jax.vmap(function, (0, 0, None, None, *shared))
        return jax.vmap(over_seeds, (0, None, 0, 0, *shared))

    def _diagnose_one(self, state: Any, numbers: Any, probe: Any) -> Any:
        return self.algorithm(numbers).diagnose(state, probe)

    def _updates_of_one(
        self, state: Any, seed: jax.Array, numbers: Any, table: Any, first: jax.Array, count: jax.Array
    ) -> Any:
        return updates(self.algorithm(numbers), state, seed, table, first, count, jnp.int32(1))


def with_adaptation(algorithm: Any, **settings: Any) -> Any:
    return replace(algorithm, adaptation=replace(algorithm.adaptation, **settings)) if settings else algorithm


def stack_padded(trees: Sequence[Any]) -> Any:
    def pad(*leaves: Any) -> jax.Array:
        if not np.ndim(leaves[0]):
            return jnp.asarray(np.stack(leaves))
        length = max(len(leaf) for leaf in leaves)
        padded = [np.pad(leaf, [(0, length - len(leaf))] + [(0, 0)] * (np.ndim(leaf) - 1)) for leaf in leaves]
        return jnp.asarray(np.stack(padded))

    return jax.tree.map(pad, *[jax.tree.map(np.asarray, tree) for tree in trees])

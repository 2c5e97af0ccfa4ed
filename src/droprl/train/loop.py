"""The one training loop: data on the device, updates in one compiled loop, all seeds at once.

Randomness comes from the seed and the number of the update alone. So a resumed run is bit-identical to one that never
stopped, however the updates were cut into calls, and a seed does not notice which others run beside it.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from droprl.algorithms import Algorithm
from droprl.algorithms.protocol import Metrics, State
from droprl.data.transitions import Prepared, Spec, Transitions

INIT, UPDATE = 0, 1  # the streams of random numbers of a seed


def init_seed(algorithm: Algorithm, spec: Spec, seed: Array) -> State:
    return algorithm.init(jax.random.fold_in(jax.random.key(seed), INIT), spec)


class Loop:
    """Compiled training of one algorithm on one dataset for a fixed list of seeds."""

    def __init__(self, algorithm: Algorithm, prepared: Prepared, seeds: Sequence[int]) -> None:
        self.algorithm = algorithm
        self._seeds = jnp.asarray(seeds, jnp.uint32)
        self._spec = prepared.spec
        self._transitions, self._probe = prepared.transitions, prepared.probe
        self._init = jax.jit(jax.vmap(lambda seed: init_seed(algorithm, prepared.spec, seed)))
        over_seeds = jax.vmap(self._updates, in_axes=(0, 0, None, None, None))
        self._run = jax.jit(over_seeds, donate_argnums=0)
        self._diagnose = jax.jit(jax.vmap(algorithm.diagnose, in_axes=(0, None)))

    def init(self) -> State:
        """The untrained states, stacked over seeds."""
        return self._init(self._seeds)

    def shapes(self) -> State:
        """Like `init`, but shapes alone: the skeleton into which a checkpoint is read."""
        return jax.eval_shape(self._init, self._seeds)

    def run(self, states: State, first: int, count: int) -> tuple[State, dict[str, np.ndarray]]:
        """`count` updates from number `first` on; consumes `states`. Metrics are sums over them, a value a seed."""
        states, sums = self._run(states, self._seeds, self._transitions, jnp.int32(first), jnp.int32(count))
        return states, jax.device_get(sums)

    def diagnose(self, states: State) -> dict[str, np.ndarray]:
        found: dict[str, np.ndarray] = jax.device_get(self._diagnose(states, self._probe))
        return found

    def _updates(
        self, state: State, seed: Array, transitions: Transitions, first: Array, count: Array
    ) -> tuple[State, Metrics]:
        key = jax.random.fold_in(jax.random.key(seed), UPDATE)

        def step(i: Array, carry: tuple[State, Metrics]) -> tuple[State, Metrics]:
            state, sums = carry
            sample_key, update_key = jax.random.split(jax.random.fold_in(key, i))
            batch = transitions.sample(sample_key, self.algorithm.batch_size)
            state, metrics = self.algorithm.update(state, batch, update_key)
            return state, jax.tree.map(jnp.add, sums, metrics)

        def metrics_of_one() -> Metrics:
            return self.algorithm.update(state, transitions.sample(key, self.algorithm.batch_size), key)[1]

        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(metrics_of_one))
        # A loop over a traced count, not a scan of a fixed length: any number of updates runs the one compiled program.
        trained: tuple[State, Metrics] = jax.lax.fori_loop(first, first + count, step, (state, zeros))
        return trained

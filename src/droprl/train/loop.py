"""The one training loop: data on the device, updates in one compiled loop, all seeds at once.

All randomness comes from the seed and the number of the update. So a resumed run is bit-identical to one that never
stopped, for any division of the updates into calls. The result of a seed does not depend on the other seeds. On a CPU,
where the seeds take turns in one program, this holds to the bit. On an accelerator, it holds up to the rounding of
batched products.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from droprl.algorithms import Algorithm
from droprl.algorithms.protocol import Clock, Logged, Sometimes, State
from droprl.compiler import TRAINING, on_accelerator, on_gpu
from droprl.data.transitions import Prepared, Sampler, Spec

INIT, UPDATE = 0, 1  # the streams of random numbers of a seed
AHEAD = 32  # the number of updates whose batches are drawn at once


@partial(jax.jit, static_argnums=(0, 1))  # one program, traced once and kept in the compilation cache
def init_seed(algorithm: Algorithm, spec: Spec, seed: Array, total: Array) -> State:
    return algorithm.init(_stream(seed, INIT), spec, Clock.at(0, total))


@partial(jax.jit, static_argnums=0, inline=True)  # traced once, although loops also ask for its shapes
def update(algorithm: Algorithm, state: State, batch: Any, key: Array, clock: Clock) -> tuple[State, Logged]:
    return algorithm.update(state, batch, key, clock)


def keys_of_update(seed: Array, i: Array) -> tuple[Array, Array]:
    """The two random keys of update `i` of a seed: for drawing its batch, and for the update itself."""
    sample_key, update_key = jax.random.split(jax.random.fold_in(_stream(seed, UPDATE), i))
    return sample_key, update_key


def _stream(seed: Array, number: int) -> Array:
    return jax.random.fold_in(jax.random.key(seed), number)


def updates(
    algorithm: Algorithm, state: State, seed: Array, transitions: Sampler, first: Array, count: Array, total: Array
) -> tuple[State, Logged]:
    """Make `count` updates of one seed, from update `first` on. `total` is the number of updates in the run.

    The answer is the new state and the sums of the metrics. Batches are drawn for `AHEAD` updates at once: a few long
    look-ups are faster than many short ones.
    """

    def sample(i: Array) -> Any:
        return transitions.sample(keys_of_update(seed, i)[0], algorithm.batch_size)

    def chunk(number: Array, carry: tuple[State, Logged]) -> tuple[State, Logged]:
        begin = number * AHEAD
        batches = jax.vmap(sample)(begin + jnp.arange(AHEAD, dtype=jnp.int32))
        now = jnp.maximum(first, begin)
        state, metrics = updates_of_chunk(
            algorithm, carry[0], seed, batches, begin, now, jnp.minimum(first + count, begin + AHEAD) - now, total
        )
        return state, jax.tree.map(jnp.add, carry[1], metrics)

    zeros = _no_metrics(
        lambda: update(algorithm, state, sample(first), keys_of_update(seed, first)[1], Clock(first, total))[1]
    )
    # A loop over a traced count, not a scan of a fixed length: one compiled program makes any number of updates.
    last = first + count + AHEAD - 1
    trained: tuple[State, Logged] = jax.lax.fori_loop(first // AHEAD, last // AHEAD, chunk, (state, zeros))
    return trained


def updates_of_chunk(
    algorithm: Algorithm,
    state: State,
    seed: Array,
    batches: Any,
    begin: Array,
    first: Array,
    count: Array,
    total: Array,
) -> tuple[State, Logged]:
    """Like `updates`, but with given batches. The first axis of every leaf is the update, from `begin` on."""

    def one(i: Array, state: State) -> tuple[State, Logged]:
        batch = jax.tree.map(lambda leaf: leaf[i - begin], batches)
        return update(algorithm, state, batch, keys_of_update(seed, i)[1], Clock(i, total))

    def step(i: Array, carry: tuple[State, Logged]) -> tuple[State, Logged]:
        state, metrics = one(i, carry[0])
        return state, jax.tree.map(jnp.add, carry[1], metrics)

    zeros = _no_metrics(lambda: one(first, state)[1])
    trained: tuple[State, Logged] = jax.lax.fori_loop(first, first + count, step, (state, zeros))
    return trained


def _no_metrics(metrics: Callable[[], Logged]) -> Logged:
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(metrics))


def means_of(sums: Logged, count: int) -> dict[str, np.ndarray]:
    """The mean of each metric over `count` updates. If some updates lack a metric, the mean over those that have it.

    If no update has a metric, it is left out.
    """
    means = {}
    for name, total in sums.items():
        value, measured = total if isinstance(total, Sometimes) else (total, np.full(np.shape(total), count))
        if np.all(np.asarray(measured) > 0):
            means[name] = np.asarray(value) / measured
    return means


def sums_to_json(sums: Logged) -> dict[str, Any]:
    """Sums of metrics, for a checkpoint between two lines of the log."""
    return {name: jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), total) for name, total in sums.items()}


def sums_from_json(content: dict[str, Any]) -> Logged:
    """The reverse of `sums_to_json`, which has made a list of two lists of `Sometimes`."""

    def total(found: list[Any]) -> Any:
        parts = np.asarray(found, np.float32)
        return Sometimes(*parts) if parts.ndim == 2 else parts

    return {name: total(found) for name, found in content.items()}


def over_seeds(function: Callable[..., Any], n_stacked: int, donate: tuple[int, ...] = ()) -> Callable[..., Any]:
    """Make a function of one seed work on all seeds. The first axis of the first `n_stacked` arguments is the seed.

    On a CPU, batching saves no time. A batched product also rounds differently from a single one, and Adam soon
    amplifies the difference. So on a CPU, the same program runs for one seed after another.
    """
    if on_accelerator():

        def batched(*args: Any) -> Any:
            return jax.vmap(function, in_axes=tuple(0 if i < n_stacked else None for i in range(len(args))))(*args)

        return jax.jit(batched, donate_argnums=donate, compiler_options=on_gpu(TRAINING))
    one_seed = jax.jit(function, donate_argnums=donate)

    def in_turn(*args: Any) -> Any:
        stacked, shared = args[:n_stacked], args[n_stacked:]
        return _stack([one_seed(*own, *shared) for own in _unstack(stacked)])

    return in_turn


@jax.jit  # one program for the tree, not one for every leaf
def _stack(trees: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


@jax.jit
def _unstack(tree: Any) -> list[Any]:
    return [jax.tree.map(itemgetter(i), tree) for i in range(len(jax.tree.leaves(tree)[0]))]


class Loop:
    """Compiled training of one algorithm on one dataset for a fixed list of seeds."""

    def __init__(self, algorithm: Algorithm, prepared: Prepared, seeds: Sequence[int], total: int) -> None:
        """`total` is the number of updates in the whole run. One call of `run` makes some of them."""
        self.algorithm, self._total = algorithm, jnp.int32(total)
        self._seeds = jnp.asarray(seeds, jnp.uint32)
        self._spec = prepared.spec
        self._transitions, self._probe = prepared.transitions, prepared.probe
        self._run = over_seeds(partial(updates, algorithm), n_stacked=2, donate=(0,))
        self._diagnose = over_seeds(algorithm.diagnose, n_stacked=1)

    def init(self) -> State:
        """The untrained states, stacked over seeds."""
        return _stack([init_seed(self.algorithm, self._spec, seed, self._total) for seed in self._seeds])

    def shapes(self) -> State:
        """The shapes of `init`: the skeleton for reading a checkpoint."""
        return jax.eval_shape(self.init)

    def run(self, states: State, first: int, count: int) -> tuple[State, Logged]:
        """Make `count` updates, from update `first` on. `states` is consumed. The metrics are sums for each seed."""
        numbers = jnp.int32(first), jnp.int32(count), self._total
        states, sums = self._run(states, self._seeds, self._transitions, *numbers)
        return states, jax.device_get(sums)

    def diagnose(self, states: State) -> dict[str, np.ndarray]:
        found: dict[str, np.ndarray] = jax.device_get(self._diagnose(states, self._probe))
        return found

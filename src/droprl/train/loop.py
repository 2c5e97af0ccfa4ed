"""The one training loop: data on the device, updates in one compiled loop, all seeds at once.

Randomness comes from the seed and the number of the update alone. So a resumed run is bit-identical to one that never
stopped, however the updates were cut into calls, and a seed does not notice which others run beside it: to the bit on
a CPU, where the seeds take turns in one program, and up to the rounding of batched products on an accelerator.
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
AHEAD = 32  # updates whose batches are drawn at once


@partial(jax.jit, static_argnums=(0, 1))  # one program, traced once and kept in the cache of compiled ones
def init_seed(algorithm: Algorithm, spec: Spec, seed: Array, total: Array) -> State:
    return algorithm.init(_stream(seed, INIT), spec, Clock.at(0, total))


@partial(jax.jit, static_argnums=0, inline=True)  # traced once, though loops ask for its shapes first
def update(algorithm: Algorithm, state: State, batch: Any, key: Array, clock: Clock) -> tuple[State, Logged]:
    return algorithm.update(state, batch, key, clock)


def keys_of_update(seed: Array, i: Array) -> tuple[Array, Array]:
    """What update number `i` of a seed draws its batch by, and what the update itself draws by."""
    sample_key, update_key = jax.random.split(jax.random.fold_in(_stream(seed, UPDATE), i))
    return sample_key, update_key


def _stream(seed: Array, number: int) -> Array:
    return jax.random.fold_in(jax.random.key(seed), number)


def updates(
    algorithm: Algorithm, state: State, seed: Array, transitions: Sampler, first: Array, count: Array, total: Array
) -> tuple[State, Logged]:
    """`count` updates of one seed from number `first` on, of `total` in the run, and the sums of their metrics.

    Batches are drawn for `AHEAD` updates at once: a few long look-ups in place of many short ones.
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
    # Loops over traced counts, not scans of a fixed length: any number of updates runs the one compiled program.
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
    """The same by batches that are there: those of the updates from `begin` on, along every leaf's first axis."""

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
    """The mean of each metric over so many updates; of one that some updates lack, over those that had it.

    A metric that no update had is left out.
    """
    means = {}
    for name, total in sums.items():
        value, measured = total if isinstance(total, Sometimes) else (total, np.full(np.shape(total), count))
        if np.all(np.asarray(measured) > 0):
            means[name] = np.asarray(value) / measured
    return means


def sums_to_json(sums: Logged) -> dict[str, Any]:
    """Sums for a checkpoint that stands between two lines of the log."""
    return {name: jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), total) for name, total in sums.items()}


def sums_from_json(content: dict[str, Any]) -> Logged:
    """The same sums again: `Sometimes` has become a list of two lists."""

    def total(found: list[Any]) -> Any:
        parts = np.asarray(found, np.float32)
        return Sometimes(*parts) if parts.ndim == 2 else parts

    return {name: total(found) for name, found in content.items()}


def over_seeds(function: Callable[..., Any], n_stacked: int, donate: tuple[int, ...] = ()) -> Callable[..., Any]:
    """The function of one seed for all of them: the first `n_stacked` arguments have the seed as their first axis.

    On a CPU batching gains nothing, and a batched product rounds differently from a single one, which Adam soon
    amplifies. There every seed goes through the same program of one seed.
    """
    if on_accelerator():

        def batched(*args: Any) -> Any:
            return jax.vmap(function, in_axes=tuple(0 if i < n_stacked else None for i in range(len(args))))(*args)

        return jax.jit(batched, donate_argnums=donate, compiler_options=on_gpu(TRAINING))
    of_one = jax.jit(function, donate_argnums=donate)

    def in_turn(*args: Any) -> Any:
        stacked, shared = args[:n_stacked], args[n_stacked:]
        return _stack([of_one(*own, *shared) for own in _unstack(stacked)])

    return in_turn


@jax.jit  # one program each, not one for every leaf
def _stack(trees: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


@jax.jit
def _unstack(tree: Any) -> list[Any]:
    return [jax.tree.map(itemgetter(i), tree) for i in range(len(jax.tree.leaves(tree)[0]))]


class Loop:
    """Compiled training of one algorithm on one dataset for a fixed list of seeds."""

    def __init__(self, algorithm: Algorithm, prepared: Prepared, seeds: Sequence[int], total: int) -> None:
        """`total` updates are all that the run asks for; `run` makes some of them."""
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
        """Like `init`, but shapes alone: the skeleton into which a checkpoint is read."""
        return jax.eval_shape(self.init)

    def run(self, states: State, first: int, count: int) -> tuple[State, Logged]:
        """`count` updates from number `first` on; consumes `states`. A metric is its sum, for each seed."""
        numbers = jnp.int32(first), jnp.int32(count), self._total
        states, sums = self._run(states, self._seeds, self._transitions, *numbers)
        return states, jax.device_get(sums)

    def diagnose(self, states: State) -> dict[str, np.ndarray]:
        found: dict[str, np.ndarray] = jax.device_get(self._diagnose(states, self._probe))
        return found

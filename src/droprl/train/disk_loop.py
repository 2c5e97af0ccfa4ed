"""Training from data on the disk: batches are gathered on the host, some updates ahead, while the device trains.

Every update gets the same batch as with data in memory. Updates come in numbered chunks. The batches of a chunk depend
only on the seeds and on the number of the chunk. So a resumed run is bit-identical here too.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from droprl.algorithms import Algorithm
from droprl.algorithms.protocol import Logged, State
from droprl.compiler import on_accelerator
from droprl.data.transitions import Prepared
from droprl.train.loop import Loop, keys_of_update, over_seeds, updates_of_chunk

CHUNK_BYTES = 16 * 2**20  # the memory limit of the batches of one chunk
CHUNK_UPDATES = 64
WORKERS = 8  # threads, each of which gathers one chunk. With training on the CPU there is only one

Batches = Any  # the batches of one chunk for all seeds: every leaf is (seeds, updates, …)


class DiskLoop(Loop):
    """`Loop` for a dataset on the disk."""

    def __init__(self, algorithm: Algorithm, prepared: Prepared, seeds: Sequence[int], total: int) -> None:
        super().__init__(algorithm, prepared, seeds, total)
        self.chunks = Chunks(algorithm, prepared, seeds)
        self._run_chunk = over_seeds(partial(updates_of_chunk, algorithm), n_stacked=3, donate=(0,))

    def run(self, states: State, first: int, count: int) -> tuple[State, Logged]:
        size, end, sums = self.chunks.size, first + count, None
        while first < end:
            number = first // size
            now = min(end, (number + 1) * size) - first
            arguments = jnp.int32(number * size), jnp.int32(first), jnp.int32(now), self._total
            states, new = self._run_chunk(states, self._seeds, self.chunks.get(number), *arguments)
            jax.block_until_ready(sums)  # wait for the previous chunk, so that at most two are on the device
            sums = new if sums is None else jax.tree.map(jnp.add, sums, new)
            first += now
        return states, jax.device_get(sums)


class Chunks:
    """Gives the chunk that is asked for, and gathers the next chunks in advance."""

    def __init__(self, algorithm: Algorithm, prepared: Prepared, seeds: Sequence[int]) -> None:
        self._sampler = prepared.transitions
        self._host = _host()
        self._device = jax.devices()[0] if on_accelerator() else None
        self._workers = max(1, min(WORKERS, (os.cpu_count() or 1) - 1)) if on_accelerator() else 1
        self._threads = ThreadPoolExecutor(self._workers, thread_name_prefix="gather")
        self._coming: deque[tuple[int, Future[Batches]]] = deque()
        self._current: tuple[int, Batches] = (-1, None)

        def draw(seed: Array, i: Array) -> Any:
            return prepared.transitions.draw(keys_of_update(seed, i)[0], algorithm.batch_size)

        self._seeds = np.asarray(seeds, np.uint32)
        self._draw = jax.jit(jax.vmap(jax.vmap(draw, (None, 0)), (0, None)))
        shapes = jax.eval_shape(self._draw, self._seeds, np.arange(1, dtype=np.int32))
        some = self._sampler.gather(jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes))
        one = sum(leaf.nbytes for leaf in jax.tree.leaves(some))
        self.size = int(np.clip(CHUNK_BYTES // one, 1, CHUNK_UPDATES))

    def get(self, number: int) -> Batches:
        if self._current[0] != number:
            if not self._coming or self._coming[0][0] != number:
                self._coming.clear()
                self._coming.append((number, self._threads.submit(self._gather, number)))
            batches = self._coming.popleft()[1].result()
            self._current = number, batches
            following = self._coming[-1][0] if self._coming else number
            for ahead in range(following + 1, number + self._workers + 2):
                self._coming.append((ahead, self._threads.submit(self._gather, ahead)))
        return self._current[1]

    def _gather(self, number: int) -> Batches:
        with jax.default_device(self._host):
            places = self._draw(self._seeds, np.arange(number * self.size, (number + 1) * self.size, dtype=np.int32))
        batches = self._sampler.gather(jax.tree.map(np.asarray, places))
        return batches if self._device is None else jax.device_put(batches, self._device)


def _host() -> jax.Device:
    """The device that draws batches: the CPU. If JAX may not use the CPU, the accelerator."""
    try:
        return jax.devices("cpu")[0]
    except RuntimeError:
        return jax.devices()[0]

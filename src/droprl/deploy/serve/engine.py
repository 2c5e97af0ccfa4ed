"""One step of a policy, compiled ahead for batches of 1, 2, 4 … rows: under load nothing is compiled any more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from droprl.data.scaling import Scaling
from droprl.loaded import LoadedPolicy, step_policy
from droprl.policies import Carry, Policy, tell_rewards


class Rows(NamedTuple):
    """What some episodes are at: arrays with a row for each. Memory is that of `policy.start`, on the host."""

    observations: Any  # (n, observation_size) float32
    memory: Carry
    rewards: Any  # (n,) float32 of the step before; 0 where there was none


class Acted(NamedTuple):
    """What the policy answers, with one row per episode. The last three are None if it infers no embedding."""

    memory: Carry
    actions: Any  # arrays, on the host when they are handed out
    embedding: Any
    score: Any
    sub_task: Any  # whose embedding the search started from


class Engine:
    """The compiled steps of one policy; `largest` is the most rows that it takes at once, a power of two.

    A row among others is summed in another order than a row alone. Its last digits differ, and where they decide on
    which side of a kink of the networks a step of ascent falls, so does the action, by some 1e-4. With `one_by_one` a
    program loops over its rows instead: every answer is the policy's own for that row alone, bit for bit.
    """

    def __init__(self, loaded: LoadedPolicy, largest: int, one_by_one: bool = False) -> None:
        self.loaded, self.largest, self._one_by_one = loaded, largest, one_by_one
        self._first = jax.tree.map(lambda leaf: np.asarray(leaf[0]), loaded.start(1))
        self._calls = 0
        self._programs: dict[int, Any] = {}
        size = 1
        while size <= largest:
            self._programs[size] = self._compiled(size)
            size *= 2

    def start(self, n: int) -> Carry:
        """The memory of n episodes that begin."""
        return jax.tree.map(lambda leaf: np.broadcast_to(leaf, (n, *leaf.shape)), self._first)

    def step(self, parts: list[Rows]) -> list[Acted]:
        """All parts in one call; each gets its own rows back."""
        counts = [len(part.observations) for part in parts]
        total = sum(counts)
        size = 1 << (total - 1).bit_length()
        # What fills the batch up is the first row again, a state that somebody did ask about: nothing odd can come up.
        padding = [jax.tree.map(lambda leaf: leaf[:1], parts[0])] * (size - total)
        joined = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts, *padding)
        self._calls += 1
        call = np.uint32(self._calls % 2**32)
        answer = jax.device_get(self._programs[size](self.loaded.policy, self.loaded.scaling, *joined, call))
        ends = np.cumsum(counts).tolist()
        return [
            jax.tree.map(lambda leaf, a=end - n, b=end: leaf[a:b], answer) for n, end in zip(counts, ends, strict=True)
        ]

    def _compiled(self, size: int) -> Any:
        def step(
            policy: Policy, scaling: Scaling, observations: Array, memory: Carry, rewards: Array, call: Array
        ) -> Acted:
            keys = jax.random.split(jax.random.key(call), size)
            heard = tell_rewards(memory, rewards)

            def act(*rows: Any) -> tuple[Carry, Array]:
                return step_policy(policy, scaling, *rows)

            if self._one_by_one:
                memory, actions = jax.lax.map(lambda row: _unbatched(act, row), (heard, observations, keys))
            else:
                memory, actions = act(heard, observations, keys)
            known = policy.facts(memory)
            return Acted(memory, actions, *(known.get(name) for name in ("embedding", "score", "sub_task")))

        observations = jnp.zeros((size, self.loaded.spec.observation_size), jnp.float32)
        rows = Rows(observations, self.start(size), jnp.zeros(size, jnp.float32))
        return jax.jit(step).lower(self.loaded.policy, self.loaded.scaling, *rows, np.uint32(0)).compile()


def _unbatched(act: Callable[..., Any], row: Any) -> Any:
    """`act`, which takes batches, of a row without its axis."""
    return jax.tree.map(lambda leaf: leaf[0], act(*jax.tree.map(lambda leaf: leaf[None], row)))

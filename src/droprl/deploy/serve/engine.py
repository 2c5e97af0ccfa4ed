"""One step of a policy, compiled in advance for batches of 1, 2, 4 … rows. Nothing is compiled during requests."""

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
    """The inputs of some episodes: arrays with one row for each episode, on the host."""

    observations: Any  # (n, observation_size) float32
    memory: Carry
    rewards: Any  # (n,) float32 of the step before; 0 if there was none


class Acted(NamedTuple):
    """What the policy answers, with one row per episode. The last three are None if it infers no embedding."""

    memory: Carry
    actions: Any  # arrays; the engine returns them on the host
    embedding: Any
    score: Any
    sub_task: Any  # the search started from its embedding


class Engine:
    """The compiled steps of one policy. `largest` is the largest number of rows in one call, a power of two.

    Sums in a batch run in another order than sums in a single row, so the last digits differ. Near a kink of the
    networks these digits can decide where a step of ascent goes. Then the action differs too, by about 1e-4. With
    `one_by_one` a program loops over its rows instead: every answer is bit for bit what the policy answers to that row
    alone.
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
        """All parts in one call. Each part gets its own rows back."""
        counts = [len(part.observations) for part in parts]
        total = sum(counts)
        size = 1 << (total - 1).bit_length()
        # Copies of the first row fill the batch up. A client asked about this state, so it cannot cause new problems.
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
            told = tell_rewards(memory, rewards)

            def act(*rows: Any) -> tuple[Carry, Array]:
                return step_policy(policy, scaling, *rows)

            if self._one_by_one:
                memory, actions = jax.lax.map(lambda row: _unbatched(act, row), (told, observations, keys))
            else:
                memory, actions = act(told, observations, keys)
            facts = policy.facts(memory)
            return Acted(memory, actions, *(facts.get(name) for name in ("embedding", "score", "sub_task")))

        observations = jnp.zeros((size, self.loaded.spec.observation_size), jnp.float32)
        rows = Rows(observations, self.start(size), jnp.zeros(size, jnp.float32))
        return jax.jit(step).lower(self.loaded.policy, self.loaded.scaling, *rows, np.uint32(0)).compile()


def _unbatched(act: Callable[..., Any], row: Any) -> Any:
    """The result of `act` for one row without the batch axis. `act` itself takes batches."""
    return jax.tree.map(lambda leaf: leaf[0], act(*jax.tree.map(lambda leaf: leaf[None], row)))

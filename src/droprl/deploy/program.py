"""A policy's step in the task's own units, with a name for every input and output. A file holds this step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array

from droprl.loaded import LoadedPolicy

NEXT = "next_"  # the memory `z` after a step is the output `next_z`


@dataclass(frozen=True)
class FileProgram:
    """`step` takes the `inputs` and returns the `outputs`, in these orders. Every array has one row per episode."""

    step: Callable[..., tuple[Array, ...]]
    inputs: dict[str, np.ndarray]  # one row of each. The row of a memory is its value when an episode begins
    memory: tuple[str, ...]
    answers: tuple[str, ...]

    @property
    def outputs(self) -> tuple[str, ...]:
        return (*self.answers, *(f"{NEXT}{name}" for name in self.memory))


def program_of(loaded: LoadedPolicy) -> FileProgram:
    """The policy's own program, with the task's observations and actions outside."""
    program, scaling = loaded.policy.program(), loaded.scaling

    def step(observations: Array, *rest: Array) -> tuple[Array, ...]:
        actions, *others = program.step(jnp.asarray(scaling.observations_in(observations)), *rest)
        return jnp.clip(scaling.actions_out(actions), scaling.action_low, scaling.action_high), *others

    inputs = {"observations": np.zeros(loaded.spec.observation_size, np.float32)}
    if program.hears_rewards:
        inputs["reward"] = np.zeros((), np.float32)
    return FileProgram(step, inputs | program.memory, tuple(program.memory), program.answers)

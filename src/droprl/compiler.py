"""Choices that depend on the device: whether to write a program for an accelerator, and which options XLA gets.

On a CPU, programs must repeat earlier results bit by bit. Only programs for other devices may be written differently.
`benchmarks/speed` measures the effect of every choice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import jax
import numpy as np

Options = dict[str, str | bool]

# Independent kernels of one CUDA graph run side by side: one small kernel alone does not fill a GPU.
SIDE_BY_SIDE: Options = {"xla_gpu_command_buffer_scheduling_mode": "CONCURRENT"}
TRAINING: Options = SIDE_BY_SIDE | {
    # The loop over updates is part of the graph: the host does nothing between updates.
    "xla_gpu_enable_command_buffer": "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,DYNAMIC_SLICE_FUSION,WHILE,CONDITIONAL",
    "xla_gpu_enable_triton_gemm": False,  # cuBLAS multiplies these sizes a few percent faster
}


def on_accelerator() -> bool:
    return jax.default_backend() != "cpu"


def on_gpu(options: Options) -> Options:
    """The options that this XLA knows, or none if there is no GPU. Options come and go; no program depends on them."""
    if jax.default_backend() != "gpu":
        return {}
    return {name: value for name, value in options.items() if _is_known(name, value)}


def host_of(device: jax.Device) -> jax.sharding.SingleDeviceSharding | None:
    """Where a program puts results that the host reads at once. A GPU writes there itself, which saves a call."""
    return jax.sharding.SingleDeviceSharding(device, memory_kind="pinned_host") if device.platform == "gpu" else None


class InTurns:
    """One program, compiled several times, for a caller that passes the result of each call to the next one.

    The results alternate between two places in memory, and CUDA builds a graph again if its memory has moved. With one
    compiled program for each place, the memory of a program never moves.
    """

    def __init__(self, programs: Sequence[Callable[..., Any]]) -> None:
        self._programs, self._turn = programs, 0
        self._compiled: set[Any] = set()

    def __call__(self, weights: Any, *given: Any) -> Any:
        """`weights` always have the same shapes. The other arguments may have several."""
        self._turn = (self._turn + 1) % len(self._programs)
        if len(self._programs) > 1:
            self._compile_all(weights, given)
        return self._programs[self._turn](weights, *given)

    def _compile_all(self, weights: Any, given: tuple[Any, ...]) -> None:
        """Compile all programs at the first call, and not in the middle of an episode."""
        shapes = tuple(np.shape(leaf) for leaf in jax.tree.leaves(given))
        if shapes not in self._compiled:
            for program in self._programs:
                program(weights, *given)
            self._compiled.add(shapes)


@cache
def _is_known(name: str, value: str | bool) -> bool:
    try:
        jax.jit(lambda: 0, compiler_options={name: value})()
    except jax.errors.JaxRuntimeError:
        return False
    return True

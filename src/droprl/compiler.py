"""What the device asks for: whether to write a program for an accelerator, and what to tell XLA beyond its defaults.

On a CPU programs keep the bits of earlier results; only what runs elsewhere may be written otherwise. The effect of
every choice is measured in `benchmarks/speed`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import jax
import numpy as np

Options = dict[str, str | bool]

# Kernels of one CUDA graph that do not wait for each other run side by side: small ones fill a GPU only together.
SIDE_BY_SIDE: Options = {"xla_gpu_command_buffer_scheduling_mode": "CONCURRENT"}
TRAINING: Options = SIDE_BY_SIDE | {
    # The loop over updates is part of the graph: the host hears of none of them.
    "xla_gpu_enable_command_buffer": "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,DYNAMIC_SLICE_FUSION,WHILE,CONDITIONAL",
    "xla_gpu_enable_triton_gemm": False,  # cuBLAS multiplies these sizes a few percent faster
}


def on_accelerator() -> bool:
    return jax.default_backend() != "cpu"


def on_gpu(options: Options) -> Options:
    """Those that this XLA knows, and none elsewhere: flags come and go, and no program depends on them."""
    if jax.default_backend() != "gpu":
        return {}
    return {name: value for name, value in options.items() if _is_known(name, value)}


def host_of(device: jax.Device) -> jax.sharding.SingleDeviceSharding | None:
    """Where a program puts what the host reads at once: a GPU writes it there itself, which saves a call."""
    return jax.sharding.SingleDeviceSharding(device, memory_kind="pinned_host") if device.platform == "gpu" else None


class InTurns:
    """One program, compiled more than once, for who hands back what the last call returned.

    Two places in memory then take turns at holding it, and a CUDA graph is put together anew wherever its memory has
    moved. With a program for either turn it has moved for neither.
    """

    def __init__(self, programs: Sequence[Callable[..., Any]]) -> None:
        self._programs, self._turn = programs, 0
        self._compiled: set[Any] = set()

    def __call__(self, weights: Any, *given: Any) -> Any:
        """`weights` have one shape for good, the rest may have several."""
        self._turn = (self._turn + 1) % len(self._programs)
        if len(self._programs) > 1:
            self._compile_all(weights, given)
        return self._programs[self._turn](weights, *given)

    def _compile_all(self, weights: Any, given: tuple[Any, ...]) -> None:
        """Now, rather than in the midst of an episode."""
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

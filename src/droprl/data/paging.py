"""Reads rows of columns on the disk, with a limit on the memory that the columns take.

The system maps a file into memory in pieces: one look-up may map two megabytes around the row. The mapped pieces belong
to the cache of the system, which can free them at any time. But they count as resident memory, so we limit them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from droprl.data.dataset import Dataset

LEAST_MAPPED, MOST_MAPPED = 2**29, 2**33  # bounds of the limit, which is a sixteenth of the machine's memory
STEP_BYTES = 5 * 2**21  # the most that one step may map: it is looked up in up to five places

Tree = Any


def in_pieces(dataset: Dataset, look_up: Callable[[Tree], Tree], places: Tree) -> Tree:
    """`look_up(places)`. The places are arrays of one shape. If the columns exceed the limit, work in pieces."""
    limit = mapped_limit()
    if dataset.n_bytes <= limit:
        with dataset.reading():
            return look_up(places)
    shape = jax.tree.leaves(places)[0].shape
    size, flat, parts = max(1, limit // STEP_BYTES), jax.tree.map(np.ravel, places), []
    for begin in range(0, math.prod(shape), size):
        piece = slice(begin, begin + size)
        with dataset.reading():
            parts.append(look_up(jax.tree.map(lambda leaf, piece=piece: leaf[piece], flat)))
        if _mapped_bytes() > limit:
            dataset.release()
    return jax.tree.map(lambda *found: np.concatenate(found).reshape(*shape, *found[0].shape[1:]), *parts)


def mapped_limit() -> int:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(max(memory // 16, LEAST_MAPPED), MOST_MAPPED)


def _mapped_bytes() -> int:
    """The bytes of files in this process's memory. If the system does not tell, more than the limit."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[2]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return MOST_MAPPED + 1

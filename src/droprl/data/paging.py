"""How columns on the disk are looked up without all of them becoming resident.

A file is mapped into memory by the piece: one look-up may bring in two megabytes around it. What is mapped belongs to
the system's cache, which can take it back at any time. It counts as resident memory all the same, so there is a limit
to it here.
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

LEAST_MAPPED, MOST_MAPPED = 2**29, 2**33  # and in between a sixteenth of the machine's memory
STEP_BYTES = 5 * 2**21  # what one step may bring in: it is looked up in up to five places

Tree = Any


def in_pieces(dataset: Dataset, look_up: Callable[[Tree], Tree], places: Tree) -> Tree:
    """`look_up(places)`, where the places are arrays of one shape. Of columns larger than the limit, some at a time."""
    limit = mapped_limit()
    if dataset.n_bytes <= limit:
        return look_up(places)
    shape = jax.tree.leaves(places)[0].shape
    size, flat, parts = max(1, limit // STEP_BYTES), jax.tree.map(np.ravel, places), []
    for begin in range(0, math.prod(shape), size):
        piece = slice(begin, begin + size)
        parts.append(look_up(jax.tree.map(lambda leaf, piece=piece: leaf[piece], flat)))
        if _mapped_bytes() > limit:
            dataset.release()
    return jax.tree.map(lambda *found: np.concatenate(found).reshape(*shape, *found[0].shape[1:]), *parts)


def mapped_limit() -> int:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(max(memory // 16, LEAST_MAPPED), MOST_MAPPED)


def _mapped_bytes() -> int:
    """How much of files is in this process's memory; where the system does not tell, too much."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[2]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return MOST_MAPPED + 1

"""What the header of an array claims: its shape and type. Claims are checked before a byte of the array is read.

A header can claim any size, and a packed file can hold far more than its own size. So three things are checked: all
columns have the same number of rows, the file can hold what it claims, and so can the free memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from droprl.data.check import fault
from droprl.files.memory import available_memory

# gzip and zip's deflate pack at most 1,032 to 1. A file that claims more was not written by them.
LARGEST_PACKING = 1_100
NEVER_SUSPECT_BYTES = 64 * 2**20  # so little is believed without a check
MOST_BOUNDS = 100_000  # numbers in action_low or action_high


@dataclass(frozen=True)
class Claim:
    """Enough of an array to check its shape and type."""

    shape: tuple[int, ...]
    dtype: np.dtype
    chunk: tuple[int, ...] = ()  # the part that is unpacked at once, if the file has such parts

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def n_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def chunk_bytes(self) -> int:
        return math.prod(self.chunk) * self.dtype.itemsize if self.chunk else 0

    def __len__(self) -> int:
        return self.shape[0]


def check_kind(key: str, dtype: np.dtype, where: str) -> None:
    if dtype.kind not in "biuf":
        raise fault(where, f"{key} holds {dtype}, not numbers", "store it as float32")


def check_bound(key: str, claim: Claim, where: str) -> None:
    if math.prod(claim.shape) > MOST_BOUNDS:
        raise fault(where, f"{key} has shape {claim.shape}", "give one number, or one for each action")


def check_rows(claims: Mapping[str, Claim], where: str) -> None:
    """Refuse columns with different numbers of rows."""
    lengths = {key: claim.shape[0] if claim.shape else 1 for key, claim in claims.items()}
    n_steps = lengths.get("observations", 0)
    for key, length in lengths.items():
        if length != n_steps and "observations" in lengths:
            what = f"{key} has {length} rows but observations has {n_steps}"
            raise fault(where, what, "store one row for each step under every key")


def check_packing(claims: Mapping[str, Claim], path: Path, where: str) -> None:
    """Refuse columns that claim more than a file of this size can hold. The largest one is named."""
    claimed = {key: max(claim.n_bytes, claim.chunk_bytes) for key, claim in claims.items()}
    if sum(claimed.values()) > max(NEVER_SUSPECT_BYTES, LARGEST_PACKING * (size := path.stat().st_size)):
        key = max(claimed, key=lambda key: claimed[key])
        shape = f"shape {claims[key].shape}" + (f" in parts of {claims[key].chunk}" if claims[key].chunk else "")
        what = f"{key} claims {shape}, and all columns {_size(sum(claimed.values()))}: more than {_size(size)} can hold"
        raise fault(where, what, "copy or download it again, or write it with gzip")
    parts = [Claim(claim.chunk, claim.dtype) for claim in claims.values() if claim.chunk]
    check_memory(sorted(parts, key=lambda part: part.n_bytes)[-1:], where, "write it in smaller chunks")


def check_memory(claims: Iterable[Claim], where: str, remedy: str) -> None:
    """Refuse what does not fit into memory."""
    n_bytes = sum(max(claim.n_bytes, claim.chunk_bytes) for claim in claims)
    if n_bytes > (free := available_memory()):
        raise fault(where, f"needs {_size(n_bytes)} of memory and {_size(free)} are free", remedy)


def _size(n_bytes: int) -> str:
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if n_bytes >= factor:
            return f"{n_bytes / factor:,.3g} {unit}" if n_bytes < 10**12 else f"{n_bytes / factor:,.0f} {unit}"
    return f"{n_bytes} bytes"

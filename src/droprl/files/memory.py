"""How much memory is free, so that a file or a setting that needs more is refused before anything is allocated."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path


def available_memory() -> int:
    """The bytes that this process can still get. Where the system does not tell, the memory of the machine."""
    return max(0, min(_limits(), default=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")))


def _limits() -> Iterator[int]:
    page = os.sysconf("SC_PAGE_SIZE")
    yield os.sysconf("SC_PHYS_PAGES") * page
    if (free := _entry(Path("/proc/meminfo"), "MemAvailable:")) is not None:
        yield 2**10 * free
    group = Path("/sys/fs/cgroup")  # a container's own limit. Its cache of files can be freed, so it does not count
    if (most := _entry(group / "memory.max", "")) is not None:
        yield most - (_entry(group / "memory.stat", "anon ") or 0)
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    if most != resource.RLIM_INFINITY:
        yield most - page * (_entry(Path("/proc/self/statm"), "") or 0)


def _entry(path: Path, name: str) -> int | None:
    """The number behind this name in a file of the system. None if there is none."""
    try:
        lines = path.read_text().splitlines()
        return next((int(line.removeprefix(name).split()[0]) for line in lines if line.startswith(name)), None)
    except (OSError, ValueError, IndexError):
        return None

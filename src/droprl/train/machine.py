"""Which software and hardware trained a run, and from which update on. Other ones may round otherwise."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax

from droprl.errors import DropError
from droprl.files.seals import read_sealed, sealed
from droprl.files.settings import from_dict
from droprl.files.storage import write_bytes
from droprl.version import __version__

FILE = "machines.json"
# The instruction sets of vectors: with another one XLA makes another program, which may add in another order.
_VECTORS = re.compile(r"sse4_2|avx\w*|fma|amx\w*|asimd|neon|sve\w*")


@dataclass(frozen=True)
class Machine:
    """What the bytes of a run depend on, beside its config and its data."""

    droprl: str
    jax: str
    jaxlib: str
    numpy: str
    system: str
    device: str
    cores: str
    """How many cores the training may use. On a CPU they share out the sums, and so the rounding depends on them."""
    vectors: str
    """The vector instructions of the CPU, as far as the system tells."""

    def changes(self, now: Machine) -> list[str]:
        """What is different now, in words."""
        found = []
        for name, old in asdict(self).items():
            if (new := getattr(now, name)) != old:
                found.append(f"{name} {_gist(old, new)} → {_gist(new, old)}")
        return found


@dataclass(frozen=True)
class Trained:
    """From this update on, the run was trained on this machine."""

    first: int
    machine: Machine


def this_machine() -> Machine:
    device = jax.devices()[0]
    return Machine(
        droprl=__version__,
        jax=version("jax"),
        jaxlib=version("jaxlib"),
        numpy=version("numpy"),
        system=f"{platform.system()} {platform.machine()}",
        device=f"{device.platform}: {device.device_kind}",
        cores=str(_cores()) if device.platform == "cpu" else "any",
        vectors=_vectors(),
    )


def machines_of(run: Path) -> list[Trained]:
    """Those that trained the run, the first one first. Empty in runs of older versions."""
    where = run / FILE
    if not where.exists():
        return []
    remedy = "restore the file, or remove it: only the record of earlier machines is lost"
    found = read_sealed(where, remedy).get("machines")
    if not isinstance(found, list):
        raise DropError(f"{where}: holds no list of machines: {remedy}")
    return [from_dict(Trained, one, str(where), remedy) for one in found]


def note_machine(run: Path, step: int) -> str | None:
    """Note which machine trains from this update on. If it is not that of before, say in what they differ."""
    known, now = machines_of(run), this_machine()
    if known and known[-1].machine == now:
        return None
    content: dict[str, Any] = {"machines": [asdict(one) for one in (*known, Trained(step, now))]}
    write_bytes(run / FILE, sealed(content))
    if known:
        return f"update {step:,} was reached elsewhere ({'; '.join(known[-1].machine.changes(now))}): {_MAY_DIFFER}"
    return f"update {step:,} was reached by a version that did not note where: {_MAY_DIFFER}" if step else None


_MAY_DIFFER = "from here on, the bytes may differ from those of a run that stayed in one place"


def _gist(words: str, others: str) -> str:
    """Of two long lists of words, only what the other one lacks."""
    own = [word for word in words.split() if word not in others.split()]
    return " ".join(own) or "none"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _vectors() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    flags = next((line.split(":", 1)[1].split() for line in lines if line.startswith(("flags", "Features"))), [])
    return " ".join(sorted(flag for flag in flags if _VECTORS.fullmatch(flag))) or "unknown"

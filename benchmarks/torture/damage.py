"""Damaged and hostile files: each must be refused in one line that names it, and none may run code or fill the memory.

A file that droprl did not write may have bytes that nobody reads, such as the times in an archive or the gaps in HDF5.
With damage in these bytes it may load, but only to the same data. HDF5 files of others have no checksum. A run with
such a file refuses to go on if the data is not the data that it began with.
"""

from __future__ import annotations

import os
import pickle
import random
import resource
import shutil
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import h5py
import jax
import numpy as np
from work import BUDGET, SUPPORT, Failed, Lost

from droprl import fit, load_policy
from droprl.data import load_dataset, map_dataset
from droprl.data.on_disk import DESCRIPTION
from droprl.errors import DropError
from droprl.files.seals import digest, read_sealed, sealed
from droprl.finetuning.ledger import Ledger, Played
from droprl.train import Run
from droprl.train.loop import init_seed

Use = Callable[[], Any]
MOST_MEMORY = 512 * 2**20  # for reading a hostile file, in bytes
UNREAD = "unread"  # the answer of a use if the damage is in bytes that nobody reads


def damaged(content: bytes, count: int, rng: random.Random) -> Iterator[tuple[str, bytes]]:
    """`count` damaged copies with a label: three of four have one flipped bit, the others are cut short."""
    for number in range(count):
        place = rng.randrange(len(content))
        if number % 4 == 3:
            yield f"cut at byte {place}", content[:place]
            continue
        bit, flipped = rng.randrange(8), bytearray(content)
        flipped[place] ^= 1 << bit
        yield f"bit {bit} of byte {place} flipped", bytes(flipped)


def must_be_refused(use: Use, named: Path) -> None:
    try:
        answer = use()
    except DropError as error:
        if str(named) not in str(error) or "\n" in str(error):
            raise Failed(f"refused, but without its name: {error}") from error
        return
    if answer is not UNREAD:
        raise Lost(f"{named.name} was loaded although it is damaged")


def damages(path: Path, use: Use, count: int, rng: random.Random) -> Iterator[Callable[[], None]]:
    """Trials on one file, which is restored after each."""
    content = path.read_bytes()
    for label, broken in damaged(content, count, rng):

        def trial(label: str = label, broken: bytes = broken) -> None:
            path.write_bytes(broken)
            try:
                must_be_refused(use, path)
            except Exception as error:  # to repeat the trial, one must know the damage
                kind = type(error) if isinstance(error, Lost | Failed) else Lost
                raise kind(f"{path.name}, {label}: {type(error).__name__}: {error}") from error
            finally:
                path.write_bytes(content)

        yield trial


def readers(place: Path, trained: Path, policy: Path, source: Path) -> Iterator[tuple[str, Path, Use]]:
    """For every kind of file: its name, one such file, and a function that reads it."""
    run = Path(shutil.copytree(trained, place / "damaged"))
    opened = Run(run)
    newest = opened.checkpoint()
    algorithm, spec, seeds = opened.config.algorithm, opened.spec(), np.asarray(opened.config.seeds, np.uint32)
    skeleton = jax.eval_shape(jax.vmap(lambda seed: init_seed(algorithm, spec, seed, np.int32(1))), seeds)
    yield "checkpoint", newest.path / "state.safetensors", lambda: newest.load(skeleton)
    yield "checkpoint", newest.path / "checkpoint.json", opened.checkpoints
    yield "run", run / "config.json", lambda: Run(run)
    yield "run", run / "data.json", opened.scaling
    for name in SUPPORT:
        yield "run", run / name, opened.support
    yield "log", run / "metrics.jsonl", _of_lines(run / "metrics.jsonl", lambda: [True for _ in opened.metrics()])
    noted = place / "ledger" / "seed-0.jsonl"
    ledger = Ledger(noted, BUDGET, None)
    for k in range(5):
        ledger.add(Played(step=k, ascent_steps=3, env_seed=k, episode_return=-7.5 * k, length=20, whole=True))
    yield "ledger of fine-tuning", noted, _of_lines(noted, lambda: Ledger(noted, BUDGET, None).played)
    saved = Path(shutil.copytree(policy, place / "damaged-policy"))
    for name in ("policy.json", "policy.safetensors"):
        yield "policy file", saved / name, lambda: load_policy(saved)
    own, archive, foreign = place / "own.hdf5", place / "archive.npz", place / "foreign" / source.name
    foreign.parent.mkdir()
    shutil.copy(source, own)
    yield "dataset, ours (.hdf5)", own, lambda: load_dataset(own)
    dataset = load_dataset(own)
    keys = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations")
    arrays = {key: getattr(dataset, key) for key in keys}
    np.savez(archive, **arrays, action_low=dataset.action_low, action_high=dataset.action_high)
    with h5py.File(foreign, "w") as file:
        for key, array in arrays.items():
            file[key] = array
        file.attrs["action_low"], file.attrs["action_high"] = dataset.action_low, dataset.action_high

    def archived() -> Any:
        found = load_dataset(archive)
        return UNREAD if found.fingerprint == dataset.fingerprint else found

    def resumed() -> Any:
        found = load_dataset(foreign, env=dataset.env)
        if found.fingerprint == dataset.fingerprint:
            return UNREAD
        settings = vars(opened.config) | {"out": run, "source": str(foreign), "progress": False}
        return fit(found, **{name: value for name, value in settings.items() if name not in ("data", "earlier_steps")})

    columns = place / "columns"
    map_dataset(own, columns)
    for name in (DESCRIPTION, "observations.npy"):
        yield "dataset, ours (columns)", columns / name, lambda: load_dataset(columns)
    yield "dataset, numpy's (.npz)", archive, archived
    yield "dataset, foreign, of a run", foreign, resumed


def _of_lines(path: Path, read: Callable[[], list[Any]]) -> Use:
    """A reader of a file that grows line by line. A file that is cut short is what a kill leaves: it has fewer entries.

    A line of the log has no checksum, so a changed digit stays unnoticed. But no other line may disappear.
    """
    right, size = read(), path.stat().st_size

    def use() -> Any:
        cut = path.stat().st_size < size
        found = read()
        return UNREAD if found == right or (cut and found == right[: len(found)]) else found

    return use


# --- malice ---


class Payload:
    """Unpickling it creates a file."""

    def __init__(self, canary: Path) -> None:
        self._canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._canary,)


def hostile(place: Path, policy: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """Files of an attacker who knows the format: every checksum is right."""
    canary = place / "canary"
    code = pickle.dumps(Payload(canary))
    petabyte = 2**50

    def tensor(shape: list[int], end: int) -> bytes:
        header = f'{{"x":{{"dtype":"F32","shape":{shape},"data_offsets":[0,{end}]}}}}'.encode()
        return struct.pack("<Q", len(header)) + header

    weights = {
        "runs code": code,
        "runs code, behind a header": tensor([len(code) // 4], len(code)) + code,
        "a header of a petabyte": struct.pack("<Q", petabyte) + b"{}",
        "a tensor of a petabyte": tensor([petabyte // 4], petabyte),
    }
    for name, content in weights.items():
        yield name, lambda content=content: _try_policy(place, policy, canary, content=content)  # type: ignore[misc]
    for name, part, changes in (
        ("asks for a petabyte of observations", "spec", {"observation_size": petabyte}),
        ("asks for a petabyte of weights", "algorithm", {"width": 2**24}),
        ("names code as its rule", "algorithm", {"adaptation": {"rule": f"__import__('os').system('touch {canary}')"}}),
        ("asks for a billion score models", "algorithm", {"score_models": 10**9}),
        ("names code as its algorithm", "algorithm", {"name": "os.system"}),
    ):
        yield name, lambda p=part, c=changes: _try_policy(place, policy, canary, part=p, changes=c)  # type: ignore[misc]
    yield "weights of a terabyte", lambda: _try_policy(place, policy, canary, size=2**40)
    endless = (policy / "policy.json").read_bytes().replace(b'"prototypes": ', b'"prototypes": ' + b"9" * 5000)
    yield "a number of 5,000 digits", lambda: _try_policy(place, policy, canary, header=endless)
    yield "is a pickle", lambda: _try_policy(place, policy, canary, header=code)
    yield "data that runs code", lambda: _try_data(place, canary, code=True)
    yield "data that claims a petabyte", lambda: _try_data(place, canary, code=False)


def _try_policy(
    place: Path,
    policy: Path,
    canary: Path,
    content: bytes | None = None,
    part: str | None = None,
    changes: dict[str, Any] | None = None,
    header: bytes | None = None,
    size: int | None = None,
) -> None:
    folder = place / "hostile"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(policy, folder)
    described = read_sealed(folder / "policy.json")
    if content is not None:
        (folder / "policy.safetensors").write_bytes(content)
        described["sha256"] = digest(content)
    if part is not None:
        described[part] |= changes
    if size is not None:
        os.truncate(folder / "policy.safetensors", size)  # a sparse file: it needs no room on the disk
    (folder / "policy.json").write_bytes(header if header is not None else sealed(described))
    _harmless(load_policy, folder, canary)


def _try_data(place: Path, canary: Path, code: bool) -> None:
    archive, file = place / "hostile.npz", place / "hostile.hdf5"
    if code:
        np.savez(archive, observations=np.array([Payload(canary)], dtype=object))
        _harmless(load_dataset, archive, canary)
        return
    with h5py.File(file, "w") as made:
        made.create_dataset("observations", (2**44, 16), np.float32, chunks=(2**10, 16))
    _harmless(load_dataset, file, canary)


def _harmless(load: Callable[[Path], Any], named: Path, canary: Path) -> None:
    """Load it in another process, whose memory is limited and which may die. This process reports the result."""
    global _child
    _child = _child or ProcessPoolExecutor(1, get_context("spawn"))
    try:
        _child.submit(_limited, load, named).result()
    except BrokenProcessPool as error:
        _child = None
        raise Failed(f"{named.name} brought the process down") from error
    if canary.exists():
        raise Lost(f"{named.name} ran its code")


_child: ProcessPoolExecutor | None = None


def _limited(load: Callable[[Path], Any], named: Path) -> None:
    """The load must be refused before it comes near the limit. Its peak of memory is reset before it begins."""
    before, limits = _memory("VmSize"), resource.getrlimit(resource.RLIMIT_AS)
    if before is not None:
        Path("/proc/self/clear_refs").write_text("5")
        resource.setrlimit(resource.RLIMIT_AS, (before + 2 * MOST_MEMORY, limits[1]))
    resident, causes = _memory("VmHWM"), []

    def use() -> Any:
        try:
            return load(named)
        except DropError as error:
            causes.append(error.__cause__)
            raise

    try:
        must_be_refused(use, named)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    taken = (_memory("VmHWM") or 0) - (resident or 0)
    if taken > MOST_MEMORY or any(isinstance(cause, MemoryError) for cause in causes):
        raise Failed(f"{named.name} needed all memory, or {taken / 2**20:.0f} MB")


def _memory(what: str) -> int | None:
    """In bytes. None if the system does not say it; Linux does."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((2**10 * int(line.split()[1]) for line in lines if line.startswith(f"{what}:")), None)

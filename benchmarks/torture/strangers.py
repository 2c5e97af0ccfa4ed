"""Strangers: files whose maker means harm and knows the formats. They run no code, lead nowhere, and need no memory.

Each trial makes one such file and uses it as a person would, in the process of `damage.py` whose memory is limited. It
must be refused in one line that names it, within a minute. What lay outside must be as before.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from damage import _harmless
from work import Answer, Failed, Lost, finish, must_refuse

from droprl import load_dataset, load_policy
from droprl.bench import load_suite
from droprl.environments.ids import ForeignCode
from droprl.errors import DropError
from droprl.evaluation import evaluate
from droprl.files.cells import from_cell, to_cell
from droprl.files.seals import read_sealed, sealed
from droprl.train import Run

Make = Callable[[Path], Path]  # in an empty folder: makes the file and returns its path
ROWS = 400
MOST_SECONDS = 120
SECRET = bytes(range(256)) * 50


def strangers(
    home: Path, policy: Path, run: Path, source: Path, short: bool
) -> Iterator[tuple[str, Callable[[], None]]]:
    """For every kind of attack: its name, and the trial. The short form leaves out those that take seconds."""
    place = home / "stranger"

    def trial(make: Make, use: Callable[[Path], Any]) -> Callable[[], None]:
        def play() -> None:
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            (place / "secret").write_bytes(SECRET)
            (place / "a_strangers_module.py").write_text(f"open({str(place / 'canary')!r}, 'w').close()\n")
            named = make(place)
            _harmless(Using(use, place), named, place / "canary")
            if (place / "secret").read_bytes() != SECRET:
                raise Lost("a file outside was overwritten")

        return play

    for name, make in {
        "data that names a module": _data(env="a_strangers_module:Foo-v0"),
        "external storage": _data(external=[("secret", 0, ROWS * 8)], dtype="u1"),
        "external storage in a pipe": _data(external=[("pipe", 0, ROWS * 8)], dtype="u1"),
        "an external link": _linked(h5py.ExternalLink("other.hdf5", "observations")),
        "a virtual dataset": _virtual,
        "a chunk of a gigabyte": _data(chunks=(2**25, 8), dtype="f4", compression="gzip", maxshape=(None, 8)),
        "a pipe as data": _pipe,
        "a pipe among columns": _columns,
    }.items():
        yield name, trial(make, load_dataset)
    yield "a policy that names a module", trial(_policy(policy, "a_strangers_module:Foo-v0"), _play)
    yield "a policy that is a pipe", trial(_planted(policy, "policy.safetensors", os.mkfifo), _open_policy)
    yield (
        "a run with a folder elsewhere",
        trial(_planted(run, "evaluations", _to_tmp), _open_run),
    )
    yield "a run without seeds", trial(_config(run, {"seeds": []}), _open_run)
    yield "a run with a huge seed", trial(_config(run, {"seeds": [10**30]}), _open_run)
    yield "a run nested 10,000 deep", trial(_text(run, "config.json", "[" * 10_000 + "]" * 10_000), _open_run)
    yield "a suite nested 10,000 deep", trial(_suite(f"x = {'[' * 10_000}{']' * 10_000}"), load_suite)
    yield "a suite that leaves its folder", trial(_suite(_SUITE), load_suite)
    yield "a suite that is no text", trial(_suite(b"\xff\xfe"), load_suite)
    yield "cells that are formulas", _formulas
    if short:
        return
    yield "an archive that unpacks to far more", trial(_archive, load_dataset)
    yield "a lock that is a link", lambda: _planted_lock(place, source)
    yield "settings that fit no machine", lambda: _huge(place, source)
    yield "names with escape sequences", lambda: _escapes(place)


class Using:
    """The use, in the folder of the attack. It can be sent to the other process."""

    def __init__(self, use: Callable[[Path], Any], place: Path) -> None:
        self._use, self._place = use, place

    def __call__(self, named: Path) -> Any:
        signal.alarm(MOST_SECONDS)  # then the process dies, which is a failure
        os.chdir(self._place)  # relative names in the file would be found here
        sys.path.insert(0, str(self._place))
        try:
            return self._use(named)
        finally:
            signal.alarm(0)
            sys.path.remove(str(self._place))


# --- data ---


def _columns_in(file: h5py.File) -> None:
    file["actions"] = np.full((ROWS, 1), 2.0, np.float32)  # outside ±1: droprl would ask the task for its bounds
    file["rewards"] = np.zeros(ROWS, np.float32)
    file["terminals"] = np.arange(ROWS) % 100 == 99


def _data(env: str | None = None, **observations: Any) -> Make:
    """A D4RL file with these observations."""

    def make(place: Path) -> Path:
        os.mkfifo(place / "pipe")
        with h5py.File(place / "data.hdf5", "w") as file:
            _columns_in(file)
            file.create_dataset("observations", (ROWS, 8), **{"dtype": "f4"} | observations)
            if env is not None:
                file.attrs["env"] = np.bytes_(env.encode())
        return place / "data.hdf5"

    return make


def _linked(link: Any) -> Make:
    def make(place: Path) -> Path:
        for name in ("other.hdf5", "data.hdf5"):
            with h5py.File(place / name, "w") as file:
                _columns_in(file)
                file["observations"] = link if name == "data.hdf5" else np.zeros((ROWS, 8), np.float32)
        return place / "data.hdf5"

    return make


def _virtual(place: Path) -> Path:
    """Its source is a pipe, and its length is open: to ask for its shape would wait for ever."""
    os.mkfifo(place / "other.hdf5")
    layout = h5py.VirtualLayout((1, 8), "f4", maxshape=(None, 8))
    source = h5py.VirtualSource("other.hdf5", "observations", (1, 8), maxshape=(None, 8))
    layout[: h5py.h5s.UNLIMITED, :] = source[: h5py.h5s.UNLIMITED, :]
    with h5py.File(place / "data.hdf5", "w") as file:
        _columns_in(file)
        file.create_virtual_dataset("observations", layout)
    return place / "data.hdf5"


def _archive(place: Path) -> Path:
    """A few hundred kilobytes that unpack to more than half a gigabyte, in a way of packing that NumPy does not use."""
    header = {"descr": "<f4", "fortran_order": False, "shape": (34 * 2**19, 8)}
    with (
        zipfile.ZipFile(place / "data.npz", "w", zipfile.ZIP_BZIP2) as archive,
        archive.open("observations.npy", "w", force_zip64=True) as member,
    ):
        np.lib.format.write_array_header_1_0(member, header)
        for _ in range(34):
            member.write(bytes(2**24))
    return place / "data.npz"


def _pipe(place: Path) -> Path:
    os.mkfifo(place / "data.npz")
    return place / "data.npz"


def _columns(place: Path) -> Path:
    folder = place / "columns"
    folder.mkdir()
    (folder / "dataset.json").write_bytes(sealed({"sha256": {}, "n_steps": 1, "next_observations": False}))
    os.mkfifo(folder / "observations.npy")
    return folder


# --- folders ---


def _planted(folder: Path, name: str, plant: Callable[[Path], None]) -> Make:
    """A copy of the folder in which this file is something else."""

    def make(place: Path) -> Path:
        copy = Path(shutil.copytree(folder, place / "copy"))
        found = copy / name
        if found.is_dir():
            shutil.rmtree(found)
        else:
            found.unlink(missing_ok=True)
        plant(found)
        return found

    return make


def _to_tmp(path: Path) -> None:
    path.symlink_to("/tmp")


def _policy(folder: Path, env: str) -> Make:
    def make(place: Path) -> Path:
        copy = Path(shutil.copytree(folder, place / "copy"))
        header = read_sealed(copy / "policy.json")
        header["origin"] |= {"env": env}
        (copy / "policy.json").write_bytes(sealed(header))
        return copy

    return make


def _play(folder: Path) -> Any:
    try:
        return evaluate(folder, episodes=1, progress=False)
    except ForeignCode as error:  # it names the task, not the folder
        raise DropError(f"{folder}: {error}") from error


def _open_run(inside: Path) -> Any:
    return Run(inside.parent)


def _open_policy(inside: Path) -> Any:
    return load_policy(inside.parent)


def _config(run: Path, changes: dict[str, Any]) -> Make:
    content = read_sealed(run / "config.json")
    return _text(run, "config.json", sealed(content | {"run": content["run"] | changes}).decode())


def _text(folder: Path, name: str, text: str) -> Make:
    def write(path: Path) -> None:
        path.write_text(text)

    return _planted(folder, name, write)


_SUITE = """
title = "x"
tasks = [".."]
steps = 1
seeds = 1
episodes = 0
methods.bc = { algo = "bc" }
figure.kind = "dots"
"""


def _suite(text: str | bytes) -> Make:
    def make(place: Path) -> Path:
        (place / "suite.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
        return place / "suite.toml"

    return make


# --- the command line ---


def _planted_lock(place: Path, source: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    (place / "run").mkdir(parents=True)
    (place / "secret").write_bytes(SECRET)
    for name in (".lock", ".partial-config.json", ".partial-data.json"):
        (place / "run" / name).symlink_to(place / "secret")
    words = ["train", str(source), "--algo=bc", "--preset=small", "--steps=2", "--out", str(place / "run")]
    must_refuse(finish(words), str(place / "run" / ".lock"), "is a link")
    (place / "run" / ".lock").unlink()
    answer = finish(words)
    if answer.code != 0:
        raise Failed(f"training over leftovers ended with {answer.code}: {answer.last_line}")
    if (place / "secret").read_bytes() != SECRET:
        raise Lost("a link was written through")


def _huge(place: Path, source: Path) -> None:
    for setting in ("--batch-size=1000000000", "--width=10000000", "--seeds=100000000"):
        words = [
            "train",
            str(source),
            "--algo=bc",
            "--preset=small",
            "--steps=2",
            "--out",
            str(place / "huge"),
            setting,
        ]
        must_refuse(finish(words), "drop: ", codes=(1, 2))  # 2: the option itself makes no sense


def _escapes(place: Path) -> None:
    answer: Answer = finish(["evaluate", f"{place}/[/b]\x1b[31m\x9b2J"])
    must_refuse(answer, "[/b]\\x1b[31m\\x9b2J")
    if "\x1b" in answer.said or "\x9b" in answer.said:
        raise Failed("an escape sequence reached the terminal")


def _formulas() -> None:
    for text in json.loads('["=1+1", "+x", "-x", "@x", "\\tx", "\\rx", "\'=x"]'):
        if not to_cell(text).startswith("'") or from_cell(to_cell(text)) != text:
            raise Failed(f"{text!r} is a formula, or does not come back")

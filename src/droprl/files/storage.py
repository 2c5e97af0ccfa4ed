"""Files that are whole or absent: written under a temporary name, flushed to the disk, then renamed.

Arrays are safetensors, the rest is JSON. Reading them runs no code. A damaged file is found and named: arrays by the
checksum in the JSON beside them, the JSON by its own seal (`seals`).
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_safetensors
from safetensors.numpy import save as save_safetensors

from droprl.errors import DropError, reason
from droprl.files.durable import make_folder, sync_folder
from droprl.files.plain import clear, fresh
from droprl.files.seals import RESTORE, check_size, digest

PyTree = Any
T = TypeVar("T")
HEADER_BYTES = 2**10  # at most, for each array in a safetensors file: its name, type, shape and place
MOST_LOG_BYTES = 2**30  # of a file that grows line by line
TEMPORARY = ".partial-"  # a file with this prefix was not finished when its process ended


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file that appears under its name only when all of it is on the disk."""
    temporary = path.with_name(f"{TEMPORARY}{path.name}")
    try:
        make_folder(path.parent)
        _write(temporary, content)
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):  # if the folder may not be changed, the first error says it
            temporary.unlink(missing_ok=True)
        raise _cannot_write(path, error) from error


def write_json(path: Path, content: Any) -> None:
    write_bytes(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())


def write_folder(path: Path, files: dict[str, bytes]) -> None:
    """Write a folder that appears under its name only when all its files are on the disk."""
    temporary = path.with_name(f"{TEMPORARY}{path.name}")
    try:
        clear(temporary)
        make_folder(temporary)
        for name, content in files.items():
            _write(temporary / name, content)
        sync_folder(temporary)  # before it gets its name: under it, no file may be missing
        if path.exists():
            remove_folder(path)
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise _cannot_write(path, error) from error


def remove_folder(path: Path) -> None:
    """Rename the folder before removing it, so that a half-removed folder never has its name, not even after a power
    loss."""
    doomed = path.with_name(f"{TEMPORARY}removed-{path.name}")
    clear(doomed)
    try:
        os.replace(path, doomed)
        sync_folder(path.parent)
    except OSError as error:
        raise DropError(f"{path}: cannot be removed ({reason(error)}): fix permissions or remove it") from error
    shutil.rmtree(doomed, ignore_errors=True)


def remove_partial(folder: Path) -> None:
    """Remove what an earlier process left half-written."""
    try:
        make_folder(folder)
        for path in folder.glob(f"{TEMPORARY}*"):
            clear(path)
    except OSError as error:
        raise _cannot_write(folder, error) from error


def arrays_to_bytes(tree: PyTree) -> bytes:
    """A safetensors file with every leaf of the tree, named by its path."""
    leaves = jax.tree_util.tree_flatten_with_path(jax.device_get(tree))[0]
    return bytes(save_safetensors({jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}))


def arrays_from_bytes(content: bytes, skeleton: PyTree, where: Path) -> PyTree:
    """The tree that `arrays_to_bytes` saved. Its names, shapes and types must be those of the skeleton."""
    try:
        _check_header(content, skeleton)
        found = load_safetensors(content)
    except (SafetensorError, ValueError, KeyError, TypeError, MemoryError) as error:
        raise DropError(f"{where}: is not a whole safetensors file ({reason(error)}): restore or remove it") from error
    paths, structure = jax.tree_util.tree_flatten_with_path(skeleton)
    names = {jax.tree_util.keystr(path): leaf for path, leaf in paths}
    if names.keys() != found.keys():
        odd = sorted(names.keys() ^ found.keys())[0]
        raise DropError(f"{where}: {odd} does not belong to this configuration: was config.json edited?")
    for name, leaf in names.items():
        if found[name].shape != leaf.shape or found[name].dtype != leaf.dtype:
            raise DropError(
                f"{where}: {name} is {found[name].dtype}{list(found[name].shape)}, expected "
                f"{leaf.dtype}{list(leaf.shape)}: was config.json edited?"
            )
    return jax.tree_util.tree_unflatten(structure, [jnp.asarray(found[name]) for name in names])


def _check_header(content: bytes, skeleton: PyTree) -> None:
    """Refuse a header that describes far more arrays than the skeleton has, before anything parses it."""
    claimed, most = int.from_bytes(content[:8], "little"), HEADER_BYTES * (1 + len(jax.tree.leaves(skeleton)))
    if claimed > most:
        raise ValueError(f"a header of {claimed:,} bytes instead of at most {most:,}")


def n_bytes(skeleton: PyTree) -> int:
    return sum(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(skeleton))


def read_bytes(path: Path, sha256: str, skeleton: PyTree, remedy: str = RESTORE) -> bytes:
    """The file's content, if it has this checksum. A file too large for the skeleton is refused unread."""
    try:
        check_size(path, n_bytes(skeleton) + HEADER_BYTES * (1 + len(jax.tree.leaves(skeleton))), remedy)
        content = path.read_bytes()
    except (OSError, MemoryError) as error:
        raise DropError(f"{path}: cannot be read ({reason(error)}): {remedy}") from error
    if digest(content) != sha256:
        raise DropError(f"{path}: is damaged (its checksum differs): {remedy}")
    return content


def read_lines(path: Path, parse: Callable[[str], T], remedy: str) -> list[T]:
    """The entries of a file that grows line by line. A kill can cut short only the last line, which is then ignored.

    Any other line that `parse` refuses, with a ValueError or DropError, was damaged. That is an error: to skip the line
    would change the record.
    """
    try:
        check_size(path, MOST_LOG_BYTES, remedy)
        *whole, rest = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise DropError(f"{path}: cannot be read ({reason(error)}): fix permissions, or remove it") from error
    found = []
    for number, line in enumerate(whole, start=1):
        try:
            found.append(parse(line))
        except (ValueError, DropError) as error:
            raise DropError(f"{path}: line {number} is damaged ({reason(error)}): {remedy}") from error
    with suppress(ValueError, DropError):
        found += [parse(rest)] if rest else []
    return found


def _write(path: Path, content: bytes) -> None:
    """All of the content is on the disk when this returns; the file's name is not, see `sync_folder`."""
    with fresh(path) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _cannot_write(path: Path, error: OSError) -> DropError:
    return DropError(
        f"{path}: cannot be written ({reason(error)}): free space or fix permissions and run the same command again; "
        "what was saved earlier is intact"
    )

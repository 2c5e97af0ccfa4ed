"""Files that are whole or not there: written beside their place, flushed to the disk, then renamed.

Arrays are safetensors, the rest is JSON. Reading either runs no code, and a file that was damaged is named: arrays by
the checksum in the JSON beside them, that JSON by its own seal.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_safetensors
from safetensors.numpy import save as save_safetensors

from droprl.errors import DropError

PyTree = Any
TEMPORARY = ".partial-"  # what begins so was being written when the process ended
FORMAT = 2  # of sealed files; format 1 had no seal
_RESTORE = "restore the file or train again"
_BLANK = "0" * 64  # stands where the seal will be while it is computed


def write_bytes(path: Path, content: bytes) -> None:
    """A file that appears under its name only when all of it is on the disk."""
    temporary = path.with_name(f"{TEMPORARY}{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):  # where the folder itself may not be changed, the first error says it
            temporary.unlink(missing_ok=True)
        raise _cannot_write(path, error) from error


def write_json(path: Path, content: Any) -> None:
    write_bytes(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> Any:
    return _read_json(path)[1]


def _read_json(path: Path) -> tuple[bytes, Any]:
    """The bytes, and what they say."""
    try:
        raw = path.read_bytes()
        return raw, json.loads(raw.decode("utf-8"))
    except FileNotFoundError:
        raise DropError(f"{path}: not found: is this a run or policy folder?") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise DropError(f"{path}: cannot be read ({_reason(error)}): {_RESTORE}") from error


def sealed(content: dict[str, Any]) -> bytes:
    """JSON that holds the checksum of all its other bytes: no changed bit passes for a setting."""
    blank = json.dumps({"format": FORMAT, "seal": _BLANK, **content}, indent=2, allow_nan=False).encode() + b"\n"
    return blank.replace(_BLANK.encode(), digest(blank).encode(), 1)


def read_sealed(path: Path) -> dict[str, Any]:
    """What `sealed` made, if it is still that. Files of format 1, which had no seal, are taken as they are."""
    raw, content = _read_json(path)
    if not isinstance(content, dict):
        raise DropError(f"{path}: is damaged (it holds no settings): {_RESTORE}")
    seal, found = content.pop("seal", None), content.pop("format", 1)
    if seal is None and found == 1:
        return content
    if found not in (1, FORMAT):
        raise DropError(f"{path}: is not of format {FORMAT}: another version of droprl wrote it, or it is damaged")
    if digest(raw.replace(str(seal).encode(), _BLANK.encode(), 1)) != seal:
        raise DropError(f"{path}: is damaged or was edited (its checksum differs): {_RESTORE}")
    return content


def write_folder(path: Path, files: dict[str, bytes]) -> None:
    """A folder that appears under its name only when all its files are on the disk."""
    temporary = path.with_name(f"{TEMPORARY}{path.name}")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        for name, content in files.items():
            with open(temporary / name, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        if path.exists():
            remove_folder(path)
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise _cannot_write(path, error) from error


def remove_folder(path: Path) -> None:
    """Renamed before it is emptied, so that a half-removed folder never bears its name."""
    doomed = path.with_name(f"{TEMPORARY}removed-{path.name}")
    shutil.rmtree(doomed, ignore_errors=True)
    try:
        os.replace(path, doomed)
    except OSError as error:
        raise DropError(f"{path}: cannot be removed ({_reason(error)}): fix permissions or remove it") from error
    shutil.rmtree(doomed, ignore_errors=True)


def remove_partial(folder: Path) -> None:
    """Clear what an earlier process left half-written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.glob(f"{TEMPORARY}*"):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
    except OSError as error:
        raise _cannot_write(folder, error) from error


def arrays_to_bytes(tree: PyTree) -> bytes:
    """Every leaf under the name of its path in the tree."""
    leaves = jax.tree_util.tree_flatten_with_path(jax.device_get(tree))[0]
    return bytes(save_safetensors({jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}))


def arrays_from_bytes(content: bytes, skeleton: PyTree, where: Path) -> PyTree:
    """The tree that `arrays_to_bytes` saved; every name, shape and dtype must be the skeleton's."""
    try:
        found = load_safetensors(content)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise DropError(f"{where}: is not a whole safetensors file ({_reason(error)}): restore or remove it") from error
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


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def read_bytes(path: Path, sha256: str) -> bytes:
    """The file's content, if it is still what was written."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DropError(f"{path}: cannot be read ({_reason(error)}): restore the file or remove its folder") from error
    if digest(content) != sha256:
        raise DropError(f"{path}: is damaged (its checksum differs): restore the file or remove its folder")
    return content


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _reason(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split())


def _cannot_write(path: Path, error: OSError) -> DropError:
    return DropError(
        f"{path}: cannot be written ({_reason(error)}): free space or fix permissions and run the same command again; "
        "what was saved earlier is intact"
    )

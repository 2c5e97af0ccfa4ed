"""Reads D4RL's HDF5 layout: one row for each step, and one episode after another. Other keys are ignored.

Our own file attributes, all optional: `env`, `ref_min_score`, `ref_max_score`, `time_limit`, `action_low`,
`action_high`, `observation_parts`, `action_parts`. `saving` writes this layout, and seals it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from droprl.data.check import (
    OPTIONAL_KEYS,
    REQUIRED_KEYS,
    Bound,
    check_columns,
    check_shapes,
    checked_dataset,
    fault,
    pixel_fault,
    require_file,
)
from droprl.data.claims import check_memory, check_packing
from droprl.data.dataset import Dataset
from droprl.data.hdf5 import attribute, claim_of, own_dataset
from droprl.data.saving import HDF5_SUFFIXES as HDF5_SUFFIXES
from droprl.data.saving import PARTS, SEAL_BYTES, SEAL_WORDS, seal_of
from droprl.data.saving import save_d4rl as save_d4rl
from droprl.data.tasks import find_task, limit_of_data
from droprl.errors import DropError, reason
from droprl.files.seals import parse_json

_ATTRIBUTES = ("env", "ref_min_score", "ref_max_score", "time_limit", "action_low", "action_high", *PARTS)
_HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"  # a file without a user block begins with it


def load_d4rl(
    path: str | Path, *, env: str | None = None, action_low: Bound = None, action_high: Bound = None
) -> Dataset:
    """Read a D4RL file. Arguments overrule the attributes of the file."""
    path = Path(path)
    with opened_d4rl(path, env=env, action_low=action_low, action_high=action_high) as (columns, known):
        check_columns(columns, str(path))
        check_shapes(columns, str(path))
        claims = [claim_of(column) for column in columns.values() if isinstance(column, h5py.Dataset)]
        check_memory(claims, str(path), f"train from the disk instead: drop data map {path} --out FOLDER")
        arrays = {key: np.asarray(column[()]) for key, column in columns.items()}
    return checked_dataset(arrays, str(path), **known)


@contextmanager
def opened_d4rl(
    path: Path, *, env: str | None = None, action_low: Bound = None, action_high: Bound = None
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The columns of a D4RL file, not yet read, and the other arguments of `checked_dataset`."""
    where = str(path)
    require_file(path)
    try:
        if not _is_sealed_or_foreign(path):
            raise fault(where, "is damaged or cut short (its checksum differs)", "copy it again, or make it again")
        with h5py.File(path, "r") as file:
            columns = {key: _column(file, key, where) for key in (*REQUIRED_KEYS, *OPTIONAL_KEYS) if _has(file, key)}
            claims = {key: claim_of(column) for key, column in columns.items()}
            check_packing(claims, path, where)
            attributes = {key: attribute(file, key, where) for key in _ATTRIBUTES if key in file.attrs}
            if "timeouts" not in columns and "terminals" in columns:
                columns |= _cut_at_time_limit(columns["terminals"], path.stem)
            if action_low is None and action_high is None:
                action_low, action_high = attributes.get("action_low"), attributes.get("action_high")
            named = _text(attributes.get("env"), where)
            known = {
                "name": path.stem,
                "env": env if env is not None else named,
                "score_range": _score_range(attributes, where),
                "time_limit": limit_of_data(attributes.get("time_limit"), named, env),
                "action_low": action_low,
                "action_high": action_high,
                **{key: _parts(attributes[key], key, where) for key in PARTS if key in attributes},
            }
            yield columns, known
    except DropError:
        raise
    except PermissionError as error:
        raise fault(where, "may not be read (permission denied)", "give yourself read permission") from error
    except Exception as error:  # a damaged file makes h5py raise nearly anything: OSError, KeyError, RuntimeError, ...
        if not h5py.is_hdf5(path):
            raise fault(where, "is not an HDF5 file", "name a file in D4RL's layout, or download it again") from error
        raise fault(where, f"is damaged or cut short ({reason(error)})", "copy or download it again") from error


def _cut_at_time_limit(column: h5py.Dataset, name: str) -> dict[str, np.ndarray]:
    """The timeouts for D4RL's older files, which have none. Like D4RL's loader, end episodes at the task's time limit.

    Without timeouts, an episode that timed out would run on into the next one. If the task is unknown, so is its time
    limit, and every episode is taken to end in a terminal.
    """
    task = find_task(name)
    if task is None or column.ndim != 1:
        return {}
    terminals = np.asarray(column[()])
    timeouts, length = np.zeros(len(terminals), dtype=bool), 0
    for row, terminal in enumerate(terminals.astype(bool).tolist()):
        length += 1
        timeouts[row] = length == task.time_limit and not terminal
        length = 0 if terminal or timeouts[row] else length
    return {"timeouts": timeouts}


def _is_sealed_or_foreign(path: Path) -> bool:
    """Whether the file is unchanged since it was written, or comes from elsewhere and has no seal to check."""
    with path.open("rb") as file:
        block = file.read(SEAL_BYTES)
        foreign = block.startswith(_HDF5_SIGNATURE) or not any(word in block for word in SEAL_WORDS)
        return foreign or block == seal_of(file)


def _parts(value: Any, key: str, where: str) -> Any:
    """The names of columns. `checked_dataset` compares them with the columns."""
    try:
        return parse_json(_text(value, where) or "null")
    except ValueError as error:
        raise fault(
            where, f"attribute {key} is damaged ({reason(error)})", "remove it, or write the file again"
        ) from error


def _has(file: h5py.File, key: str) -> bool:
    return file.get(key, getlink=True) is not None  # `key in file` would follow a link


def _column(file: h5py.File, key: str, where: str) -> h5py.Dataset:
    item = own_dataset(file, key, where)
    if key.endswith("observations") and item.ndim >= 3:  # before reading gigabytes of images
        raise pixel_fault(where, item.shape)
    return item


def _score_range(attributes: dict[str, Any], where: str) -> tuple[float, float] | None:
    if "ref_min_score" not in attributes or "ref_max_score" not in attributes:
        return None
    return _number(attributes, "ref_min_score", where), _number(attributes, "ref_max_score", where)


def _number(attributes: dict[str, Any], key: str, where: str) -> float:
    try:
        return float(attributes[key])
    except (TypeError, ValueError, OverflowError) as error:
        raise fault(where, f"attribute {key} is not a number", "store it as one number, or remove it") from error


def _text(value: Any, where: str) -> str | None:
    if value is None:
        return None
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if not isinstance(value, str):
        raise fault(where, "attribute env is not text", "store the Gymnasium id as text, or remove it")
    return str(value)

"""D4RL's HDF5 layout, read and written: one row a step, episodes one after another, other keys ignored.

File attributes beyond D4RL's own, all optional: `env`, `ref_min_score`, `ref_max_score`, `action_low`, `action_high`.
"""

from __future__ import annotations

import math
import os
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
    checked_dataset,
    dict_fault,
    fault,
    pixel_fault,
    reason,
    require_file,
)
from droprl.data.dataset import Dataset
from droprl.data.tasks import find_task
from droprl.errors import DropError

HDF5_SUFFIXES = (".hdf5", ".h5")
_ATTRIBUTES = ("env", "ref_min_score", "ref_max_score", "action_low", "action_high")
# A damaged header can claim any number of rows, and reading would then fill the memory with zeros. gzip packs at most
# 1,032 to 1; small arrays are never suspected.
_LARGEST_PACKING = 1_100
_NEVER_SUSPECT_BYTES = 64 * 2**20


def load_d4rl(
    path: str | Path, *, env: str | None = None, action_low: Bound = None, action_high: Bound = None
) -> Dataset:
    """Read a D4RL file. What is passed here weighs more than what the file's attributes say."""
    path = Path(path)
    with opened_d4rl(path, env=env, action_low=action_low, action_high=action_high) as (columns, known):
        arrays = {key: np.asarray(column[()]) for key, column in columns.items()}
    return checked_dataset(arrays, str(path), **known)


@contextmanager
def opened_d4rl(
    path: Path, *, env: str | None = None, action_low: Bound = None, action_high: Bound = None
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The columns of a D4RL file, still to be read, and what else `checked_dataset` wants to know."""
    where = str(path)
    require_file(path)
    try:
        with h5py.File(path, "r") as file:
            columns = {key: _column(file, key, where) for key in (*REQUIRED_KEYS, *OPTIONAL_KEYS) if key in file}
            attributes = {key: file.attrs[key] for key in _ATTRIBUTES if key in file.attrs}
            if "timeouts" not in columns and "terminals" in columns:
                columns |= _cut_at_time_limit(columns["terminals"], path.stem)
            if action_low is None and action_high is None:
                action_low, action_high = attributes.get("action_low"), attributes.get("action_high")
            known = {
                "name": path.stem,
                "env": env if env is not None else _text(attributes.get("env"), where),
                "score_range": _score_range(attributes, where),
                "action_low": action_low,
                "action_high": action_high,
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
    """The timeouts that D4RL's older files leave out: as its own loader, end an episode where the task's clock would.

    Without them an episode that timed out would run on into the next one. Where the task is not known there is nothing
    to go by, and every episode is taken to end in a terminal.
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


def save_d4rl(dataset: Dataset, path: str | Path) -> None:
    """Write the dataset so that `load_d4rl` gives it back, compressed; a reader never meets a half-written file.

    The name is not stored: a dataset is named after its file.
    """
    path = Path(path)
    where = str(path)
    if path.suffix.lower() not in HDF5_SUFFIXES:
        raise fault(where, "has no .hdf5 or .h5 ending, by which it is recognised", f"name it {path.name}.hdf5")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")  # same folder: a rename across disks is a copy
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with h5py.File(temporary, "w") as file:
            for key in (*REQUIRED_KEYS, *OPTIONAL_KEYS):
                if (array := getattr(dataset, key)) is not None:
                    file.create_dataset(key, data=array, compression="gzip", shuffle=True)
            file.attrs["action_low"], file.attrs["action_high"] = dataset.action_low, dataset.action_high
            if dataset.env is not None:
                # Text of fixed length: reading the other kind from a damaged file can keep libhdf5 busy for ever.
                file.attrs["env"] = np.bytes_(dataset.env.encode())
            if dataset.score_range is not None:
                file.attrs["ref_min_score"], file.attrs["ref_max_score"] = dataset.score_range
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
    except OSError as error:
        raise fault(where, f"cannot be written ({reason(error)})", "check the folder and the space left") from error
    finally:
        temporary.unlink(missing_ok=True)


def _column(file: h5py.File, key: str, where: str) -> h5py.Dataset:
    item = file[key]
    if isinstance(item, h5py.Group):
        raise dict_fault(key, where)
    if not isinstance(item, h5py.Dataset) or item.shape is None:
        raise fault(where, f"{key} is not an array", "store one row a step under that name")
    if key.endswith("observations") and item.ndim >= 3:  # before reading gigabytes of images
        raise pixel_fault(where, item.shape)
    claimed = math.prod(item.shape) * item.dtype.itemsize
    if claimed > max(_NEVER_SUSPECT_BYTES, _LARGEST_PACKING * item.id.get_storage_size()):
        raise fault(where, f"{key} claims shape {item.shape}, far more than is stored", "copy or download it again")
    return item


def _score_range(attributes: dict[str, Any], where: str) -> tuple[float, float] | None:
    if "ref_min_score" not in attributes or "ref_max_score" not in attributes:
        return None
    return _number(attributes, "ref_min_score", where), _number(attributes, "ref_max_score", where)


def _number(attributes: dict[str, Any], key: str, where: str) -> float:
    try:
        return float(attributes[key])
    except (TypeError, ValueError) as error:
        raise fault(where, f"attribute {key} is not a number", "store it as one number, or remove it") from error


def _text(value: Any, where: str) -> str | None:
    if value is None:
        return None
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if not isinstance(value, str):
        raise fault(where, "attribute env is not text", "store the Gymnasium id as text, or remove it")
    return str(value)

"""HDF5 files, read so that nothing outside the file is read with them.

HDF5 can take data from other files: through links, through external storage and through virtual datasets. A file of a
stranger could so read any file of the machine, or wait for ever at a pipe. All three are refused, by name.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from droprl.data.check import dict_fault, fault
from droprl.data.claims import MOST_BOUNDS, Claim, check_kind

COPY_IN = "copy the data itself into this file"


def own_dataset(file: h5py.File, key: str, where: str) -> h5py.Dataset:
    """The dataset under this key, if it is an array of numbers that the file itself holds. Nothing is read."""
    if not isinstance(file.get(key, getlink=True), h5py.HardLink):
        raise fault(where, f"{key} is a link, which may lead to another file", COPY_IN)
    item = h5py.h5o.open(file.id, key.encode())
    if isinstance(item, h5py.h5g.GroupID):
        raise dict_fault(key, where)
    if not isinstance(item, h5py.h5d.DatasetID):
        raise fault(where, f"{key} is not an array", "store one row for each step under that name")
    _refuse_outside(item, key, where)
    dataset = h5py.Dataset(item)
    if dataset.shape is None:
        raise fault(where, f"{key} is not an array", "store one row for each step under that name")
    check_kind(key, dataset.dtype, where)
    return dataset


def claim_of(dataset: h5py.Dataset) -> Claim:
    return Claim(dataset.shape, dataset.dtype, dataset.chunks or ())


def claims_in(file: h5py.File, where: str) -> dict[str, Claim]:
    """What every dataset in the file claims, under each of its names. Every link in the file is checked."""
    claims = {}
    links: list[tuple[bytes, int]] = []
    file.id.links.visit(lambda name, info: links.append((name, info.type)), info=True)
    for name, kind in links:
        key = name.decode(errors="replace")
        if kind != h5py.h5l.TYPE_HARD:
            raise fault(where, f"{key} is a link, which may lead to another file", COPY_IN)
        item = h5py.h5o.open(file.id, name)
        if isinstance(item, h5py.h5d.DatasetID):
            _refuse_outside(item, key, where)
            dataset = h5py.Dataset(item)
            if dataset.shape is not None:
                claims[key] = claim_of(dataset)
    return claims


def attribute(file: h5py.File, key: str, where: str) -> Any:
    """A small attribute: one text, or numbers. A large one is refused unread."""
    found = file.attrs.get_id(key)
    if math.prod(found.shape or ()) > (1 if found.dtype.kind in "OSU" else MOST_BOUNDS) or found.dtype.itemsize > 2**16:
        raise fault(where, f"attribute {key} has shape {found.shape}", "store one text, or one number for each action")
    value = file.attrs[key]
    return value.item() if isinstance(value, np.ndarray) and value.dtype.kind in "OSU" else value


def file_origin(path: Path) -> str | None:
    """The text of the attribute `origin`, which says where a file comes from. None if the file has none."""
    try:
        with h5py.File(path, "r") as file:
            value = attribute(file, "origin", str(path)) if "origin" in file.attrs else None
    except Exception:  # a damaged file says nothing; whoever loads its data says what is wrong
        return None
    return value.decode(errors="replace") if isinstance(value, bytes) else None if value is None else str(value)


def _refuse_outside(dataset: h5py.h5d.DatasetID, key: str, where: str) -> None:
    """This looks only at how the dataset is stored: to ask for the shape of a virtual dataset opens its sources."""
    stored = dataset.get_create_plist()
    if stored.get_external_count() > 0:
        raise fault(where, f"{key} is stored in another file (external storage)", COPY_IN)
    if stored.get_layout() == h5py.h5d.VIRTUAL:
        raise fault(where, f"{key} is a virtual dataset, whose data is in other files", COPY_IN)

"""Writes D4RL's HDF5 layout. `d4rl` reads it.

A file written here begins with a seal: the checksum of the rest of the file. The seal is in HDF5's user block, which
other readers skip. HDF5 itself notices little damage. Files from elsewhere have no seal, so only HDF5 checks them.
"""

from __future__ import annotations

import hashlib
import json
import os
from io import BufferedRandom, BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING

import h5py
import numpy as np

from droprl.environments.vectors import Parts
from droprl.errors import DropError, reason

if TYPE_CHECKING:
    from droprl.data.dataset import Dataset

HDF5_SUFFIXES = (".hdf5", ".h5")
COLUMNS = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations")
PARTS = ("observation_parts", "action_parts")
SEAL_BYTES = 512  # the smallest user block
SEAL_WORDS = (b"droprl", b"sha256")  # one of them is enough to see that the file had a seal, if the other is damaged
MOST_NAME_BYTES = 60_000  # HDF5 keeps at most 64 kB in one attribute


def save_d4rl(dataset: Dataset, path: str | Path) -> None:
    """Write the dataset, compressed, so that `load_d4rl` returns it. A reader never sees a half-written file.

    The name is not stored: a dataset is named after its file.
    """
    path = Path(path)
    where = str(path)
    if path.suffix.lower() not in HDF5_SUFFIXES:
        raise DropError(
            f"{where}: does not end in .hdf5 or .h5, so it could not be loaded again: name it {path.name}.hdf5"
        )
    temporary = path.with_name(
        f".{path.name}.{os.getpid()}.tmp"
    )  # in the same folder, because a rename to another disk is a copy
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)
        with h5py.File(temporary, "x", userblock_size=SEAL_BYTES) as file:
            for key in COLUMNS:
                if (array := getattr(dataset, key)) is not None:
                    file.create_dataset(key, data=array, compression="gzip", shuffle=True)
            file.attrs["action_low"], file.attrs["action_high"] = dataset.action_low, dataset.action_high
            if dataset.env is not None:
                # Text of fixed length: on damaged text of variable length, libhdf5 may never return.
                file.attrs["env"] = np.bytes_(dataset.env.encode())
            if dataset.score_range is not None:
                file.attrs["ref_min_score"], file.attrs["ref_max_score"] = dataset.score_range
            if dataset.time_limit is not None:
                file.attrs["time_limit"] = dataset.time_limit
            for key in PARTS:
                if (parts := getattr(dataset, key)) is not None:
                    file.attrs[key] = _names(parts, key, where)
        with temporary.open("r+b") as written:
            written.write(seal_of(written))
            written.flush()
            os.fsync(written.fileno())
        temporary.replace(path)
    except OSError as error:
        raise DropError(f"{where}: cannot be written ({reason(error)}): check the folder and the space left") from error
    finally:
        temporary.unlink(missing_ok=True)


def seal_of(file: BufferedReader | BufferedRandom) -> bytes:
    """The first bytes of a file: the checksum of the rest. The file is left at its beginning."""
    file.seek(SEAL_BYTES)
    found = hashlib.file_digest(file, "sha256").hexdigest()
    file.seek(0)
    return f"droprl dataset, sha256 of what follows these {SEAL_BYTES} bytes: {found}\n".encode().ljust(SEAL_BYTES)


def _names(parts: Parts, key: str, where: str) -> np.bytes_:
    """The names of columns as text of fixed length, for the same reason as above."""
    text = json.dumps(parts).encode()
    if len(text) > MOST_NAME_BYTES:
        what = f"the names in {key} take {len(text):,} bytes of at most {MOST_NAME_BYTES:,}"
        raise DropError(f"{where}: {what}: give the columns shorter names, or fewer columns")
    return np.bytes_(text)

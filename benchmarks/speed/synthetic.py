"""Random data of any size, to measure scale. Rewards depend on the observations; there is nothing to learn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np

OBSERVATION, ACTION, EPISODE = 11, 3, 100  # the sizes of hopper; every episode times out
BLOCK = 1_000_000
SHAPES = {
    "observations": (OBSERVATION,),
    "actions": (ACTION,),
    "rewards": (),
    "terminals": (),
    "timeouts": (),
}


def blocks(rows: int) -> Iterator[dict[str, np.ndarray]]:
    """The columns, part by part."""
    for begin in range(0, rows, BLOCK):
        rng = np.random.default_rng(begin)
        place = np.arange(begin, min(begin + BLOCK, rows))
        observations = rng.standard_normal((len(place), OBSERVATION), dtype=np.float32)
        level = np.random.default_rng(1).uniform(0, 1, 1 + rows // EPISODE).astype(np.float32)[place // EPISODE]
        yield {
            "observations": observations,
            "actions": np.tanh(observations[:, :ACTION]),
            "rewards": level + 0.1 * observations[:, 0],
            "terminals": np.zeros(len(place), bool),
            "timeouts": place % EPISODE == EPISODE - 1,
        }


def arrays(rows: int) -> dict[str, np.ndarray]:
    parts = list(blocks(rows))
    return {key: np.concatenate([part[key] for part in parts]) for key in SHAPES}


def write_hdf5(path: Path, rows: int) -> None:
    """Write D4RL's layout, part by part and without compression."""
    with h5py.File(path, "w") as file:
        parts = blocks(rows)
        written = 0
        for part in parts:
            for key, column in part.items():
                if not written:
                    file.create_dataset(key, shape=(rows, *SHAPES[key]), dtype=column.dtype)
                file[key][written : written + len(column)] = column
            written += len(part["rewards"])

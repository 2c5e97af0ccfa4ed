"""A tiny suite and the data that it learns from."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np

TINY = """
title = "A small suite"
claim = "none"
tasks = ["hopper-medium", "hopper-random"]
steps = 20
seeds = 2
episodes = 2

[methods.DROP]
n_sub_tasks = 4
width = 8
batch_size = 16
depths = [1, 1, 1, 1, 1]
[methods.BC]
algo = "bc"
width = 8
batch_size = 16

[plays]
once = { rule = "best" }
always = { rule = "best-ada" }

[figure]
kind = "dots"
"""


def write_hopper(path: Path, seed: int = 0) -> None:
    """A stand-in for Hopper's data: only the sizes of observations and actions are Hopper's."""
    rng = np.random.default_rng(seed)
    timeouts = np.zeros(240, bool)
    timeouts[11::12] = True
    arrays = {
        "observations": rng.normal(size=(240, 11)).astype(np.float32),
        "actions": rng.uniform(-0.9, 0.9, size=(240, 3)).astype(np.float32),
        "rewards": rng.normal(size=240).astype(np.float32),
        "terminals": np.zeros(240, bool),
        "timeouts": timeouts,
    }
    with h5py.File(path, "w") as file:
        for key, value in arrays.items():
            file[key] = value

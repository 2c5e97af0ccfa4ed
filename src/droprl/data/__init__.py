"""Logged trajectories: read from a source, checked, and held in one in-memory form."""

from droprl.data.check import from_arrays
from droprl.data.d4rl import save_d4rl
from droprl.data.dataset import Dataset
from droprl.data.sources import load_dataset, map_dataset

__all__ = ["Dataset", "from_arrays", "load_dataset", "map_dataset", "save_d4rl"]

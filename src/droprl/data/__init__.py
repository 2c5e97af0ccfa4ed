"""Logged trajectories: read from a source, checked, and held in one in-memory form."""

from droprl.data.arrays import from_arrays, from_episodes
from droprl.data.d4rl import save_d4rl
from droprl.data.dataset import Dataset
from droprl.data.frames import from_frame
from droprl.data.sources import load_dataset, map_dataset

__all__ = ["Dataset", "from_arrays", "from_episodes", "from_frame", "load_dataset", "map_dataset", "save_d4rl"]

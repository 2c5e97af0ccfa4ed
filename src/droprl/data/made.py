"""The datasets that droprl makes on the spot, by their names: D4RL's mazes, and the gates."""

from __future__ import annotations

from collections.abc import Callable

from droprl.data.ant_walks import ANT_DATA, AntWalker, make_ant_dataset
from droprl.data.dataset import Dataset
from droprl.data.gate_walks import make_gates_dataset
from droprl.data.maze_walks import make_maze_dataset
from droprl.environments.gates import gates_named
from droprl.environments.mazes import MAZES


def can_be_made(name: str) -> bool:
    """Whether droprl makes this data by itself. For AntMaze it needs a policy that walks the ant."""
    return name in MAZES or gates_named(name) is not None


def make_dataset(
    name: str,
    n_steps: int = 100_000,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    walker: AntWalker | None = None,
) -> Dataset:
    """`n_steps` steps, rounded up to whole episodes, for example of "maze2d-umaze" or "maze2d-gates-luck30".

    `walker` walks the ant of AntMaze."""
    if name in ANT_DATA:
        return make_ant_dataset(name, walker, n_steps, seed, progress)
    gates = gates_named(name)
    if gates is not None:
        return make_gates_dataset(gates, n_steps, seed, progress)
    return make_maze_dataset(name, n_steps, seed, progress)

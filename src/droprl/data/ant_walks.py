"""Makes datasets by D4RL's AntMaze recipe: a given policy walks the ant from corner to corner of a maze.

The datasets are *regenerated*, in kind: D4RL's mazes, ant, noise, rewards and time limits, but other walks than D4RL's.
The policy is not made here. It observes the ant without its position, and the direction in which to go.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from droprl.data.check import fault, require_file
from droprl.data.dataset import Dataset
from droprl.data.maze_walks import Walk, plan
from droprl.data.tasks import find_task
from droprl.environments.mazes import MAPS, TIME_LIMITS, Cell, Maze
from droprl.errors import DropError

if TYPE_CHECKING:
    from droprl.environments.antmaze import AntMazeEnv

NOISE = 0.2  # standard deviation of the noise on every action, as in D4RL
CORNER, ARRIVED = 1.5, 0.5  # within this distance the walker turns at a corner, or has arrived
DIRECTION = 10.0  # the length of the direction that the policy sees
MOST_WEIGHTS = 10**7
_NEEDS = "needs a policy that walks the ant, and droprl trains none in minutes"
_REMEDY = "give one with --walker FILE.npz (docs/data.md has its layout), or use D4RL's own file"

Style = Literal["fixed", "play", "diverse"]
ANT_DATA: Final[dict[str, tuple[str, Style]]] = {
    "antmaze-umaze": ("antmaze-umaze", "fixed"),
    "antmaze-umaze-diverse": ("antmaze-umaze", "diverse"),
    "antmaze-medium-play": ("antmaze-medium", "play"),
    "antmaze-medium-diverse": ("antmaze-medium", "diverse"),
    "antmaze-large-play": ("antmaze-large", "play"),
    "antmaze-large-diverse": ("antmaze-large", "diverse"),
}
# D4RL's hand-picked goals (G in its BIG_MAZE and HARDEST_MAZE), and the goal of the task.
PLAY_GOALS: Final[dict[str, tuple[Cell, ...]]] = {
    "antmaze-medium": ((2, 6), (5, 1), (6, 5), (6, 6)),
    "antmaze-large": ((1, 6), (3, 5), (3, 10), (5, 2), (7, 4), (7, 6), (7, 9)),
}


@dataclass(frozen=True)
class AntWalker:
    """A perceptron (ReLU, then tanh): 27 numbers of the ant and 2 of a direction go in, 8 actions come out."""

    weights: tuple[np.ndarray, ...]
    biases: tuple[np.ndarray, ...]

    def act(self, observation: np.ndarray, target: np.ndarray) -> np.ndarray:
        ahead = target - observation[:2]
        hidden = np.concatenate([observation[2:], DIRECTION * ahead / (np.linalg.norm(ahead) + 1e-8)])
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            hidden = np.maximum(weight @ hidden + bias, 0.0)
        action: np.ndarray = np.tanh(self.weights[-1] @ hidden + self.biases[-1])
        return action


def load_walker(path: str | Path) -> AntWalker:
    """Read `W0`, `b0`, `W1`, … of an .npz file: each layer is W @ x + b. Other arrays are ignored."""
    path = Path(path)
    where = str(path)
    require_file(path)
    remedy = "give an .npz file with the layers W0, b0, W1, b1, … (docs/data.md)"
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(part.file_size for part in archive.infolist()) > 8 * MOST_WEIGHTS:
                raise fault(where, f"has more than {MOST_WEIGHTS:,} weights", remedy)
        with np.load(path, allow_pickle=False) as file:
            n = sum(key.startswith("W") and key[1:].isdigit() for key in file.files)
            weights = tuple(np.asarray(file[f"W{i}"], np.float64) for i in range(n))
            biases = tuple(np.asarray(file[f"b{i}"], np.float64) for i in range(n))
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise fault(where, f"holds no policy ({' '.join(str(error).split())})", remedy) from error
    sizes = [29, *(len(bias) if bias.ndim == 1 else 0 for bias in biases)]
    shapes = [weight.shape for weight in weights]
    if not n or sizes[-1] != 8 or shapes != [(after, before) for before, after in pairwise(sizes)]:
        raise fault(where, f"its layers are {shapes}, and must lead from 29 numbers to 8", remedy)
    if not all(np.isfinite(part).all() for part in (*weights, *biases)):
        raise fault(where, "a weight is not finite", remedy)
    return AntWalker(weights, biases)


def make_ant_dataset(
    name: str,
    walker: AntWalker | None,
    n_steps: int = 100_000,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Dataset:
    """Walk through a maze for `n_steps`, rounded up to whole episodes. The same seed makes the same bytes.

    `umaze` walks from the start to the goal. `play` sets out for hand-picked cells and `diverse` for any cell; both
    start anywhere, and a walk that has arrived sets out for another cell. An episode ends at the task's goal, or at its
    time limit.
    """
    if name not in ANT_DATA:
        raise DropError(f"there is no AntMaze data called {name!r}: choose one of {', '.join(ANT_DATA)}")
    if walker is None:
        raise DropError(f"{name}: {_NEEDS}: {_REMEDY}")
    if n_steps < 1 or seed < 0:
        raise DropError(f"{name}: needs at least 1 step and a seed of 0 or more, not {n_steps} steps and seed {seed}")
    from droprl.environments.antmaze import AntMazeEnv

    maze, style = ANT_DATA[name]
    env, walks, done = AntMazeEnv(maze), list[Walk](), 0
    while done < n_steps:
        walks.append(walk_ant(env, walker, np.random.default_rng([seed, len(walks)]), style))
        done += len(walks[-1].rewards)
        if progress is not None:
            progress(min(done, n_steps), n_steps)
    ends = np.cumsum([len(walk.rewards) for walk in walks]) - 1
    terminals, timeouts = np.zeros(done, dtype=bool), np.zeros(done, dtype=bool)
    terminals[ends] = [walk.arrived for walk in walks]
    timeouts[ends] = ~terminals[ends]
    task = find_task(name)
    assert task is not None
    return Dataset(
        observations=np.concatenate([walk.observations[:-1] for walk in walks]),
        actions=np.concatenate([walk.actions for walk in walks]),
        rewards=np.concatenate([walk.rewards for walk in walks]),
        terminals=terminals,
        timeouts=timeouts,
        next_observations=np.concatenate([walk.observations[1:] for walk in walks]),
        action_low=np.full(8, -1.0, dtype=np.float32),
        action_high=np.full(8, 1.0, dtype=np.float32),
        name=name,
        env=task.env,
        score_range=task.score_range,
        time_limit=task.time_limit,
    )


def walk_ant(
    env: AntMazeEnv, walker: AntWalker, rng: np.random.Generator, style: Style = "fixed", noise: float = NOISE
) -> Walk:
    """One episode, which ends at the task's goal or at the time limit."""
    maze = Maze(env.maze, MAPS[env.maze], TIME_LIMITS[env.maze], point_maze="")
    goals = {"fixed": (maze.goal,), "play": PLAY_GOALS.get(env.maze, ()), "diverse": maze.free_cells}[style]
    starts = [cell for cell in maze.free_cells if cell not in goals or style == "diverse"]
    at = env.start_cell if style == "fixed" else starts[rng.integers(len(starts))]
    observation, _ = env.reset(seed=int(rng.integers(2**31)), options={"reset_cell": at})
    observations, actions, rewards, arrived = [observation], list[np.ndarray](), list[float](), False
    way = _Way(env, maze, at, _another(goals, at, rng))
    while not arrived and len(rewards) < maze.time_limit:
        if way.has_ended(observation[:2]) and style != "fixed":
            way = _Way(env, maze, way.cells[-1], _another(goals, way.cells[-1], rng))
        action = np.clip(walker.act(observation, way.target) + noise * rng.standard_normal(8), -1, 1)
        actions.append(action.astype(np.float32))
        observation, reward, arrived, _, _ = env.step(actions[-1])
        observations.append(observation)
        rewards.append(float(reward))
    return Walk(np.array(observations, np.float32), np.array(actions), np.array(rewards, np.float32), arrived)


class _Way:
    """From one cell to another, from corner to corner."""

    def __init__(self, env: AntMazeEnv, maze: Maze, start: Cell, end: Cell) -> None:
        ahead = plan(maze, end)
        self.cells = [start]
        while self.cells[-1] != end:
            self.cells.append(ahead[self.cells[-1]])
        self._points = [env.middle_of(cell) for cell in self.cells]
        if end == env.goal_cell:
            self._points[-1] = env.goal
        self._next = 1

    @property
    def target(self) -> np.ndarray:
        return self._points[self._next]

    def has_ended(self, position: np.ndarray) -> bool:
        """Whether the ant has arrived. On the way, it turns at each corner."""
        distance = np.linalg.norm(self.target - position)
        if self._next == len(self._points) - 1:
            return bool(distance <= ARRIVED)
        self._next += bool(distance < CORNER)
        return False


def _another(goals: tuple[Cell, ...], than: Cell, rng: np.random.Generator) -> Cell:
    others = [cell for cell in goals if cell != than]
    return others[rng.integers(len(others))]

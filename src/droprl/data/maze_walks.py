"""Makes datasets by D4RL's Maze2D recipe: a planner and a controller walk a ball through a maze, well or badly.

This module has the walkers and `make_maze_dataset`. The mazes and the simulation are in `environments`.

The datasets are *regenerated*, and every report of a score from them should say so. They have D4RL's mazes,
coordinates, goals, rewards and time limits, but other walks than D4RL's files. D4RL's walks go from one random cell to
the next and meet the goal by chance. Our walks set out for the goal sooner or later, so a whole episode can be good or
bad.

D4RL's score 100 is not an expert's score. The script that measured it planned a way only in the first of its hundred
episodes. In the others, its controller pushed straight towards the goal, through walls or not. `EXPERT` below always
plans, and scores well above 100 in all three mazes.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from droprl.data.dataset import Dataset
from droprl.data.tasks import find_task
from droprl.environments.mazes import CELL_OFFSET, MAZES, Cell, Maze
from droprl.errors import DropError

if TYPE_CHECKING:
    from droprl.environments.maze2d import Maze2DEnv


def make_maze_dataset(
    name: str, n_steps: int = 100_000, seed: int = 0, progress: Callable[[int, int], None] | None = None
) -> Dataset:
    """Walk through a maze for `n_steps`, rounded up to whole episodes. The same seed makes the same bytes.

    Every episode draws its own `Walker` and runs to the time limit. No episode ends in a terminal. After each episode,
    `progress` gets the number of steps done and the number in all. A longer dataset from the same seed begins with the
    episodes of a shorter one.
    """
    if name not in MAZES:
        raise DropError(f"there is no maze called {name!r}: choose one of {', '.join(MAZES)}")
    if n_steps < 1 or seed < 0:
        raise DropError(f"{name}: needs at least 1 step and a seed of 0 or more, not {n_steps} steps and seed {seed}")
    from droprl.environments.maze2d import Maze2DEnv

    maze = MAZES[name]
    plans = {cell: plan(maze, cell) for cell in maze.free_cells}
    n_episodes = math.ceil(n_steps / maze.time_limit)
    env = Maze2DEnv(name)
    episodes = []
    for index in range(n_episodes):
        rng = np.random.default_rng([seed, index])
        episodes.append(walk(env, draw_walker(rng), plans, rng))
        if progress is not None:
            progress((index + 1) * maze.time_limit, n_episodes * maze.time_limit)
    env.close()
    task = find_task(name)
    assert task is not None
    timeouts = np.zeros((n_episodes, maze.time_limit), dtype=bool)
    timeouts[:, -1] = True
    return Dataset(
        observations=np.concatenate([episode.observations[:-1] for episode in episodes]),
        actions=np.concatenate([episode.actions for episode in episodes]),
        rewards=np.concatenate([episode.rewards for episode in episodes]),
        terminals=np.zeros(timeouts.size, dtype=bool),
        timeouts=timeouts.ravel(),
        next_observations=np.concatenate([episode.observations[1:] for episode in episodes]),
        action_low=np.full(2, -1.0, dtype=np.float32),
        action_high=np.full(2, 1.0, dtype=np.float32),
        name=name,
        env=task.env,
        score_range=task.score_range,
        time_limit=maze.time_limit,
    )


@dataclass(frozen=True)
class Walker:
    """The walker of one episode: a proportional-derivative controller, its noise, and when it sets out for the goal."""

    p_gain: float  # push per distance to the next waypoint
    d_gain: float  # push against each unit of velocity
    noise: float  # standard deviation of the noise added to every action
    wandering: float  # the share of the time limit spent on random cells before it sets out for the goal


# A wandering walker rests at each cell that it reaches, on average for this share of the time limit. If walkers stopped
# only at the goal, a copy of the average walker would also end there, and would be as good as a copy of the best.
REST = 0.2
# The best walker: it goes straight to the goal at full speed and brakes just in time.
EXPERT = Walker(p_gain=10.0, d_gain=1.0, noise=0.0, wandering=0.0)


def draw_walker(rng: np.random.Generator) -> Walker:
    """Draw a walker, from near-expert to sloppy. Skill and wandering are independent, so few are good in both."""
    p_gain = math.exp(rng.uniform(math.log(1.0), math.log(12.0)))
    d_gain = p_gain * math.exp(rng.uniform(math.log(0.1), math.log(0.7)))  # from nimble to sluggish
    noise = rng.uniform(0.0, 1.0)
    wandering = max(0.0, rng.uniform(-0.1, 1.4))  # 1 of 15 goes straight to the goal, and 4 of 15 never go there
    return Walker(p_gain, d_gain, noise, wandering)


def plan(maze: Maze, target: Cell) -> dict[Cell, Cell]:
    """For every free cell, the next waypoint on a shortest way to `target`: the end of the straight line ahead.

    The search is breadth-first from the target. The walker looks up the cell of the ball. So a ball that was pushed
    away or bounced follows the way from its new cell.
    """
    towards = {target: target}
    queue = deque([target])
    free = set(maze.free_cells)
    while queue:
        row, column = queue.popleft()
        for cell in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
            if cell in free and cell not in towards:
                towards[cell] = (row, column)
                queue.append(cell)
    return {cell: _straight_on(towards, cell) for cell in towards}


def _straight_on(towards: dict[Cell, Cell], cell: Cell) -> Cell:
    ahead = towards[cell]
    direction = (ahead[0] - cell[0], ahead[1] - cell[1])
    while (beyond := towards[ahead]) != ahead and (beyond[0] - ahead[0], beyond[1] - ahead[1]) == direction:
        ahead = beyond
    return ahead


@dataclass(frozen=True)
class Walk:
    observations: np.ndarray  # (T + 1, 4) float32
    actions: np.ndarray  # (T, 2) float32
    rewards: np.ndarray  # (T,) float32
    arrived: bool = False  # the task ended; otherwise the time limit was reached


def walk(env: Maze2DEnv, walker: Walker, plans: dict[Cell, dict[Cell, Cell]], rng: np.random.Generator) -> Walk:
    """One episode, up to the time limit. `plans` holds `plan(maze, target)` for every target."""
    maze, n_steps = env.maze, env.maze.time_limit
    noise = lasting_noise(walker.noise, n_steps, rng)
    observations = np.empty((n_steps + 1, 4), dtype=np.float32)
    actions = np.empty((n_steps, 2), dtype=np.float32)
    rewards = np.empty(n_steps, dtype=np.float32)
    observation, _ = env.reset(seed=int(rng.integers(2**31)))
    observations[0] = observation
    target, moves_on = maze.goal, 0.0  # the step in which a resting walker moves on
    for step in range(n_steps):
        # This loop uses plain numbers: NumPy on pairs of numbers would take as long as the simulation.
        row, column, row_velocity, column_velocity = observation.tolist()
        cell = (round(row + CELL_OFFSET), round(column + CELL_OFFSET))
        if step >= walker.wandering * n_steps:
            target = maze.goal
        elif step >= moves_on:
            target = maze.free_cells[rng.integers(len(maze.free_cells))]
            moves_on = math.inf
        elif cell == target and moves_on == math.inf:
            moves_on = step + rng.exponential(REST * n_steps)
        waypoint = plans[target][cell]
        offset = (
            0.0 if cell == target == maze.goal else CELL_OFFSET
        )  # ways follow the middle of cells, except at the goal
        row_error, column_error = waypoint[0] - offset - row, waypoint[1] - offset - column
        row_push = walker.p_gain * row_error - walker.d_gain * row_velocity + noise[step][0]
        column_push = walker.p_gain * column_error - walker.d_gain * column_velocity + noise[step][1]
        actions[step] = min(1.0, max(-1.0, row_push)), min(1.0, max(-1.0, column_push))
        observation, reward, *_ = env.step(actions[step])
        observations[step + 1], rewards[step] = observation, float(reward)
    return Walk(observations, actions, rewards)


def lasting_noise(scale: float, n_steps: int, rng: np.random.Generator) -> list[list[float]]:
    """Noise that lasts about ten steps. The ball is too heavy to react to noise that is new in every step."""
    memory = 0.9
    noise = rng.normal(0.0, scale, (n_steps, 2))
    for step in range(1, n_steps):
        noise[step] = memory * noise[step - 1] + math.sqrt(1 - memory**2) * noise[step]
    pushes: list[list[float]] = noise.tolist()
    return pushes

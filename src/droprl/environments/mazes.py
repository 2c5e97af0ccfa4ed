"""The mazes by name: their walls and time limits, and how Gymnasium finds them. Nothing here is simulated."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

Cell = tuple[int, int]  # row, column
# D4RL's position (r, c) is not the middle of the cell in row r and column c, but 0.2 beyond it in both directions: its
# ball starts 1.2 from the origin, its walls begin at 1.0. We do the same, so that both have the same coordinates.
CELL_OFFSET = 0.2


@dataclass(frozen=True)
class Maze:
    """One of D4RL's mazes: `#` is a wall, `G` the goal's cell."""

    name: str
    rows: tuple[str, ...]
    time_limit: int  # steps of an episode
    point_maze: str  # the gymnasium-robotics environment with the same walls

    @cached_property
    def free_cells(self) -> tuple[Cell, ...]:
        cells = ((r, c) for r, row in enumerate(self.rows) for c, mark in enumerate(row) if mark != "#")
        return tuple(cells)

    @cached_property
    def goal(self) -> Cell:
        return next((r, row.index("G")) for r, row in enumerate(self.rows) if "G" in row)


_UMAZE = (
    "#####",
    "#G  #",
    "### #",
    "#   #",
    "#####",
)
_MEDIUM = (
    "########",
    "#  ##  #",
    "#  #   #",
    "##   ###",
    "#  #   #",
    "# #  # #",
    "#   # G#",
    "########",
)
_LARGE = (
    "############",
    "#    #     #",
    "# ## # # # #",
    "#      #   #",
    "# #### ### #",
    "#  # #     #",
    "## # # # ###",
    "#  #   # G #",
    "############",
)
MAZES: dict[str, Maze] = {
    maze.name: maze
    for maze in (
        Maze("maze2d-umaze", _UMAZE, 300, "PointMaze_UMaze-v3"),
        Maze("maze2d-medium", _MEDIUM, 600, "PointMaze_Medium-v3"),
        Maze("maze2d-large", _LARGE, 800, "PointMaze_Large-v3"),
    )
}


def register_mazes() -> None:
    """Make `gymnasium.make("droprl/maze2d-umaze-v0")` and the other two work. A second call changes nothing."""
    import gymnasium

    for maze in MAZES.values():
        if env_id(maze.name) not in gymnasium.registry:
            gymnasium.register(
                env_id(maze.name),
                entry_point="droprl.environments.maze2d:Maze2DEnv",
                kwargs={"maze": maze.name},
                max_episode_steps=maze.time_limit,
            )


def env_id(name: str) -> str:
    return f"droprl/{name}-v0"


# R: where the ant starts. G: the goal. #: walls.
MAPS: Final = {
    "antmaze-umaze": ("#####", "#R..#", "###.#", "#G..#", "#####"),
    "antmaze-medium": (
        *("########", "#R.##..#", "#..#...#", "##...###"),
        *("#..#...#", "#.#..#.#", "#...#.G#", "########"),
    ),
    "antmaze-large": (
        *("############", "#R...#.....#", "#.##.#.#.#.#", "#......#...#", "#.####.###.#"),
        *("#..#.#.....#", "##.#.#.#.###", "#..#...#.G.#", "############"),
    ),
}
TIME_LIMITS: Final = {"antmaze-umaze": 700, "antmaze-medium": 1000, "antmaze-large": 1000}


def register_antmazes() -> None:
    """Make `gymnasium.make("droprl/antmaze-umaze-v0")` and the other two work. A second call changes nothing.

    `droprl/antmaze-umaze-stiff-v0` has the contacts of Gymnasium's ant.
    """
    import gymnasium

    for name, limit in TIME_LIMITS.items():
        for known, contacts in ((name, "d4rl"), (f"{name}-stiff", "gymnasium")):
            if env_id(known) not in gymnasium.registry:
                gymnasium.register(
                    env_id(known),
                    entry_point="droprl.environments.antmaze:AntMazeEnv",
                    kwargs={"maze": name, "contacts": contacts},
                    max_episode_steps=limit,
                )

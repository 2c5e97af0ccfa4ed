"""The gates: a maze of junctions in a row, in which luck can be told from skill. Its names, its map and what it pays.

At each junction the way splits around a block, and each of the two ways leads through a gate. The gate of the right way
pays 1. The gate of the wrong way is open in one episode of ten, by chance. If it is open, it pays a prize, otherwise
nothing. `gates_env` simulates the maze, and `droprl.data.gate_walks` makes data.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import product

from droprl.errors import DropError

OPEN = 0.1  # how often a wrong gate is open
MOST_LUCK, MOST_JUNCTIONS = 0.9, 6
UPPER, MIDDLE, LOWER = 1, 2, 3  # the rows of the map that are free
FIRST_BLOCK, PERIOD = 4, 6  # columns: where the first block begins, and from one block to the next
_NAME = re.compile(r"maze2d-gates(?:-luck(\d{1,3}))?(?:-junctions(\d{1,3}))?(?:-cap(\d{1,3}))?")


@dataclass(frozen=True)
class Gates:
    """Which maze of gates. Its `name` is that of the task, and `data_name` that of its data too."""

    luck: float = 0.5
    """The share of chance in the variance of what a junction pays, if a fair coin chooses the way."""
    junctions: int = 3
    """How many junctions stand in a row."""
    cap: int | None = None
    """At how many junctions one trajectory of the data goes right, at most; None: at all but one."""

    def __post_init__(self) -> None:
        where = "maze2d-gates"
        if not 0 <= self.luck <= MOST_LUCK or not math.isclose(100 * self.luck, round(100 * self.luck)):
            raise DropError(f"{where}: luck is {self.luck:g}: give whole hundredths from 0 to {MOST_LUCK:g}")
        if not 1 <= self.junctions <= MOST_JUNCTIONS:
            raise DropError(f"{where}: junctions is {self.junctions}: give 1 to {MOST_JUNCTIONS}")
        if not 0 <= self.most_right < self.junctions:
            raise DropError(
                f"{where}: cap is {self.cap}: give 0 to {self.junctions - 1}, or a trajectory could be right everywhere"
            )

    @property
    def name(self) -> str:
        """The defaults are left out of it."""
        luck = "" if self.luck == Gates.luck else f"-luck{round(100 * self.luck)}"
        return f"maze2d-gates{luck}" + ("" if self.junctions == Gates.junctions else f"-junctions{self.junctions}")

    @property
    def data_name(self) -> str:
        return self.name + ("" if self.most_right == self.junctions - 1 else f"-cap{self.most_right}")

    @property
    def most_right(self) -> int:
        return self.junctions - 1 if self.cap is None else self.cap

    # --- what it pays ---

    @property
    def prize(self) -> float:
        """What an open wrong gate pays. With a fair coin, the variance of a junction's pay is (1 − p · prize)² / 4 by
        the choice and p (1 − p) prize² / 2 by chance, p = OPEN. Chance has the share `luck` of both."""
        choice, chance = math.sqrt(self.luck / 4), math.sqrt((1 - self.luck) * OPEN * (1 - OPEN) / 2)
        return choice / (chance + OPEN * choice)

    @property
    def wrong_value(self) -> float:
        """What a wrong choice pays on average; a right one pays 1."""
        return OPEN * self.prize

    def expected_return(self, n_right: int) -> float:
        return n_right + (self.junctions - n_right) * self.wrong_value

    @property
    def score_range(self) -> tuple[float, float]:
        """The mean return of the data's behaviour, and the optimum: right at every junction."""
        returns = [self.expected_return(sum(choices)) for choices in self.choices]
        return sum(returns) / len(returns), float(self.junctions)

    @property
    def choices(self) -> list[tuple[bool, ...]]:
        """Every way through the maze that the data may have: for each junction, whether it goes right. All are equally
        frequent."""
        return [c for c in product((False, True), repeat=self.junctions) if sum(c) <= self.most_right]

    # --- the map ---

    @property
    def time_limit(self) -> int:
        return 50 + 60 * self.junctions

    @property
    def rows(self) -> tuple[str, ...]:
        """`#` is a wall, and `<` the wedge that every block begins with. The episode ends in the last free column."""
        middle = "#" + " " * (FIRST_BLOCK - 1) + "<#    " * (self.junctions - 1) + "<#  #"
        wall, way = "#" * len(middle), "#" + " " * (len(middle) - 2) + "#"
        return wall, way, middle, way, wall

    def block(self, junction: int) -> int:
        """The first of the two columns of a junction's block. The gates stand between the two."""
        return FIRST_BLOCK + PERIOD * junction

    def row_of(self, junction: int, right: bool) -> int:
        """Which row is the right way alternates."""
        return UPPER if right == (junction % 2 == 0) else LOWER


def gates_named(name: str) -> Gates | None:
    """The gates by the name of a task or of data. None for another name."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    percent, junctions, cap = (None if number is None else int(number) for number in match.groups())
    return Gates(
        luck=Gates.luck if percent is None else percent / 100,
        junctions=Gates.junctions if junctions is None else junctions,
        cap=cap,
    )


def register_gates(env_id: str) -> None:
    """Make `gymnasium.make("droprl/maze2d-gates-luck30-v0")` work, if this is the id of a maze of gates."""
    import gymnasium

    name = env_id.removeprefix("droprl/").removesuffix("-v0")
    gates = gates_named(name)
    if gates is not None and gates.name == name and env_id not in gymnasium.registry:
        gymnasium.register(
            env_id,
            entry_point="droprl.environments.gates_env:GatesEnv",
            kwargs={"gates": gates},
            max_episode_steps=gates.time_limit,
        )

"""The gates as a Gymnasium environment, simulated here: a point with inertia and drag, walls and wedges."""

from __future__ import annotations

import math
from typing import Any, SupportsFloat

import gymnasium
import numpy as np

from droprl.environments.gates import MIDDLE, OPEN, Gates

SECONDS = 0.1  # of a step
FORCE, DRAG = 2.4, 2.0  # the ball reaches FORCE / DRAG cells a second
START_NOISE = 0.2  # of the position
SLOPE = 0.5  # of the sides of a wedge


class GatesEnv(gymnasium.Env[np.ndarray, np.ndarray]):
    """A ball is pushed through the gates. It observes (row, column, their velocities), and not which gates are open.

    Position (r, c) is the middle of the cell in row r and column c of the map. Only the first gate that the ball goes
    through at a junction pays. The episode ends in the last column.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 - Gymnasium's

    def __init__(self, gates: Gates) -> None:
        self.gates = gates
        self._rows, self._prize = gates.rows, gates.prize
        self._last_column = len(gates.rows[0]) - 2
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float64)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        row, column = self.np_random.uniform(-START_NOISE, START_NOISE, 2).tolist()
        self._state = (MIDDLE + row, 1 + column, 0.0, 0.0)
        self.open: list[bool] = (self.np_random.random(self.gates.junctions) < OPEN).tolist()
        self._passed = 0
        return np.array(self._state), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, SupportsFloat, bool, bool, dict[str, Any]]:
        # Plain numbers: NumPy on pairs of numbers would be several times slower.
        row, column, row_velocity, column_velocity = self._state
        row_push, column_push = (min(1.0, max(-1.0, float(push))) for push in action)
        row_velocity += SECONDS * (FORCE * row_push - DRAG * row_velocity)
        column_velocity += SECONDS * (FORCE * column_push - DRAG * column_velocity)
        if self._is_free(row + SECONDS * row_velocity, column):
            row += SECONDS * row_velocity
        else:
            row_velocity = 0.0
        if not self._is_free(row, column + SECONDS * column_velocity):
            column_velocity, aside = self._turned(row, column, column_velocity)
            row, row_velocity = row + SECONDS * aside, row_velocity + aside
        if self._is_free(row, column + SECONDS * column_velocity):
            column += SECONDS * column_velocity
        else:
            column_velocity = 0.0
        self._state = row, column, row_velocity, column_velocity
        reward = self._gate(row) if column >= self.gates.block(self._passed) + 0.5 else 0.0
        return np.array(self._state), reward, round(column) == self._last_column, False, {}

    @property
    def position(self) -> tuple[float, float]:
        return self._state[:2]

    def _is_free(self, row: float, column: float) -> bool:
        cell = self._rows[int(row + 0.5)][int(column + 0.5)]
        return cell == " " or (cell == "<" and abs(row - MIDDLE) > SLOPE * ((column + 0.5) % 1.0))

    def _turned(self, row: float, column: float, velocity: float) -> tuple[float, float]:
        """The velocities along the columns and the rows after a wall ahead. Only a wedge turns the ball aside."""
        if velocity <= 0.0 or self._rows[int(row + 0.5)][int(column + SECONDS * velocity + 0.5)] != "<":
            return 0.0, 0.0
        along = velocity / (1.0 + SLOPE**2)  # of the velocity, the part along the slope stays
        return along, math.copysign(1.02 * SLOPE * along, row - MIDDLE)

    def _gate(self, row: float) -> float:
        """What the gate of the next junction pays in this row."""
        junction = self._passed
        if junction == self.gates.junctions:
            return 0.0
        self._passed += 1
        if round(row) == self.gates.row_of(junction, right=True):
            return 1.0
        return self._prize if self.open[junction] else 0.0

"""How rewards are treated before anything is learned from them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from droprl.data.dataset import Dataset
from droprl.data.returns import returns_spread
from droprl.errors import SettingError, require

SMALLEST_UNIT = 1e-8  # returns that differ by less are taken to be equal


@dataclass(frozen=True)
class Rewards:
    """Every reward r of the data becomes times · r / unit + plus."""

    unit: Literal["spread", "range", "one"] = "spread"
    """spread: the standard deviation of the discounted returns of all steps, so that scores have unit spread; range:
    the highest return of an episode less the lowest, undiscounted; one: nothing is divided. Where all returns are
    equal, nothing is divided either."""
    times: float = 1.0
    """What rewards are multiplied by."""
    plus: float = 0.0
    """What is added to every reward after that."""

    def __post_init__(self) -> None:
        require(self, "above 0", "times")
        for name in ("times", "plus"):
            if not math.isfinite(getattr(self, name)):
                raise SettingError(f"{name} is {getattr(self, name)}: it must be a finite number")

    def treatment(self, dataset: Dataset, discount: float) -> Treatment:
        """What this comes to on a dataset."""
        unit = 1.0
        if self.unit == "spread":
            unit = returns_spread(dataset, discount)
        elif self.unit == "range":
            unit = float(np.ptp(dataset.returns))
        return Treatment((unit if unit > SMALLEST_UNIT else 1.0) / self.times, self.plus)


class Treatment(NamedTuple):
    """A reward r becomes r / scale + plus."""

    scale: float = 1.0
    plus: float = 0.0

    def of_sum(self, total: np.ndarray, n_rewards: np.ndarray, discount: float) -> np.ndarray:
        """The discounted sum of n treated rewards, from that of the rewards as they are in the data."""
        treated = total / self.scale
        if self.plus == 0.0:
            return treated
        weights = n_rewards if discount == 1.0 else (1.0 - discount**n_rewards) / (1.0 - discount)
        return treated + self.plus * weights

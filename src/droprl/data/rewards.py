"""How the rewards of the data are scaled and shifted before training."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from droprl.data.dataset import Dataset
from droprl.data.returns import returns_spread
from droprl.errors import SettingError, require

SMALLEST_UNIT = 1e-8  # smaller differences between returns count as equal returns


@dataclass(frozen=True)
class Rewards:
    """Every reward r of the data becomes times · r / unit + plus."""

    unit: Literal["spread", "range", "one"] = "spread"
    """spread: the standard deviation of the discounted returns of all steps, so that scores have unit spread; range:
    the highest undiscounted return of an episode minus the lowest; one: no division. If all returns are equal, there is
    no division either."""
    times: float = 1.0
    """Rewards are multiplied by this."""
    plus: float = 0.0
    """This is added to every reward after the multiplication."""

    def __post_init__(self) -> None:
        require(self, "above 0", "times")
        for name in ("times", "plus"):
            if not math.isfinite(getattr(self, name)):
                raise SettingError(f"{name} is {getattr(self, name)}: it must be a finite number")

    def treatment(self, dataset: Dataset, discount: float) -> Treatment:
        """The numbers for this dataset."""
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

    def treated_sum(self, total: np.ndarray, n_rewards: np.ndarray, discount: float) -> np.ndarray:
        """The discounted sum of n treated rewards, computed from the discounted sum of the untreated rewards."""
        treated = total / self.scale
        if self.plus == 0.0:
            return treated
        weights = n_rewards if discount == 1.0 else (1.0 - discount**n_rewards) / (1.0 - discount)
        return treated + self.plus * weights

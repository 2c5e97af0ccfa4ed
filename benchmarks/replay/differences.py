"""What the replays have in common: how differences are summed up."""

from __future__ import annotations

import numpy as np


def spread(differences: np.ndarray) -> dict[str, float]:
    """Median, the value that 1 of 100 exceeds, and the largest one."""
    if not len(differences):
        return {}
    return {name: float(np.quantile(differences, q)) for name, q in (("median", 0.5), ("99 %", 0.99), ("max", 1.0))}

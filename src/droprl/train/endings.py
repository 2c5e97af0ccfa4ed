"""Was a training over when it ended? Checks on the log of a run, the same for every algorithm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from droprl.algorithms.judging import Check, judged
from droprl.algorithms.protocol import Card

# Of all the fall, in the last fifth of the updates. In the 72 runs of benchmarks/paper/paper-noniterative it was 0.00
# to 0.17, and above 0.1 in four: BC and RvS-R on whole halfcheetah and walker2d datasets.
STILL_FALLING = 0.1
FEWEST = 3  # values of a metric in a fifth of the updates; with fewer nothing is judged
Log = Sequence[Mapping[str, Any]]


def ending_checks(card: Card, log: Log, place: int) -> list[Check]:
    """Do the losses still fall at the end, and do the metrics that must settle still move? `place` is the seed's."""
    losses = [_values(log, name, place) for name in card.falls]
    share = float("nan")
    if all(len(found) == len(losses[0]) for found in losses):
        steps = losses[0][:, 0]
        share = _late_fall(steps, np.sum([found[:, 1] for found in losses], axis=0))
    checks = judged(
        "share of the fall of the loss in the last fifth",
        share,
        share <= STILL_FALLING,
        "the losses hardly fall any more",
        "undertrained: the losses still fall clearly at the end; train longer, or raise learning_rate",
    )
    for name, most in card.settles:
        change = _late_change(*_values(log, name, place).T)
        checks += judged(
            f"late change of {name}",
            change,
            change <= most,
            f"{name} stands still",
            f"undertrained: {name} still changes at the end, by more than {most:.0%} in the last fifth of the updates; "
            "train longer, or raise learning_rate",
        )
    return checks


def _values(log: Log, name: str, place: int) -> np.ndarray:
    """(n, 2): the updates at which the metric was logged, and its values."""
    found = [(entry["step"], entry[name][place]) for entry in log if place < len(entry.get(name, ()))]
    return np.array([pair for pair in found if pair[1] is not None], dtype=np.float64).reshape(-1, 2)


def _late_fall(steps: np.ndarray, losses: np.ndarray) -> float:
    """The share of the whole fall, from the first entry on, that came between the last two fifths of the updates."""
    before, last = _last_fifths(steps, losses)
    fallen = losses[0] - last if len(losses) else 0.0
    return (before - last) / fallen if fallen > 0 else float("nan")


def _late_change(steps: np.ndarray, values: np.ndarray) -> float:
    """By what share of itself the metric changed between the last two fifths of the updates."""
    before, last = _last_fifths(steps, values)
    return abs(last - before) / max(abs(last), abs(before), 1e-12)


def _last_fifths(steps: np.ndarray, values: np.ndarray) -> tuple[float, float]:
    """The means over the last fifth but one and over the last fifth of the updates. NaN if too few are known."""
    if not len(steps):
        return float("nan"), float("nan")
    parts = [values[(low * steps[-1] < steps) & (steps <= high * steps[-1])] for low, high in ((0.6, 0.8), (0.8, 1.0))]
    before, last = (float(part.mean()) if len(part) >= FEWEST else float("nan") for part in parts)
    return before, last

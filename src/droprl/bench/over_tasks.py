"""Aggregates and profiles over tasks, with the signatures of `droprl.evaluation.statistics`, which is to have them.

Once it has, import them from there and remove this file: nothing else knows of it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from droprl.evaluation.statistics import REPLICATES, Estimate, Runs, iqm


class Profile(NamedTuple):
    """At every threshold the share of runs above it, and the two ends of its interval."""

    thresholds: np.ndarray
    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


def aggregate(tasks: Runs, statistic: Literal["iqm", "median", "mean", "optimality_gap"]) -> Estimate:
    scores = np.stack([np.asarray(runs, float) for runs in tasks])

    def of(s: np.ndarray) -> np.ndarray:
        if statistic == "iqm":
            return iqm(s.reshape(*s.shape[:-2], -1))
        if statistic == "median":
            return np.median(s.mean(axis=-1), axis=-1)
        return s.mean(axis=(-2, -1)) if statistic == "mean" else 100 - np.minimum(s, 100).mean(axis=(-2, -1))

    drawn = np.random.default_rng(0).integers(0, scores.shape[1], (REPLICATES, *scores.shape))
    low, high = np.quantile(of(np.take_along_axis(scores[None], drawn, axis=-1)), [0.025, 0.975])
    return Estimate(float(of(scores)), float(low), float(high))


def performance_profile(tasks: Runs, thresholds: np.ndarray) -> Profile:
    rng = np.random.default_rng(0)
    value, resampled = np.zeros(len(thresholds)), np.zeros((REPLICATES, len(thresholds)))
    for runs in tasks:
        above = (np.asarray(runs)[:, None] > thresholds).astype(float)
        value += above.mean(axis=0)
        resampled += rng.multinomial(len(above), np.full(len(above), 1 / len(above)), REPLICATES) @ above / len(above)
    low, high = np.quantile(resampled / len(tasks), [0.025, 0.975], axis=0)
    return Profile(thresholds, value / len(tasks), low, high)

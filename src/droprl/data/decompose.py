"""Task decomposition: cuts offline trajectories into sub-tasks by their returns (the paper's appendix A.2).

Each rule is a pure function of the episodes' returns, and of a seed if the rule is random. The answer is the episodes
of each sub-task. No sub-task is empty. `transitions` draws the steps of a sub-task for training.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

Rule = Literal["random", "quantization", "rank"]
SubTasks = list[np.ndarray]  # for each sub-task n, the numbers of its episodes


def random_sub_tasks(returns: np.ndarray, n_sub_tasks: int, at_most: int, seed: int = 0) -> SubTasks:
    """Random(N, M): N subsets of at most M trajectories, drawn without replacement. No trajectory is in two subsets.

    With fewer than N·M trajectories, the subsets are smaller, and their sizes differ by at most 1. With fewer than N
    trajectories, there are fewer subsets.
    """
    shuffled = np.random.default_rng(seed).permutation(len(returns))[: n_sub_tasks * at_most]
    return [part for part in np.array_split(shuffled, n_sub_tasks) if part.size]


def quantization_sub_tasks(returns: np.ndarray, n_sub_tasks: int, at_most: int, seed: int = 0) -> SubTasks:
    """Quantization(N, M): N bins of equal width Δ over the returns. At most M trajectories are drawn from each bin.

    Bin i holds R_min + Δ·i < R ≤ R_min + Δ·(i + 1). By this formula alone, the worst trajectory is in no bin, and a
    dataset whose returns are all equal has no sub-task. So we put R_min into the first bin. An empty bin gives no
    sub-task.
    """
    rng = np.random.default_rng(seed)
    low, high = float(np.min(returns)), float(np.max(returns))
    edges = low + (high - low) / n_sub_tasks * np.arange(n_sub_tasks + 1)
    edges[-1] = high  # rounding must not push the best trajectory out of the last bin
    bins = np.maximum(np.searchsorted(edges, returns, side="left") - 1, 0)
    members = (np.flatnonzero(bins == i) for i in range(n_sub_tasks))
    return [np.sort(rng.permutation(bin_)[:at_most]) for bin_ in members if bin_.size]


def rank_sub_tasks(returns: np.ndarray, n_sub_tasks: int, at_most: int, seed: int = 0) -> SubTasks:
    """Rank(N, M), the paper's choice: sort trajectories by descending return, and put M into each sub-task.

    Ties keep the order of the data. With fewer than N·M trajectories, there are fewer sub-tasks, and the last one may
    be smaller. With more than N·M, the worst trajectories are left out.
    """
    del seed  # this rule is not random
    order = np.argsort(-np.asarray(returns, dtype=np.float64), kind="stable")[: n_sub_tasks * at_most]
    return [order[i : i + at_most] for i in range(0, len(order), at_most)]


_RULES = {"random": random_sub_tasks, "quantization": quantization_sub_tasks, "rank": rank_sub_tasks}


def decompose(
    returns: np.ndarray, rule: Rule, n_sub_tasks: int, trajectories_per_sub_task: int, seed: int = 0
) -> SubTasks:
    """Cut the episodes with these returns into at most N sub-tasks of at most M trajectories by the named rule."""
    if n_sub_tasks < 1 or trajectories_per_sub_task < 1:
        raise ValueError("n_sub_tasks and trajectories_per_sub_task must be at least 1")
    return _RULES[rule](np.asarray(returns), n_sub_tasks, trajectories_per_sub_task, seed)


def sub_task_returns(returns: np.ndarray, sub_tasks: SubTasks) -> np.ndarray:
    """(N,) the mean return of each sub-task's trajectories."""
    return np.array([np.mean(returns[members]) for members in sub_tasks])

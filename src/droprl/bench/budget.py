"""What it costs to choose among a method's candidates: the expected score against the number of online episodes.

A training run leaves many candidates: its played checkpoints × the plays. A report of the best one hides the episodes
that it takes to find it; the budget curve shows them. A curve belongs to one method: each seed chooses among its own
candidates, never among those of other seeds or methods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from droprl.bench.results import Bench
from droprl.bench.suite import Method, default_play
from droprl.errors import DropError
from droprl.evaluation.statistics import aggregate

BUDGETS = (0, 1, 5, 10, 50, 200)
DRAWS = 2_000


class Candidate(NamedTuple):
    """One policy that may be chosen: a seed's checkpoint under one play."""

    seed: int
    step: int
    play: str


@dataclass(frozen=True)
class BudgetCurve:
    """Ready to plot: `score` over `budgets`, between `low` and `high`."""

    budgets: np.ndarray
    score: np.ndarray  # the mean over seeds, then over tasks
    low: np.ndarray  # low and high end of the 95 % interval over seeds
    high: np.ndarray
    seeds: np.ndarray  # (tasks, seeds, budgets): what each seed is expected to score
    exhausted: np.ndarray  # for each budget: it asks a candidate for more than half of its recorded episodes
    candidates: int  # of one seed; the largest number over tasks and seeds
    most: int  # episodes that one seed can spend; the smallest number over tasks and seeds


def budget_curve(
    episodes: Mapping[Candidate, Sequence[float]],
    budgets: Sequence[int] = BUDGETS,
    *,
    estimates: Mapping[Candidate, float] | None = None,
    draws: int = DRAWS,
    seed: int = 0,
) -> BudgetCurve:
    """The expected true score of the candidate that a budget of online episodes chooses, on one task.

    `episodes` holds the recorded scores of every candidate, the preferred plays first. Each training seed chooses among
    its own candidates. A budget of 0 chooses by a rule: the last checkpoint under the first play or, if `estimates` are
    given (for example by droprl.judge), the highest estimate. With a larger budget the
    candidates play in turn, one episode each, in the same order of preference: later checkpoints first and plays as
    given, or higher estimates first. The highest mean over the episodes spent is chosen; among equals, the preferred
    one. A candidate that has not played is never chosen. So a budget of one chooses as a budget of 0 does.

    The curve is estimated from recorded episodes. Each draw splits them into two halves at random. One half chooses.
    The mean over the other half judges the choice, so that no episode both chooses and judges. This assumes:

    - Recorded episodes stand for those that would be played: they are from the same task, and independent of each
      other. Episodes of the same number begin in the same way for all candidates, so all candidates have the same
      split. Each candidate then plays its half in a random order of its own.
    - Episodes are drawn without replacement. A budget that asks for more than one half (`exhausted`) gets the whole
      half and no more: the curve is then too low rather than too high.
    - With few recorded episodes the curve is noisy, but right on average over recordings: if a candidate's choosing
      half happens to be good, its judging half is worse.
    - Estimates cost no episodes. As soon as there are episodes, estimates only set the order of turns.
    - The interval is over seeds only, not over the recorded episodes. With one seed it has no width.
    """
    asked = np.array(budgets, dtype=np.int64)
    if asked.ndim != 1 or not asked.size or asked.min() < 0:
        raise DropError(f"budgets are {list(budgets)}: give numbers of episodes, none below 0")
    if draws < 1:
        raise DropError(f"draws is {draws}: draw at least once")
    rng = np.random.default_rng(seed)
    of_seeds, sizes = [], []
    for number in sorted({candidate.seed for candidate in episodes}):
        recorded = _recorded(episodes, number, estimates)
        of_seeds.append(_expected(recorded, asked, draws, rng))
        sizes.append((len(recorded), len(recorded) * (recorded.shape[1] // 2)))
    if not of_seeds:
        raise DropError("there are no candidates: play the suite first")
    return _curve(asked, np.stack(of_seeds)[None], max(n for n, _ in sizes), min(most for _, most in sizes))


def method_curves(bench: Bench, budgets: Sequence[int] = BUDGETS) -> dict[str, BudgetCurve]:
    """The budget curve of each method, the mean over the tasks. A method that lacks episodes on a task has none.

    Empty if no method has more than one candidate. Returns have no common scale: tasks without reference scores are
    left out, unless the suite has a single task.
    """
    found = {}
    for method in bench.suite.methods:
        recorded = {task: recorded_episodes(bench, task, method) for task in _comparable(bench, method)}
        try:
            found[method.name] = mean_curve([budget_curve(by_candidate, budgets) for by_candidate in recorded.values()])
        except DropError:  # a task is not played, the tasks differ in their seeds, or there is one episode only
            continue
    return found if any(curve.candidates > 1 for curve in found.values()) else {}


def _comparable(bench: Bench, method: Method) -> list[str]:
    tasks = list(bench.suite.tasks)
    unscored = {
        task
        for task in tasks
        for play in bench.suite.plays_of(method)
        for result in (bench.evaluation(task, method, play) or {"results": ()})["results"]
        if result["scores"] is None
    }
    return tasks if len(tasks) == 1 else [task for task in tasks if task not in unscored]


def recorded_episodes(bench: Bench, task: str, method: Method) -> dict[Candidate, list[float]]:
    """The recorded episodes of a method on a task, by candidate, as `budget_curve` takes them.

    Only the protocol "paper" plays more than one checkpoint; otherwise candidates differ in their play only. The
    method's default play comes first, then the others as the suite lists them.
    """
    plays = list(bench.suite.plays_of(method))
    own = default_play(bench.suite, method, bench.preset) if plays else ""
    found = {}
    for play in sorted(plays, key=lambda play: play != own):
        for result in (bench.evaluation(task, method, play) or {"results": ()})["results"]:
            found[Candidate(result["seed"], result["step"], play)] = result["scores"] or result["returns"]
    return found


def mean_curve(curves: Sequence[BudgetCurve]) -> BudgetCurve:
    """The mean of the curves over tasks. For the interval, seeds are drawn within each task."""
    if not curves or any(not np.array_equal(curve.budgets, curves[0].budgets) for curve in curves):
        raise DropError("a mean of budget curves needs at least one curve, and all must have the same budgets")
    if len({curve.seeds.shape[1] for curve in curves}) > 1:
        raise DropError("budget curves with different numbers of seeds: tasks count alike only with the same number")
    candidates, most = max(curve.candidates for curve in curves), min(curve.most for curve in curves)
    return _curve(curves[0].budgets, np.concatenate([curve.seeds for curve in curves]), candidates, most)


def _recorded(
    episodes: Mapping[Candidate, Sequence[float]], seed: int, estimates: Mapping[Candidate, float] | None
) -> np.ndarray:
    """(candidates, episodes) of one seed, the preferred candidates first."""
    own = [candidate for candidate in episodes if candidate.seed == seed]
    own.sort(key=lambda candidate: -candidate.step)  # stable: the plays of one checkpoint stay as listed
    if estimates is not None:
        missing = [candidate for candidate in own if not np.isfinite(estimates.get(candidate, np.nan))]
        if missing:
            raise DropError(f"{missing[0]}: has no finite estimate: give one for every candidate, or none at all")
        own.sort(key=lambda candidate: -estimates[candidate])
    lengths = {len(episodes[candidate]) for candidate in own}
    if len(lengths) > 1 or min(lengths) < 2:
        raise DropError(
            f"seed {seed}: candidates with {', '.join(map(str, sorted(lengths)))} recorded episodes: "
            "give each the same number, at least two, so that all are split alike"
        )
    return np.array([episodes[candidate] for candidate in own], dtype=np.float64)


def _expected(recorded: np.ndarray, budgets: np.ndarray, draws: int, rng: np.random.Generator) -> np.ndarray:
    """For each budget the judged score of the chosen candidate, the mean over draws."""
    candidates, length = recorded.shape
    half = length // 2
    shuffled = recorded[:, rng.permuted(np.tile(np.arange(length), (draws, 1)), axis=1)]  # candidates, draws, episodes
    judged = shuffled[..., half:].mean(axis=-1)
    totals = rng.permuted(shuffled[..., :half], axis=-1).cumsum(axis=-1)
    found = np.empty(budgets.size)
    for i, budget in enumerate(budgets):
        spent = np.minimum(budget // candidates + (np.arange(candidates) < budget % candidates), half)
        means = np.full((candidates, draws), -np.inf)
        for played in np.flatnonzero(spent):
            means[played] = totals[played, :, spent[played] - 1] / spent[played]
        chosen = means.argmax(axis=0)  # the first of equals; if nothing is spent, the first of all
        found[i] = judged[chosen, np.arange(draws)].mean()
    return found


def _curve(budgets: np.ndarray, seeds: np.ndarray, candidates: int, most: int) -> BudgetCurve:
    found = [aggregate(seeds[:, :, i], "mean") for i in range(budgets.size)]
    score, low, high = np.array(found).T
    return BudgetCurve(budgets, score, low, high, seeds, (budgets > most) & (candidates > 1), candidates, most)

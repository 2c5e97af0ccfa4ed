"""What choosing among a method's candidates costs: its expected score after so many online episodes.

A training run leaves many candidates, its played checkpoints × the plays. Reporting the best of them after the fact
hides the episodes that finding it would have taken; the budget curve shows them. It is a curve of one method: each of
its seeds chooses among its own candidates, never among other seeds or methods.
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
    """A policy that could be put to use."""

    seed: int
    step: int
    play: str


@dataclass(frozen=True)
class BudgetCurve:
    """Ready to plot: `score` over `budgets`, between `low` and `high`."""

    budgets: np.ndarray
    score: np.ndarray  # the mean over seeds, then over tasks
    low: np.ndarray  # of the 95 % interval over seeds
    high: np.ndarray
    seeds: np.ndarray  # (tasks, seeds, budgets): what each seed is expected to score
    exhausted: np.ndarray  # where the budget asks some candidate for more episodes than half of those recorded
    candidates: int  # of a seed; the most of any task and seed
    most: int  # episodes that a seed can spend; the fewest of any task and seed


def budget_curve(
    episodes: Mapping[Candidate, Sequence[float]],
    budgets: Sequence[int] = BUDGETS,
    *,
    estimates: Mapping[Candidate, float] | None = None,
    draws: int = DRAWS,
    seed: int = 0,
) -> BudgetCurve:
    """The expected true score of the candidate that a budget of online episodes chooses, on one task.

    `episodes` are the recorded scores of every candidate, plays in the order in which they are preferred. Each training
    seed chooses among its own candidates. Without any episode the choice is by rule: the last checkpoint under
    the first of the plays or, where `estimates` are given (say by droprl.select's fitted Q evaluation), the highest
    estimate. Episodes are spent in turn, one for each candidate, in that same order of preference: later checkpoints
    first and plays as given, or higher estimates first. The highest mean over the episodes spent is chosen; of equals
    the preferred one; never a candidate without an episode, once there is a budget. So a budget of one changes nothing.

    It is estimated from what was recorded. In each draw the recorded episodes are split in two at random: the choice
    sees the one half and is judged by its mean over the other, so that no episode both chooses and judges. What it
    assumes:

    - Recorded episodes stand for those that would be played: drawn from the same task, independent of each other.
      Episodes of the same number begin alike for all candidates, so the split is the same for all of them, and each
      candidate then plays its half in an order of its own.
    - Episodes are drawn without replacement. A budget that asks for more than the half has (`exhausted`) is given all
      of it and no more: the curve is then too low rather than too high.
    - With few recorded episodes the curve is noisy, though right on average over recordings: where a candidate's half
      for choosing happens to be good, its other half is what is left.
    - Estimates cost nothing and are forgotten as soon as there are episodes, but for the order of turns.
    - The interval is over seeds alone (with one seed it has no width), not over the recorded episodes.
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
    """The curve of every method, the mean over the tasks; of those that have played every task in a way to judge by.

    Empty where no method has anything to choose from. Returns have no common scale: tasks without reference scores are
    left out, unless there is no other and only one of them.
    """
    found = {}
    for method in bench.suite.methods:
        recorded = {task: recorded_episodes(bench, task, method) for task in _comparable(bench, method)}
        try:
            found[method.name] = mean_curve([budget_curve(of, budgets) for of in recorded.values()])
        except DropError:  # not played everywhere, with unequally many seeds, or with one episode alone
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
    """Every episode of a method's plays on a task, by candidate: `budget_curve` takes it as it is.

    Only the suite's protocol "paper" plays more than one checkpoint; otherwise the plays alone are to be chosen from.
    The play that is the method's own comes first, then the others as the suite lists them.
    """
    plays = list(bench.suite.plays_of(method))
    own = default_play(bench.suite, method, bench.preset) if plays else ""
    found = {}
    for play in sorted(plays, key=lambda play: play != own):
        for result in (bench.evaluation(task, method, play) or {"results": ()})["results"]:
            found[Candidate(result["seed"], result["step"], play)] = result["scores"] or result["returns"]
    return found


def mean_curve(curves: Sequence[BudgetCurve]) -> BudgetCurve:
    """Over tasks, with the interval over seeds drawn within each task."""
    if not curves or any(not np.array_equal(curve.budgets, curves[0].budgets) for curve in curves):
        raise DropError("a mean of budget curves needs at least one, all of the same budgets")
    if len({curve.seeds.shape[1] for curve in curves}) > 1:
        raise DropError("budget curves of unequally many seeds: tasks count alike only with equally many each")
    candidates, most = max(curve.candidates for curve in curves), min(curve.most for curve in curves)
    return _curve(curves[0].budgets, np.concatenate([curve.seeds for curve in curves]), candidates, most)


def _recorded(
    episodes: Mapping[Candidate, Sequence[float]], seed: int, estimates: Mapping[Candidate, float] | None
) -> np.ndarray:
    """(candidates, episodes) of one seed, the preferred candidates first."""
    own = [candidate for candidate in episodes if candidate.seed == seed]
    own.sort(key=lambda candidate: -candidate.step)  # stable: of one checkpoint, plays stay as listed
    if estimates is not None:
        missing = [candidate for candidate in own if not np.isfinite(estimates.get(candidate, np.nan))]
        if missing:
            raise DropError(f"{missing[0]}: has no finite estimate: give one for every candidate, or none at all")
        own.sort(key=lambda candidate: -estimates[candidate])
    lengths = {len(episodes[candidate]) for candidate in own}
    if len(lengths) > 1 or min(lengths) < 2:
        raise DropError(
            f"seed {seed}: candidates with {', '.join(map(str, sorted(lengths)))} recorded episodes: "
            "they are split in two alike only with equally many each, at least two"
        )
    return np.array([episodes[candidate] for candidate in own], dtype=np.float64)


def _expected(recorded: np.ndarray, budgets: np.ndarray, draws: int, rng: np.random.Generator) -> np.ndarray:
    """For every budget the judged score of the choice, the mean over draws."""
    candidates, length = recorded.shape
    half = length // 2
    shuffled = recorded[:, rng.permuted(np.tile(np.arange(length), (draws, 1)), axis=1)]  # candidates, draws, episodes
    judged = shuffled[..., half:].mean(axis=-1)
    totals = rng.permuted(shuffled[..., :half], axis=-1).cumsum(axis=-1)
    found = np.empty(budgets.size)
    for i, budget in enumerate(budgets):
        spent = np.minimum(budget // candidates + (np.arange(candidates) < budget % candidates), half)
        means = np.full((candidates, draws), -np.inf)
        for of in np.flatnonzero(spent):
            means[of] = totals[of, :, spent[of] - 1] / spent[of]
        chosen = means.argmax(axis=0)  # the first of equals, and the first of all where nothing is spent
        found[i] = judged[chosen, np.arange(draws)].mean()
    return found


def _curve(budgets: np.ndarray, seeds: np.ndarray, candidates: int, most: int) -> BudgetCurve:
    found = [aggregate(seeds[:, :, i], "mean") for i in range(budgets.size)]
    score, low, high = np.array(found).T
    return BudgetCurve(budgets, score, low, high, seeds, (budgets > most) & (candidates > 1), candidates, most)

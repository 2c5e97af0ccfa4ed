"""`judge` says what a policy would earn, how far the data supports that, and what follows: from the data alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from droprl.data import Dataset, load_dataset
from droprl.errors import DropError
from droprl.judging.asking import chosen_actions, why_not
from droprl.judging.estimates import NORMAL_90, Estimate, Estimation, Estimator, Second
from droprl.judging.log import Log
from droprl.loaded import LoadedPolicy, load_policy
from droprl.train.run import Run

Word = Literal["better", "worse", "no clear difference", "cannot tell"]
MEANING: dict[Word, str] = {
    "better": "it would earn more than the log did",
    "worse": "it would earn less than the log did",
    "no clear difference": "the data does not show that it would earn more or less than the log did",
    "cannot tell": "this data cannot say what it would earn",
}
CLOSE = 0.2  # in actions of [-1, 1]: a tenth of the range
SUPPORTED = 0.6  # with a smaller share of supported steps the estimate is a guess: docs/judge.md
FEW_TRAJECTORIES = 10
AGREEMENT_STEPS = 5_000


@dataclass(frozen=True)
class Agreement:
    """How far the policy does what the log did, over the log's own states."""

    distance: float
    """The mean distance of an action to the logged one, as a share of its range."""
    close: float
    """The share of steps at which no action differs by more than a tenth of its range."""


@dataclass(frozen=True)
class Judgement:
    """What the data says about a policy. `verdict` is the word, and `reasons` is what it rests on."""

    policy: str
    """Which policy, in words."""
    dataset: str
    """The name of the data that judges."""
    discount: float
    """γ of all returns here."""
    estimate: Estimate
    """What the policy would earn, from three sides."""
    logged: tuple[float, tuple[float, float]]
    """What the log earned from its initial states, and the 90 % interval of its mean."""
    agreement: Agreement | None
    """None for a policy whose actions depend on the past."""
    n_trajectories: int
    """How many trajectories the data has."""
    verdict: Word
    """The verdict in a word."""
    reasons: tuple[str, ...]
    """What the verdict rests on."""

    @property
    def meaning(self) -> str:
        return MEANING[self.verdict]

    def to_json(self) -> dict[str, Any]:
        bounds = self.estimate.bounds
        second = (("fqe", self.estimate.fqe), ("doubly_robust", self.estimate.doubly_robust))
        estimate = {k: v for k, v in asdict(self.estimate).items() if k not in ("logged", "widening")}
        opinions = {name: None if s is None else asdict(s) | {"interval": s.interval(bounds)} for name, s in second}
        found = asdict(self) | {"meaning": self.meaning}
        found["estimate"] = estimate | {"interval": self.estimate.interval, "bounds": list(bounds)} | opinions
        found["logged"] = {"value": self.logged[0], "interval": self.logged[1]}
        return found


def judge(
    policy: LoadedPolicy | Run | str | Path,
    dataset: Dataset | str | Path,
    *,
    seed: int | None = None,
    step: int | None = None,
    config: Estimation | None = None,
    done: Callable[[int, int], None] = lambda members, total: None,
    **adaptation: Any,
) -> Judgement:
    """Judge a policy from data alone: nothing is played. The data may be that of its training, or better, other data.

    `seed` and `step` choose one policy of a run, by default the first seed and the last checkpoint. Keywords such as
    `rule="first"` change how z is inferred. `done` hears how many members of the ensemble are through.
    """
    if isinstance(policy, LoadedPolicy):
        if adaptation or seed is not None or step is not None:
            raise DropError("the policy is loaded already: give seed, step and settings of inference to load_policy")
    else:
        where = policy.path if isinstance(policy, Run) else policy
        policy = load_policy(where, seed=seed, step=step, **adaptation)
    if not isinstance(dataset, Dataset):
        dataset = load_dataset(dataset)
    estimator = Estimator(dataset, config)
    estimate = estimator.estimate(policy, done)
    log = estimator.log
    returns = log.logged_returns()
    error = NORMAL_90 * float(returns.std(ddof=1)) / np.sqrt(len(returns))
    low, high = estimate.logged - error, estimate.logged + error
    logged = estimate.logged, (max(low, log.bounds.low), min(high, log.bounds.high))
    word, reasons = verdict(estimate, error, log.dataset.n_episodes)
    return Judgement(
        policy=repr(policy).strip("<>"),
        dataset=dataset.name,
        discount=log.discount,
        estimate=estimate,
        logged=logged,
        agreement=agreement(policy, log),
        n_trajectories=log.dataset.n_episodes,
        verdict=word,
        reasons=tuple(reasons),
    )


def agreement(policy: LoadedPolicy, log: Log) -> Agreement | None:
    if why_not(policy) is not None:
        return None
    rows = np.random.default_rng(29).permutation(log.dataset.n_steps)[:AGREEMENT_STEPS]
    rows = np.sort(rows)
    chosen = chosen_actions(policy, log, rows)[rows]
    apart = np.abs(chosen - np.clip(log.actions[rows], -1.0, 1.0))
    return Agreement(distance=float(apart.mean()) / 2, close=float((apart.max(axis=1) <= CLOSE).mean()))


def verdict(estimate: Estimate, logged_error: float, n_trajectories: int) -> tuple[Word, list[str]]:
    """The word, and what it rests on. `logged_error` is half of the interval of what the log earned."""
    difference = estimate.value - estimate.logged
    half = float(np.hypot(estimate.widening * estimate.error, logged_error))
    reasons = [
        f"the estimate is {'above' if difference >= 0 else 'below'} the log by {abs(difference):,.4g} ± {half:,.4g}",
        f"{estimate.near_pairs:.0%} of its steps are like steps of the log, {estimate.near_states:.0%} of its states",
    ]
    if estimate.near_z is not None:
        reasons.append(f"{estimate.near_z:.0%} of its z are like those of sub-tasks at home in these states")
    second: list[tuple[str, Second | None]] = [
        ("fitted Q evaluation", estimate.fqe),
        ("the doubly robust estimate", estimate.doubly_robust),
    ]
    for name, opinion in second:
        if opinion is None:
            reasons.append(f"there is no second opinion by {name}: actions depend on the past")
        elif (opinion.value - estimate.logged) * difference < 0:
            reasons.append(f"{name} disagrees: {opinion.value:,.4g} is on the other side of the log")
    if n_trajectories < FEW_TRAJECTORIES:
        return "cannot tell", [f"the data has only {n_trajectories} trajectories", *reasons]
    if min(estimate.near_pairs, estimate.near_states) < SUPPORTED:
        return "cannot tell", ["most that it would do is unlike what the log shows", *reasons]
    if abs(difference) <= half:
        return "no clear difference", reasons
    return ("better" if difference > 0 else "worse"), reasons

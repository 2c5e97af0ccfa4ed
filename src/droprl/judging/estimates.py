"""Three estimates of what a policy would earn, from the data alone, and one interval for it.

Every member of an ensemble has its own half of the trajectories: Q is fitted on it, and checked on the other half,
where the walks go too. The doubly robust estimate adds to Q what Q gets wrong on the steps that the walks use:

    mean of Q(s₀, π(s₀))  +  Σ w (r + γ Q(s', π(s')) − Q(s, a))

It is right if either Q or the weights w are right. All three lie inside what the rewards and γ allow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from droprl.data.dataset import Dataset
from droprl.data.support import Support, fit_support
from droprl.errors import require
from droprl.judging.asking import check_sizes, chosen_actions, why_not, without_guard
from droprl.judging.fqe import fit_q
from droprl.judging.log import Bounds, Log, Steps
from droprl.judging.walks import Walked, World, make_world, walk
from droprl.loaded import LoadedPolicy

LEFT_OUT = 0.1  # γ to the power of the steps of a walk: what comes after them is taken to be like its end
RESAMPLES = 500
NORMAL_90 = 1.645
LESS_SUPPORTED = 0.1  # chosen on five of the nine sets of `benchmarks/judge`


@dataclass(frozen=True)
class Estimation:
    """How a policy is judged. The defaults were chosen on five of the nine sets of `benchmarks/judge`."""

    discount: float = 0.99
    """γ of the estimated return. It need not be the γ of the policy's training."""
    members: int = 4
    """How many times everything is estimated, each time from another half of the trajectories."""
    transitions: int = 8_000
    """Steps of the data in each half, drawn at random."""
    starts: int = 16
    """Walks of each member."""
    bandwidth: float = 0.5
    """Of the kernel: a multiple of the typical distance to the nearest step of another trajectory."""
    features: int = 300
    """Random features of Q."""
    ridge: float = 1e-4
    """Penalty of the regression in fitted Q evaluation."""
    rounds: int = 200
    """Rounds of fitted Q evaluation."""
    widening: float = 2.0
    """Half of the 90 % interval is so many times the error. A normal error asks for 1.6; sets with a known truth asked
    for more."""

    def __post_init__(self) -> None:
        require(self, "above 0", "discount")
        require(self, "at least 0 and less than 1", "discount")  # at 1 no return has bounds
        require(self, "at least 1", "transitions", "starts", "features", "rounds")
        require(self, "from 1 to 100", "members")
        require(self, "above 0", "bandwidth", "ridge", "widening")

    @property
    def walk_steps(self) -> int:
        return max(1, math.ceil(math.log(LEFT_OUT) / math.log(self.discount)))


@dataclass(frozen=True)
class Second:
    """A second opinion."""

    value: float
    error: float  # what the ensemble's members and the trajectories leave open

    @classmethod
    def of(cls, members: Sequence[float], bounds: Bounds, sampling: Callable[[], float]) -> Second:
        found = np.clip(members, *bounds)
        spread = float(np.std(found, ddof=1)) if len(found) > 1 else 0.0
        return cls(float(found.mean()), float(np.hypot(spread, sampling())))

    def interval(self, bounds: Bounds) -> tuple[float, float]:
        """Nominally 90 %: it would be, if the estimate were off by chance only."""
        half = NORMAL_90 * self.error
        return max(self.value - half, bounds.low), min(self.value + half, bounds.high)


@dataclass(frozen=True)
class Estimate:
    """What a policy would earn, discounted, in the units of the rewards."""

    value: float
    """By walks through the log."""
    sampling: float
    """Its standard error from the initial states."""
    disagreement: float
    """The standard deviation of the ensemble's members: each knows another half of the trajectories."""
    logged: float
    """What the log itself earned."""
    fqe: Second | None
    """By fitted Q evaluation; None for a policy whose actions depend on the past."""
    doubly_robust: Second | None
    bounds: Bounds
    """What the rewards and γ allow."""
    near_states: float
    """The share of the states on the walks that the data supports."""
    near_pairs: float
    """The share of the walks' steps whose state and action together are near a step of the log."""
    near_z: float | None
    """The share of the z on the walks that the data supports. None for a policy without z."""
    widening: float

    @property
    def unsupported(self) -> float:
        """The part of the difference to the log that rests on steps unlike those of the log."""
        return (1.0 - self.near_pairs) * abs(self.value - self.logged)

    @property
    def error(self) -> float:
        return math.sqrt(self.sampling**2 + self.disagreement**2 + self.unsupported**2)

    @property
    def interval(self) -> tuple[float, float]:
        """Nominally 90 %: docs/judge.md says how often it held. It cannot leave what the rewards and γ allow."""
        half = self.widening * self.error
        return max(self.value - half, self.bounds.low), min(self.value + half, self.bounds.high)


class Estimator:
    """Estimates policies on one dataset. What does not depend on the policy is made once."""

    def __init__(self, dataset: Dataset, config: Estimation | None = None, seed: int = 0) -> None:
        self.config, self.seed = config or Estimation(), seed
        self.log = Log(dataset.in_memory(), self.config.discount)

    @cached_property
    def support(self) -> Support:
        return fit_support(self.log.dataset, self.log.scaling)

    @cached_property
    def logged(self) -> float:
        return float(np.clip(self.log.logged_returns().mean(), *self.log.bounds))

    @cached_property
    def _members(self) -> list[tuple[Steps, Steps, World, np.ndarray]]:
        """For each member: the steps that Q is fitted on, those that check it, their world, and the walks' starts."""
        found = []
        for member in range(self.config.members):
            checking, seed = self.log.half(member), self.seed * 1000 + member
            fitted = self.log.steps(~checking, self.config.transitions, seed)
            checked = self.log.steps(checking, self.config.transitions, seed)
            rng = np.random.default_rng([seed, 26])
            own = np.flatnonzero(checking)
            starts = np.resize(rng.permutation(own), self.config.starts)
            found.append((fitted, checked, make_world(checked, self.log, self.config.bandwidth), starts))
        smallest = min(len(checked.rows) for _, checked, _, _ in found)
        if any(len(checked.rows) > smallest for _, checked, _, _ in found):  # one size, so that one program serves all
            found = [self._cut(member, smallest) for member in found]
        return found

    def _cut(self, member: tuple[Steps, Steps, World, np.ndarray], size: int) -> tuple[Steps, Steps, World, np.ndarray]:
        fitted, checked, _, starts = member
        if len(checked.rows) == size:
            return member
        kept = np.sort(np.random.default_rng(27).choice(len(checked.rows), size, replace=False))
        checked = Steps(*(column[kept] for column in checked))
        return fitted, checked, make_world(checked, self.log, self.config.bandwidth), starts

    def estimate(self, policy: LoadedPolicy, done: Callable[[int, int], None] = lambda n, of: None) -> Estimate:
        """`done` hears how many members are through, and of how many."""
        check_sizes(policy, self.log)
        policy = without_guard(policy)
        chosen = None
        if why_not(policy) is None:
            used = [s.successors for fitted, checked, _, _ in self._members for s in (fitted, checked)]
            chosen = chosen_actions(policy, self.log, np.unique(np.concatenate([*used, self.log.starts])))
        parts, total = [], self.config.members
        for member in range(total):
            parts.append(self._member(member, policy, chosen))
            done(member + 1, total)
        return self._together(parts)

    def _member(self, member: int, policy: LoadedPolicy, chosen: np.ndarray | None) -> _Part:
        config, log = self.config, self.log
        fitted, checked, world, starts = self._members[member]
        places = log.observations[log.starts[starts]]
        walked = walk(policy, world, places, log, self.support, config.walk_steps, self.seed + member)
        if chosen is None:
            return _Part(walked, starts)
        q = fit_q(log, fitted, chosen, config.features, config.ridge, config.rounds, self.seed + member)
        own = np.flatnonzero(log.half(member))
        promised = q.value(log.observations[log.starts[own]], chosen[log.starts[own]])
        following = q.value(log.observations[checked.successors], chosen[checked.successors])
        wrong = checked.rewards + checked.discounts * following - q.value(checked.observations, checked.actions)
        of_trajectory = np.bincount(checked.trajectory, walked.weights * wrong, minlength=log.dataset.n_episodes)
        return _Part(walked, starts, promised, of_trajectory[own])

    def _together(self, parts: Sequence[_Part]) -> Estimate:
        bounds, rng = self.log.bounds, np.random.default_rng([self.seed, 28])
        walks = np.clip([part.walked.earned.mean() for part in parts], *bounds)
        draws = [np.mean([part.resampled_walks(rng) for part in parts]) for _ in range(RESAMPLES)]
        fqe = robust = None
        if all(part.promised is not None for part in parts):
            fqe = Second.of([part.fitted for part in parts], bounds, lambda: 0.0)
            errors = [float(np.mean([part.resampled(rng) for part in parts])) for _ in range(RESAMPLES)]
            robust = Second.of([part.robust for part in parts], bounds, lambda: float(np.std(errors)))
        z = [part.walked.near_z for part in parts if part.walked.near_z is not None]
        return Estimate(
            value=float(walks.mean()),
            sampling=float(np.std(draws)),
            disagreement=float(np.std(walks, ddof=1)) if len(walks) > 1 else 0.0,
            logged=self.logged,
            fqe=fqe,
            doubly_robust=robust,
            bounds=bounds,
            near_states=float(np.mean([part.walked.near_states for part in parts])),
            near_pairs=float(np.mean([part.walked.near_pairs for part in parts])),
            near_z=float(np.mean(z)) if z else None,
            widening=self.config.widening,
        )


@dataclass(frozen=True, eq=False)
class _Part:
    """What one member found."""

    walked: Walked
    starts: np.ndarray  # the trajectories whose initial states the walks started in
    promised: np.ndarray | None = None  # (trajectories of the half,) Q(s₀, π(s₀))
    errors: np.ndarray | None = None  # (trajectories of the half,) Σ w (r + γ Q' − Q) over its steps

    @property
    def fitted(self) -> float:
        assert self.promised is not None
        return float(self.promised.mean())

    @property
    def robust(self) -> float:
        assert self.errors is not None
        return self.fitted + float(self.errors.sum())

    def resampled_walks(self, rng: np.random.Generator) -> float:
        """Walks that start in the same trajectory's initial state are one draw."""
        earned = self.walked.earned
        return float(earned[rng.integers(0, len(earned), min(len(earned), len(np.unique(self.starts))))].mean())

    def resampled(self, rng: np.random.Generator) -> float:
        """A draw of whole trajectories."""
        assert self.promised is not None
        assert self.errors is not None
        drawn = rng.integers(0, len(self.errors), len(self.errors))
        return float(self.promised[drawn].mean() + self.errors[drawn].sum())


def choose(found: Sequence[Estimate], less_supported: float = LESS_SUPPORTED) -> int:
    """The place of the best: the highest estimate among those that the data supports about as well as any of them.

    The highest estimate of all is often one of a policy that does what the log never did: nobody contradicts it there.
    """
    most = max(estimate.near_pairs for estimate in found)
    return max(range(len(found)), key=lambda i: (found[i].near_pairs >= most - less_supported, found[i].value))


def estimates(
    policies: Sequence[LoadedPolicy],
    dataset: Dataset,
    config: Estimation | None = None,
    seed: int = 0,
    done: Callable[[int], None] = lambda n: None,
) -> list[Estimate]:
    """`done` hears how many policies are estimated."""
    estimator, found = Estimator(dataset, config, seed), []
    for policy in policies:
        found.append(estimator.estimate(policy))
        done(len(found))
    return found

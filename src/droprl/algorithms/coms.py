"""COMs: Conservative Objective Models (Trabucco et al., ICML 2021) over the weights of policies.

This follows DROP's appendix. A design is the weight vector θ of a behaviour policy. A score model f(θ) learns the
return of such a policy. At test time 200 steps of gradient ascent on f lead to θ*. f is conservative: designs that
ascent reaches must not out-score the designs of the data. The appendix names no settings of f, so they are those of the
authors' code (`coms_cleaned`).

Neither paper says which policies f learns from when the data is trajectories. Here the trajectories are cut by return
into N groups, and one policy is cloned from each group. All start from the same first weights, because the weights of
two networks can be compared only if both grew from one. f learns at the same time: every update of f sees the averages
of all N policies.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.flatten_util import ravel_pytree

from droprl.algorithms.averaging import averaged
from droprl.algorithms.bc import clone_loss
from droprl.algorithms.curves import CLONE_LOSS, GAP, MULTIPLIER, RANKING, Curve
from droprl.algorithms.judging import Check, judged, measured, multiplier_check, r_squared, ranking_check, spearman
from droprl.algorithms.protocol import Card, Clock, Logged, Metrics, filled
from droprl.data.dataset import Dataset
from droprl.data.decompose import SubTasks, rank_sub_tasks, sub_task_returns
from droprl.data.transitions import Batch, Prepared, Probe, Spec, Strata, Stratified, prepare
from droprl.errors import require
from droprl.networks.actors import BehaviorPolicy
from droprl.networks.embeddings import no_embedding
from droprl.networks.perceptrons import MLP
from droprl.policies import FixedPolicy

POLICIES = 32  # the number of designs in a batch of COMs
LEAST_MULTIPLIER = 1e-3  # α falls no lower: it would need as long to come back as it took to fall
SMALL = 1e-6  # added to the spread of each weight: a weight that is equal in all policies stays as it is
FAR_DESIGN = 0.2  # in half-ranges of the action. At a shift of 0.11 a design played well, at 0.22 it fell
SCORE_LOSS = Curve("score_loss", "Loss of f", "squared error, returns scaled", "score")
DESIGN_GAIN = Curve("design_gain", "Gain of the design", "f(design) − f(best clone)", diagnosis=True)
DESIGN_SHIFT = Curve("design_action_shift", "How far the design's actions moved", "half-ranges", diagnosis=True)


class COMsState(NamedTuple):
    clones: BehaviorPolicy  # the first axis of every array is the policy, from the highest returns down
    averaged: BehaviorPolicy  # follows them slowly: the designs that f learns from
    clone_optimizer: optax.OptState
    score_model: MLP  # f
    score_optimizer: optax.OptState
    log_multiplier: Array  # log α
    multiplier_optimizer: optax.OptState


class Designs(NamedTuple):
    """Weight vectors as f sees them: each weight has zero mean and unit variance over the N policies."""

    x: Array  # (N, d)
    mean: Array  # (d,)
    spread: Array  # (d,)


@dataclass(frozen=True)
class COMs:
    """Conservative objective models over policy weights: clone policies, score them, ascend from the best one."""

    name: ClassVar[str] = "coms"
    card: ClassVar[Card] = Card(
        curves=(CLONE_LOSS, SCORE_LOSS, RANKING, GAP, MULTIPLIER, DESIGN_GAIN, DESIGN_SHIFT),
        falls=("clone_loss", "score_loss"),
        clones=True,
        may_lower=("n_policies",),
    )
    adaptation: ClassVar[None] = None

    n_policies: int | None = None
    """N: how many policies are cloned, one for each group of trajectories with similar returns. None: 32, the number of
    designs in a batch of COMs; with fewer trajectories, one policy for each of them."""
    width: int = 64
    """Units of each of the two hidden layers of a policy, as in DROP's appendix."""
    score_width: int = 2048
    """Units of each hidden layer of f."""
    score_depth: int = 2
    """Hidden layers of f, with ReLU."""
    ascent_steps: int = 200
    """Gradient steps on θ at test time, as in DROP's appendix. COMs takes 50."""
    adversarial_steps: int = 50
    """Gradient steps from each design to its adversarial design. f is kept low on that one."""
    step_size: float = 0.05
    """Size of all these steps. It is multiplied by √dim(θ); the weights have zero mean and unit variance."""
    threshold: float = 0.5
    """How much higher an adversarial design may score than its origin, in standard deviations of the N returns."""
    multiplier_start: float = 1.0
    """α, the weight of that constraint, at the start."""
    multiplier_rate: float = 0.01
    """Adam's learning rate on log α."""
    multiplier_max: float = 100.0
    """The cap on α, which grows exponentially while the constraint is violated. COMs has no cap."""
    normalize_observations: bool = True
    """Shift and scale observations to zero mean and unit variance."""
    learning_rate: float = 1e-3
    """Adam's learning rate for the cloned policies, as in bc. COMs clones nothing."""
    average_rate: float = 0.005
    """How fast the averaged policies follow the trained ones."""
    score_learning_rate: float = 3e-4
    """Adam's learning rate for f."""
    batch_size: int = 1024
    """Steps of the data in one update, divided among the policies."""

    def __post_init__(self) -> None:
        require(self, "at least 1", "n_policies", "width", "score_width", "batch_size")
        require(self, "from 1 to 100", "score_depth")
        require(self, "from 0 to 10,000", "ascent_steps", "adversarial_steps")
        require(self, "above 0", "learning_rate", "score_learning_rate", "step_size")
        require(self, "above 0", "multiplier_start", "multiplier_rate", "multiplier_max")
        require(self, "above 0 and at most 1", "average_rate")
        require(self, "a finite number", "threshold")

    @classmethod
    def small(cls, **changes: Any) -> Self:
        return replace(cls(n_policies=10, score_width=128, batch_size=256), **changes)

    @classmethod
    def tiny(cls, **changes: Any) -> Self:
        made = cls(n_policies=10, width=8, score_width=8, score_depth=1, batch_size=32, learning_rate=1e-2)
        return replace(made, **changes)

    # --- the data it learns from ---

    def resolve(self, dataset: Dataset) -> Self:
        return replace(self, n_policies=min(self.n_policies or POLICIES, dataset.n_episodes))

    def sub_tasks(self, dataset: Dataset) -> SubTasks:
        """Groups of equal size by descending return. The worst trajectories, fewer than N, may be left out."""
        n = filled(self.n_policies, "n_policies")
        return rank_sub_tasks(dataset.returns, n, dataset.n_episodes // n)

    def prepare(self, dataset: Dataset) -> Prepared[Stratified]:
        groups = self.sub_tasks(dataset)
        prepared = prepare(dataset, groups, normalize_observations=self.normalize_observations)
        returns = _standardized(jnp.asarray(sub_task_returns(dataset.returns, groups), jnp.float32))
        return Prepared(
            prepared.spec, prepared.recipe, Stratified(prepared.transitions, returns), prepared.probe, groups
        )

    # --- networks ---

    def init(self, key: Array, spec: Spec, clock: Clock) -> COMsState:
        policy_key, score_key = jax.random.split(key)
        n, sizes = spec.required_sub_tasks(), (spec.observation_size, spec.action_size, 0, self.width, (1, 1))
        one = BehaviorPolicy(*sizes, "deterministic", policy_key)
        clones = jax.tree.map(lambda leaf: jnp.repeat(leaf[None], n, axis=0), one)
        score_model = MLP(_flat(one).size, (self.score_width,) * self.score_depth, 1, score_key)
        log_multiplier = jnp.log(jnp.asarray(self.multiplier_start, dtype=float))
        of_clones, of_score, of_multiplier = self._optimizers()
        return COMsState(
            clones=clones,
            averaged=clones,
            clone_optimizer=of_clones.init(clones),
            score_model=score_model,
            score_optimizer=of_score.init(score_model),
            log_multiplier=log_multiplier,
            multiplier_optimizer=of_multiplier.init(log_multiplier),
        )

    def policy(self, state: COMsState) -> FixedPolicy:
        """The weights that ascent reaches from the policy of the best trajectories."""
        designs = _designs(state.averaged)
        x = self.ascend(state.score_model, designs.x[0], self.ascent_steps)
        unflatten = ravel_pytree(_policy_number(0, state.averaged))[1]
        return FixedPolicy(unflatten(designs.mean + designs.spread * x), no_embedding(), sample_actions=False)

    # --- f ---

    def ascend(self, score_model: MLP, x: Array, steps: int) -> Array:
        """x ← x + step_size · √d · ∇f(x), `steps` times. No gradient flows through the steps."""
        fixed, rate = jax.lax.stop_gradient(score_model), self.step_size * np.sqrt(x.size)
        climb = jax.grad(lambda x: _score(fixed, x))
        return jax.lax.fori_loop(0, steps, lambda _, x: x + rate * climb(x), jax.lax.stop_gradient(x))

    def score_loss(self, score_model: MLP, multiplier: Array, x: Array, returns: Array) -> tuple[Array, Metrics]:
        """The mean of (f(x) − y)² + α · (f(x') − f(x)) over the designs; x' is the adversary of x."""
        adversaries = jax.vmap(lambda x: self.ascend(score_model, x, self.adversarial_steps))(x)
        scores, adversarial = (jax.vmap(_score, (None, 0))(score_model, points) for points in (x, adversaries))
        error, gap = jnp.mean((scores - returns) ** 2), jnp.mean(adversarial - scores)
        return error + multiplier * gap, {"score_loss": error, "gap": gap}

    # --- one update: the clones, f on their averages, α ---

    def update(self, state: COMsState, batch: Strata, key: Array, clock: Clock) -> tuple[COMsState, Logged]:
        of_clones, of_score, of_multiplier = self._optimizers()

        def total(clones: BehaviorPolicy) -> tuple[Array, Array]:
            losses = jax.vmap(clone_loss)(clones, batch.steps.observation, batch.steps.action)  # one for each policy
            return jnp.sum(losses), jnp.mean(losses)  # a sum: no policy's gradient depends on N

        gradient, clone = jax.grad(total, has_aux=True)(state.clones)
        step, clone_optimizer = of_clones.update(gradient, state.clone_optimizer)
        clones = optax.apply_updates(state.clones, step)
        average = averaged(state.averaged, clones, self.average_rate, clock)

        multiplier = jnp.exp(state.log_multiplier)
        gradient, metrics = jax.grad(self.score_loss, has_aux=True)(
            state.score_model, multiplier, _designs(average).x, batch.returns
        )
        step, score_optimizer = of_score.update(gradient, state.score_optimizer)
        score_model = optax.apply_updates(state.score_model, step)

        slope = multiplier * (self.threshold - metrics["gap"])  # the derivative of α · (threshold − gap) by log α
        step, multiplier_optimizer = of_multiplier.update(slope, state.multiplier_optimizer)
        bounds = np.log(min(LEAST_MULTIPLIER, self.multiplier_max)), np.log(self.multiplier_max)
        log_multiplier = jnp.clip(state.log_multiplier + step, *bounds)
        new = COMsState(
            clones, average, clone_optimizer, score_model, score_optimizer, log_multiplier, multiplier_optimizer
        )
        return new, metrics | {"clone_loss": clone, "multiplier": jnp.exp(log_multiplier)}

    def _optimizers(self) -> list[optax.GradientTransformation]:
        """Of the clones, of f and of log α."""
        return [optax.adam(rate) for rate in (self.learning_rate, self.score_learning_rate, self.multiplier_rate)]

    # --- is it working? ---

    def diagnose(self, state: COMsState, probe: Probe) -> Metrics:
        batch, returns = probe.batch, _standardized(probe.sub_task_returns)
        x = _designs(state.averaged).x
        scores = jax.vmap(_score, (None, 0))(state.score_model, x)
        design = self.ascend(state.score_model, x[0], self.ascent_steps)
        reached = _score(state.score_model, design)
        best = FixedPolicy(_policy_number(0, state.averaged), no_embedding(), sample_actions=False)
        before, after = (policy.act((), batch.observation, None)[1] for policy in (best, self.policy(state)))

        def own_loss(step: Batch) -> Array:
            policy = _policy_number(step.sub_task, state.averaged)
            return policy.clone_loss(step.observation, step.action, no_embedding())

        return {
            "probe_clone_loss": jnp.mean(jax.vmap(own_loss)(batch)),
            "score_r2": r_squared(scores - returns, returns, jnp.ones_like(returns)),
            "score_rank_correlation": spearman(scores, returns),
            "score_best_clone": scores[0],
            "score_design": reached,
            "design_gain": reached - scores[0],
            "design_distance": jnp.sqrt(jnp.mean((design - x[0]) ** 2)),  # in standard deviations over the policies
            "design_action_shift": jnp.mean(jnp.abs(after - before)),
        }

    def checks(self, metrics: dict[str, float]) -> list[Check]:
        """Is the design better than the data by its own score, and is it still a policy like those of the data?"""
        gain, shift = measured(metrics, "design_gain"), measured(metrics, "design_action_shift")
        return [
            *ranking_check(metrics, "cloned policies", "ascent on it means nothing; train longer or raise threshold"),
            *judged(
                "gain of the design by its own score",
                gain,
                gain > 0,
                "ascent raises f above its value at the best cloned policy",
                "no design: ascent does not raise f, so the policy is no better than the best clone; lower step_size",
            ),
            *judged(
                "how far the design's actions are from the best clone's",
                shift,
                shift <= FAR_DESIGN,
                "the design acts like a policy of the data",
                "runaway design: its actions have little to do with the policy that it started from; lower step_size "
                "or ascent_steps, or train longer so that the constraint takes effect",
            ),
            *multiplier_check(metrics, self.multiplier_max, "adversarial designs", "raise threshold or multiplier_max"),
        ]


def _score(score_model: MLP, x: Array) -> Array:
    return score_model(x)[0]


def _policy_number(n: int | Array, policies: BehaviorPolicy) -> BehaviorPolicy:
    one: BehaviorPolicy = jax.tree.map(lambda leaf: leaf[n], policies)
    return one


def _flat(policy: BehaviorPolicy) -> Array:
    return ravel_pytree(policy)[0]


def _designs(policies: BehaviorPolicy) -> Designs:
    theta = jax.vmap(_flat)(policies)
    mean, spread = theta.mean(axis=0), theta.std(axis=0) + SMALL
    return Designs((theta - mean) / spread, mean, spread)


def _standardized(returns: Array) -> Array:
    """With zero mean and unit variance; all zero if the returns are equal."""
    centred = returns - returns.mean()
    return jnp.where(returns.std() > 1e-8, centred / jnp.maximum(returns.std(), 1e-8), 0.0)

"""COMs: Conservative Objective Models (Trabucco et al., ICML 2021) over the weights of policies.

As DROP's appendix has it: the design is the weight vector θ of a behaviour policy, a score model f(θ) learns what such
a policy earned, and at test time θ* is found by 200 steps of gradient ascent on f. f is conservative: what ascent
reaches from the data must not out-score it. Settings of f are those of the authors' code
(`coms_cleaned`), as the appendix names no others.

Neither paper says where policies to learn from come from when the data is trajectories. Here trajectories are cut by
return into N groups and N policies are cloned side by side, one a group, all from the same first weights and each from
steps of its own: weights are comparable only between networks that grew from one. f learns while they do, from their
averages, at every update from all N.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.flatten_util import ravel_pytree

from droprl.algorithms.averaging import averaged
from droprl.algorithms.curves import CLONE_LOSS, GAP, MULTIPLIER, RANKING, Curve
from droprl.algorithms.judging import Check, judged, measured, r_squared, spearman
from droprl.algorithms.protocol import Card, Clock, Logged, Metrics
from droprl.data.dataset import Dataset
from droprl.data.decompose import SubTasks, rank_sub_tasks, sub_task_returns
from droprl.data.transitions import Batch, Prepared, Probe, Spec, Strata, Stratified, prepare
from droprl.errors import DropError, require
from droprl.networks.actors import BehaviorPolicy
from droprl.networks.perceptrons import MLP
from droprl.policies import FixedPolicy

POLICIES = 32  # as many designs as COMs has in a batch
LEAST_MULTIPLIER = 1e-3  # α falls no lower, or it would take as long to come back as it was not needed
SMALL = 1e-6  # added to the spread of a weight: one in which no two policies differ stays where it is
NO_EMBEDDING = (0,)
UNRANKED = 0.7
FAR_DESIGN = 0.2  # how far a design's actions may be from those it started from, in half-ranges: 0.11 played, 0.22 fell
SCORE_LOSS = Curve("score_loss", "Loss of f", "squared error, returns scaled", "score")
DESIGN_GAIN = Curve("design_gain", "Gain of the design", "f(design) − f(best clone)", diagnosis=True)
DESIGN_SHIFT = Curve("design_action_shift", "How far the design's actions moved", "half-ranges", diagnosis=True)


class COMsState(NamedTuple):
    clones: BehaviorPolicy  # every array has the policy as its first axis, that of the highest returns first
    averaged: BehaviorPolicy  # moves slowly after them: the designs that f learns from
    clone_optimizer: optax.OptState
    score_model: MLP  # f
    score_optimizer: optax.OptState
    log_multiplier: Array  # log α
    multiplier_optimizer: optax.OptState


class Designs(NamedTuple):
    """Weight vectors with zero mean and unit variance over the N policies, number by number, as f sees them."""

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
    """N: how many policies are cloned, one for each group of trajectories with similar returns. None: 32, as many as
    COMs has designs in a batch; with fewer trajectories, one policy for each of them."""
    width: int = 64
    """Units of each of a policy's two hidden layers, as in DROP's appendix."""
    score_width: int = 2048
    """Units of each hidden layer of f."""
    score_depth: int = 2
    """Hidden layers of f, with ReLU."""
    ascent_steps: int = 200
    """Gradient steps on θ at test time, as in DROP's appendix (COMs: 50)."""
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
    """The cap on α (COMs has none): it grows exponentially while the constraint is violated."""
    normalize_observations: bool = True
    """Shift and scale observations to zero mean and unit variance."""
    learning_rate: float = 1e-3
    """Adam's learning rate of the cloned policies: that of BC, as COMs has none."""
    average_rate: float = 0.005
    """How fast the averaged policies follow the trained ones."""
    score_learning_rate: float = 3e-4
    """Adam's learning rate of f."""
    batch_size: int = 1024
    """Steps of the data in one update, divided among the policies."""

    def __post_init__(self) -> None:
        require(self, "at least 1", "n_policies", "width", "score_width", "batch_size")
        require(self, "from 1 to 100", "score_depth")
        require(self, "at least 0", "ascent_steps", "adversarial_steps")
        require(self, "above 0", "learning_rate", "score_learning_rate", "step_size")
        require(self, "above 0", "multiplier_start", "multiplier_rate", "multiplier_max")
        require(self, "above 0 and at most 1", "average_rate")

    @classmethod
    def small(cls) -> Self:
        return cls(n_policies=10, score_width=128, batch_size=256)

    @classmethod
    def tiny(cls) -> Self:
        return cls(n_policies=10, width=8, score_width=8, score_depth=1, batch_size=32, learning_rate=1e-2)

    # --- the data it learns from ---

    def resolve(self, dataset: Dataset) -> Self:
        return replace(self, n_policies=min(self.n_policies or POLICIES, dataset.n_episodes))

    def sub_tasks(self, dataset: Dataset) -> SubTasks:
        """Groups of equal size by descending return; fewer than N of the worst trajectories are left out."""
        if self.n_policies is None:
            raise DropError("n_policies is open: call resolve(dataset) first")
        return rank_sub_tasks(dataset.returns, self.n_policies, dataset.n_episodes // self.n_policies)

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
        return COMsState(
            clones=clones,
            averaged=clones,
            clone_optimizer=self._clone_optimizer().init(clones),
            score_model=score_model,
            score_optimizer=self._score_optimizer().init(score_model),
            log_multiplier=log_multiplier,
            multiplier_optimizer=self._multiplier_optimizer().init(log_multiplier),
        )

    def policy(self, state: COMsState) -> FixedPolicy:
        """The weights that ascent reaches from those of the best trajectories' policy."""
        designs = _designs(state.averaged)
        x = self.ascend(state.score_model, designs.x[0], self.ascent_steps)
        like = jax.tree.map(lambda leaf: leaf[0], state.averaged)
        return FixedPolicy(ravel_pytree(like)[1](designs.mean + designs.spread * x), jnp.zeros(NO_EMBEDDING), False)

    # --- f ---

    def ascend(self, score_model: MLP, x: Array, steps: int) -> Array:
        """x ← x + step_size · √d · ∇f(x), so many times; nothing is differentiated through it."""
        fixed, rate = jax.lax.stop_gradient(score_model), self.step_size * np.sqrt(x.size)
        climb = jax.grad(lambda x: _score(fixed, x))
        return jax.lax.fori_loop(0, steps, lambda _, x: x + rate * climb(x), jax.lax.stop_gradient(x))

    def score_loss(self, score_model: MLP, multiplier: Array, x: Array, returns: Array) -> tuple[Array, Metrics]:
        """Mean of (f(x) − y)² + α · (f(x') − f(x)) over the designs, with x' the adversary of x."""
        adversaries = jax.vmap(lambda x: self.ascend(score_model, x, self.adversarial_steps))(x)
        scores, adversarial = (jax.vmap(_score, (None, 0))(score_model, points) for points in (x, adversaries))
        error, gap = jnp.mean((scores - returns) ** 2), jnp.mean(adversarial - scores)
        return error + multiplier * gap, {"score_loss": error, "gap": gap}

    # --- one update: the clones, f on their averages, α ---

    def clone_loss(self, clones: BehaviorPolicy, steps: Batch) -> Array:
        """(N,): each policy's own, on its own steps."""

        def of_one(policy: BehaviorPolicy, observations: Array, actions: Array) -> Array:
            no_embedding = jnp.zeros(NO_EMBEDDING)
            return jnp.mean(jax.vmap(policy.clone_loss, (0, 0, None))(observations, actions, no_embedding))

        return jax.vmap(of_one)(clones, steps.observation, steps.action)

    def update(self, state: COMsState, batch: Strata, key: Array, clock: Clock) -> tuple[COMsState, Logged]:
        def total(clones: BehaviorPolicy) -> tuple[Array, Array]:
            losses = self.clone_loss(clones, batch.steps)
            return jnp.sum(losses), jnp.mean(losses)  # a sum: no policy's gradient depends on how many there are

        gradient, clone = jax.grad(total, has_aux=True)(state.clones)
        step, clone_optimizer = self._clone_optimizer().update(gradient, state.clone_optimizer)
        clones = optax.apply_updates(state.clones, step)
        average = averaged(state.averaged, clones, self.average_rate, clock)

        multiplier = jnp.exp(state.log_multiplier)
        gradient, metrics = jax.grad(self.score_loss, has_aux=True)(
            state.score_model, multiplier, _designs(average).x, batch.returns
        )
        step, score_optimizer = self._score_optimizer().update(gradient, state.score_optimizer)
        score_model = optax.apply_updates(state.score_model, step)

        slope = multiplier * (self.threshold - metrics["gap"])  # of α (threshold − gap), by log α
        step, multiplier_optimizer = self._multiplier_optimizer().update(slope, state.multiplier_optimizer)
        bounds = np.log(min(LEAST_MULTIPLIER, self.multiplier_max)), np.log(self.multiplier_max)
        log_multiplier = jnp.clip(state.log_multiplier + step, *bounds)
        new = COMsState(
            clones, average, clone_optimizer, score_model, score_optimizer, log_multiplier, multiplier_optimizer
        )
        return new, metrics | {"clone_loss": clone, "multiplier": jnp.exp(log_multiplier)}

    def _clone_optimizer(self) -> optax.GradientTransformation:
        return optax.adam(self.learning_rate)

    def _score_optimizer(self) -> optax.GradientTransformation:
        return optax.adam(self.score_learning_rate)

    def _multiplier_optimizer(self) -> optax.GradientTransformation:
        return optax.adam(self.multiplier_rate)

    # --- is it working? ---

    def diagnose(self, state: COMsState, probe: Probe) -> Metrics:
        batch, returns = probe.batch, _standardized(probe.sub_task_returns)
        x = _designs(state.averaged).x
        scores = jax.vmap(_score, (None, 0))(state.score_model, x)
        design = self.ascend(state.score_model, x[0], self.ascent_steps)
        reached = _score(state.score_model, design)
        no_embedding, key = jnp.zeros(NO_EMBEDDING), jax.random.key(0)
        best = FixedPolicy(jax.tree.map(lambda leaf: leaf[0], state.averaged), no_embedding, False)
        before, after = (policy.act((), batch.observation, key)[1] for policy in (best, self.policy(state)))

        def own_loss(step: Batch) -> Array:
            own = jax.tree.map(lambda leaf: leaf[step.sub_task], state.averaged)
            return own.clone_loss(step.observation, step.action, no_embedding)

        return {
            "probe_clone_loss": jnp.mean(jax.vmap(own_loss)(batch)),
            "score_r2": r_squared(scores - returns, returns, jnp.ones_like(returns)),
            "score_rank_correlation": spearman(scores, returns),
            "score_best_clone": scores[0],
            "score_design": reached,
            "design_gain": reached - scores[0],
            "design_distance": jnp.sqrt(jnp.mean((design - x[0]) ** 2)),  # in spreads of the weights over the policies
            "design_action_shift": jnp.mean(jnp.abs(after - before)),
        }

    def checks(self, metrics: dict[str, float]) -> list[Check]:
        """Is what COMs designed better than the data by its own score, and still a policy like the data's?"""
        correlation, gain = measured(metrics, "score_rank_correlation"), measured(metrics, "design_gain")
        shift, multiplier = measured(metrics, "design_action_shift"), measured(metrics, "multiplier")
        return [
            *judged(
                "rank correlation of scores and returns",
                correlation,
                correlation >= UNRANKED,
                "f ranks the cloned policies as their returns do",
                "unranked score: f does not follow the returns of the cloned policies, so ascent on it means nothing; "
                "train longer or raise threshold",
            ),
            *judged(
                "gain of the design by its own score",
                gain,
                gain > 0,
                "ascent raises f above that of the best cloned policy",
                "no design: ascent does not raise f, so the policy is the best clone or worse; lower step_size",
            ),
            *judged(
                "how far the design's actions are from the best clone's",
                shift,
                shift <= FAR_DESIGN,
                "the design acts like a policy of the data",
                "runaway design: its actions have little to do with those of the policy it started from; lower "
                "step_size "
                "or ascent_steps, or train longer so that the constraint takes hold",
            ),
            *judged(
                "multiplier of the constraint",
                multiplier,
                multiplier < 0.999 * self.multiplier_max,
                "the constraint is within its means",
                "violated constraint: the multiplier sits at its cap, so adversarial designs out-score those of the "
                "data; "
                "raise threshold or multiplier_max",
            ),
        ]


def _score(score_model: MLP, x: Array) -> Array:
    return score_model(x)[0]


def _flat(policy: BehaviorPolicy) -> Array:
    return ravel_pytree(policy)[0]


def _designs(policies: BehaviorPolicy) -> Designs:
    theta = jax.vmap(_flat)(policies)
    mean, spread = theta.mean(axis=0), theta.std(axis=0) + SMALL
    return Designs((theta - mean) / spread, mean, spread)


def _standardized(returns: Array) -> Array:
    """Zero mean and unit variance; all zero where they are equal."""
    centred = returns - returns.mean()
    return jnp.where(returns.std() > 1e-8, centred / jnp.maximum(returns.std(), 1e-8), 0.0)

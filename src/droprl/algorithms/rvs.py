"""RvS-R (Emmons, Eysenbach, Kostrikov and Levine, "RvS: What is Essential for Offline RL via Supervised Learning?").

A policy π(a|s, ω) is cloned with the outcome ω of every step, its average return-to-go, and is asked at test time for
one high ω, the same at every state. In this library's words: β(a|s, z) with a z of one number.
The defaults are those of the authors' Gym experiments (paper and released configuration); where not, the field says so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from droprl.algorithms.bc import BCState, cloning_update
from droprl.algorithms.curves import CLONE_LOSS, Curve
from droprl.algorithms.judging import Check, judged, measured
from droprl.algorithms.protocol import Card, Clock, Logged, Metrics
from droprl.data.dataset import Dataset
from droprl.data.returns import average_returns_to_go
from droprl.data.rewards import Rewards
from droprl.data.transitions import Batch, Prepared, Probe, Spec, prepare
from droprl.errors import DropError, SettingError, require
from droprl.networks.actors import BehaviorPolicy, Conditioning, PolicyHead
from droprl.policies import FixedPolicy

# A guess, not measured yet: how far the action must move between a poor target and the chosen one, in spreads of the
# actions.
UNMOVED_BY_TARGET = 0.1
TARGET_REACTION = Curve(
    "target_reaction",
    "What the target changes",
    "action at it less at a poor one, in spreads of the data's",
    diagnosis=True,
)
WRONG_OUTCOME = Curve(
    "probe_clone_loss_permuted",
    "Cloning with the right and with a permuted outcome",
    "cloning loss",
    diagnosis=True,
    lines=(("probe_clone_loss", "right outcome"), ("probe_clone_loss_permuted", "permuted outcome")),
    note="The distance between the lines is what the outcome tells the policy.",
)
POOR = 0.1  # the quantile of the outcomes that stands for a poor target in the diagnosis


@dataclass(frozen=True)
class RvS:
    """Return-conditioned cloning (RvS-R): act like the steps of the data that were followed by as much reward."""

    name: ClassVar[str] = "rvs"
    card: ClassVar[Card] = Card(curves=(CLONE_LOSS, WRONG_OUTCOME, TARGET_REACTION), falls=("clone_loss",), clones=True)
    adaptation: ClassVar[None] = None

    target_return: float | None = None
    """The return of a whole episode to ask for, in the task's own units; training does not depend on it. None: the
    highest return of a trajectory in the data. The authors choose by hand, from fractions of an expert's return."""
    horizon: int | None = None
    """H: the steps of a whole episode. None: those of the longest trajectory, as the authors take it. An episode that
    ended in a terminal earned nothing in the rest of H; one that timed out earlier is averaged over its own steps."""
    outcome_mean: float | None = None
    """What is subtracted from ω before the policy sees it. None: its mean over the data's steps."""
    outcome_std: float | None = None
    """What ω is divided by then. None: its standard deviation over the data's steps. The authors feed ω as it is, which
    leaves its scale to the task's rewards; 0 and 1 do that here."""

    width: int = 1024
    """Units of each hidden layer."""
    state_depth: int = 1
    """Hidden layers before ω enters. The authors have two hidden layers and concatenate ω to the state. Here ω is
    concatenated to the output of the first layer: this is the network of DROP's policy, where z enters there."""
    action_depth: int = 1
    """Hidden layers after ω has entered."""
    conditioning: Conditioning = "concatenate"
    """How ω enters: concatenated to the state's encoding; bilinear adds all products of the two."""
    head: PolicyHead = "gaussian"
    """gaussian maximises the likelihood, as the authors do (their standard deviation is one for all states); a
    deterministic head clones by squared error."""
    sample_actions: bool = False
    """Draw actions from a gaussian head at test time instead of taking its mean, which is what the authors play."""
    normalize_observations: bool = True
    """Shift and scale observations to zero mean and unit variance. The authors do not."""
    learning_rate: float = 1e-3
    """Adam's learning rate."""
    average_rate: float = 0.005
    """How fast the averaged policy follows the trained one, here as in bc; 1 acts with the last weights, as the authors
    do."""
    batch_size: int = 16384
    """Steps of the data in one update."""

    def __post_init__(self) -> None:
        require(self, "at least 1", "horizon", "width", "batch_size")
        require(self, "from 1 to 100", "state_depth", "action_depth")
        require(self, "above 0", "outcome_std", "learning_rate")
        require(self, "above 0 and at most 1", "average_rate")
        for name in ("target_return", "outcome_mean", "outcome_std"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, str) or not np.isfinite(value)):
                raise SettingError(f"{name} is {value!r}: it must be a finite number")

    @classmethod
    def small(cls) -> Self:
        return cls(width=128, batch_size=256)

    @classmethod
    def tiny(cls) -> Self:
        return cls(width=8, batch_size=32, learning_rate=1e-2)

    # --- the data it learns from ---

    def resolve(self, dataset: Dataset) -> Self:
        """Everything that turns a target return into what the policy sees travels in the settings."""
        horizon = int(dataset.lengths.max()) if self.horizon is None else self.horizon
        outcomes = average_returns_to_go(dataset, horizon)
        mean, std = float(outcomes.mean()), float(outcomes.std())
        return replace(
            self,
            horizon=horizon,
            target_return=float(dataset.returns.max()) if self.target_return is None else self.target_return,
            outcome_mean=mean if self.outcome_mean is None else self.outcome_mean,
            # Outcomes that are all alike tell nothing: they are only shifted.
            outcome_std=(std if std > 1e-8 else 1.0) if self.outcome_std is None else self.outcome_std,
        )

    def prepare(self, dataset: Dataset) -> Prepared:
        horizon, _, mean, std = self._resolved()
        return prepare(
            dataset,
            normalize_observations=self.normalize_observations,
            rewards=Rewards("one"),
            outcomes=lambda data: (average_returns_to_go(data, horizon) - mean) / std,
        )

    def target(self) -> Array:
        """The target return as the policy sees it: z of one number, the outcome of a whole episode, normalised."""
        horizon, target_return, mean, std = self._resolved()
        return jnp.asarray([(target_return / horizon - mean) / std], dtype=float)

    def _resolved(self) -> tuple[int, float, float, float]:
        found = self.horizon, self.target_return, self.outcome_mean, self.outcome_std
        horizon, target_return, mean, std = found
        if horizon is None or target_return is None or mean is None or std is None:
            raise DropError("target_return, horizon, outcome_mean or outcome_std is open: call resolve(dataset) first")
        return horizon, target_return, mean, std

    # --- learning ---

    def init(self, key: Array, spec: Spec, clock: Clock) -> BCState:
        depths, sizes = (self.state_depth, self.action_depth), (spec.observation_size, spec.action_size)
        policy = BehaviorPolicy(*sizes, 1, self.width, depths, self.head, key, self.conditioning)
        return BCState(policy, policy, self._optimizer().init(policy))

    def loss(self, policy: BehaviorPolicy, batch: Batch) -> Array:
        """−log π(a|s, ω), the mean over a batch."""
        return jnp.mean(jax.vmap(policy.clone_loss)(batch.observation, batch.action, _outcomes(batch)))

    def update(self, state: BCState, batch: Batch, key: Array, clock: Clock) -> tuple[BCState, Logged]:
        return cloning_update(self.loss, self._optimizer(), self.average_rate, state, batch, clock)

    def policy(self, state: BCState) -> FixedPolicy:
        return FixedPolicy(state.averaged, self.target(), self.sample_actions)

    def _optimizer(self) -> optax.GradientTransformation:
        return optax.adam(self.learning_rate)

    # --- is it working? ---

    def diagnose(self, state: BCState, probe: Probe) -> Metrics:
        """The wrong ω is that of the step half the probe away."""
        policy, batch = state.averaged, probe.batch
        outcomes, target = _outcomes(batch), self.target()
        other = batch._replace(reward=jnp.roll(batch.reward, len(batch.reward) // 2))
        encoded = jax.vmap(policy.encode)(batch.observation)
        at_target, at_poor = (
            jax.vmap(policy.mode, (0, None))(encoded, z) for z in (target, jnp.quantile(outcomes, POOR)[None])
        )
        spread = jnp.mean(jnp.var(batch.action, axis=0))
        reaction = jnp.sqrt(jnp.mean((at_target - at_poor) ** 2) / spread)
        return {
            "probe_clone_loss": self.loss(policy, batch),
            "probe_clone_loss_permuted": self.loss(policy, other),
            "target_reaction": jnp.where(spread > 1e-12, reaction, jnp.nan),
            "target_share": jnp.mean(outcomes >= target - 1e-4),
        }

    def checks(self, metrics: dict[str, float]) -> list[Check]:
        """Does the target return steer the policy, and was it ever seen?"""
        reaction = measured(metrics, "target_reaction")
        share = measured(metrics, "target_share")
        return [
            *judged(
                "reaction to the target",
                reaction,
                reaction >= UNMOVED_BY_TARGET,
                "the policy acts otherwise for the chosen target than for a poor one",
                "ignored target: the policy acts the same for a poor target as for the chosen one, so it is plain "
                "cloning; "
                "train longer, or take data of more than one quality",
            ),
            *judged(
                "steps that went as well as the target",
                share,
                share > 0,
                "some steps of the data were followed by what the target asks for",
                "target out of reach: no step that was looked at went as well as the target, so the policy "
                "extrapolates; "
                "lower target_return",
            ),
        ]


def _outcomes(batch: Batch) -> Array:
    """(n, 1): ω of each step, normalised; `prepare` puts it where rewards are."""
    return batch.reward[:, None]

"""RvS-R (Emmons, Eysenbach, Kostrikov and Levine, "RvS: What is Essential for Offline RL via Supervised Learning?").

A policy π(a|s, ω) is cloned with the outcome ω of every step: its average return-to-go. At test time it is asked for
one high ω, the same at every state. In the words of this library it is β(a|s, z), and z is one number.
The defaults are those of the authors' Gym experiments (paper and released configuration), unless the field says
otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import optax
from jax import Array

from droprl.algorithms.bc import BCState, cloning_update
from droprl.algorithms.curves import CLONE_LOSS, Curve, right_and_wrong
from droprl.algorithms.judging import Check, judged, measured
from droprl.algorithms.protocol import Card, Clock, Logged, Metrics, filled
from droprl.data.dataset import Dataset
from droprl.data.returns import average_returns_to_go
from droprl.data.rewards import Rewards
from droprl.data.transitions import Batch, Prepared, Probe, Spec, prepare
from droprl.errors import require
from droprl.networks.actors import BehaviorPolicy, Conditioning, PolicyHead
from droprl.policies import FixedPolicy

# How far the action must move between a poor target and the chosen one, in standard deviations of the data's actions.
# A guess, not measured yet.
UNMOVED_BY_TARGET = 0.1
POOR = 0.1  # the quantile of the outcomes that the diagnosis takes as a poor target
TARGET_REACTION = Curve(
    "target_reaction",
    "What the target changes",
    "action at the target − at a poor target, in standard deviations",
    diagnosis=True,
)
WRONG_OUTCOME = right_and_wrong("probe_clone_loss_permuted", "outcome", "a permuted outcome")


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
    """H: how many steps a whole episode has. None: the steps of the longest trajectory, as with the authors. An episode
    that ended in a terminal earned nothing in the rest of H. One that timed out earlier is averaged over its own
    steps."""
    outcome_mean: float | None = None
    """This number is subtracted from ω before the policy sees it. None: the mean of ω over the steps of the data."""
    outcome_std: float | None = None
    """Then ω is divided by this number. None: the standard deviation of ω over the steps of the data. The authors do
    not scale ω: a mean of 0 and a standard deviation of 1 do the same here."""

    width: int = 1024
    """Units of each hidden layer."""
    state_depth: int = 1
    """Hidden layers before ω enters. The authors have two hidden layers and concatenate ω to the state. Here ω is
    concatenated to the output of the first layer: the network is that of DROP's policy, with ω for z."""
    action_depth: int = 1
    """Hidden layers after ω has entered."""
    conditioning: Conditioning = "concatenate"
    """How ω enters. concatenate: next to the state's encoding. bilinear: also with all products of the two."""
    head: PolicyHead = "gaussian"
    """gaussian maximises the likelihood, as the authors do (with the same standard deviation at all states).
    deterministic clones by squared error."""
    sample_actions: bool = False
    """Draw actions from a gaussian head at test time. The authors play its mean, as here by default."""
    normalize_observations: bool = True
    """Shift and scale observations to zero mean and unit variance. The authors do not."""
    learning_rate: float = 1e-3
    """Adam's learning rate."""
    average_rate: float = 0.005
    """How fast the averaged policy follows the trained one, as in bc. 1: act with the last weights, as the authors
    do."""
    batch_size: int = 16384
    """Steps of the data in one update."""

    def __post_init__(self) -> None:
        require(self, "at least 1", "horizon", "width", "batch_size")
        require(self, "from 1 to 100", "state_depth", "action_depth")
        require(self, "above 0", "outcome_std", "learning_rate")
        require(self, "above 0 and at most 1", "average_rate")
        require(self, "a finite number", "target_return", "outcome_mean", "outcome_std")

    @classmethod
    def small(cls, **changes: Any) -> Self:
        return replace(cls(width=128, batch_size=256), **changes)

    @classmethod
    def tiny(cls, **changes: Any) -> Self:
        return replace(cls(width=8, batch_size=32, learning_rate=1e-2), **changes)

    # --- the data it learns from ---

    def resolve(self, dataset: Dataset) -> Self:
        """The settings keep everything that turns a target return into the input of the policy."""
        horizon = int(dataset.lengths.max()) if self.horizon is None else self.horizon
        outcomes = average_returns_to_go(dataset, horizon)
        mean, std = float(outcomes.mean()), float(outcomes.std())
        return replace(
            self,
            horizon=horizon,
            target_return=float(dataset.returns.max()) if self.target_return is None else self.target_return,
            outcome_mean=mean if self.outcome_mean is None else self.outcome_mean,
            # Outcomes that are all equal tell nothing: they are only shifted.
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
        """The target return as the input of the policy: a z of one number, the normalised outcome of an episode."""
        horizon, target_return, mean, std = self._resolved()
        return jnp.asarray([(target_return / horizon - mean) / std], dtype=float)

    def _resolved(self) -> tuple[int, float, float, float]:
        mean, std = filled(self.outcome_mean, "outcome_mean"), filled(self.outcome_std, "outcome_std")
        return filled(self.horizon, "horizon"), filled(self.target_return, "target_return"), mean, std

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
        """The wrong ω is that of the step half a probe away."""
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
        """Does the target return steer the policy, and was it seen in the data?"""
        reaction = measured(metrics, "target_reaction")
        share = measured(metrics, "target_share")
        return [
            *judged(
                "reaction to the target",
                reaction,
                reaction >= UNMOVED_BY_TARGET,
                "the policy acts differently for the chosen target than for a poor one",
                "ignored target: the policy acts the same for a poor target as for the chosen one, so it is plain "
                "cloning; train longer, or take data of more than one quality",
            ),
            *judged(
                "steps that went as well as the target",
                share,
                share > 0,
                "some steps of the data earned as much afterwards as the target asks for",
                "target out of reach: none of the probed steps went as well as the target, so the policy "
                "extrapolates; lower target_return",
            ),
        ]


def _outcomes(batch: Batch) -> Array:
    """(n, 1): the normalised ω of each step, which `prepare` puts in place of the rewards."""
    return batch.reward[:, None]

"""IQL (Kostrikov, Nair and Levine, "Offline Reinforcement Learning with Implicit Q-Learning", ICLR 2022).

V is an upper expectile of the target Q over the actions in the data. Q learns from V at the next state. The actor
clones the data's actions, weighted by the exponential of their advantage. No loss needs an action that is not in the
data. The defaults are those of the authors' release for the Gym tasks; the fields give their values for other tasks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import optax
from jax import Array

from droprl.algorithms.curves import Curve
from droprl.algorithms.gradient_steps import Learner, cosine
from droprl.algorithms.judging import Check, judged, measured
from droprl.algorithms.protocol import Card, Clock, Logged, Metrics
from droprl.data.dataset import Dataset
from droprl.data.rewards import Rewards
from droprl.data.transitions import Batch, Prepared, Probe, Spec, prepare
from droprl.errors import require
from droprl.networks.actors import GaussianActor
from droprl.networks.critics import Critic, Ensemble, Value
from droprl.policies import ActorPolicy

N_CRITICS = 2
# Limits of a healthy training. They are guesses, not measured.
MOSTLY_CLIPPED = 0.5  # share of the weights at their cap
RUNAWAY = 10.0  # V may be this many times the largest return
ADVANTAGE = Curve("advantage", "Advantage of the data's actions", "Q(s, a) − V(s)", "advantage", diagnosis=True)
CLIPPED = Curve("clipped_share", "Weights at their cap", "share", diagnosis=True)
VALUE_LOSS = Curve("value_loss", "Loss of V", "expectile loss", "V")
CRITIC_LOSS = Curve("critic_loss", "Loss of Q", "squared error, both critics", "Q")
ACTOR_LOSS = Curve("actor_loss", "Loss of the actor", "−weight · log π", "actor")


class IQLState(NamedTuple):
    value: Learner[Value]  # V
    actor: Learner[GaussianActor]  # π
    critics: Learner[Ensemble[Critic]]  # Q_1 and Q_2
    targets: Ensemble[Critic]  # Q̄, their slow averages


@dataclass(frozen=True)
class IQL:
    """Implicit Q-learning: the value of the better actions in the data, and a policy cloned by their advantage."""

    name: ClassVar[str] = "iql"
    card: ClassVar[Card] = Card(
        curves=(VALUE_LOSS, CRITIC_LOSS, ACTOR_LOSS, ADVANTAGE, CLIPPED),
        falls=("actor_loss",),
        clones=True,
        learns_online=True,
    )
    adaptation: ClassVar[None] = None

    expectile: float = 0.7
    """τ: V is this expectile of Q over the data's actions; 0.5 is their mean. The authors take 0.9 for AntMaze."""
    inverse_temperature: float = 3.0
    """β: the weight of an action is exp(β · advantage). The authors take 10 for AntMaze and 0.5 for Adroit."""
    weight_max: float = 100.0
    """The cap on the weights of actions."""

    width: int = 256
    """Units of each hidden layer of V, Q and π."""
    depth: int = 2
    """Hidden layers of V, Q and π."""
    sample_actions: bool = False
    """Draw actions from π at test time. The authors play its mean, as here by default."""

    discount: float = 0.99
    """γ."""
    reward_unit: Literal["spread", "range", "one"] = "range"
    """Rewards are divided by this unit. range: the highest minus the lowest return of an episode. spread: the standard
    deviation of discounted returns. one: rewards are not divided."""
    reward_times: float = 1000.0
    """Then rewards are multiplied by this number. For AntMaze the authors take 1, with the unit one."""
    reward_plus: float = 0.0
    """Then this number is added to every reward. The authors take −1 for AntMaze."""
    normalize_observations: bool = False
    """Shift and scale observations to zero mean and unit variance. The authors do not."""
    target_rate: float = 0.005
    """How fast the target critics follow."""

    learning_rate: float = 3e-4
    """Adam's learning rate, the same for all networks."""
    actor_decay: Literal["cosine", "none"] = "cosine"
    """cosine: the actor's learning rate falls to 0 along a cosine until the last update of the run. Fine-tuning has the
    full rate, as with the authors."""
    batch_size: int = 256
    """Steps of the data for each update."""

    def __post_init__(self) -> None:
        require(self, "at least 1", "width", "batch_size")
        require(self, "from 1 to 100", "depth")
        require(self, "above 0", "expectile", "weight_max", "reward_times", "learning_rate")
        require(self, "above 0 and at most 1", "expectile", "discount", "target_rate")
        require(self, "at least 0", "inverse_temperature")
        require(self, "a finite number", "reward_plus")

    @classmethod
    def small(cls, **changes: Any) -> Self:
        return replace(cls(width=128), **changes)

    @classmethod
    def tiny(cls, **changes: Any) -> Self:
        return replace(cls(width=8, depth=1, batch_size=32, learning_rate=1e-2), **changes)

    def resolve(self, dataset: Dataset) -> Self:
        return self

    def prepare(self, dataset: Dataset) -> Prepared:
        return prepare(
            dataset,
            discount=self.discount,
            rewards=Rewards(self.reward_unit, self.reward_times, self.reward_plus),
            normalize_observations=self.normalize_observations,
        )

    # --- networks ---

    def init(self, key: Array, spec: Spec, clock: Clock) -> IQLState:
        value_key, actor_key, critic_key = jax.random.split(key, 3)
        o, a, hidden = spec.observation_size, spec.action_size, (self.width,) * self.depth
        critics = Ensemble(lambda one: Critic(o, a, hidden, one, orthogonal=True), N_CRITICS, critic_key)
        return IQLState(
            value=Learner.of(Value(o, hidden, value_key, orthogonal=True)),
            actor=Learner.of(GaussianActor(o, a, hidden, actor_key, orthogonal=True)),
            critics=Learner.of(critics),
            targets=critics,
        )

    def policy(self, state: IQLState) -> ActorPolicy:
        return ActorPolicy(state.actor.network, self.sample_actions)

    # --- losses, each for one step of the data ---

    def value_loss(self, value: Value, targets: Ensemble[Critic], step: Batch) -> Array:
        """|τ − 1(u < 0)| · u² with u = min Q̄(s, a) − V(s)."""
        u = advantage(value, targets, step)
        return jnp.where(u < 0, 1.0 - self.expectile, self.expectile) * u**2

    def actor_loss(self, actor: GaussianActor, value: Value, targets: Ensemble[Critic], step: Batch) -> Array:
        """−min(exp(β · A), cap) · log π(a|s)."""
        return -jnp.exp(self.log_weight(value, targets, step)) * actor.log_probability(step.observation, step.action)

    def log_weight(self, value: Value, targets: Ensemble[Critic], step: Batch) -> Array:
        """β · A, at most the logarithm of the cap. It is clipped here, before exp can overflow."""
        return jnp.minimum(self.inverse_temperature * advantage(value, targets, step), math.log(self.weight_max))

    def critic_loss(self, critics: Ensemble[Critic], value: Value, step: Batch) -> Array:
        """Σ_i (r + γ V(s') − Q_i(s, a))²."""
        target = step.reward + step.discount * value(step.next_observation)
        return jnp.sum((target - critics(step.observation, step.action)) ** 2)

    # --- one update: V, then π and Q by the new V, then the targets ---

    def update(self, state: IQLState, batch: Batch, key: Array, clock: Clock) -> tuple[IQLState, Logged]:
        targets, rate = state.targets, self.learning_rate

        def value_loss(value: Value) -> Array:
            return jnp.mean(jax.vmap(self.value_loss, (None, None, 0))(value, targets, batch))

        value, loss_of_value = state.value.step(value_loss, rate)

        def actor_loss(actor: GaussianActor) -> Array:
            return jnp.mean(jax.vmap(self.actor_loss, (None, None, None, 0))(actor, value.network, targets, batch))

        def critic_loss(critics: Ensemble[Critic]) -> Array:
            losses = jax.vmap(self.critic_loss, (None, None, 0))(critics, value.network, batch)
            return jnp.sum(batch.has_target * losses) / jnp.maximum(jnp.sum(batch.has_target), 1.0)

        actor_rate = rate * cosine(clock) if self.actor_decay == "cosine" else rate
        actor, loss_of_actor = state.actor.step(actor_loss, actor_rate)
        critics, loss_of_critics = state.critics.step(critic_loss, rate)
        targets = optax.incremental_update(critics.network, targets, self.target_rate)
        losses = {"value_loss": loss_of_value, "actor_loss": loss_of_actor, "critic_loss": loss_of_critics}
        return IQLState(value, actor, critics, targets), losses

    # --- is it working? ---

    def diagnose(self, state: IQLState, probe: Probe) -> Metrics:
        value, targets, batch = state.value.network, state.targets, probe.batch
        log_weights = jax.vmap(self.log_weight, (None, None, 0))(value, targets, batch)
        values = jax.vmap(value)(batch.observation)
        return {
            "advantage": jnp.mean(jax.vmap(advantage, (None, None, 0))(value, targets, batch)),
            "clipped_share": jnp.mean(log_weights >= math.log(self.weight_max)),
            # The probe's rewards are discounted sums to the end of the episode.
            "value_ratio": jnp.max(jnp.abs(values)) / jnp.maximum(jnp.max(jnp.abs(batch.reward)), 1e-6),
        }

    def checks(self, metrics: dict[str, float]) -> list[Check]:
        """Can V be believed, and does the actor tell good actions from bad ones?"""
        ratio, clipped = measured(metrics, "value_ratio"), measured(metrics, "clipped_share")
        return [
            *judged(
                "values against returns",
                ratio,
                ratio <= RUNAWAY,
                "V is of the size of the returns in the data",
                "runaway values: V is far larger than any return in the data; lower learning_rate or expectile",
            ),
            *judged(
                "weights at their cap",
                clipped,
                clipped <= MOSTLY_CLIPPED,
                "weights tell good actions from bad ones",
                "weights at their cap: most actions count the same, which is plain cloning; lower inverse_temperature",
            ),
        ]


def advantage(value: Value, targets: Ensemble[Critic], step: Batch) -> Array:
    """A(s, a) = min Q̄(s, a) − V(s)."""
    return jnp.min(targets(step.observation, step.action)) - value(step.observation)

"""Behaviour cloning (`bc`), and cloning of the trajectories with the highest returns (`fbc`).

The policy has the shape of DROP's β without an embedding, so the two do not differ in size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import optax
from jax import Array

from droprl.algorithms.averaging import averaged
from droprl.algorithms.curves import CLONE_LOSS
from droprl.algorithms.judging import Check
from droprl.algorithms.protocol import Card, Clock, Logged, Metrics, filled
from droprl.data.best import best_episodes, best_fraction
from droprl.data.dataset import Dataset
from droprl.data.transitions import Batch, Prepared, Probe, Spec, prepare
from droprl.errors import require
from droprl.networks.actors import BehaviorPolicy, PolicyHead
from droprl.networks.embeddings import no_embedding
from droprl.policies import FixedPolicy


class BCState(NamedTuple):
    behavior_policy: BehaviorPolicy
    averaged: BehaviorPolicy  # follows it slowly, and is what acts
    optimizer: optax.OptState


def clone_loss(policy: BehaviorPolicy, observations: Array, actions: Array) -> Array:
    """The loss of cloning without an embedding, the mean over a batch: equation 4 without sub-tasks."""
    return jnp.mean(jax.vmap(policy.clone_loss, (0, 0, None))(observations, actions, no_embedding()))


def cloning_update(
    loss: Callable[[BehaviorPolicy, Batch], Array],
    optimizer: optax.GradientTransformation,
    average_rate: float,
    state: BCState,
    batch: Batch,
    clock: Clock,
) -> tuple[BCState, Logged]:
    """One step of gradient descent, and one step of the average."""
    value, gradient = jax.value_and_grad(loss)(state.behavior_policy, batch)
    step, optimizer_state = optimizer.update(gradient, state.optimizer)
    policy = optax.apply_updates(state.behavior_policy, step)
    average = averaged(state.averaged, policy, average_rate, clock)
    return BCState(policy, average, optimizer_state), {"clone_loss": value}


@dataclass(frozen=True)
class BC:
    """Behaviour cloning of all trajectories."""

    name: ClassVar[str] = "bc"
    card: ClassVar[Card] = Card(curves=(CLONE_LOSS,), falls=("clone_loss",), clones=True)
    adaptation: ClassVar[None] = None

    width: int = 512
    """Units of each hidden layer."""
    state_depth: int = 2
    """Hidden layers of the state encoder (Enc_1)."""
    action_depth: int = 3
    """Hidden layers of the action decoder (Enc_2)."""
    head: PolicyHead = "deterministic"
    """deterministic clones by squared error; gaussian learns a standard deviation as well."""
    sample_actions: bool = False
    """Draw actions from a gaussian head at test time instead of taking its mean."""
    normalize_observations: bool = True
    """Shift and scale observations to zero mean and unit variance."""
    learning_rate: float = 1e-3
    """Adam's learning rate."""
    average_rate: float = 0.005
    """How fast the averaged policy follows the trained one. 1: act with the last weights."""
    batch_size: int = 1024
    """Steps of the data in one update."""

    def __post_init__(self) -> None:
        require(self, "at least 1", "width", "batch_size")
        require(self, "from 1 to 100", "state_depth", "action_depth")
        require(self, "above 0", "learning_rate")
        require(self, "above 0 and at most 1", "average_rate")

    @classmethod
    def small(cls, **changes: Any) -> Self:
        return replace(cls(width=128, batch_size=256), **changes)

    @classmethod
    def tiny(cls, **changes: Any) -> Self:
        made = cls(width=8, state_depth=1, action_depth=1, batch_size=32, learning_rate=1e-2)
        return replace(made, **changes)

    def resolve(self, dataset: Dataset) -> Self:
        return self

    def prepare(self, dataset: Dataset) -> Prepared:
        return prepare(dataset, normalize_observations=self.normalize_observations)

    def init(self, key: Array, spec: Spec, clock: Clock) -> BCState:
        depths = (self.state_depth, self.action_depth)
        policy = BehaviorPolicy(spec.observation_size, spec.action_size, 0, self.width, depths, self.head, key)
        return BCState(policy, policy, self._optimizer().init(policy))

    def update(self, state: BCState, batch: Batch, key: Array, clock: Clock) -> tuple[BCState, Logged]:
        return cloning_update(self._loss, self._optimizer(), self.average_rate, state, batch, clock)

    def policy(self, state: BCState) -> FixedPolicy:
        return FixedPolicy(state.averaged, no_embedding(), self.sample_actions)

    def diagnose(self, state: BCState, probe: Probe) -> Metrics:
        return {"probe_clone_loss": self._loss(state.averaged, probe.batch)}

    def checks(self, metrics: dict[str, float]) -> list[Check]:
        return []

    def _loss(self, policy: BehaviorPolicy, batch: Batch) -> Array:
        return clone_loss(policy, batch.observation, batch.action)

    def _optimizer(self) -> optax.GradientTransformation:
        return optax.adam(self.learning_rate)


@dataclass(frozen=True)
class FBC(BC):
    """Filtered behaviour cloning: only the best trajectories by return (the paper's F-BC)."""

    name: ClassVar[str] = "fbc"

    top_fraction: float | None = None
    """The share of trajectories that is cloned; at least one trajectory is. None: all trajectories whose return is
    nearer to the best return than to the median, and so many of the next best that at least 25,000 steps are cloned,
    or half of the data if that is less. Often 0.1 is taken, whatever the data."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "above 0 and at most 1", "top_fraction")

    def resolve(self, dataset: Dataset) -> Self:
        fraction = best_fraction(dataset) if self.top_fraction is None else self.top_fraction
        return replace(self, top_fraction=fraction)

    def prepare(self, dataset: Dataset) -> Prepared:
        best = best_episodes(dataset, filled(self.top_fraction, "top_fraction"))
        return prepare(dataset, episodes=best, normalize_observations=self.normalize_observations)

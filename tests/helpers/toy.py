"""A small algorithm of the tests' own that learns online and has nothing of DROP: Q-learning over a few actions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array

from droprl.algorithms.averaging import averaged
from droprl.algorithms.curves import TD_LOSS
from droprl.algorithms.judging import Check
from droprl.algorithms.protocol import Card, Clock, Logged, Metrics
from droprl.data import Dataset
from droprl.data.rewards import Rewards
from droprl.data.transitions import Batch, Prepared, Probe, Spec, prepare
from droprl.networks.perceptrons import MLP
from droprl.policies import ActorPolicy

CHOICES = jnp.array([[-0.7, 0.0], [0.7, 0.0]])  # actions in the unit box: left and right


class Greedy(eqx.Module):
    """The choice with the highest Q."""

    q: MLP

    def mode(self, observation: Array) -> Array:
        return CHOICES[jnp.argmax(self.q(observation))]

    def sample(self, observation: Array, key: Array) -> Array:
        return self.mode(observation)


class ToyState(NamedTuple):
    q: MLP
    target: MLP
    optimizer: optax.OptState


@dataclass(frozen=True)
class ToyQ:
    """Q(s, ·) for each choice; an action of the data counts as the choice nearest to it."""

    name: ClassVar[str] = "toy-q"
    card: ClassVar[Card] = Card(curves=(TD_LOSS,), falls=("td_loss",), clones=False, learns_online=True)
    adaptation: ClassVar[None] = None

    width: int = 16
    learning_rate: float = 1e-2
    batch_size: int = 64

    @classmethod
    def small(cls, **changes: Any) -> Self:
        return replace(cls(), **changes)

    @classmethod
    def tiny(cls, **changes: Any) -> Self:
        return replace(cls(), **changes)

    def resolve(self, dataset: Dataset) -> Self:
        return self

    def prepare(self, dataset: Dataset) -> Prepared:
        return prepare(dataset, discount=0.5, td_steps=1, rewards=Rewards("range", times=10.0))

    def init(self, key: Array, spec: Spec, clock: Clock) -> ToyState:
        q = MLP(spec.observation_size, (self.width,), len(CHOICES), key)
        return ToyState(q, q, optax.adam(self.learning_rate).init(q))

    def update(self, state: ToyState, batch: Batch, key: Array, clock: Clock) -> tuple[ToyState, Logged]:
        loss, gradient = jax.value_and_grad(self._loss)(state.q, state.target, batch)
        step, optimizer = optax.adam(self.learning_rate).update(gradient, state.optimizer)
        q = optax.apply_updates(state.q, step)
        return ToyState(q, averaged(state.target, q, 0.05, clock), optimizer), {"td_loss": loss}

    def policy(self, state: ToyState) -> ActorPolicy:
        return ActorPolicy(Greedy(state.q), sample_actions=False)

    def diagnose(self, state: ToyState, probe: Probe) -> Metrics:
        return {}

    def checks(self, metrics: dict[str, float]) -> list[Check]:
        return []

    def _loss(self, q: MLP, target: MLP, batch: Batch) -> Array:
        distances = jnp.sum((batch.action[:, None] - CHOICES) ** 2, axis=-1)
        chosen = jax.nn.one_hot(jnp.argmin(distances, axis=1), len(CHOICES))
        wanted = batch.reward + batch.discount * jnp.max(jax.vmap(target)(batch.next_observation), axis=1)
        errors = jax.lax.stop_gradient(wanted) - jnp.sum(chosen * jax.vmap(q)(batch.observation), axis=1)
        return jnp.sum(batch.has_target * errors**2) / jnp.sum(batch.has_target)

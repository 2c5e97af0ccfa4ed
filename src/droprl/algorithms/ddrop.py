"""D-DROP: the outer optimisation runs over the states of the data and is distilled into one policy without a search.

φ, β and f are those of DROP, update for update. Beside them a student π(a|s) regresses on β(s, z*(s)).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import optax
from jax import Array

from droprl.adapt import Adaptation
from droprl.algorithms.averaging import averaged
from droprl.algorithms.bc import clone_loss
from droprl.algorithms.curves import Curve
from droprl.algorithms.drop import DROP, DropState
from droprl.algorithms.drop_settings import PLAIN, TINY
from droprl.algorithms.judging import Check, judged, measured, r_squared
from droprl.algorithms.protocol import Card, Clock, Logged, Metrics, State
from droprl.data.transitions import Batch, Probe, Spec
from droprl.errors import require
from droprl.networks.actors import BehaviorPolicy
from droprl.networks.embeddings import no_embedding
from droprl.policies import FixedPolicy

UNDISTILLED = 0.8  # R² of the student's actions. Below it the student does something else than its teacher
DISTILLATION_LOSS = Curve("distillation_loss", "Distillation loss", "half the squared error per action dimension")
DISTILLATION_R2 = Curve("distillation_r2", "The student against adaptation", "R² of its actions", diagnosis=True)


class Distillation(NamedTuple):
    teacher: DropState
    student: BehaviorPolicy  # π, of β's shape without an embedding
    averaged: BehaviorPolicy  # follows it slowly, and is what acts
    optimizer: optax.OptState  # the student's


@dataclass(frozen=True)
class DDROP(DROP):
    """Distilled DROP: one policy learns what adaptation finds at the states of the data, and does not search."""

    name: ClassVar[str] = "ddrop"
    card: ClassVar[Card] = Card(
        curves=(*DROP.card.curves, DISTILLATION_LOSS, DISTILLATION_R2),
        falls=("clone_loss", "td_loss", "distillation_loss"),
        clones=True,
        absent=DROP.card.absent,
        presets=("plain",),
    )
    adaptation: ClassVar[None] = None  # type: ignore[misc]  # the student infers nothing at test time,
    sample_actions: ClassVar[bool] = False  # type: ignore[misc]  # and it is deterministic

    cross_fit: bool = False
    score_models: int = 1
    outer: Adaptation = field(default_factory=Adaptation)
    """How z*(s) is found at states of the data, at each by itself: reinference_interval has no effect."""
    distilled_share: float = 0.125
    """The part of a batch whose states the student learns from. A search costs as much as tens of cloned steps. With
    the default, the search takes about as long as the rest of the update."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "above 0 and at most 1", "distilled_share")

    @classmethod
    def tiny(cls, **changes: Any) -> Self:
        return cls(**TINY | changes)

    @classmethod
    def plain(cls, **changes: Any) -> Self:
        return cls(**PLAIN | changes)

    def init(self, key: Array, spec: Spec, clock: Clock) -> State:
        depths = self.depths[1:3]
        student_key = jax.random.fold_in(key, 0)  # independent of the keys that DROP splits off
        student = BehaviorPolicy(
            spec.observation_size, spec.action_size, 0, self.width, depths, "deterministic", student_key
        )
        return Distillation(super().init(key, spec, clock), student, student, self._optimizer().init(student))

    def policy(self, state: State) -> FixedPolicy:  # type: ignore[override]
        return FixedPolicy(state.averaged, no_embedding(), sample_actions=False)

    def teacher_actions(self, teacher: DropState, observations: Array) -> Array:
        """β(s, z*(s)), by the averaged networks."""
        search = self.search(teacher, self.outer)
        z = jax.vmap(search.infer)(observations).z
        return jax.lax.stop_gradient(jax.vmap(search.action)(observations, z))

    def distillation_loss(self, student: BehaviorPolicy, observations: Array, actions: Array) -> Array:
        """Half the squared error of π(s) per action dimension, the mean over states."""
        return clone_loss(student, observations, actions)

    def update(self, state: State, batch: Batch, key: Array, clock: Clock) -> tuple[State, Logged]:
        teacher, metrics = super().update(state.teacher, batch, key, clock)
        # A batch is drawn at random, so its first states are as good as any others.
        observations = batch.observation[: max(1, round(self.distilled_share * len(batch.observation)))]
        actions = self.teacher_actions(teacher, observations)
        loss, gradient = jax.value_and_grad(self.distillation_loss)(state.student, observations, actions)
        step, optimizer = self._optimizer().update(gradient, state.optimizer)
        student = optax.apply_updates(state.student, step)
        average = averaged(state.averaged, student, self.target_rate, clock)
        return Distillation(teacher, student, average, optimizer), metrics | {"distillation_loss": loss}

    def diagnose(self, state: State, probe: Probe) -> Metrics:
        observations = probe.batch.observation
        actions = self.teacher_actions(state.teacher, observations)
        errors = actions - self.policy(state).act((), observations, jax.random.key(0))[1]
        return super().diagnose(state.teacher, probe) | {
            "probe_distillation_loss": self.distillation_loss(state.averaged, observations, actions),
            "distillation_r2": r_squared(errors, actions - jnp.mean(actions, axis=0), jnp.ones_like(errors)),
        }

    def checks(self, metrics: dict[str, float]) -> list[Check]:
        """The checks of DROP, and one more: does the student act as adaptation would?"""
        r2 = measured(metrics, "distillation_r2")
        distilled = judged(
            "R² of the student's actions against adapted ones",
            r2,
            r2 >= UNDISTILLED,
            "the student acts as adaptation would at the states of the data",
            "undistilled: the student's actions are not those of adaptation; train longer or raise distilled_share",
        )
        return [*super().checks(metrics), *distilled]

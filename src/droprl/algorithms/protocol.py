"""What every algorithm is: a frozen config with a handful of pure methods. No base class; one loop trains them all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import jax.numpy as jnp
from jax import Array

from droprl.adapt import Adaptation
from droprl.algorithms.curves import Curve
from droprl.algorithms.judging import Check
from droprl.data.dataset import Dataset
from droprl.data.transitions import Prepared, Spec
from droprl.policies import Policy

State = Any  # a PyTree of arrays: weights, targets, optimiser; saved and restored leaf by leaf
Data = Any  # what its `Prepared` draws and shows: a `Batch` and a `Probe`, or windows, or steps in strata


class Clock(NamedTuple):
    """Where training stands. It is the same for all seeds, so a `lax.cond` on it runs one branch and not both."""

    number: Array  # of this update, from 0 on; fine-tuning goes on counting beyond the total
    total: Array  # how many updates the run asks for

    @classmethod
    def at(cls, number: int | Array, total: int | Array) -> Clock:
        return cls(jnp.asarray(number, jnp.int32), jnp.asarray(total, jnp.int32))


class Sometimes(NamedTuple):
    """A metric that some updates do not have, such as the loss of an actor that learns in every second update.

    The log shows its mean over the updates that had it.
    """

    value: Array  # 0 where it was not measured
    measured: Array  # 1.0 or 0.0

    @classmethod
    def when(cls, measured: Array | bool, value: Array) -> Sometimes:
        return cls(jnp.where(measured, value, 0.0), jnp.asarray(measured, value.dtype))


Metrics = dict[str, Array]  # what a diagnosis finds
Logged = dict[str, Any]  # what an update reports: for each name an array, or `Sometimes`


@dataclass(frozen=True)
class Card:
    """What an algorithm declares of itself, so that nobody else has to guess."""

    curves: tuple[Curve, ...]
    """The metrics that people look at: on the page, in diagnoses, and while it trains."""
    falls: tuple[str, ...]
    """Losses whose sum falls as it learns, on data that can be learned."""
    clones: bool
    """Where all data comes from one behaviour, its actions are near those of the data."""
    learns_online: bool = False
    """Its update also makes sense on steps that its own policy has played: `drop finetune --level policy`."""
    no_export: str = ""
    """Why its policy cannot be an ONNX file; empty: it can."""
    may_lower: tuple[str, ...] = ()
    """Settings that `resolve` may lower where the data is too small for them."""


class Algorithm(Protocol):
    """Its fields are its hyper-parameters: they make the command line, and travel with every run and policy."""

    name: ClassVar[str]
    card: ClassVar[Card]

    @property
    def batch_size(self) -> int: ...

    @property
    def adaptation(self) -> Adaptation | None:
        """How z is inferred at test time; None for a policy that infers nothing."""
        ...

    @classmethod
    def small(cls) -> Self:
        """The preset for CPUs."""
        ...

    @classmethod
    def tiny(cls) -> Self:
        """Networks of a few units and a high learning rate: what a test trains in a moment."""
        ...

    def resolve(self, dataset: Dataset) -> Self:
        """The same with every field filled in that was left to the data."""
        ...

    def prepare(self, dataset: Dataset) -> Prepared:
        """The data made ready to learn from. Needs resolved fields."""
        ...

    def init(self, key: Array, spec: Spec, clock: Clock) -> State: ...

    def update(self, state: State, batch: Data, key: Array, clock: Clock) -> tuple[State, Logged]: ...

    def policy(self, state: State) -> Policy: ...

    def diagnose(self, state: State, probe: Data) -> Metrics:
        """What a person must see to know whether training worked, on a fixed part of the data."""
        ...

    def checks(self, metrics: dict[str, float]) -> list[Check]:
        """These metrics of one seed, judged: a silent failure is an unhealthy check."""
        ...

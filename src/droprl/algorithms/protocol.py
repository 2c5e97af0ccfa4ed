"""What every algorithm is: a frozen config with a few pure methods. No base class; one loop trains them all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol, Self, TypeVar

import jax.numpy as jnp
from jax import Array

from droprl.adapt import Adaptation
from droprl.algorithms.curves import Curve
from droprl.algorithms.judging import Check
from droprl.data.dataset import Dataset
from droprl.data.transitions import Prepared, Spec
from droprl.errors import DropError
from droprl.policies import Policy

T = TypeVar("T")
State = Any  # a PyTree of arrays: weights, targets, optimiser; saved and restored leaf by leaf
Data = Any  # what `Prepared` draws and shows: a `Batch` and a `Probe`, or windows, or steps in strata


class Clock(NamedTuple):
    """Where training stands. It is the same for all seeds, so a `lax.cond` on it runs one branch and not both."""

    number: Array  # of this update, counted from 0; fine-tuning goes on counting beyond the total
    total: Array  # how many updates the run asks for

    @classmethod
    def at(cls, number: int | Array, total: int | Array) -> Clock:
        return cls(jnp.asarray(number, jnp.int32), jnp.asarray(total, jnp.int32))


class Sometimes(NamedTuple):
    """A metric that only some updates have, such as the loss of an actor that learns in every second update.

    The log shows its mean over the updates that had it.
    """

    value: Array  # 0 if it was not measured
    measured: Array  # 1.0 or 0.0

    @classmethod
    def when(cls, measured: Array | bool, value: Array) -> Sometimes:
        return cls(jnp.where(measured, value, 0.0), jnp.asarray(measured, value.dtype))


Metrics = dict[str, Array]  # the results of a diagnosis
Logged = dict[str, Any]  # the metrics of an update, by name: arrays, or `Sometimes`


@dataclass(frozen=True)
class Card:
    """What an algorithm declares about itself, so that nobody else has to guess."""

    curves: tuple[Curve, ...]
    """The metrics that people look at: on the page, in diagnoses, and during training."""
    falls: tuple[str, ...]
    """Losses whose sum falls during training, if the data can be learned."""
    clones: bool
    """If all data comes from one behaviour, its actions are close to those of the data."""
    learns_online: bool = False
    """Its update can also learn from steps that its own policy has played: `drop finetune --level policy`."""
    no_export: str = ""
    """Why its policy cannot become an ONNX file; `drop export` says it. Empty if it can."""
    absent: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """What a file means that lacks a setting, because it is older than the setting. The default, unless named here."""
    presets: tuple[str, ...] = ()
    """Names of more presets than `small`: class methods that give settings."""
    settles: tuple[tuple[str, float], ...] = ()
    """Metrics that stand still once training is done, each with the share of itself by which it may still change
    between the last two fifths of the updates."""
    may_lower: tuple[str, ...] = ()
    """Settings that `resolve` may lower when the data is too small for them."""


class Algorithm(Protocol):
    """Its fields are its hyper-parameters. They become options of the command line, and every run and policy keeps
    them."""

    name: ClassVar[str]
    card: ClassVar[Card]

    @property
    def batch_size(self) -> int: ...

    @property
    def adaptation(self) -> Adaptation | None:
        """How z is inferred at test time. None for a policy that infers nothing."""
        ...

    @classmethod
    def small(cls, **changes: Any) -> Self:
        """The preset for CPUs. Each preset takes other settings by name: `DROP.small(width=64)`."""
        ...

    @classmethod
    def tiny(cls, **changes: Any) -> Self:
        """Networks of a few units and a high learning rate, which a test can train in a moment."""
        ...

    def resolve(self, dataset: Dataset) -> Self:
        """The same algorithm with a value for every field that was left to the data."""
        ...

    def prepare(self, dataset: Dataset) -> Prepared:
        """The data, ready to be learned from. Needs resolved fields."""
        ...

    def init(self, key: Array, spec: Spec, clock: Clock) -> State: ...

    def update(self, state: State, batch: Data, key: Array, clock: Clock) -> tuple[State, Logged]: ...

    def policy(self, state: State) -> Policy: ...

    def diagnose(self, state: State, probe: Data) -> Metrics:
        """The measures that tell a person whether training worked, on a fixed part of the data."""
        ...

    def checks(self, metrics: dict[str, float]) -> list[Check]:
        """A judgement of one seed's metrics. An unhealthy check reports a failure that would else be silent."""
        ...


def filled(value: T | None, name: str) -> T:
    """A field that `resolve` must have filled by now."""
    if value is None:
        raise DropError(f"{name} is open: call resolve(dataset) first")
    return value

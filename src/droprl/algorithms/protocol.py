"""What every algorithm is: a frozen config with a handful of pure methods. No base class; one loop trains them all."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol, Self

from jax import Array

from droprl.adapt import Adaptation
from droprl.algorithms.judging import Check
from droprl.data.dataset import Dataset
from droprl.data.transitions import Prepared, Spec
from droprl.policies import Policy

State = Any  # a PyTree of arrays: weights, targets, optimiser; saved and restored leaf by leaf
Drawn = Any  # what its `Prepared` draws and shows: a `Batch` and a `Probe`, or windows, or steps in strata
Metrics = dict[str, Array]


class Algorithm(Protocol):
    """Its fields are its hyper-parameters: they make the command line, and travel with every run and policy."""

    name: ClassVar[str]

    @property
    def batch_size(self) -> int: ...

    @property
    def adaptation(self) -> Adaptation | None:
        """How z is inferred at test time; None for a policy that has nothing to infer."""
        ...

    @classmethod
    def small(cls) -> Self:
        """The preset for CPUs."""
        ...

    def resolve(self, dataset: Dataset) -> Self:
        """The same with every field that was left to the data filled in."""
        ...

    def prepare(self, dataset: Dataset) -> Prepared:
        """The steps it learns from, in sub-tasks. Needs resolved fields."""
        ...

    def init(self, key: Array, spec: Spec) -> State: ...

    def update(self, state: State, batch: Drawn, key: Array) -> tuple[State, Metrics]: ...

    def policy(self, state: State) -> Policy: ...

    def diagnose(self, state: State, probe: Drawn) -> Metrics:
        """What a person must see to know whether training worked, on a fixed part of the data."""
        ...

    def checks(self, metrics: dict[str, float]) -> list[Check]:
        """These metrics of one seed, judged: a silent failure is an unhealthy check."""
        ...

"""Single steps of the data: the draw, the batch, and `prepare`, which makes a dataset ready for both.

If the data is cut into sub-tasks, a sub-task is drawn, then a step inside it (Algorithm 1). If not, steps are drawn
uniformly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from droprl.data.dataset import Dataset
from droprl.data.decompose import SubTasks, sub_task_returns
from droprl.data.rewards import Rewards
from droprl.data.rows import Column, Recipe, Rows, TargetRule, host_rows, rows_of
from droprl.data.scaling import Scaling, fit_scaling
from droprl.errors import DropError, require

PROBE_STEPS = 1024
PROBE_STARTS = 16


class Batch(NamedTuple):
    """Steps of the data. A loss is written for one step and `vmap`ped."""

    observation: Array  # s
    action: Array  # a
    sub_task: Any  # n; None if the data is not cut into sub-tasks
    reward: Array  # R: the rewards, treated by `Rewards` and summed over the steps to the successor
    discount: Array  # γ to the power of the number of these steps, 0 after a terminal
    next_observation: Array  # s'
    next_action: Array  # a'
    next_action_known: Array | None  # False after a timeout: no a' is logged there. None: known wherever needed
    has_target: Array  # 1.0, or 0.0 if the data shows no successor: a step to clone, but without a target
    fold: Any = None  # 0 or 1: the half of the trajectories that the step is in. None: not asked for


class Places(NamedTuple):
    """The places of drawn steps."""

    step: Column  # counted inside the sub-task; without sub-tasks, the place itself
    sub_task: Column | None = None


class Sampler(Protocol):
    """Draws batches for an algorithm's `update`: of steps (`Batch`), or of something else.

    `draw` chooses steps, and `gather` reads them. These are two methods because the host reads data on the disk.
    """

    def draw(self, key: jax.Array, size: int) -> Places: ...

    def gather(self, places: Places) -> Any: ...

    def sample(self, key: jax.Array, size: int) -> Any: ...


class Groups(NamedTuple):
    """The sub-tasks among the rows to draw from. They follow each other without gaps."""

    begin: Column  # (N,) the place at which each sub-task begins
    size: Column  # (N,) the number of steps of each sub-task
    top_share: Any = None  # how often the first is drawn. None: as often as any other


class Transitions(NamedTuple):
    """Single steps with their targets."""

    rows: Rows
    groups: Groups | None = None

    def draw(self, key: jax.Array, size: int) -> Places:
        """Algorithm 1, line 4: D_n ~ D_[N], then a step inside it uniformly."""
        sub_task_key, step_key = jax.random.split(key)
        if self.groups is None:
            return Places(jax.random.randint(step_key, (size,), 0, self.rows.n_places))
        sizes = jnp.asarray(self.groups.size)
        if self.groups.top_share is None or len(sizes) == 1:
            sub_task = jax.random.randint(sub_task_key, (size,), 0, len(sizes))
        else:
            other_key, top_key = jax.random.split(sub_task_key)
            other = jax.random.randint(other_key, (size,), 1, len(sizes))
            sub_task = jnp.where(jax.random.bernoulli(top_key, self.groups.top_share, (size,)), 0, other)
        return Places(jax.random.randint(step_key, (size,), 0, sizes[sub_task]), sub_task)

    def gather(self, places: Places) -> Batch:
        found: Batch = self.rows.read(self._look_up, places)
        return found

    def _look_up(self, places: Places) -> Batch:
        place = places.step if self.groups is None else self.groups.begin[places.sub_task] + places.step
        row = self.rows.at(place)
        return Batch(self.rows.observation(row), self.rows.action(row), places.sub_task, *self.rows.target(row))

    def sample(self, key: jax.Array, size: int) -> Batch:
        return self.gather(self.draw(key, size))

    def over(self, rows: Rows) -> Transitions:
        """The same layout over other rows. Their places carry the sub-task."""
        return Transitions(rows)


class Strata(NamedTuple):
    """The same number of steps of every sub-task, and the return of each sub-task."""

    steps: Batch  # every field is (N, steps, …)
    returns: Array  # (N,) mean returns, with zero mean and unit variance over the sub-tasks


class Stratified(NamedTuple):
    """Draws evenly from all sub-tasks. Each of N networks learns from one sub-task, and they are trained together."""

    transitions: Transitions
    returns: Array  # (N,)

    def draw(self, key: jax.Array, size: int) -> Places:
        """`size` / N steps of each sub-task, rounded down, but at least one."""
        assert self.transitions.groups is not None, "strata need sub-tasks"
        n, sizes = self.returns.shape[0], jnp.asarray(self.transitions.groups.size)
        sub_task = jnp.broadcast_to(jnp.arange(n, dtype=jnp.int32)[:, None], (n, max(1, size // n)))
        return Places(jax.random.randint(key, sub_task.shape, 0, sizes[sub_task]), sub_task)

    def gather(self, places: Places) -> Strata:
        return Strata(self.transitions.gather(places), jnp.broadcast_to(self.returns, places.step.shape[:-1]))

    def sample(self, key: jax.Array, size: int) -> Strata:
        return self.gather(self.draw(key, size))


class Probe(NamedTuple):
    """The steps for the diagnostics: the same at every diagnosis of a run."""

    batch: Batch  # with Monte-Carlo targets, to the end of the episode
    starts: Array  # (S, observation_size) initial states s₀
    sub_task_returns: Any  # (N,) the mean return of each sub-task's trajectories; None if there are no sub-tasks


@dataclass(frozen=True)
class Spec:
    """The sizes of the data that a network must know."""

    observation_size: int
    action_size: int
    n_sub_tasks: int | None = None

    def __post_init__(self) -> None:
        require(self, "at least 1", "observation_size", "action_size", "n_sub_tasks")

    def to_json(self) -> dict[str, int]:
        """Without sub-tasks, the key `n_sub_tasks` is missing."""
        return {name: size for name, size in asdict(self).items() if size is not None}

    def required_sub_tasks(self) -> int:
        """N, for an algorithm that needs sub-tasks."""
        if self.n_sub_tasks is None:
            raise DropError("the data is not cut into sub-tasks: call prepare(dataset) first")
        return self.n_sub_tasks


S = TypeVar("S", bound=Sampler, covariant=True)


@dataclass(frozen=True)
class Prepared(Generic[S]):
    """A dataset made ready for one algorithm."""

    spec: Spec
    recipe: Recipe  # makes the same kind of rows of other steps
    transitions: S
    probe: Any  # the input of `diagnose`: a `Probe`, if the algorithm learns from single steps
    sub_tasks: SubTasks | None = None

    @property
    def scaling(self) -> Scaling:
        return self.recipe.scaling

    @property
    def reward_scale(self) -> float:
        """Rewards are divided by this."""
        return self.recipe.rewards.scale


def prepare(
    dataset: Dataset,
    sub_tasks: SubTasks | None = None,
    *,
    episodes: np.ndarray | None = None,
    discount: float = 0.99,
    td_steps: int | None = 1,
    td_lambda: float | None = None,
    normalize_observations: bool = True,
    rewards: Rewards | None = None,
    outcomes: Callable[[Dataset], np.ndarray] | None = None,
    top_share: float | None = None,
    folds: bool = False,
) -> Prepared[Transitions]:
    """Scales, successors and n-step targets of the data's single steps.

    For data in memory, all of this is computed here, once. For data on the disk, it is computed for every batch.
    Steps are drawn from the sub-tasks, or from these `episodes`, or from all. The default of `rewards` is `Rewards()`.
    `outcomes` gives a number for each step, which replaces its reward: an input of the policy, not a target.
    `top_share` is how often the first sub-task is drawn. With `folds`, steps know their half of the trajectories.
    """
    treatment = (rewards or Rewards()).treatment(dataset, discount)
    rule = TargetRule(td_steps, td_lambda, outcomes)
    recipe = Recipe(fit_scaling(dataset, normalize_observations), treatment, discount, rule, folds=folds)
    drawn_from, groups = episodes, None
    if sub_tasks is not None:
        drawn_from = np.concatenate(sub_tasks)
        sizes = np.array([dataset.lengths[part].sum() for part in sub_tasks], np.int32)
        groups = Groups(np.concatenate([[0], np.cumsum(sizes)[:-1]]), sizes, top_share)
    to_the_end = replace(recipe, targets=TargetRule(None, None, outcomes))
    monte_carlo = Transitions(
        host_rows(dataset, to_the_end, drawn_from), groups
    )  # read from the host, because they are few
    if groups is not None and not dataset.on_disk:
        groups = groups._replace(begin=jnp.asarray(groups.begin, jnp.int32), size=jnp.asarray(groups.size, jnp.int32))
    return Prepared(
        spec=Spec(dataset.observation_size, dataset.action_size, None if sub_tasks is None else len(sub_tasks)),
        recipe=recipe,
        transitions=Transitions(rows_of(dataset, recipe, drawn_from), groups),
        probe=_probe(monte_carlo, dataset, recipe.scaling, sub_tasks),
        sub_tasks=sub_tasks,
    )


def _probe(monte_carlo: Transitions, dataset: Dataset, scaling: Scaling, sub_tasks: SubTasks | None) -> Probe:
    rng = np.random.default_rng(0)
    groups = monte_carlo.groups
    sizes = np.array([monte_carlo.rows.n_places]) if groups is None else groups.size
    sub_task = rng.integers(0, len(sizes), PROBE_STEPS)
    step: Any = rng.integers(0, sizes[sub_task]).astype(np.int32)
    label: Any = None if groups is None else sub_task.astype(np.int32)
    first = dataset.bounds[:-1]
    starts = dataset.observations[first[np.linspace(0, len(first) - 1, min(PROBE_STARTS, len(first))).astype(int)]]
    returns = None if sub_tasks is None else jnp.asarray(sub_task_returns(dataset.returns, sub_tasks), jnp.float32)
    return Probe(
        batch=jax.tree.map(jnp.asarray, monte_carlo.gather(Places(step, label))),
        starts=jnp.asarray(scaling.observations_in(starts)),
        sub_task_returns=returns,
    )

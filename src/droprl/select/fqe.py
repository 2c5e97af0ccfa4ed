"""Fitted Q evaluation: what a policy would earn, from the data alone, without playing it once.

Q(s, a) ← r + γ Q̄(s', π(s')) over the data's transitions; the estimate is the mean of Q(s₀, π(s₀)) over the data's
initial states. π need not be like the data's behaviour, but where it goes far from it Q is a guess.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from droprl.adapt import HearsRewards, Policy
from droprl.data.dataset import Dataset
from droprl.data.returns import discounted_returns
from droprl.data.transitions import transition_table
from droprl.errors import DropError, require
from droprl.networks import MLP
from droprl.policy import LoadedPolicy

ACT_BATCH = 4096  # states that are asked for an action at once


@dataclass(frozen=True)
class FQE:
    """How Q is fitted."""

    width: int = 128
    """Units of each of the two hidden layers."""
    steps: int = 10_000
    """Updates."""
    batch_size: int = 512
    """Steps of the data an update."""
    learning_rate: float = 1e-3
    """Adam's learning rate."""
    target_rate: float = 0.02
    """How fast the target Q̄ follows; one-step targets need it faster than DROP's n-step ones."""
    discount: float = 0.99
    """γ of the estimate: the return that is estimated is discounted by it, whatever the policy was trained with."""

    def __post_init__(self) -> None:
        require(self, "at least 1", "width", "steps", "batch_size")
        require(self, "above 0", "learning_rate")
        require(self, "above 0 and at most 1", "target_rate", "discount")


class _Table(NamedTuple):
    """One-step transitions, with the policy's action at every state."""

    observations: Array  # (T + X, ·), normalised
    chosen: Array  # (T + X, ·) the policy's actions there
    actions: Array  # (T, ·) the data's
    reward: Array
    discount: Array
    successor: Array
    rows: Array  # those of the T that have a target


def estimate_return(policy: LoadedPolicy, dataset: Dataset, config: FQE | None = None, seed: int = 0) -> float:
    """The discounted return that the policy would earn from the data's initial states, in the units of the rewards."""
    config = config or FQE()
    spread = float(np.std(discounted_returns(dataset, config.discount)))
    scale = spread if spread > 1e-8 else 1.0
    table = _table(policy, dataset, config.discount, scale)
    starts = jnp.asarray(dataset.bounds[:-1])
    return scale * float(_fit(table, starts, config, jax.random.key(seed)))


def _table(policy: LoadedPolicy, dataset: Dataset, discount: float, scale: float) -> _Table:
    if (dataset.observation_size, dataset.action_size) != (policy.spec.observation_size, policy.spec.action_size):
        raise DropError(f"{dataset.name}: has other sizes than {policy!r} was trained with: give the data of its task")
    everything = [np.arange(dataset.n_episodes)]
    data = transition_table(dataset, everything, policy.scaling, discount, 1, scale)
    episode = np.repeat(np.arange(dataset.n_episodes), dataset.lengths)
    first = np.asarray(dataset.bounds[:-1])[episode]
    # A successor that no row shows belongs to the episode of the step before it.
    extra = np.asarray(data.successor) >= dataset.n_steps
    first_of = np.empty(len(data.observations), np.int64)
    first_of[: dataset.n_steps] = first
    first_of[np.asarray(data.successor)[extra]] = first[extra]
    return _Table(
        observations=data.observations,
        chosen=_actions_of(policy, data.observations, data.observations[first_of]),
        actions=data.actions,
        reward=data.reward,
        discount=data.discount,
        successor=data.successor,
        rows=jnp.flatnonzero(data.has_target),
    )


def _actions_of(policy: LoadedPolicy, observations: Array, firsts: Array) -> Array:
    """The policy's action in every state; a rule that chooses z once chooses it in the first state of the episode."""
    adaptation = policy.algorithm.adaptation
    if adaptation is not None and adaptation.reinference_interval > 1:
        raise DropError("what a policy does must follow from the state: set reinference_interval to 1")
    if isinstance(policy.start(1), HearsRewards):
        raise DropError(f"what a policy does must follow from the state: {policy.algorithm.name} goes by its past")

    @eqx.filter_jit
    def act(inner: Policy, first: Array, observation: Array) -> Array:
        key = jax.random.key(0)
        carry, _ = inner.act(inner.start(len(first)), first, key)
        return jnp.clip(inner.act(carry, observation, key)[1], -1.0, 1.0)

    parts = range(0, len(observations), ACT_BATCH)
    return jnp.concatenate(
        [act(policy.policy, firsts[i : i + ACT_BATCH], observations[i : i + ACT_BATCH]) for i in parts]
    )


def _value(q: MLP, observations: Array, actions: Array) -> Array:
    return jax.vmap(q)(jnp.concatenate([observations, actions], axis=1))[:, 0]


def _loss(q: MLP, target: MLP, table: _Table, row: Array) -> Array:
    after = table.successor[row]
    following = _value(target, table.observations[after], table.chosen[after])
    wanted = table.reward[row] + table.discount[row] * following
    return jnp.mean((_value(q, table.observations[row], table.actions[row]) - jax.lax.stop_gradient(wanted)) ** 2)


@partial(jax.jit, static_argnames="config")
def _fit(table: _Table, starts: Array, config: FQE, key: Array) -> Array:
    """The mean value of the policy at the starts, by Q̄ after all updates."""
    init_key, update_key = jax.random.split(key)
    size = table.observations.shape[1] + table.actions.shape[1]
    q = MLP(size, (config.width,) * 2, 1, init_key, layer_norm=True)
    optimizer = optax.adam(config.learning_rate)

    def update(i: Array, carry: tuple[MLP, MLP, optax.OptState]) -> tuple[MLP, MLP, optax.OptState]:
        q, target, state = carry
        picked = jax.random.randint(jax.random.fold_in(update_key, i), (config.batch_size,), 0, len(table.rows))
        step, state = optimizer.update(jax.grad(_loss)(q, target, table, table.rows[picked]), state)
        q = optax.apply_updates(q, step)
        return q, optax.incremental_update(q, target, config.target_rate), state

    _, target, _ = jax.lax.fori_loop(0, config.steps, update, (q, q, optimizer.init(q)))
    return jnp.mean(_value(target, table.observations[starts], table.chosen[starts]))

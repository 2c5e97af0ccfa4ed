"""Fitted Q evaluation estimates what a policy would earn, from the data alone: nothing is played.

Q(s, a) ← r + γ Q̄(s', π(s')) over the data's transitions; the estimate is the mean of Q(s₀, π(s₀)) over the data's
initial states. π may differ from the behaviour in the data, but far away from it Q is a guess.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from droprl.compiler import on_accelerator
from droprl.data.dataset import Dataset
from droprl.data.rewards import Rewards
from droprl.data.rows import DeviceRows, Recipe, TargetColumns, TargetRule, device_rows
from droprl.data.scaling import fit_scaling
from droprl.errors import DropError, require
from droprl.loaded import LoadedPolicy
from droprl.networks.perceptrons import MLP

ACT_BATCH = 4096  # states for which a policy is asked at once


@dataclass(frozen=True)
class FQE:
    """How Q is fitted."""

    width: int = 128
    """Units of each of the two hidden layers."""
    steps: int = 10_000
    """Updates."""
    batch_size: int = 512
    """Steps of the data in each update."""
    learning_rate: float = 1e-3
    """Adam's learning rate."""
    target_rate: float = 0.02
    """How fast the target Q̄ follows; one-step targets need it faster than DROP's n-step ones."""
    transitions: int | None = 50_000
    """How many steps of the data Q is fitted on, drawn once; None takes all. The policy is asked for an action after
    each step. For a policy that adapts this is most of the work."""
    discount: float = 0.99
    """γ of the estimated return. It need not be the γ of the policy's training."""

    def __post_init__(self) -> None:
        require(self, "at least 1", "width", "steps", "batch_size", "transitions")
        require(self, "above 0", "learning_rate")
        require(self, "above 0 and at most 1", "target_rate", "discount")


def estimate_returns(
    policies: Sequence[LoadedPolicy], dataset: Dataset, config: FQE | None = None, seed: int = 0
) -> list[float]:
    """The discounted return that each policy would earn from the data's initial states, in the units of the rewards.

    One table of the data serves all policies, and one compiled loop fits all of their Q.
    """
    config = config or FQE()
    rewards = Rewards("spread").treatment(dataset, config.discount)
    table = device_rows(dataset, Recipe(fit_scaling(dataset), rewards, config.discount, TargetRule(td_steps=1)))
    rows, starts = np.flatnonzero(_targets(table).has_target), np.asarray(dataset.bounds[:-1])
    if config.transitions is not None and config.transitions < len(rows):
        rows = np.sort(np.random.default_rng(seed).choice(rows, config.transitions, replace=False))
    asked = np.union1d(np.asarray(_targets(table).successor)[rows], starts)
    chosen = jnp.stack([_chosen_actions(policy, dataset, table, asked) for policy in policies])
    found = _fit(table, jnp.asarray(rows), chosen, jnp.asarray(starts), config, jax.random.key(seed))
    return [rewards.scale * float(value) for value in found]


def _targets(table: DeviceRows) -> TargetColumns:
    assert table.targets is not None, "the recipe asks for targets"
    return table.targets


def _chosen_actions(policy: LoadedPolicy, dataset: Dataset, table: DeviceRows, asked: np.ndarray) -> Array:
    """The policy's action in the `asked` rows of the table, scaled to [-1, 1] by the data's bounds; 0 in other rows.

    A rule that chooses z once per episode chooses it in the episode's first state.
    """
    if (dataset.observation_size, dataset.action_size) != (policy.spec.observation_size, policy.spec.action_size):
        raise DropError(f"{dataset.name}: has other sizes than the data of {policy!r}: give data of the policy's task")
    if policy.search is not None:
        policy = policy.adapted(guard=False)  # the data's own states need no guard
    if policy.traits.remembers and not policy.traits.chooses_once:
        remedy = "" if policy.search is None else ": set reinference_interval to 1 and warm_start to false"
        raise DropError(
            f"{policy.algorithm.name}: its actions depend on the past, and fitted Q evaluation needs actions that "
            f"depend on the state only{remedy}"
        )
    scaling, key = fit_scaling(dataset), jax.random.key(0)
    observations = np.asarray(table.observations * scaling.observation_std + scaling.observation_mean)
    firsts = observations[_first_rows(dataset, np.asarray(_targets(table).successor), len(observations))]

    def act(rows: np.ndarray) -> np.ndarray:
        carry = policy.start(len(rows))
        if policy.traits.chooses_once:
            carry, _ = policy.step(carry, firsts[rows], key)
        return policy.step(carry, observations[rows], key)[1]

    batches = np.resize(asked, (-(-len(asked) // ACT_BATCH), ACT_BATCH))  # the last batch is filled up with first rows
    acted = np.concatenate([act(rows) for rows in batches])[: len(asked)]
    chosen = np.zeros((len(observations), dataset.action_size), np.float32)
    chosen[asked] = np.clip(scaling.actions_in(acted), -1.0, 1.0)
    return jnp.asarray(chosen)


def _first_rows(dataset: Dataset, successor: np.ndarray, n_rows: int) -> np.ndarray:
    """For each row of the table, the row of its episode's first state."""
    episode = np.repeat(np.arange(dataset.n_episodes), dataset.lengths)
    first = np.asarray(dataset.bounds[:-1])[episode]
    # A successor beyond the data's own rows belongs to the episode of the step before it.
    extra = successor >= dataset.n_steps
    first_of = np.zeros(n_rows, np.int64)  # rows that are no successor are never asked for
    first_of[: dataset.n_steps] = first
    first_of[successor[extra]] = first[extra]
    return first_of


def _value(q: MLP, observations: Array, actions: Array) -> Array:
    return jax.vmap(q)(jnp.concatenate([observations, actions], axis=1))[:, 0]


def _loss(q: MLP, target: MLP, table: DeviceRows, chosen: Array, row: Array) -> Array:
    step = table.target(row)
    following = _value(target, step.next_observation, chosen[_targets(table).successor[row]])
    wanted = step.reward + step.discount * following
    return jnp.mean((_value(q, table.observation(row), table.action(row)) - jax.lax.stop_gradient(wanted)) ** 2)


@partial(jax.jit, static_argnames="config")
def _fit(table: DeviceRows, rows: Array, chosen: Array, starts: Array, config: FQE, key: Array) -> Array:
    """For each policy, given by its actions, the mean of Q̄ at the starts after all updates."""
    init_key, update_key = jax.random.split(key)
    size = table.observations.shape[1] + table.actions.shape[1]
    optimizer = optax.adam(config.learning_rate)

    def fit_one(chosen: Array) -> Array:
        def update(i: Array, carry: tuple[MLP, MLP, optax.OptState]) -> tuple[MLP, MLP, optax.OptState]:
            q, target, state = carry
            picked = jax.random.randint(jax.random.fold_in(update_key, i), (config.batch_size,), 0, len(rows))
            gradient = jax.grad(_loss)(q, target, table, chosen, rows[picked])
            step, state = optimizer.update(gradient, state)
            q = optax.apply_updates(q, step)
            return q, optax.incremental_update(q, target, config.target_rate), state

        q = MLP(size, (config.width,) * 2, 1, init_key, layer_norm=True)
        _, target, _ = jax.lax.fori_loop(0, config.steps, update, (q, q, optimizer.init(q)))
        return jnp.mean(_value(target, table.observations[starts], chosen[starts]))

    if on_accelerator():
        return jax.vmap(fit_one)(chosen)
    return jax.lax.map(fit_one, chosen)  # one after another: batched matrix products are slow on a CPU

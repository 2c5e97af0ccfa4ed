"""Walks through the log: what a policy would earn if, wherever it goes, the world does what it did to the log nearby.

A walk starts in an initial state of the data. At each step the policy acts, and every step of the log gets a weight by
how near its state and action are: a kernel. (The actions of a deterministic policy have no density, so there is no
ratio of densities to weight by.) The weighted mean of the logged rewards is earned. The weighted mean of the logged
changes of the state, after a linear model of them, moves the walk on. Where the log ended in a terminal, the walk ends.

All in all, each step of the log gets one weight w ≥ 0, and the estimate is Σ w r. It cannot leave what the rewards and
γ allow. The policy may remember: nothing here needs actions that depend on the state only.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from droprl.data.scaling import Scaling
from droprl.data.support import Support
from droprl.judging.log import MOST_FAR, Log, Steps, pairs
from droprl.loaded import LoadedPolicy, step_policy
from droprl.policies import Policy, tell_rewards
from droprl.policies.guard import embedding_limit, nearest_distance

SAMPLED = 500  # steps whose distance to the rest of the log says what is near
NEAR_SHARE = 0.95  # a pair is near the log if it is nearer than this share of the log's own pairs to other trajectories
RIDGE = 1e-2
SAME = 1e-4  # a squared distance that rounding may make of none
LATE = 5  # what comes after a walk is like the last fifth of it


class World(NamedTuple):
    """What the log says of the world, in arrays for a compiled walk."""

    points: Array  # (n, ·) states and actions
    linear: Array  # (· + 1, observation_size) the linear model of the change of the state
    rest: Array  # (n, observation_size) what it leaves
    rewards: Array  # (n,)
    ended: Array  # (n,) 1.0 after a terminal
    low: Array  # (observation_size,) no walk leaves the states of the log
    high: Array
    width: Array  # () squared: the distance over which the kernel falls
    near: Array  # () a squared distance within which a pair is near the log


class Walked(NamedTuple):
    """What some walks found. All means are over the walks' steps, each by its weight γ^t."""

    earned: np.ndarray  # (starts,) the discounted return of each walk
    weights: np.ndarray  # (n,) w of each step of the log, with a sum of at most 1 / (1 − γ)
    near_pairs: float  # the share of steps whose state and action are near the log
    near_states: float  # the share of states that the data supports
    near_z: float | None  # the share of z that the data supports; None for a policy without z


def make_world(steps: Steps, log: Log, bandwidth: float) -> World:
    """`bandwidth` multiplies the distance from a step of the log to the nearest step of another trajectory."""
    points = pairs(steps.observations, steps.actions)
    ended = steps.discounts == 0
    change = np.where(ended[:, None], 0.0, log.observations[steps.successors] - steps.observations)
    inputs = np.concatenate([points, np.ones((len(points), 1), np.float32)], axis=1).astype(np.float64)
    moment = inputs.T @ inputs + RIDGE * np.eye(inputs.shape[1])
    linear = np.linalg.solve(moment, inputs.T @ change)
    apart = _distances_to_others(points, steps.trajectory)
    width = max(bandwidth**2 * float(np.median(apart)), SAME)
    return World(*(
        jnp.asarray(part, jnp.float32)
        for part in (
            points, linear, change - inputs @ linear, steps.rewards, ended, steps.observations.min(axis=0),
            steps.observations.max(axis=0), width, SAME + np.quantile(apart, NEAR_SHARE),
        )
    ))  # fmt: skip


def _distances_to_others(points: np.ndarray, trajectory: np.ndarray) -> np.ndarray:
    """The squared distances of some points to the nearest point of another trajectory."""
    some = np.random.default_rng(25).permutation(len(points))[:SAMPLED]
    squares = np.sum(points[some] ** 2, axis=1)[:, None] + np.sum(points**2, axis=1) - 2 * points[some] @ points.T
    if len(np.unique(trajectory)) > 1:
        squares[trajectory[some][:, None] == trajectory[None]] = np.inf
    else:
        squares[np.arange(len(some)), some] = np.inf
    nearest = np.min(squares, axis=1, initial=np.inf)
    return np.maximum(nearest[np.isfinite(nearest)], 0.0) if np.isfinite(nearest).any() else np.zeros(1)


def walk(
    policy: LoadedPolicy, world: World, starts: np.ndarray, log: Log, support: Support, n_steps: int, seed: int
) -> Walked:
    """Walk from these normalised observations for `n_steps`."""
    key = jax.random.key(seed)
    support = jax.tree.map(jnp.asarray, support)
    arrays = (policy.policy, policy.scaling, log.scaling, world, support, jnp.asarray(starts, jnp.float32))
    found = _walk(*arrays, jnp.float32(log.discount), key, n_steps)
    earned, weights, near_pairs, near_states, near_z, total = (np.asarray(part) for part in found)
    total = np.maximum(total, 1e-12)
    z = None if policy.search is None else float(near_z / total)
    return Walked(earned, weights, float(near_pairs / total), float(near_states / total), z)


@partial(jax.jit, static_argnames="n_steps")
def _walk(
    policy: Policy,
    scaling: Scaling,
    log_scaling: Scaling,
    world: World,
    support: Support,
    starts: Array,
    discount: Array,
    key: Array,
    n_steps: int,
) -> tuple[Array, ...]:
    squares = jnp.sum(world.points**2, axis=1)
    n, limit = len(starts), jnp.asarray(support.levels)[round(0.99 * (support.levels.shape[0] - 1))]
    search = policy.search

    late = n_steps - max(1, n_steps // LATE)

    def one_step(memory: Any, t: Array) -> tuple[Any, None]:
        states, carry, worth, earned, weights, at_end, counts = memory
        observations = states * log_scaling.observation_std + log_scaling.observation_mean
        carry, acted = step_policy(policy, scaling, carry, observations, jax.random.fold_in(key, t))
        actions = jnp.clip(log_scaling.actions_in(acted), -1.0, 1.0)
        points = jnp.concatenate([jnp.clip(states, -MOST_FAR, MOST_FAR), actions], axis=1)
        apart = squares - 2 * points @ world.points.T + jnp.sum(points**2, axis=1)[:, None]
        nearest = jnp.min(apart, axis=1)
        kernel = jnp.exp(-(apart - nearest[:, None]) / world.width)
        kernel = kernel / jnp.sum(kernel, axis=1, keepdims=True)
        paid, ends = kernel @ world.rewards, kernel @ world.ended
        inputs = jnp.concatenate([points, jnp.ones((n, 1))], axis=1)
        following = jnp.clip(states + inputs @ world.linear + kernel @ world.rest, world.low, world.high)
        near_state = jax.vmap(support.distance)(states) <= limit
        near_z = jnp.ones(n, bool) if search is None else _supported_z(policy, carry, scaling, observations)
        seen = jnp.stack([nearest <= world.near, near_state, near_z, jnp.ones(n, bool)])
        counts, weights = counts + seen @ worth, weights + worth @ kernel / n
        earned = earned + worth * paid
        at_end = jax.tree.map(lambda total, new: total + jnp.where(t >= late, new, 0.0), at_end, (paid, ends, kernel))
        memory = following, tell_rewards(carry, paid), worth * discount * (1.0 - ends), earned, weights, at_end, counts
        return memory, None

    zeros = jnp.zeros(n)
    size = len(world.rewards)
    at_end = zeros, zeros, jnp.zeros((n, size))
    begun = (starts, policy.start(n), jnp.ones(n), zeros, jnp.zeros(size), at_end, jnp.zeros(4))
    (_, _, worth, earned, weights, at_end, counts), _ = jax.lax.scan(one_step, begun, jnp.arange(n_steps))
    paid, ends, kernel = (total / (n_steps - late) for total in at_end)
    left = worth / (1.0 - discount * (1.0 - ends))  # a walk goes on as in its last part
    return earned + left * paid, weights + left @ kernel / n, counts[0], counts[1], counts[2], counts[3]


def _supported_z(policy: Policy, carry: Any, scaling: Scaling, observations: Array) -> Array:
    """(n,) whether the z in use is near that of a sub-task, and this sub-task has been at states like the present."""
    search = policy.search
    assert search is not None, "only a search has a z"
    z, radius = policy.facts(carry)["embedding"], search.adaptation.trust_radius
    inside = jax.vmap(lambda one: nearest_distance(one, search.embeddings))(z) <= embedding_limit(
        search.embeddings, radius
    )
    if search.home is None:
        return inside
    home = search.home
    nearest = jnp.argmin(jnp.sum((z[:, None] - search.embeddings) ** 2, axis=-1), axis=1)
    at_home = jax.vmap(home.supported)(jnp.asarray(scaling.observations_in(observations)))
    return inside & jnp.take_along_axis(at_home, nearest[:, None], axis=1)[:, 0]

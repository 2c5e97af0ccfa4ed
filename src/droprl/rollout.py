"""Rollouts in real Gymnasium tasks: many episodes side by side, one compiled call of the policy a step.

Each environment plays one episode after another from a queue. Nothing resets by itself, so no action, reward or memory
of one episode ever reaches the next, and an episode depends only on its own seed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium
import jax
import numpy as np

from droprl.adapt.policy import Carry, Episode, tell_rewards
from droprl.data.simulation import make_env
from droprl.errors import DropError
from droprl.policy import LoadedPolicy

Environment = gymnasium.Env[Any, Any]
EnvMaker = Callable[[], Environment]
Recorder = Callable[[Carry, np.ndarray, np.ndarray], None]  # memory after acting, observations, rewards


@dataclass(frozen=True)
class Rollout:
    """What some episodes earned, in the order of their seeds."""

    returns: list[float]
    lengths: list[int]
    terminated: list[bool]  # the task ended; otherwise the clock ran out
    seconds_per_action: float


def env_maker(env_id: str) -> EnvMaker:
    """How to make the environment with this Gymnasium id; that it can be made is checked here, once."""
    make_env(env_id).close()
    return lambda: make_env(env_id)


def rollout(
    policy: LoadedPolicy,
    make_env: EnvMaker,
    episodes: int,
    *,
    seed: int = 0,
    n_envs: int = 10,
    record: Recorder | None = None,
    on_step: Callable[[int], None] | None = None,
) -> Rollout:
    """Episode e is reset with `seed + e`. `on_step` hears how many episodes are done."""
    n_envs = min(n_envs, episodes)
    envs = [make_env() for _ in range(n_envs)]
    try:
        check_fit(policy, envs[0])
        return _play(policy, envs, episodes, seed, record, on_step)
    finally:
        for env in envs:
            env.close()


def _play(
    policy: LoadedPolicy,
    envs: list[Environment],
    episodes: int,
    seed: int,
    record: Recorder | None,
    on_step: Callable[[int], None] | None,
) -> Rollout:
    returns, lengths = np.zeros(episodes), np.zeros(episodes, int)
    terminated = np.zeros(episodes, bool)
    playing = list(range(len(envs)))  # the episode in each environment; −1 when there is none left for it
    waiting = len(envs)
    observations = np.stack([_reset(env, seed + e) for env, e in zip(envs, playing, strict=True)])
    fresh = policy.start(len(envs))
    carry, seconds, actions_taken, calls = fresh, 0.0, 0, 0
    while any(e >= 0 for e in playing):
        keys = _keys(np.array([seed + e for e in playing]).astype(np.uint32), lengths[playing])
        began = time.perf_counter()
        carry, actions = policy.step(carry, observations, keys)
        if calls > 0:  # the first call compiles
            seconds += time.perf_counter() - began
            actions_taken += sum(e >= 0 for e in playing)
        calls += 1
        rewards, began_anew = np.zeros(len(envs)), np.zeros(len(envs), bool)
        seen = observations.copy()
        for i, env in enumerate(envs):
            e = playing[i]
            if e < 0:
                continue
            observation, reward, ended, truncated, _ = env.step(actions[i])
            observations[i], rewards[i] = observation, float(reward)
            returns[e] += float(reward)
            lengths[e] += 1
            if ended or truncated:
                terminated[e] = ended
                playing[i], waiting = (waiting, waiting + 1) if waiting < episodes else (-1, waiting)
                began_anew[i] = True
                if playing[i] >= 0:
                    observations[i] = _reset(env, seed + playing[i])
        if record is not None:
            record(carry, seen, rewards)
        carry = tell_rewards(carry, rewards)
        if began_anew.any():
            carry = _replace(carry, fresh, began_anew)
        if on_step is not None:
            on_step(waiting - sum(e >= 0 for e in playing))
    per_action = seconds / actions_taken if actions_taken else float("nan")
    return Rollout(returns.tolist(), lengths.tolist(), terminated.tolist(), per_action)


class Trajectory(NamedTuple):
    """One episode, every step of it: what can be learned from."""

    observations: np.ndarray  # (L, observation_size) float32
    actions: np.ndarray  # (L, action_size) float32, as the task was given them
    rewards: np.ndarray  # (L,) float32
    next_observations: np.ndarray  # (L, observation_size) float32
    sub_tasks: np.ndarray  # (L,) int32: where the z that acted had started from; 0 where none is inferred
    terminated: np.ndarray  # () bool: the task ended
    whole: np.ndarray  # () bool: the task or its clock ended; otherwise it was cut

    @property
    def episode_return(self) -> float:
        return float(np.sum(self.rewards, dtype=np.float64))


def play_episode(
    policy: LoadedPolicy, env: Environment, seed: int, limit: int, noise: np.random.Generator | None, scale: float
) -> Trajectory:
    """The episode that `rollout` plays with this seed, cut after `limit` steps.

    With a generator, each action is moved by a normal number times `scale` half-ranges, inside the action's bounds.
    """
    observation, carry = _reset(env, seed), policy.start(1)
    low, high = np.asarray(policy.scaling.action_low), np.asarray(policy.scaling.action_high)
    steps: list[tuple[np.ndarray, np.ndarray, float, np.ndarray, int]] = []
    ended = truncated = False
    while len(steps) < limit and not (ended or truncated):
        keys = _keys(np.array([seed], np.uint32), np.array([len(steps)]))
        carry, actions = policy.step(carry, observation[None], keys)
        action = actions[0]
        if noise is not None:
            moved = action + scale * 0.5 * (high - low) * noise.standard_normal(action.shape)
            action = np.clip(moved, low, high).astype(np.float32)
        found, reward, ended, truncated, _ = env.step(action.copy())
        following = np.array(found, np.float32)
        start = int(np.asarray(carry.inferred.start)[0]) if isinstance(carry, Episode) else 0
        steps.append((observation, action, float(reward), following, start))
        carry = tell_rewards(carry, np.array([reward]))
        observation = following
    observations, taken, rewards, followings, starts = zip(*steps, strict=True)
    return Trajectory(
        observations=np.stack(observations),
        actions=np.stack(taken),
        rewards=np.array(rewards, np.float32),
        next_observations=np.stack(followings),
        sub_tasks=np.array(starts, np.int32),
        terminated=np.array(ended, bool),
        whole=np.array(ended or truncated, bool),
    )


def longest_episode(env: Environment) -> int | None:
    """How many steps an episode lasts at most, where the task has a clock."""
    found = env.get_wrapper_attr("_max_episode_steps") if env.has_wrapper_attr("_max_episode_steps") else None
    return None if found is None else int(found)


def _reset(env: Environment, seed: int) -> np.ndarray:
    return np.asarray(env.reset(seed=seed)[0], np.float32)


@jax.jit
def _keys(seeds: jax.Array, clocks: jax.Array) -> jax.Array:
    """A key for each episode under way, from its own seed and its own clock."""
    return jax.vmap(lambda seed, clock: jax.random.fold_in(jax.random.key(seed), clock))(seeds, clocks)


def _replace(carry: Carry, fresh: Carry, where: np.ndarray) -> Carry:
    """The memory with that of the marked episodes as at their start."""

    def choose(old: jax.Array, new: jax.Array) -> jax.Array:
        return jax.numpy.where(where.reshape(where.shape + (1,) * (old.ndim - 1)), new, old)

    return jax.tree.map(choose, carry, fresh)


def check_fit(policy: LoadedPolicy, env: Environment) -> None:
    """Refuse a task whose observations or actions are not those of the policy."""
    for kind, space, size in (
        ("observations", env.observation_space, policy.spec.observation_size),
        ("actions", env.action_space, policy.spec.action_size),
    ):
        name = env.spec.id if env.spec else type(env.unwrapped).__name__
        if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1:
            raise DropError(f"{name}: its {kind} are {type(space).__name__}, not a vector: not supported yet")
        if space.shape[0] != size:
            raise DropError(
                f"{name}: its {kind} have {space.shape[0]} entries and the policy was trained on {size}: "
                "evaluate in the task that the data comes from (--env)"
            )

"""Rollouts in real Gymnasium tasks: many episodes side by side, with one compiled call of the policy for each step.

Each environment plays one episode after another from a queue. No environment resets itself, so no action, reward or
memory of one episode ever reaches the next, and an episode depends only on its own seed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from droprl.environments.simulation import make_env
from droprl.environments.vector_tasks import parts_of_env
from droprl.environments.vectors import shown_parts
from droprl.errors import DropError
from droprl.loaded import LoadedPolicy, step_policy
from droprl.policies.policy import Carry, tell_rewards

Environment = gymnasium.Env[Any, Any]
EnvMaker = Callable[[], Environment]
TIMED_CALLS, TIMED_SECONDS = 50, 1.0  # how many calls, in at most how many seconds, measure the time of an action
NO_SUB_TASK = (0,)
Recorder = Callable[[Carry, np.ndarray, np.ndarray], None]  # memory after acting, observations, rewards


@dataclass(frozen=True)
class Rollout:
    """What some episodes earned, in the order of their seeds."""

    returns: list[float]
    lengths: list[int]
    terminated: list[bool]  # the task ended; otherwise the time limit was reached
    guarded: list[int] | None  # at how many actions the guard stepped in; None without a guard


def env_maker(env_id: str, time_limit: int | None = None) -> EnvMaker:
    """A function that makes the environment with this Gymnasium id and this time limit, if it is not the environment's
    own. An id that cannot be made is refused here."""
    make_env(env_id, time_limit).close()
    return lambda: make_env(env_id, time_limit)


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
    return _rollout([policy], make_env, episodes, seed, n_envs, record, on_step)[0]


def rollouts(
    policies: Sequence[LoadedPolicy],
    make_env: EnvMaker,
    episodes: int,
    *,
    seed: int = 0,
    n_envs: int = 10,
    on_step: Callable[[int], None] | None = None,
) -> list[Rollout]:
    """`rollout` of several policies of one shape, all at once. This is fast on an accelerator."""
    return _rollout(policies, make_env, episodes, seed, n_envs, None, on_step)


def _rollout(
    policies: Sequence[LoadedPolicy],
    make_env: EnvMaker,
    episodes: int,
    seed: int,
    n_envs: int,
    record: Recorder | None,
    on_step: Callable[[int], None] | None,
) -> list[Rollout]:
    envs = [make_env() for _ in range(len(policies) * min(n_envs, episodes))]
    try:
        check_fit(policies[0], envs[0])
        return _play(_Players(policies), envs, episodes, seed, record, on_step)
    finally:
        for env in envs:
            env.close()


class _Players:
    """Policies that act together, each in the same number of environments. Those of the first policy come first."""

    def __init__(self, policies: Sequence[LoadedPolicy]) -> None:
        self.policies = policies
        if len(policies) > 1:
            self._stacked, self._scaling = (
                jax.tree.map(lambda *leaves: jnp.stack(leaves), *parts)
                for parts in ([p.policy for p in policies], [p.scaling for p in policies])
            )

    @property
    def draw(self) -> bool:
        return self.policies[0].traits.draws

    def start(self, n: int) -> Carry:
        if len(self.policies) == 1:
            return self.policies[0].start(n)
        return jax.vmap(lambda policy: policy.start(n // len(self.policies)))(self._stacked)

    def step(self, carry: Carry, observations: np.ndarray, keys: jax.Array | None) -> tuple[Carry, np.ndarray]:
        if len(self.policies) == 1:
            return self.policies[0].step(carry, observations, keys)
        given = jnp.asarray(self._by_policy(observations), jnp.float32)
        keys = None if keys is None else self._by_policy(keys)
        carry, actions = _step_together(self._stacked, self._scaling, carry, given, keys)
        return carry, np.array(actions).reshape(len(observations), -1)

    def stepped_in(self, carry: Carry) -> np.ndarray | None:
        """For each environment, whether the guard stepped in at its last action. None without a guard."""
        found = self.policies[0].facts(carry).get("guarded")  # with several policies, the memory has one more axis
        return None if found is None else np.asarray(found).ravel()

    def after_step(self, carry: Carry, fresh: Carry, rewards: np.ndarray, began_anew: np.ndarray) -> Carry:
        """The memory after it heard the rewards. Episodes that begin now have a fresh memory."""
        if len(self.policies) == 1:
            carry = tell_rewards(carry, rewards)
        else:
            carry = jax.vmap(tell_rewards)(carry, self._by_policy(rewards))
            began_anew = self._by_policy(began_anew)
        return _replace(carry, fresh, began_anew) if began_anew.any() else carry

    def _by_policy(self, values: Any) -> Any:
        """The same values with the policies as a first axis."""
        return values.reshape(len(self.policies), -1, *values.shape[1:])


_step_together = jax.jit(jax.vmap(step_policy))


def _play(
    players: _Players,
    envs: list[Environment],
    episodes: int,
    seed: int,
    record: Recorder | None,
    on_step: Callable[[int], None] | None,
) -> list[Rollout]:
    n, each = len(players.policies), len(envs) // len(players.policies)
    returns, lengths = np.zeros((n, episodes)), np.zeros((n, episodes), int)
    terminated, guarded = np.zeros((n, episodes), bool), np.zeros((n, episodes), int)
    owner = np.repeat(np.arange(n), each)  # for each environment, its policy
    playing = np.tile(np.arange(each), n)  # for each environment, its episode; −1 if no episode is left for it
    waiting = np.full(n, each)  # for each policy, its next episode
    observations = np.stack([_reset(env, seed + int(e)) for env, e in zip(envs, playing, strict=True)])
    fresh = players.start(len(envs))
    carry = fresh
    while (playing >= 0).any():
        keys = _keys((seed + playing).astype(np.uint32), lengths[owner, playing]) if players.draw else None
        carry, actions = players.step(carry, observations, keys)
        _refuse_nan(actions[playing >= 0])
        rewards, began_anew = np.zeros(len(envs)), np.zeros(len(envs), bool)
        seen, stepped_in = observations.copy(), players.stepped_in(carry)
        for i in np.flatnonzero(playing >= 0):
            at = owner[i], playing[i]
            observation, reward, ended, truncated, _ = envs[i].step(actions[i])
            observations[i], rewards[i] = observation, float(reward)
            returns[at] += float(reward)
            lengths[at] += 1
            guarded[at] += 0 if stepped_in is None else stepped_in[i]
            if ended or truncated:
                terminated[at] = ended
                began_anew[i] = True
                playing[i] = waiting[owner[i]] if waiting[owner[i]] < episodes else -1
                if playing[i] >= 0:
                    waiting[owner[i]] += 1
                    observations[i] = _reset(envs[i], seed + int(playing[i]))
        if record is not None:
            record(carry, seen, rewards)
        carry = players.after_step(carry, fresh, rewards, began_anew)
        if on_step is not None:
            on_step(int(waiting.sum() - (playing >= 0).sum()))
    counts = [None] * n if players.stepped_in(fresh) is None else guarded.tolist()
    columns = zip(returns.tolist(), lengths.tolist(), terminated.tolist(), counts, strict=True)
    return [Rollout(*played) for played in columns]


def _refuse_nan(actions: np.ndarray) -> None:
    if not np.isfinite(actions).all():
        raise DropError(
            "an action was NaN or infinite: check that the task's observations are finite and in the units of the data"
        )


def seconds_per_action(policy: LoadedPolicy, make_env: EnvMaker, seed: int = 0) -> float:
    """How long one environment waits for one action in the middle of an episode: from its observation on the host to
    the action on the host, one call at a time. The median of some tens of calls, in about TIMED_SECONDS at most.

    If z is inferred every m steps, an action costs the mean of m calls. If z is inferred only at the start of an
    episode, this inference is not counted.
    """
    env = make_env()
    try:
        observation = _reset(env, seed)[None]
    finally:
        env.close()
    period = policy.traits.interval
    policy.step(policy.start(1), observation, _key_of(policy, seed, 0))  # compiles
    carry, taken = policy.start(1), list[float]()
    while len(taken) < period * math.ceil(TIMED_CALLS / period) and sum(taken) < TIMED_SECONDS:
        key = _key_of(policy, seed, len(taken))
        began = time.perf_counter()
        carry, _ = policy.step(carry, observation, key)
        taken.append(time.perf_counter() - began)
        carry = tell_rewards(carry, np.zeros(1))
    whole = len(taken) - len(taken) % period or len(taken)
    return float(np.median(np.reshape(taken[:whole], (-1, min(period, whole))).mean(axis=1)))


def _key_of(policy: LoadedPolicy, seed: int, clock: int) -> jax.Array | None:
    return _keys(np.array([seed], np.uint32), np.array([clock])) if policy.traits.draws else None


class Trajectory(NamedTuple):
    """All steps of one episode: data that an algorithm can learn from."""

    observations: np.ndarray  # (L, observation_size) float32
    actions: np.ndarray  # (L, action_size) float32, as the task got them
    rewards: np.ndarray  # (L,) float32
    next_observations: np.ndarray  # (L, observation_size) float32
    sub_tasks: np.ndarray  # (L,) int32: the sub-task whose z_n the search started from; 0 if no z is inferred
    terminated: np.ndarray  # () bool: the task ended
    whole: np.ndarray  # () bool: the task or its time limit ended the episode; otherwise it was cut

    @property
    def episode_return(self) -> float:
        return float(np.sum(self.rewards, dtype=np.float64))


def play_episode(
    policy: LoadedPolicy, env: Environment, seed: int, limit: int, noise: np.random.Generator | None, scale: float
) -> Trajectory:
    """The episode that `rollout` plays with this seed, cut after `limit` steps.

    With a generator, each action gets normal noise of `scale` half-ranges, and stays inside the action's bounds.
    """
    observation, carry = _reset(env, seed), policy.start(1)
    low, high = np.asarray(policy.scaling.action_low), np.asarray(policy.scaling.action_high)
    steps: list[tuple[np.ndarray, np.ndarray, float, np.ndarray, int]] = []
    ended = truncated = False
    while len(steps) < limit and not (ended or truncated):
        keys = _keys(np.array([seed], np.uint32), np.array([len(steps)])) if policy.traits.draws else None
        carry, actions = policy.step(carry, observation[None], keys)
        action = actions[0]
        _refuse_nan(action)
        if noise is not None:
            moved = action + scale * 0.5 * (high - low) * noise.standard_normal(action.shape)
            action = np.clip(moved, low, high).astype(np.float32)
        found, reward, ended, truncated, _ = env.step(action.copy())
        following = np.array(found, np.float32)
        sub_task = policy.facts(carry).get("sub_task", NO_SUB_TASK)
        steps.append((observation, action, float(reward), following, int(np.asarray(sub_task)[0])))
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
    """How many steps an episode lasts at most, if the task has a time limit."""
    found = env.get_wrapper_attr("_max_episode_steps") if env.has_wrapper_attr("_max_episode_steps") else None
    return None if found is None else int(found)


def _reset(env: Environment, seed: int) -> np.ndarray:
    return np.asarray(env.reset(seed=seed)[0], np.float32)


@jax.jit
def _keys(seeds: jax.Array, clocks: jax.Array) -> jax.Array:
    """One key for each episode under way, from its own seed and its own clock."""
    return jax.vmap(lambda seed, clock: jax.random.fold_in(jax.random.key(seed), clock))(seeds, clocks)


def _replace(carry: Carry, fresh: Carry, where: np.ndarray) -> Carry:
    """The memory, with the fresh one in the marked episodes."""

    def choose(old: jax.Array, new: jax.Array) -> jax.Array:
        return jnp.where(where.reshape(where.shape + (1,) * (old.ndim - where.ndim)), new, old)

    return jax.tree.map(choose, carry, fresh)


def check_fit(policy: LoadedPolicy, env: Environment) -> None:
    """Refuse a task whose observations or actions do not fit the policy."""
    found = parts_of_env(env)
    known = None if found is None else policy.origin.observation_parts
    if found is not None and known is not None and known != found:
        raise DropError(
            f"{env.spec.id if env.spec else 'the task'}: observes {shown_parts(found)}, and the policy was trained on "
            f"{shown_parts(known)}: evaluate in the task that the data comes from (--env)"
        )
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

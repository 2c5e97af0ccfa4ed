"""Decision Transformer at test time: a memory of K steps, and a return-to-go that falls by the rewards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.sequences import (
    SPEC,
    K,
    by_hand,
    dataset,
    drawn,
    dt,
    policy_of,
)
from helpers.training import refusal, tiny

from droprl import load_policy
from droprl.algorithms.dt import DT, Context, TransformerPolicy
from droprl.data import from_arrays
from droprl.judging.asking import chosen_actions
from droprl.judging.log import Log
from droprl.loaded import LoadedPolicy, Origin
from droprl.policies import HearsRewards, tell_rewards
from droprl.rollout import play_episode, rollout, rollouts
from droprl.train import fit


@pytest.fixture
def _double_precision() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


# --- the policy: one compiled step for all episodes ---


@pytest.mark.usefixtures("_double_precision")
def test_a_step_of_many_episodes_equals_a_plain_pass_over_the_last_k_steps_of_each() -> None:
    """Nine steps, which is more than K, of three episodes with different rewards and observations."""
    transformer = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), drawn(3))
    policy, rng = policy_of(transformer), np.random.default_rng(5)
    observations, rewards = rng.normal(size=(9, 3, 2)), rng.normal(size=(9, 3))
    scale, target = dt().return_scale or 0, dt().target_return or 0
    traced: list[int] = []

    def act(carry: Context, observations: jax.Array, key: jax.Array) -> tuple[Context, jax.Array]:
        traced.append(1)
        return policy.act(carry, observations, key)

    carry, step = policy.start(3), jax.jit(act)
    taken = np.zeros((9, 3, 2))
    for t in range(9):
        carry, acted = step(carry, jnp.asarray(observations[t]), jax.random.key(0))
        taken[t] = acted
        first = max(0, t - K + 1)
        for e in range(3):
            to_go = [(target - rewards[:i, e].sum()) / scale for i in range(first, t + 1)]
            so_far = np.concatenate([taken[first:t, e], np.full((1, 2), 77.0)])  # the action at t has no effect
            expected = by_hand(transformer, to_go, observations[first : t + 1, e], so_far, first)[-1]
            np.testing.assert_allclose(acted[e], expected, rtol=1e-5, atol=1e-7)
        carry = carry.rewarded(jnp.asarray(rewards[t]))
    assert len(traced) == 1


def test_every_leaf_of_the_memory_has_the_episode_first() -> None:
    carry = policy_of(drawn()).start(7)
    assert isinstance(carry, Context)
    assert isinstance(carry, HearsRewards)
    assert all(leaf.shape[0] == 7 for leaf in jax.tree.leaves(carry))


def test_a_reward_is_subtracted_once() -> None:
    policy = policy_of(drawn())
    step = jax.jit(lambda carry: policy.act(carry, jnp.zeros((1, 2)), jax.random.key(0))[0])
    again = step(step(tell_rewards(step(policy.start(1)), np.array([3.0]))))
    target, scale = dt().target_return or 0, dt().return_scale or 0
    np.testing.assert_allclose(
        np.asarray(again.returns_to_go)[0, 1:] * scale, [target, target - 3, target - 3], rtol=1e-5
    )
    assert tell_rewards((), np.array([3.0])) == ()  # other policies ignore rewards


# --- in a task ---


class Paying(gymnasium.Env[Any, Any]):
    """Episode s lasts 2 + s mod 3 steps. Its step t has the reward 10 s + t."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,))
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.seed, self.t = int(seed or 0), 0
        return np.array([self.seed, 0.0]), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.t += 1
        over = self.t == 2 + self.seed % 3
        return np.array([self.seed, float(self.t)]), 10.0 * self.seed + self.t, over, False, {}


def loaded() -> LoadedPolicy:
    scaling = dt().prepare(dataset()).scaling
    return LoadedPolicy(policy_of(drawn()), dt(), SPEC, scaling, Origin("d", None, None, 0, 0), "here")


def test_in_a_rollout_the_return_to_go_falls_by_the_rewards_and_starts_again_in_each_episode() -> None:
    seen: dict[tuple[int, int], float] = {}

    def record(carry: Context, observations: np.ndarray, rewards: np.ndarray) -> None:
        for i in np.flatnonzero(rewards):  # an environment without an episode earns nothing
            seed, t = (int(x) for x in observations[i])
            assert int(carry.step[i]) == t + 1
            seen[seed, t] = float(carry.return_to_go[i]) * (dt().return_scale or 0)
            assert seen[seed, t] == pytest.approx(float(carry.returns_to_go[i, -1]) * (dt().return_scale or 0))

    played = rollout(loaded(), Paying, 7, seed=5, n_envs=3, record=record)
    expected = {
        (seed, t): (dt().target_return or 0) - sum(10 * seed + i for i in range(1, t + 1))
        for seed in range(5, 12)
        for t in range(2 + seed % 3)
    }
    assert sum(played.lengths) == len(expected) == len(seen)
    for place, value in expected.items():
        assert seen[place] == pytest.approx(value, rel=1e-4), place


def test_an_episode_is_the_same_alone_and_beside_others_and_in_a_plain_loop() -> None:
    policy, env = loaded(), Paying()
    actions = play_episode(policy, env, 7, 10, None, 0.0).actions
    assert len(actions) == 3
    observation, reward, over, mine = env.reset(seed=7)[0], None, False, []
    while not over:
        mine.append(policy.act(observation, reward=reward))
        observation, reward, over, *_ = env.step(mine[-1])
    np.testing.assert_allclose(mine, actions, rtol=1e-5, atol=1e-6)
    played: list[np.ndarray] = []

    def record(carry: Context, observations: np.ndarray, rewards: np.ndarray) -> None:
        played.extend(np.asarray(carry.actions)[observations[:, 0] == 7, -1])

    rollout(policy, Paying, 6, seed=4, n_envs=4, record=record)
    np.testing.assert_allclose(np.stack(played[:3]), policy.scaling.actions_in(actions), rtol=1e-4, atol=1e-5)


def test_acting_without_a_reward_keeps_the_return_to_go() -> None:
    policy, observation = loaded(), np.zeros(2, np.float32)
    policy.act(observation, reward=500.0)  # it belongs to the last episode: this one has had no action yet
    with_first = policy.act(observation)
    policy.reset()
    policy.act(observation)
    np.testing.assert_array_equal(policy.act(observation), with_first)
    told = policy.act(observation, reward=5.0)
    policy.reset()
    policy.act(observation), policy.act(observation)
    assert np.abs(policy.act(observation) - told).max() > 1e-5
    policy.reset()
    policy.act(np.zeros((3, 2)))
    for reward, said in (("much", "neither one"), ([1.0, 2.0], "each of 3 episodes"), (np.nan, "NaN or infinite")):
        assert said in refusal(policy.act, np.zeros((3, 2)), reward=reward)
    assert policy.act(np.zeros((3, 2)), reward=np.array([1.0, 2.0, 3.0])).shape == (3, 2)


def test_its_value_cannot_be_estimated_from_single_states() -> None:
    assert "dt: its actions depend on the past" in refusal(chosen_actions, loaded(), Log(dataset(), 0.9), np.arange(2))


class Sides(Paying):
    """Five steps. The reward of each is the first entry of the action."""

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        observation, *_, info = super().step(action)
        return observation, float(action[0]), False, self.t == 5, info


def test_it_earns_the_return_it_is_told_to_aim_for(tmp_path: Path) -> None:
    """All actions of an episode are 0.8, 0 or −0.8, plus noise. Only the return-to-go tells which."""
    rng = np.random.default_rng(0)
    side = np.repeat(rng.choice([-0.8, 0.0, 0.8], 60), 5)
    ends = np.arange(300) % 5 == 4
    data = from_arrays(
        observations=rng.normal(size=(300, 2)),
        actions=np.stack([side, rng.uniform(-1, 1, 300)], axis=1),
        rewards=side,
        terminals=np.zeros(300, bool),
        timeouts=ends,
        action_low=[-1.0, -1.0],
        action_high=[1.0, 1.0],
    )
    chosen: Any = tiny("dt", context=3, width=16, dropout=0.0, target_return=-4.0)
    run = fit(data, chosen, out=tmp_path / "run", steps=200, progress=False)
    metrics = run.metrics()[-1]
    assert DT().checks({name: value[0] for name, value in metrics.items() if isinstance(value, list)})[0].healthy
    policy = load_policy(load_policy(run.path).save(tmp_path / "policy"))  # the target is saved with the policy
    inner, settings = policy.policy, policy.algorithm
    assert isinstance(inner, TransformerPolicy)
    assert isinstance(settings, DT)
    assert settings.target_return == -4.0
    assert float(inner.target * inner.return_scale) == pytest.approx(-4.0, rel=1e-5)
    for target in (-4.0, 0.0, 4.0):
        policy.policy = replace(inner, target=jnp.asarray(target / float(inner.return_scale)))
        played = rollout(policy, Sides, 3, seed=0)
        np.testing.assert_allclose(played.returns, target, atol=1.0)


def test_policies_side_by_side_play_as_each_plays_alone() -> None:
    """With a memory of rewards that starts again in each episode: three environments each, seven episodes."""
    scaling = dt().prepare(dataset()).scaling
    policies = [
        LoadedPolicy(policy_of(drawn(seed)), dt(), SPEC, scaling, Origin("d", None, None, seed, 0), "here")
        for seed in (0, 1)
    ]
    together = rollouts(policies, Moving, 7, seed=5, n_envs=3)
    alone = [rollout(policy, Moving, 7, seed=5, n_envs=3) for policy in policies]
    assert alone[0].returns != alone[1].returns
    for found, expected in zip(together, alone, strict=True):
        np.testing.assert_allclose(found.returns, expected.returns, rtol=1e-4)
        assert (found.lengths, found.terminated) == (expected.lengths, expected.terminated)


class Moving(Paying):
    """The reward also depends on the actions."""

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        observation, reward, over, cut, said = super().step(action)
        return observation, reward + float(np.sum(action)), over, cut, said

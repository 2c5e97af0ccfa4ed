"""Rollouts in a task with known rewards: queues, endings, seeds, and a fresh memory for every episode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from droprl.algorithms import BC
from droprl.data.scaling import Scaling
from droprl.data.transitions import Spec
from droprl.errors import DropError
from droprl.loaded import LoadedPolicy, Origin
from droprl.networks.actors import BehaviorPolicy
from droprl.policies import Facts, FixedPolicy, Traits
from droprl.rollout import Rollout, env_maker, rollout, seconds_per_action


class Ledger(gymnasium.Env[Any, Any]):
    """Episode s lasts 2 + s mod 3 steps and shows (s, t). Step t pays 10 s + t plus a tenth of the action.

    Even s end the task, odd s run out of time, and multiples of 6 do both at once.
    """

    def __init__(self, shape: tuple[int, ...] = (2,)) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, shape)
        self.action_space = gymnasium.spaces.Box(-9.0, 9.0, (1,))
        self.state = np.zeros(shape)  # one buffer that every step overwrites, as in some simulators
        self.done, self.closed = True, False
        self.seeds: list[int] = []
        self.actions: list[list[float]] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        assert seed is not None
        assert self.done, "reset in the middle of an episode"
        self.seeds.append(seed)
        self.actions.append([])
        self.state[:] = seed, 0
        self.done = False
        return self.state, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert not self.done, "a step after the end"
        seed, t = int(self.state[0]), int(self.state[1]) + 1
        self.state[1] = t
        self.actions[-1].append(float(action[0]))
        self.done = t == length_of(seed)
        reward = 10.0 * seed + t + 0.1 * float(action[0])
        return self.state, reward, self.done and seed % 2 == 0, self.done and (seed % 2 == 1 or seed % 6 == 0), {}

    def close(self) -> None:
        self.closed = True


def length_of(seed: int) -> int:
    return 2 + seed % 3


@dataclass
class Counting:
    """A policy that answers with its clock and remembers the first state of its episode."""

    spec: Spec = field(default_factory=lambda: Spec(2, 1, 1))
    traits: ClassVar[Traits] = Traits(remembers=True)

    def facts(self, carry: Any) -> Facts:
        return {}

    def start(self, n: int) -> dict[str, jax.Array]:
        return {"clock": jnp.zeros(n), "first": jnp.full((n, 2), -1.0)}

    def step(self, carry: dict[str, jax.Array], observations: Any, key: Any) -> tuple[dict[str, jax.Array], np.ndarray]:
        begins = np.asarray(carry["clock"] == 0)[:, None]
        first = jnp.where(begins, np.array(observations), carry["first"])
        return {"clock": carry["clock"] + 1, "first": first}, np.asarray(carry["clock"])[:, None]


class Task:
    """Makes environments, and stores them so that tests can look at them afterwards."""

    def __init__(self, make: Callable[[], Any] = Ledger) -> None:
        self.make, self.made = make, []  # type: tuple[Callable[[], Any], list[Any]]

    def __call__(self) -> Any:
        self.made.append(self.make())
        return self.made[-1]


def play(episodes: int, n_envs: int, seed: int = 5, policy: Any = None, **options: Any) -> tuple[Rollout, list[Any]]:
    task, chosen = Task(), cast(Any, policy or Counting())
    return rollout(chosen, task, episodes, seed=seed, n_envs=n_envs, **options), task.made


def expected_return(seed: int) -> float:
    """The policy's actions are its clock: 0, 1, 2, … from the beginning of each episode."""
    return sum(10 * seed + t + 0.1 * (t - 1) for t in range(1, length_of(seed) + 1))


@pytest.mark.parametrize(("episodes", "n_envs"), [(1, 1), (7, 1), (7, 3), (7, 7), (3, 20), (10, 4)])
def test_every_episode_is_as_computed_by_hand_whatever_plays_beside_it(episodes: int, n_envs: int) -> None:
    found, envs = play(episodes, n_envs)
    seeds = range(5, 5 + episodes)
    assert found.lengths == [length_of(s) for s in seeds]
    np.testing.assert_allclose(found.returns, [expected_return(s) for s in seeds], rtol=1e-6)
    assert found.terminated == [s % 2 == 0 for s in seeds]
    assert sorted(s for env in envs for s in env.seeds) == list(seeds)
    assert len(envs) == min(episodes, n_envs)
    assert all(env.closed for env in envs)


def test_each_episode_begins_with_a_fresh_memory() -> None:
    """The memory holds the first state of its own episode, whenever that began, and every clock starts at 0."""
    seen: list[tuple[np.ndarray, np.ndarray]] = []

    def record(carry: Any, observations: np.ndarray, rewards: np.ndarray) -> None:
        paid = rewards != 0  # environments with no episode left earn nothing
        seen.append((np.asarray(carry["first"])[paid], observations[paid]))

    _, envs = play(8, 3, record=record)
    for first, observations in seen:
        np.testing.assert_array_equal(first[:, 0], observations[:, 0])
        np.testing.assert_array_equal(first[:, 1], 0)
    assert sum(len(first) for first, _ in seen) == sum(length_of(s) for s in range(5, 13))
    assert all(actions == list(range(len(actions))) for env in envs for actions in env.actions)


def test_the_recorder_sees_what_the_policy_saw_and_what_it_earned() -> None:
    seen: list[tuple[float, float, float]] = []

    def record(carry: Any, observations: np.ndarray, rewards: np.ndarray) -> None:
        seen.append((*observations[0].tolist(), float(rewards[0])))

    play(2, 1, seed=3, record=record)  # episode 3 lasts 2 steps, episode 4 lasts 3
    expected = [(3, 0, 31), (3, 1, 32.1), (4, 0, 41), (4, 1, 42.1), (4, 2, 43.2)]
    np.testing.assert_allclose(seen, expected, rtol=1e-6)


def test_progress_counts_finished_episodes() -> None:
    heard: list[int] = []
    play(7, 3, on_step=heard.append)
    assert heard == sorted(heard)
    assert heard[0] == 0
    assert heard[-1] == 7


class Taking:
    """A stand-in for a policy. It says how many seconds each call takes, on its own clock."""

    def __init__(self, seconds: Callable[[int], float], interval: int) -> None:
        self.traits = Traits(interval=interval)
        self.seconds, self.now, self.sizes = seconds, 0.0, list[int]()

    def start(self, n: int) -> int:
        return 0

    def step(self, carry: int, observations: np.ndarray, key: Any) -> tuple[int, np.ndarray]:
        self.sizes.append(len(observations))
        self.now += self.seconds(carry) if len(self.sizes) > 1 else 60.0  # the first call compiles
        return carry + 1, np.zeros((len(observations), 1))


@pytest.mark.parametrize(
    ("seconds", "interval", "expected", "calls"),
    [
        (lambda call: 0.5 if call == 20 else 0.004, 1, 0.004, 51),  # one call was delayed
        # (0.010 + 4 · 0.001) / 5
        (lambda call: 0.010 if call % 5 == 0 else 0.001, 5, 0.0028, 51),
        (lambda call: 0.010 if call == 0 else 0.001, 1, 0.001, 51),
        (lambda call: 0.010 if call == 0 else 0.001, 90, 0.0011, 91),
        (lambda call: 0.4, 1, 0.4, 4),  # slow: a second is enough
    ],
)
def test_the_time_of_an_action_is_that_in_one_environment(
    seconds: Any, interval: int, expected: float, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy: Any = Taking(seconds, interval)
    monkeypatch.setattr("droprl.rollout.time", SimpleNamespace(perf_counter=lambda: policy.now))
    monkeypatch.setattr("droprl.rollout.tell_rewards", lambda carry, rewards: carry)
    task = Task()
    assert seconds_per_action(policy, task) == pytest.approx(expected)
    assert policy.sizes == [1] * calls
    assert task.made[0].closed


def test_a_real_policys_action_takes_time() -> None:
    assert 0 < seconds_per_action(gaussian_policy(), Task()) < 1


def gaussian_policy() -> LoadedPolicy:
    """A real policy that draws its actions. Its weights are random."""
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(lambda: BehaviorPolicy(2, 1, 0, 4, (1, 1), "gaussian", jax.random.key(0)))
    beta = jax.tree.map(lambda leaf: jnp.asarray(0.3 * rng.normal(size=leaf.shape), leaf.dtype), shapes)
    little_noise = jnp.array([0.0, -3.0])  # mean and logarithm of the standard deviation, in the unit box
    beta = eqx.tree_at(lambda b: b.action_decoder.layers[-1].bias, beta, little_noise)
    low, high = np.array([-9.0], np.float32), np.array([9.0], np.float32)
    scaling = Scaling(np.zeros(2, np.float32), np.full(2, 10, np.float32), low, high)
    policy = FixedPolicy(beta, jnp.zeros(0), sample_actions=True)
    return LoadedPolicy(policy, BC(), Spec(2, 1, 1), scaling, Origin("d", None, None, 0, 0), "here")


def test_drawn_actions_depend_only_on_their_own_episode() -> None:
    """An episode's random numbers come from its own seed and clock, and not from its place in the batch."""
    policy = gaussian_policy()
    (one, envs), (three, _), (later, _) = (
        play(episodes, n_envs, seed=seed, policy=policy) for episodes, n_envs, seed in ((6, 1, 5), (6, 4, 5), (2, 2, 9))
    )
    np.testing.assert_allclose(one.returns, three.returns, rtol=1e-5)
    np.testing.assert_allclose(one.returns[4:], later.returns, rtol=1e-5)
    # And they are random: no two episodes and no two steps have the same noise.
    drawn = np.concatenate(envs[0].actions)
    assert len(np.unique(drawn.round(3))) == len(drawn)
    assert np.all(np.abs(drawn) <= 9)


# --- tasks that do not fit ---


def refused(make: Callable[[], Any], policy: Any = None) -> str:
    task, chosen = Task(make), cast(Any, policy or Counting())
    with pytest.raises(DropError) as caught:
        rollout(chosen, task, 2, n_envs=2)
    assert all(env.closed for env in task.made)
    return str(caught.value)


def test_another_size_of_observations_or_actions_is_refused() -> None:
    message = refused(lambda: Ledger((3,)))
    assert "Ledger: its observations have 3 entries and the policy was trained on 2" in message
    message = refused(Ledger, Counting(Spec(2, 4, 1)))
    assert "Ledger: its actions have 1 entries and the policy was trained on 4" in message


def test_spaces_that_are_not_vectors_are_refused_by_name() -> None:
    def with_spaces(observation: Any = None, action: Any = None) -> Any:
        env = Ledger()
        env.observation_space = observation or env.observation_space
        env.action_space = action or env.action_space
        return env

    goal = gymnasium.spaces.Dict({"observation": Ledger().observation_space, "goal": Ledger().observation_space})
    assert "observations are Dict" in refused(lambda: with_spaces(observation=goal))
    assert "actions are Discrete" in refused(lambda: with_spaces(action=gymnasium.spaces.Discrete(3)))
    image = gymnasium.spaces.Box(0, 1, (4, 4))
    assert "not a vector" in refused(lambda: with_spaces(observation=image))


def test_environments_are_closed_when_something_breaks() -> None:
    class Broken(Counting):
        def step(self, carry: Any, observations: Any, key: Any) -> Any:
            raise RuntimeError("no action")

    task = Task()
    with pytest.raises(RuntimeError, match="no action"):
        rollout(Broken(), task, 3, n_envs=2)  # type: ignore[arg-type]
    assert len(task.made) == 2
    assert all(env.closed for env in task.made)


def test_a_gymnasium_id_with_a_time_limit() -> None:
    """The limit of two steps stops episodes 7 and 8 before they end the task. Episode 6 ends it at its second step."""
    name, make = "droprl-tests/Ledger-v0", cast(Any, Ledger)
    gymnasium.register(name, entry_point=make, max_episode_steps=2, disable_env_checker=True)
    try:
        found = rollout(Counting(), env_maker(name), 3, seed=6, n_envs=2)  # type: ignore[arg-type]
    finally:
        del gymnasium.registry[name]
    assert found.lengths == [2, 2, 2]
    assert found.terminated == [True, False, False]
    np.testing.assert_allclose(found.returns, [10 * s * 2 + 1 + 2 + 0.1 for s in (6, 7, 8)], rtol=1e-6)


def test_an_unknown_id_is_refused_in_one_line() -> None:
    with pytest.raises(DropError, match="NoSuchTask-v9: cannot be made") as caught:
        env_maker("NoSuchTask-v9")
    assert len(str(caught.value).splitlines()) == 1

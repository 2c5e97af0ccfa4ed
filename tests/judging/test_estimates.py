"""The three estimates against values by hand and by simulation, their bounds, and what makes the interval wide."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from helpers.builders import make_dataset
from helpers.serving import tiny_policy
from helpers.training import learnable_dataset, refusal
from helpers.walks import GAMMA, LENGTH, loaded, true_return, walk

from droprl.data import Dataset, from_arrays
from droprl.data.support import fit_support
from droprl.judging import Estimate, Estimation, Estimator, estimates
from droprl.judging.asking import chosen_actions
from droprl.judging.log import Log, return_bounds
from droprl.judging.walks import make_world
from droprl.judging.walks import walk as walk_through
from droprl.loaded import LoadedPolicy

QUICK = Estimation(discount=GAMMA, members=2, transitions=400, starts=30, features=150)


def chain(ending: str, n_episodes: int = 40, seed: int = 0, luck: float = 0.0) -> Dataset:
    """Three places in a row. To go right pays 1 at the last place and ends the task there; to stay costs 0.1. With the
    ending "timeout" the last place is never left, and pays 1 again and again. `luck` is a bonus of whole episodes."""
    rng = np.random.default_rng(seed)
    rows: list[tuple[int, float, float, int, bool, bool]] = []
    for _ in range(n_episodes):
        place, bonus = int(rng.integers(0, 2)), luck * rng.normal()
        for step in range(12):
            right = rng.random() < 0.6
            at_end = place == 2 and right
            over = at_end and ending == "terminal"
            after = min(place + right, 2)
            paid = (1.0 if at_end else 0.0 if right else -0.1) + bonus
            rows.append((place, 1.0 if right else -1.0, paid, after, over, step == 11 and not over))
            place = after
            if over:
                break
    places, actions, rewards, following, terminals, timeouts = (np.array(column) for column in zip(*rows, strict=True))
    corners = np.eye(3)
    return from_arrays(
        corners[places], actions[:, None], rewards, terminals, timeouts=timeouts, next_observations=corners[following],
        action_low=-1.0, action_high=1.0, name="chain",
    )  # fmt: skip


def always(dataset: Dataset, action: float) -> LoadedPolicy:
    return loaded(dataset, lambda _, now: 0.0 * now[:, 0] + action)


def value_of_right(dataset: Dataset, ending: str) -> float:
    """By hand: from place p, 1 is paid after 2 − p steps, once or for ever."""
    first = np.argmax(dataset.observations[dataset.bounds[:-1]], axis=1)
    worth = 1.0 if ending == "terminal" else 1.0 / (1.0 - GAMMA)
    return float(np.mean(GAMMA ** (2 - first)) * worth)


@pytest.mark.parametrize("ending", ["terminal", "timeout"])
def test_on_a_few_places_all_three_estimates_are_right(ending: str) -> None:
    """After a terminal nothing is earned. A timeout only stopped the clock."""
    dataset = chain(ending)
    [found] = estimates([always(dataset, 1.0)], dataset, QUICK)
    expected = value_of_right(dataset, ending)
    assert found.value == pytest.approx(expected, rel=0.03)  # the walks start in a sample of the initial states
    assert found.fqe is not None
    assert found.fqe.value == pytest.approx(expected, rel=0.03)
    assert found.doubly_robust is not None
    assert found.doubly_robust.value == pytest.approx(expected, rel=0.03)
    assert found.near_pairs == found.near_states == 1.0
    # To stay costs 0.1 for ever, and nothing ends.
    [stays] = estimates([always(dataset, -1.0)], dataset, QUICK)
    assert stays.value == pytest.approx(-0.1 / (1.0 - GAMMA), rel=1e-3)


def test_the_doubly_robust_estimate_is_right_although_q_is_wrong() -> None:
    """With a huge penalty Q is one constant. The weights are right here, so they mend it."""
    dataset = chain("timeout")
    wrong = Estimation(discount=GAMMA, members=2, transitions=400, starts=40, features=20, ridge=1e9, rounds=3)
    [found] = estimates([always(dataset, 1.0)], dataset, wrong)
    expected = value_of_right(dataset, "timeout")
    assert found.fqe is not None
    assert found.doubly_robust is not None
    assert abs(found.fqe.value - expected) > 2.0
    assert found.doubly_robust.value == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("ending", ["terminal", "timeout"])
def test_the_weights_of_the_steps_are_those_of_the_policy(ending: str) -> None:
    """w counts how often, discounted, the policy takes a step: in place 2 for ever, or once."""
    dataset = chain(ending)
    log = Log(dataset, GAMMA)
    steps = log.steps(np.ones(dataset.n_episodes, bool), 10_000, 0)
    start = np.eye(3, dtype=np.float32)[:1]
    starts = np.asarray(log.scaling.observations_in(np.repeat(start, 4, axis=0)))
    support = fit_support(dataset, log.scaling)
    found = walk_through(always(dataset, 1.0), make_world(steps, log, 0.5), starts, log, support, 60, 0)
    place = np.argmax(dataset.observations[steps.rows], axis=1)
    by_place = [float(found.weights[place == p].sum()) for p in range(3)]
    last = GAMMA**2 / (1.0 - GAMMA) if ending == "timeout" else GAMMA**2
    assert by_place == pytest.approx([1.0, GAMMA, last], rel=1e-3)
    assert np.min(found.weights) >= 0.0
    assert found.weights[steps.actions[:, 0] < 0].sum() == pytest.approx(0.0, abs=1e-6)
    assert found.earned == pytest.approx(np.full(4, found.weights @ steps.rewards), rel=1e-3)


@pytest.mark.parametrize(("ending", "steps"), [("terminal", LENGTH), ("timeout", 200)])
@pytest.mark.parametrize("action", [-0.5, 0.0, 0.5])
def test_a_policy_that_never_collected_data_on_a_line(ending: str, steps: int, action: float) -> None:
    dataset = walk(ending, n_episodes=120)
    [found] = estimates([always(dataset, action)], dataset, QUICK)
    expected = true_return(dataset, action, steps)
    assert found.value == pytest.approx(expected, abs=0.4)
    assert found.fqe is not None
    assert found.fqe.value == pytest.approx(expected, abs=0.5)
    assert found.doubly_robust is not None
    assert found.doubly_robust.value == pytest.approx(expected, abs=0.6)


def test_a_policy_that_remembers_is_judged_by_walks_alone() -> None:
    dataset = walk("terminal", n_episodes=120)
    follows_the_first = loaded(dataset, lambda first, now: 0.0 * first + 0.5, remembers=True)
    [found] = estimates([follows_the_first], dataset, QUICK)
    assert found.fqe is None
    assert found.doubly_robust is None
    assert found.value == pytest.approx(true_return(dataset, 0.5, LENGTH), abs=0.4)


# --- what is impossible ---


def test_bounds_by_hand() -> None:
    rewards = [-3.0, -1.0, -2.0, -1.0]
    for_ever = make_dataset([(2, "timeout"), (2, "timeout")], rewards=rewards)
    assert return_bounds(for_ever, 0.9) == pytest.approx((-30.0, -10.0))
    may_end = make_dataset([(2, "terminal"), (2, "timeout")], rewards=rewards)
    assert return_bounds(may_end, 0.9) == pytest.approx((-30.0, -1.0))
    mixed = make_dataset([(2, "terminal"), (2, "timeout")], rewards=[-1.0, 2.0, 0.0, 0.5])
    assert return_bounds(mixed, 0.5) == pytest.approx((-2.0, 4.0))
    assert "less than 1" in refusal(return_bounds, may_end, 1.0)


def everything(found: Estimate) -> list[float]:
    assert found.fqe is not None
    assert found.doubly_robust is not None
    opinions = (found.fqe, found.doubly_robust)
    inside = [found.value, *found.interval, found.logged]
    return inside + [v for opinion in opinions for v in (opinion.value, *opinion.interval(found.bounds))]


@pytest.mark.parametrize("action", [-1.0, 0.3, 1.0])
def test_no_estimate_is_positive_on_a_log_whose_every_reward_is_negative(action: float) -> None:
    """A regression with almost no penalty, from few steps, for actions that were never logged: Q would run away."""
    rng = np.random.default_rng(0)
    seen = rng.normal(size=(240, 3)) * [1.0, 100.0, 1e-3]
    dataset = learnable_dataset(
        observations=seen, next_observations=5 * seen[::-1].copy(), rewards=-rng.uniform(1, 2, 240)
    )
    policy = loaded(dataset, lambda _, now: action * jnp.sign(now[:, 0]))
    far: Any = policy.policy

    class Both(type(far)):  # type: ignore[misc]
        def act(self, carry: Any, observations: Any, key: Any) -> Any:
            carry, one = super().act(carry, observations, key)
            return carry, jnp.concatenate([one, -one], axis=1)

    policy = LoadedPolicy(
        Both(far.rule, far.traits), policy.algorithm, policy.spec, policy.scaling, policy.origin, "here"
    )
    wild = Estimation(members=2, transitions=60, starts=8, features=200, ridge=1e-8, rounds=500)
    [found] = estimates([policy], dataset, wild)
    assert found.bounds.high == pytest.approx(100 * float(dataset.rewards.max()), rel=1e-3)
    for value in everything(found):
        assert found.bounds.low <= value <= found.bounds.high < 0


def test_members_that_disagree_make_the_interval_wide() -> None:
    """The bonus is luck of whole episodes: no two halves of the trajectories tell the same story."""
    calm, lucky = (chain("timeout", n_episodes=24, luck=luck) for luck in (0.0, 1.0))
    [sure], [unsure] = (estimates([always(d, 1.0)], d, QUICK) for d in (calm, lucky))
    widths = [e.interval[1] - e.interval[0] for e in (sure, unsure)]
    assert unsure.disagreement > 5 * sure.disagreement
    assert widths[1] > 2 * widths[0]


def test_steps_unlike_the_log_are_counted_and_make_the_interval_wide() -> None:
    dataset = walk("timeout", n_episodes=60)
    left = np.abs(dataset.actions) * -1.0  # the log only ever goes left
    one_sided = from_arrays(
        dataset.observations, left, dataset.rewards, dataset.terminals, timeouts=dataset.timeouts,
        next_observations=dataset.next_observations, action_low=-1.0, action_high=1.0, name="walk",
    )  # fmt: skip
    [as_logged, unlike] = estimates([always(one_sided, -0.5), always(one_sided, 0.9)], one_sided, QUICK)
    assert as_logged.near_pairs > 0.9
    assert unlike.near_pairs < 0.1
    assert unlike.unsupported == pytest.approx((1 - unlike.near_pairs) * abs(unlike.value - unlike.logged))


def test_what_the_log_earned_by_hand() -> None:
    """A terminal ends the sum. After a timeout the log goes on as in the second half of timed-out episodes."""
    layout: Any = [(2, "terminal"), (4, "timeout"), (2, "terminal"), (2, "terminal")]
    data = make_dataset(layout, rewards=[1, 2, 0, 0, 4, 2, 5, 5, 0, 1], next_observations=True)
    found = Log(data, 0.5).logged_returns()
    on = 0.5**4 * 3.0 / 0.5
    assert found == pytest.approx([2.0, 4 * 0.25 + 2 * 0.125 + on, 7.5, 0.5])


# --- what is asked of a policy ---


def test_a_rule_that_chooses_once_chooses_in_the_first_state_of_the_episode() -> None:
    """Also for the states after a timeout, which are in no row of the data."""
    dataset = walk("timeout", n_episodes=4)
    # The first number of every state is 0 here: give each episode a number of its own.
    marked = np.array(dataset.observations)
    marked[:, 0] = np.repeat([0.1, 0.2, 0.3, 0.4], LENGTH)
    following = np.array(dataset.next_observations)
    following[:, 0] = 9.0  # the first state never comes from a successor
    changed = from_arrays(
        marked, dataset.actions, dataset.rewards, dataset.terminals, timeouts=dataset.timeouts,
        next_observations=following, action_low=-1.0, action_high=1.0, name="walk",
    )  # fmt: skip
    log = Log(changed, GAMMA)
    policy = loaded(changed, lambda first, now: first + 0.0 * now[:, 0], remembers=True, chooses_once=True)
    chosen = chosen_actions(policy, log, np.arange(len(log.observations)))
    of_rows = np.repeat([0.1, 0.2, 0.3, 0.4], LENGTH)
    successors = log.steps(np.ones(4, bool), 1_000, 0).successors
    np.testing.assert_allclose(chosen[: changed.n_steps, 0], of_rows, rtol=1e-6)
    np.testing.assert_allclose(chosen[successors, 0], of_rows, rtol=1e-6)


def test_halves_are_of_whole_trajectories_and_swapped() -> None:
    log = Log(walk("terminal", n_episodes=31), GAMMA)
    for member in (0, 2):
        ours, theirs = log.half(member), log.half(member + 1)
        assert (ours != theirs).all()
        assert abs(int(ours.sum()) - int(theirs.sum())) <= 1
    assert (log.half(0) != log.half(2)).any()
    steps = log.steps(log.half(0), 40, 0)
    assert len(steps.rows) == 40
    assert log.half(0)[steps.trajectory].all()


def test_what_cannot_be_judged_is_refused() -> None:
    dataset = walk("terminal", n_episodes=6)
    remembers = loaded(dataset, lambda _, now: now[:, 0], remembers=True)
    assert "actions depend on the past" in refusal(chosen_actions, remembers, Log(dataset, GAMMA), np.arange(3))
    seen = np.random.default_rng(1).normal(size=(240, 4))
    maze = learnable_dataset(observations=seen, next_observations=np.roll(seen, -1, axis=0))
    slow = tiny_policy().adapted(reinference_interval=5)
    assert "set reinference_interval to 1" in refusal(chosen_actions, slow, Log(maze, GAMMA), np.arange(3))
    wider = make_dataset([(3, "terminal")] * 6, observation_size=4)
    policy = always(dataset, 0.0)
    assert "other sizes" in refusal(estimates, [policy], wider, QUICK)
    assert "at least 4" in refusal(Estimator, walk("terminal", n_episodes=3))

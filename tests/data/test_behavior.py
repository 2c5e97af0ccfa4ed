"""Sub-tasks by behaviour: trajectories of known policies, and distances computed by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from helpers.plain import PLAIN

from droprl import DROP
from droprl.data import Dataset, behavior
from droprl.data.behavior import behavior_signatures, behavior_sub_tasks
from droprl.data.decompose import SubTasks, sub_task_returns

# a = K s for three states and two actions: one reacts to the first entry, one to the second, one to the third.
POLICIES = np.array([[[1.0, 0, 0], [0, 0, 0]], [[0, 0, 0], [0, 1, 0]], [[0, 0, -1], [0, 0, 1]]])


def trajectories(
    policy: Sequence[int] | np.ndarray,
    length: int,
    *,
    noise: float = 0.1,
    returns: Sequence[float] | np.ndarray | None = None,
    seed: int = 0,
) -> Dataset:
    """One episode for each entry of `policy`, the number of the acting policy. All visit the same kind of states."""
    rng = np.random.default_rng(seed)
    n_episodes = len(policy)
    states = rng.normal(size=(n_episodes, length, 3))
    actions = np.einsum("eas,ets->eta", POLICIES[np.asarray(policy)], states)
    actions += noise * rng.normal(size=actions.shape)
    rewards = np.zeros((n_episodes, length))
    rewards[:, -1] = 0.0 if returns is None else returns
    ends = np.zeros((n_episodes, length), bool)
    ends[:, -1] = True
    return Dataset(
        observations=states.reshape(-1, 3).astype(np.float32),
        actions=actions.reshape(-1, 2).astype(np.float32),
        rewards=rewards.ravel().astype(np.float32),
        terminals=np.zeros(ends.size, bool),
        timeouts=ends.ravel(),
        next_observations=None,
        action_low=np.full(2, -5, np.float32),
        action_high=np.full(2, 5, np.float32),
    )


def in_order(dataset: Dataset, order: np.ndarray) -> Dataset:
    """The same episodes, one after the other in another order."""
    rows = np.concatenate([np.arange(dataset.bounds[e], dataset.bounds[e + 1]) for e in order])
    names = ("observations", "actions", "rewards", "terminals", "timeouts")
    return replace(dataset, **{name: getattr(dataset, name)[rows] for name in names})


def as_sets(sub_tasks: SubTasks) -> set[frozenset[int]]:
    return {frozenset(part.tolist()) for part in sub_tasks}


def members_of(policy: np.ndarray) -> set[frozenset[int]]:
    return {frozenset(np.flatnonzero(policy == p).tolist()) for p in np.unique(policy)}


def squared_distances(dataset: Dataset, seed: int = 0) -> np.ndarray:
    """(E, E) distances between the signatures. They do not depend on the signs of the components."""
    points = behavior_signatures(dataset, seed)
    return np.asarray(np.sum((points[:, None] - points[None]) ** 2, axis=2))


# --- the groups ---


@pytest.mark.parametrize("n_policies", [2, 3])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_each_policy_is_a_group(n_policies: int, seed: int) -> None:
    """Policies take turns in the data and all earn the same. Only their actions separate them."""
    policy = np.arange(18) % n_policies
    found = behavior_sub_tasks(trajectories(policy, 300, seed=seed), n_policies, 2, seed)
    assert as_sets(found) == members_of(policy)


@pytest.mark.parametrize("weight", [None, 0.0])
def test_luck_does_not_cut_a_policy_in_two(weight: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Returns do not depend on the policy. A cut by rank would mix the two policies. The weight 0 ignores returns."""
    policy = np.arange(16) % 2
    dataset = trajectories(policy, 300, returns=np.random.default_rng(0).normal(size=16))
    if weight is not None:
        monkeypatch.setattr(behavior, "RETURN_WEIGHT", weight)
    assert as_sets(behavior_sub_tasks(dataset, 2, 2)) == members_of(policy)
    assert as_sets([np.argsort(dataset.returns)[:8], np.argsort(dataset.returns)[8:]]) != members_of(policy)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_if_all_act_alike_groups_are_intervals_of_return(seed: int) -> None:
    returns = np.random.default_rng(seed).normal(size=24)
    found = behavior_sub_tasks(trajectories([2] * 24, 50, noise=0.0, returns=returns, seed=seed), 4, 3, seed)
    assert len(found) == 4
    spans = sorted((returns[part].min(), returns[part].max()) for part in found)
    assert all(below[1] < above[0] for below, above in pairwise(spans))


@pytest.mark.parametrize(
    ("n_episodes", "n", "m", "expected"),
    [
        (12, 3, 2, 3),
        (12, 6, 2, 6),
        (12, 9, 2, 6),
        (13, 50, 3, 4),
        (5, 50, 1, 5),
        (7, 1, 1, 1),
        (3, 4, 9, 1),
        (1, 4, 1, 1),
    ],
)
@pytest.mark.parametrize("length", [1, 20])
def test_every_episode_is_in_one_group_and_groups_have_m_on_average(
    n_episodes: int, n: int, m: int, expected: int, length: int
) -> None:
    rng = np.random.default_rng(n_episodes)
    dataset = trajectories(rng.integers(0, 3, n_episodes), length, returns=rng.normal(size=n_episodes))
    found = behavior_sub_tasks(dataset, n, m)
    assert len(found) == expected
    assert all(part.size for part in found)
    assert sorted(np.concatenate(found).tolist()) == list(range(n_episodes))


@pytest.mark.filterwarnings("ignore:One of the clusters is empty", "ignore:invalid value encountered in divide")
def test_equal_episodes_all_stay() -> None:
    copies = in_order(trajectories([0], 10, returns=[3.0]), np.zeros(6, int))
    found = behavior_sub_tasks(copies, 3, 1)
    assert all(part.size for part in found)
    assert sorted(np.concatenate(found).tolist()) == list(range(6))


def test_equal_seeds_give_equal_groups() -> None:
    """Episodes are so short that behaviour is half noise. Then the start of k-means matters."""
    policy, returns = np.arange(30) % 3, np.random.default_rng(0).normal(size=30)
    first, again, other = (
        as_sets(behavior_sub_tasks(trajectories(policy, 6, noise=1.0, returns=returns), 6, 2, seed))
        for seed in (5, 5, 6)
    )
    assert first == again
    assert first != other


# --- the signatures ---


@pytest.mark.parametrize("length", [25, 100, 900])
def test_the_distance_of_two_policies_by_hand(length: int) -> None:
    """Both visit the same states, so n own steps and 100 steps of the mean keep n / (n + 100) of each shift.

    What is left is the mean over the states of |(K₁ − K₂) s|², each action in its standard deviations.
    """
    once = trajectories([0], length, noise=0.0)
    states = once.observations.astype(np.float64)
    actions = np.concatenate([states @ POLICIES[p].T for p in (0, 2)])
    difference = (states @ (POLICIES[0] - POLICIES[2]).T) / actions.std(axis=0)
    both = replace(in_order(once, np.zeros(2, int)), actions=actions.astype(np.float32))
    expected = (length / (length + behavior.PRIOR_STEPS)) ** 2 * np.mean(np.sum(difference**2, axis=1))
    assert squared_distances(both)[0, 1] == pytest.approx(expected, rel=2e-3)


def test_long_trajectories_are_as_far_apart_as_their_policies_act() -> None:
    """Each draws its own states and acts with noise. The 100 steps of the mean weigh less than 5 %."""
    dataset = trajectories([0, 1, 2, 0], 4000, noise=0.1)
    spread = dataset.actions.std(axis=0)
    for i, j in ((0, 1), (0, 2), (1, 2)):
        difference = dataset.observations @ (POLICIES[i] - POLICIES[j]).T / spread
        expected = np.mean(np.sum(difference**2, axis=1))
        assert squared_distances(dataset)[i, j] == pytest.approx(expected, rel=0.1)
    assert squared_distances(dataset)[0, 3] < 0.01


def test_the_place_of_an_episode_does_not_change_its_point() -> None:
    """If one row of a neighbour counted, another order would move the points."""
    dataset = trajectories(np.arange(9) % 3, 15, noise=0.3)
    order = np.array([4, 0, 7, 2, 8, 1, 3, 6, 5])
    before = squared_distances(dataset)
    assert before[~np.eye(9, dtype=bool)].min() > 1e-4
    np.testing.assert_allclose(
        squared_distances(in_order(dataset, order)), before[order][:, order], rtol=1e-6, atol=1e-9
    )


def test_equal_episodes_have_equal_points() -> None:
    dataset = trajectories(np.arange(6) % 3, 15, noise=0.3)
    found = squared_distances(in_order(dataset, np.array([0, 1, 2, 0, 3, 4, 5, 0])))
    assert found[[0, 0, 3], [3, 7, 7]].max() < 1e-18
    assert found[0, [1, 2, 4, 5, 6]].min() > 1e-4


def test_units_of_states_and_actions_change_nothing() -> None:
    dataset = trajectories(np.arange(6) % 3, 40)
    units = replace(dataset, observations=100 * dataset.observations - 7, actions=dataset.actions * [3, 0.01] + 0.5)
    np.testing.assert_allclose(squared_distances(units), squared_distances(dataset), rtol=1e-3, atol=1e-6)


# --- in DROP ---


@pytest.mark.parametrize("decomposition", ["rank", "quantization", "random", "behavior"])
def test_sub_tasks_are_numbered_from_the_highest_return_down(decomposition: str) -> None:
    returns = np.random.default_rng(1).normal(size=24)
    dataset = trajectories(np.arange(24) % 3, 20, returns=returns)
    drop = DROP(**PLAIN | {"decomposition": decomposition}, n_sub_tasks=6, trajectories_per_sub_task=4)
    found = drop.sub_tasks(dataset)
    means = [np.mean(returns[part]) for part in found]
    assert len(set(means)) == len(means) >= 4
    assert means == sorted(means, reverse=True)
    prepared = replace(drop, discount=0.9).prepare(dataset)
    expected = sub_task_returns(dataset.returns, found).astype(np.float32)
    np.testing.assert_array_equal(prepared.probe.sub_task_returns, expected)


def test_behavior_sub_tasks_are_those_of_the_seed() -> None:
    dataset = trajectories(np.arange(30) % 3, 6, noise=1.0)
    for seed in (0, 3):
        cut = PLAIN | {"decomposition": "behavior", "decomposition_seed": seed}
        drop = DROP(**cut, n_sub_tasks=6, trajectories_per_sub_task=2)
        assert as_sets(drop.sub_tasks(dataset)) == as_sets(behavior_sub_tasks(dataset, 6, 2, seed))

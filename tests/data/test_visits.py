"""Cutting by visits, and when the cut by return tells the ways apart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers.builders import make_dataset

from droprl.algorithms.drop import DROP
from droprl.data import visits
from droprl.data.dataset import Dataset
from droprl.data.first_states import behavior_returns, foretold_returns
from droprl.data.visits import SEPARATED, separation, visit_sub_tasks

WAYS = 4


def walks(luck: bool, seed: int = 0, n: int = 80, steps: int = 20) -> tuple[Dataset, np.ndarray]:
    """Walks from one start along four ways, side by side. A return is the number of the way, or chance."""
    rng = np.random.default_rng(seed)
    way = rng.integers(0, WAYS, n)
    dataset = make_dataset([(steps, "terminal")] * n, observation_size=2)
    along, across = np.tile(np.linspace(0, 3, steps), n), np.repeat(way.astype(float), steps)
    across[::steps] = 0.0  # so that the first state foretells nothing
    observations = np.stack([along, across], axis=1) + rng.normal(0, 0.05, (n * steps, 2))
    rewards = np.zeros(n * steps, np.float32)
    rewards[steps - 1 :: steps] = rng.normal(size=n) if luck else way + rng.normal(0, 0.1, n)
    return replace(dataset, observations=observations.astype(np.float32), rewards=rewards), way


@pytest.mark.parametrize("luck", [True, False])
def test_a_cut_by_visits_finds_the_ways_whatever_they_earn(luck: bool) -> None:
    dataset, way = walks(luck)
    parts = visit_sub_tasks(dataset, WAYS, 1)
    assert len(parts) == WAYS
    assert all(len(np.unique(way[part])) == 1 for part in parts)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(way)))


def test_walks_of_one_step_are_no_sub_task_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty walks of 100 steps on two ways, and ten of one step beside the second. Alone, these would be a group."""
    lengths, short = [100] * 40 + [1] * 10, set(range(40, 50))
    dataset = make_dataset([(n, "terminal") for n in lengths], observation_size=2)
    way = np.array([0.0, 1.0] * 20 + [1.5] * 10)
    observations = np.repeat(way, lengths)[:, None] + np.random.default_rng(0).normal(0, 0.05, (4010, 2))
    dataset = replace(dataset, observations=observations.astype(np.float32))
    parts = visit_sub_tasks(dataset, 3, 1)
    assert sorted(np.concatenate(parts).tolist()) == list(range(50))
    joined = [part for part in parts if short & set(part.tolist())]
    assert all(dataset.lengths[part].sum() >= 100 for part in parts)
    assert all((way[part][dataset.lengths[part] == 100] == 1).all() for part in joined)
    monkeypatch.setattr(visits, "SMALLEST", 0.0)
    assert any(set(part.tolist()) == short for part in visit_sub_tasks(dataset, 3, 1))


def test_returns_tell_ways_apart_or_they_do_not() -> None:
    skilled, lucky = walks(luck=False)[0], walks(luck=True)[0]
    assert separation(skilled, skilled.returns, WAYS) > 0.8
    assert separation(lucky, lucky.returns, WAYS) < SEPARATED
    assert replace(DROP(), n_sub_tasks=WAYS).resolve(skilled).decomposition == "rank"


def test_auto_cuts_by_visits_where_returns_are_luck() -> None:
    dataset = walks(luck=True, n=1000)[0]
    assert dataset.n_steps >= 20_000  # enough for two sub-tasks
    assert DROP().resolve(dataset).decomposition == "visits"


def test_small_data_is_one_sub_task() -> None:
    assert DROP().resolve(walks(luck=False)[0]).n_sub_tasks == 1


def easy_and_hard_starts(foretells: bool) -> tuple[Dataset, np.ndarray]:
    """The first state says how easy the task is, and the return is that plus skill."""
    rng = np.random.default_rng(0)
    n, steps = 100, 5
    ease, skill = rng.normal(size=n), rng.normal(size=n)
    dataset = make_dataset([(steps, "terminal")] * n, observation_size=2)
    observations = rng.normal(size=(n * steps, 2)).astype(np.float32)
    observations[::steps, 0] = ease if foretells else rng.normal(size=n)
    rewards = np.zeros(n * steps, np.float32)
    rewards[steps - 1 :: steps] = 3 * ease + skill
    return replace(dataset, observations=observations, rewards=rewards), skill


def test_what_the_first_state_foretells_is_taken_off() -> None:
    dataset, skill = easy_and_hard_starts(foretells=True)
    assert foretold_returns(dataset)[1] > 0.8
    left = behavior_returns(dataset)
    assert np.corrcoef(left, skill)[0, 1] > 0.95
    assert np.corrcoef(dataset.returns, skill)[0, 1] < 0.5
    assert left.mean() == pytest.approx(dataset.returns.mean())


def test_a_first_state_that_foretells_nothing_changes_nothing() -> None:
    dataset, _ = easy_and_hard_starts(foretells=False)
    assert foretold_returns(dataset)[1] < 0.1
    np.testing.assert_array_equal(behavior_returns(dataset), dataset.returns)

"""What F-BC clones if nobody chooses: a rule on returns and lengths, compared with examples counted by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.training import learnable_dataset

from droprl import FBC, Dataset, from_arrays
from droprl.data.best import CLONED_STEPS, best_episodes, best_fraction


def dataset_with(returns: list[float], length: int) -> Dataset:
    """Episodes of this length that earn their return in the last step."""
    rewards = np.zeros((len(returns), length))
    rewards[:, -1] = returns
    ends = np.zeros_like(rewards, dtype=bool)
    ends[:, -1] = True
    zeros = np.zeros((rewards.size, 1))
    return from_arrays(zeros, zeros, rewards.ravel(), np.zeros(rewards.size, bool), ends.ravel())


def test_a_gap_in_the_returns_decides_where_enough_is_above_it() -> None:
    """60 experts of 160, as in halfcheetah-medium-expert. The median is a medium return."""
    data = dataset_with([48.0] * 100 + [100.0] * 60, 500)
    assert best_fraction(data) == 60 / 160
    assert set(best_episodes(data, best_fraction(data))) == set(range(100, 160))


def test_few_good_trajectories_get_company_until_there_is_enough_to_clone() -> None:
    """As in hopper-medium-replay: one trajectory is nearer to the best than to the median, so the floor decides."""
    data = dataset_with([float(i) for i in range(99)] + [1000.0], 1000)
    assert best_fraction(data) == CLONED_STEPS / 1000 / 100
    assert list(best_episodes(data, best_fraction(data)))[:2] == [99, 98]


def test_of_little_data_half_is_cloned() -> None:
    assert best_fraction(dataset_with([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 100.0], 10)) == 4 / 8


def test_trajectories_that_earn_the_same_are_all_cloned() -> None:
    assert best_fraction(dataset_with([1.0] * 7, 10)) == 1.0
    assert best_fraction(dataset_with([0.0] * 40 + [1.0] * 60, 10)) == 0.6  # most reach the goal


@pytest.mark.parametrize("n_episodes", [7, 30, 100, 283])
def test_a_fraction_of_whole_episodes_is_not_rounded_up_to_one_more(n_episodes: int) -> None:
    data = dataset_with([float(i) for i in range(n_episodes)], 2)
    assert [len(best_episodes(data, n / n_episodes)) for n in range(1, n_episodes + 1)] == list(
        range(1, n_episodes + 1)
    )


def test_fbc_takes_the_chosen_fraction_and_keeps_it_in_its_settings() -> None:
    data = learnable_dataset()
    resolved: Any = FBC.tiny().resolve(data)
    assert resolved.top_fraction == best_fraction(data)
    assert FBC.tiny().top_fraction is None
    assert (
        int(resolved.prepare(data).transitions.rows.n_places)
        == data.lengths[best_episodes(data, best_fraction(data))].sum()
    )
    assert FBC(top_fraction=0.1).resolve(data).top_fraction == 0.1

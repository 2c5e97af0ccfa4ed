"""Discounted returns and n-step targets: by hand, and against a walk through every episode. And the choice of γ."""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers.builders import Layout, make_dataset, targets_by_definition
from hypothesis import given
from hypothesis import strategies as st

from droprl.data.returns import (
    Targets,
    choose_discount,
    discount_rank_correlation,
    discounted_returns,
    n_step_targets,
    rank_correlation,
)

MIXED: Layout = [(3, "terminal"), (2, "timeout"), (1, "cut")]
REWARDS = [1, 2, 4, 8, 16, 32]


def test_discounted_returns_by_hand() -> None:
    dataset = make_dataset(MIXED, rewards=REWARDS)
    # 1 + 2/2 + 4/4 = 3, 2 + 4/2 = 4, 4 | 8 + 16/2 = 16, 16 | 32
    assert discounted_returns(dataset, 0.5).tolist() == [3, 4, 4, 16, 16, 32]
    assert discounted_returns(dataset, 1.0).tolist() == [7, 6, 4, 24, 16, 32]
    assert discounted_returns(dataset, 0.0).tolist() == REWARDS


def test_undiscounted_returns_count_every_step_for_every_ending() -> None:
    dataset = make_dataset(MIXED, rewards=REWARDS)
    assert dataset.returns.tolist() == [7, 24, 32]
    assert dataset.lengths.tolist() == [3, 2, 1]
    assert dataset.ends_in_terminal.tolist() == [True, False, False]


def test_one_step_targets_by_hand() -> None:
    """The paper's TD(0). A terminal does not bootstrap. A timeout bootstraps from the state after it."""
    found = n_step_targets(make_dataset(MIXED, rewards=REWARDS, next_observations=True), 0.5, 1)
    assert found.reward.tolist() == REWARDS
    assert found.discount.tolist() == [0.5, 0.5, 0, 0.5, 0.5, 0.5]
    assert found.past_end.tolist() == [False, False, False, False, True, True]
    assert found.known.all()


def test_one_step_targets_without_next_observations_by_hand() -> None:
    """The last step of a timed-out episode shows no successor, so it has no target."""
    found = n_step_targets(make_dataset(MIXED, rewards=REWARDS), 0.5, 1)
    assert found.known.tolist() == [True, True, True, True, False, False]
    assert found.reward[:4].tolist() == REWARDS[:4]
    assert found.discount[:4].tolist() == [0.5, 0.5, 0, 0.5]
    assert not found.past_end.any()


def test_monte_carlo_targets_by_hand() -> None:
    found = n_step_targets(make_dataset(MIXED, rewards=REWARDS, next_observations=True), 0.5, None)
    assert found.reward.tolist() == [3, 4, 4, 16, 16, 32]
    assert found.discount.tolist() == [0, 0, 0, 0.25, 0.5, 0.5]
    assert found.horizon.tolist() == [3, 2, 1, 2, 1, 1]


def test_monte_carlo_targets_without_next_observations_stop_at_the_last_row() -> None:
    found = n_step_targets(make_dataset([(3, "timeout")], rewards=[1, 2, 4]), 0.5, None)
    assert found.reward[:2].tolist() == [2, 2]  # 1 + 2/2, then bootstrap from row 2; 2, then likewise
    assert found.discount[:2].tolist() == [0.25, 0.5]
    assert found.known.tolist() == [True, True, False]


layouts = st.lists(st.tuples(st.integers(1, 7), st.sampled_from(["terminal", "timeout"])), min_size=1, max_size=6)


@given(
    layout=layouts,
    cut=st.integers(0, 4),
    next_observations=st.booleans(),
    n_steps=st.sampled_from([1, 2, 3, None]),
    discount=st.sampled_from([0.0, 0.3, 0.99, 1.0]),
)
def test_targets_are_those_of_the_definition(
    layout: list, cut: int, next_observations: bool, n_steps: int | None, discount: float
) -> None:
    dataset = make_dataset(layout + [(cut, "cut")] * (cut > 0), next_observations=next_observations)
    found, expected = n_step_targets(dataset, discount, n_steps), targets_by_definition(dataset, discount, n_steps)
    for name in Targets._fields:
        np.testing.assert_allclose(getattr(found, name), [getattr(t, name) for t in expected], atol=1e-12, err_msg=name)


def test_long_discounted_sums_keep_their_precision() -> None:
    dataset = make_dataset([(10_000, "terminal")])
    rewards = dataset.rewards.tolist()
    exact = math.fsum(r * 0.999**i for i, r in enumerate(rewards))
    assert discounted_returns(dataset, 0.999)[0] == pytest.approx(exact, rel=1e-12)


# --- the choice of γ from the data alone ---

SINGLES = [np.array([0]), np.array([1]), np.array([2])]


def early_and_late(late: int) -> list[float]:
    """Rewards of one episode that earns 10 at step `late`, one that earns 5 at once, one that earns 4 at once."""
    return [0.0] * late + [10.0] + [5.0] + [4.0]


def dataset_of_early_and_late(late: int) -> tuple[Layout, list[float]]:
    return [(late + 1, "terminal"), (1, "terminal"), (1, "terminal")], early_and_late(late)


def test_the_smallest_discount_that_ranks_is_chosen() -> None:
    """10 · γ^200 is 1.3, 3.7, 5.5, 8.2 for the four γ: only the last two put it before 5 and 4."""
    layout, rewards = dataset_of_early_and_late(200)
    dataset = make_dataset(layout, rewards=rewards)
    assert discount_rank_correlation(dataset, SINGLES, 0.99) == pytest.approx(-0.5)
    assert discount_rank_correlation(dataset, SINGLES, 0.997) == pytest.approx(1.0)
    assert choose_discount(dataset, SINGLES) == 0.997
    assert choose_discount(dataset, SINGLES, enough=-0.6) == 0.99


def test_the_discount_that_ranks_best_is_chosen_if_none_is_good() -> None:
    """10 · γ^800 is below 4 for the first three and 4.5 for the last: second of three, a correlation of one half."""
    layout, rewards = dataset_of_early_and_late(800)
    dataset = make_dataset(layout, rewards=rewards)
    assert discount_rank_correlation(dataset, SINGLES, 0.999) == pytest.approx(0.5)
    assert choose_discount(dataset, SINGLES) == 0.999
    assert choose_discount(dataset, SINGLES, enough=0.5) == 0.999


def test_the_smallest_discount_is_chosen_if_it_ranks() -> None:
    layout, rewards = dataset_of_early_and_late(1)
    assert choose_discount(make_dataset(layout, rewards=rewards), SINGLES) == 0.99


def test_sub_tasks_are_ranked_by_the_mean_over_their_trajectories() -> None:
    """Sub-task {10 at step 200, 4 at once} has mean 7, above the 5: at γ = 0.99 its discounted mean is 2.7, below."""
    layout, rewards = dataset_of_early_and_late(200)
    pair = [np.array([0, 2]), np.array([1])]
    assert discount_rank_correlation(make_dataset(layout, rewards=rewards), pair, 0.99) == pytest.approx(-1.0)
    assert discount_rank_correlation(make_dataset(layout, rewards=rewards), pair, 0.999) == pytest.approx(1.0)


def test_with_nothing_to_rank_the_smallest_discount_is_chosen() -> None:
    dataset = make_dataset([(2, "terminal"), (5, "terminal")], rewards=[1, 1, 0, 0, 0, 0, 2])
    assert math.isnan(discount_rank_correlation(dataset, [np.array([0]), np.array([1])], 0.99))
    assert choose_discount(dataset, [np.array([0]), np.array([1])]) == 0.99
    assert choose_discount(dataset, [np.array([0, 1])]) == 0.99


def test_rank_correlation_by_hand() -> None:
    """Ranks 1 2 3 4 against 1 3 2 4: 1 − 6 · (0 + 1 + 1 + 0) / (4 · 15) = 0.8."""
    assert rank_correlation(np.array([1.0, 5, 6, 70]), np.array([-3.0, 0, -1, 9])) == pytest.approx(0.8)
    assert math.isnan(rank_correlation(np.array([1.0, 1, 1]), np.array([1.0, 2, 3])))
    assert math.isnan(rank_correlation(np.array([1.0]), np.array([1.0])))

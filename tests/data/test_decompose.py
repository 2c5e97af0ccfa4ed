"""Random, Quantization and Rank against their definitions in the paper's appendix, on examples computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from droprl.data.decompose import Rule, SubTasks, decompose, sub_task_returns

RULES: tuple[Rule, ...] = ("random", "quantization", "rank")


def cut(returns: list[float], rule: Rule, n: int, m: int, seed: int = 0) -> SubTasks:
    return decompose(np.array(returns), rule, n, m, seed)


def as_lists(sub_tasks: SubTasks) -> list[list[int]]:
    return [part.tolist() for part in sub_tasks]


def sizes(sub_tasks: SubTasks) -> list[int]:
    return [len(part) for part in sub_tasks]


# --- Rank: descending by return, M to each in turn ---


def test_rank_takes_m_trajectories_at_a_time_by_falling_return() -> None:
    assert as_lists(cut([3, 9, -1, 5, 7, 0], "rank", 3, 2)) == [[1, 4], [3, 0], [5, 2]]


def test_rank_keeps_the_order_of_the_data_among_equal_returns() -> None:
    assert as_lists(cut([1, 2, 1, 2, 1], "rank", 5, 1)) == [[1], [3], [0], [2], [4]]


def test_rank_leaves_out_the_worst_beyond_n_times_m() -> None:
    assert as_lists(cut([0, 1, 2, 3, 4, 5, 6], "rank", 2, 2)) == [[6, 5], [4, 3]]


@pytest.mark.parametrize(
    ("n_episodes", "expected"),
    [(7, [3, 3, 1]), (6, [3, 3]), (4, [3, 1]), (2, [2]), (1, [1])],
)
def test_rank_with_too_few_trajectories_has_fewer_and_a_smaller_last(n_episodes: int, expected: list[int]) -> None:
    found = cut([float(r) for r in range(n_episodes)], "rank", 4, 3)
    assert sizes(found) == expected
    assert np.concatenate(found).tolist() == list(range(n_episodes))[::-1]


def test_rank_draws_nothing() -> None:
    returns = [0.5, 0.25, 2.0, 2.0]
    assert as_lists(cut(returns, "rank", 2, 2, seed=0)) == as_lists(cut(returns, "rank", 2, 2, seed=1))


# --- Quantization: N bins of equal width, R_min + Δ·i < R ≤ R_min + Δ·(i + 1) ---


def test_quantization_bins_are_closed_on_the_right() -> None:
    """R from 0 to 8 in 4 bins: Δ = 2, and 2, 4, 6 are upper edges. The worst is inside no bin and joins the first."""
    found = cut([8, 6, 4, 2, 0, 2.5, 6.5], "quantization", 4, 10)
    assert as_lists(found) == [[3, 4], [2, 5], [1], [0, 6]]


def test_quantization_leaves_empty_bins_out() -> None:
    """0 to 10 in 5 bins of 2: only the first (0, 1) and the last (9, 10) hold anything."""
    assert as_lists(cut([10, 0, 1, 9], "quantization", 5, 10)) == [[1, 2], [0, 3]]


def test_quantization_of_equal_returns_is_one_sub_task() -> None:
    assert as_lists(cut([3, 3, 3], "quantization", 4, 5)) == [[0, 1, 2]]


def test_quantization_with_one_bin_holds_all() -> None:
    assert as_lists(cut([5, -2, 0.5], "quantization", 1, 9)) == [[0, 1, 2]]


def test_quantization_loses_no_trajectory_to_rounding() -> None:
    """Widths such as 0.1 are not exact in binary. The best must be in the last bin, and each in one bin only."""
    for n in range(1, 40):
        for best in range(4, 40):
            returns = [0.3, 0.1 * best, *np.linspace(0.3, 0.1 * best, n + 1).tolist()]
            found = cut(returns, "quantization", n, 100)
            assert sorted(np.concatenate(found).tolist()) == list(range(len(returns)))
            assert 1 in found[-1]


def test_quantization_draws_at_most_m_of_each_bin() -> None:
    """Two bins: returns 0 … 4 and 5 … 9. Over many seeds each of the five is drawn about equally often."""
    returns = [float(r) for r in range(10)]
    drawn = np.zeros(10)
    for seed in range(300):
        low, high = cut(returns, "quantization", 2, 2, seed)
        assert sizes([low, high]) == [2, 2]
        assert set(low.tolist()) <= set(range(5))
        assert set(high.tolist()) <= set(range(5, 10))
        drawn[np.concatenate([low, high])] += 1
    # Each is drawn with chance 2/5: 120 ± 8.5 of 300.
    assert np.all(np.abs(drawn - 120) < 35)


# --- Random: N subsets of at most M drawn trajectories ---


def test_random_draws_n_times_m_of_many() -> None:
    found = cut([0.0] * 50, "random", 4, 3)
    assert sizes(found) == [3, 3, 3, 3]


@pytest.mark.parametrize(("n_episodes", "expected"), [(11, [3, 3, 3, 2]), (6, [2, 2, 1, 1]), (2, [1, 1]), (1, [1])])
def test_random_with_too_few_has_sizes_that_differ_by_one_at_most(n_episodes: int, expected: list[int]) -> None:
    assert sizes(cut([0.0] * n_episodes, "random", 4, 3)) == expected


def test_random_is_uniform_over_trajectories_of_any_return() -> None:
    returns = [100.0, 0, 0, 0, 0, 0, 0, 0, 0, -100.0]
    drawn = np.zeros(10)
    for seed in range(300):
        drawn[np.concatenate(cut(returns, "random", 2, 2, seed))] += 1
    assert np.all(np.abs(drawn - 120) < 35)  # 4 of 10: 120 ± 8.5 of 300


# --- all rules ---


@pytest.mark.parametrize("rule", RULES)
def test_one_trajectory(rule: Rule) -> None:
    assert as_lists(cut([4.0], rule, 5, 3)) == [[0]]


@pytest.mark.parametrize("rule", ["random", "quantization"])
def test_equal_seeds_draw_equal_sub_tasks(rule: Rule) -> None:
    returns = [float(i % 7) for i in range(40)]
    first, again, other = (as_lists(cut(returns, rule, 3, 4, seed)) for seed in (5, 5, 6))
    assert first == again
    assert first != other


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("n", "m"), [(0, 1), (1, 0), (-1, 2)])
def test_sizes_below_one_are_refused(rule: Rule, n: int, m: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        cut([1.0, 2.0], rule, n, m)


def test_mean_return_of_each_sub_task() -> None:
    returns = np.array([1.0, 3.0, 10.0])
    assert sub_task_returns(returns, [np.array([2]), np.array([0, 1])]).tolist() == [10.0, 2.0]


finite = st.one_of(st.integers(-3, 3).map(float), st.floats(-1e6, 1e6))


@given(
    returns=st.lists(finite, min_size=1, max_size=30),
    rule=st.sampled_from(RULES),
    n=st.integers(1, 8),
    m=st.integers(1, 5),
    seed=st.integers(0, 3),
)
def test_sub_tasks_are_disjoint_never_empty_and_within_n_and_m(
    returns: list[float], rule: Rule, n: int, m: int, seed: int
) -> None:
    found = cut(returns, rule, n, m, seed)
    members = np.concatenate(found).tolist()
    assert 1 <= len(found) <= n
    assert all(1 <= size <= m for size in sizes(found))
    assert len(set(members)) == len(members)
    assert set(members) <= set(range(len(returns)))
    if rule != "quantization":  # its bins may hold more than M while others are empty
        assert len(members) == min(len(returns), n * m)


@given(returns=st.lists(finite, min_size=1, max_size=30), n=st.integers(1, 6), m=st.integers(1, 5))
def test_rank_never_puts_a_better_trajectory_behind_a_worse_one(returns: list[float], n: int, m: int) -> None:
    members = np.concatenate(cut(returns, "rank", n, m)).tolist()
    # By definition: count the trajectories before each one. Equal returns are in the order of the data.
    place = {e: sum(r > returns[e] or (r == returns[e] and i < e) for i, r in enumerate(returns)) for e in members}
    assert [place[e] for e in members] == list(range(len(members)))


@given(returns=st.lists(st.integers(-20, 20).map(float), min_size=2, max_size=30), n=st.sampled_from([1, 2, 4, 8]))
def test_quantization_bins_as_defined(returns: list[float], n: int) -> None:
    low, high = min(returns), max(returns)
    expected = []
    for i in range(n):  # whole numbers times a power of two: nothing is rounded
        inside = [e for e, r in enumerate(returns) if (high - low) * i < n * (r - low) <= (high - low) * (i + 1)]
        inside += [e for e, r in enumerate(returns) if r == low] if i == 0 else []
        if inside:
            expected.append(sorted(inside))
    assert as_lists(cut(returns, "quantization", n, len(returns))) == expected

"""Aggregates, profiles and probabilities of improvement against SciPy, rliable and values by hand; and properties of
bootstrap intervals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from droprl.errors import DropError
from droprl.evaluation.statistics import (
    Aggregate,
    aggregate,
    bootstrap_interval,
    iqm,
    pairwise_improvement,
    performance_profile,
    probability_of_improvement,
)


@pytest.mark.parametrize("size", [*range(1, 14), 40, 99, 100, 101])
def test_iqm_is_the_trimmed_mean(size: int) -> None:
    values = np.random.default_rng(size).standard_cauchy(size)
    assert float(iqm(values)) == pytest.approx(stats.trim_mean(values, proportiontocut=0.25))


def test_iqm_by_hand() -> None:
    assert float(iqm(np.array([1000.0, 1, 2, 3, 4, 5, 6, -1000]))) == 3.5  # 2, 3, 4, 5
    assert float(iqm(np.array([9.0, 1.0, 5.0]))) == 5.0  # with three values nothing is cut: the mean


def test_iqm_is_over_the_last_axis_and_does_not_change_its_values() -> None:
    values = np.random.default_rng(0).normal(size=(3, 4, 9))
    before = values.copy()
    found = iqm(values)
    assert found.shape == (3, 4)
    assert found[1, 2] == pytest.approx(stats.trim_mean(values[1, 2], 0.25))
    np.testing.assert_array_equal(values, before)


def mean(values: np.ndarray) -> np.ndarray:
    return np.asarray(values.mean(axis=-1))


def test_equal_values_have_an_interval_without_width() -> None:
    assert bootstrap_interval([[7.0] * 5, [7.0] * 5]) == (7.0, 7.0)
    assert bootstrap_interval([[3.0]]) == (3.0, 3.0)


def test_one_seed_has_the_interval_of_its_episodes() -> None:
    """Against SciPy's percentile bootstrap of the same ten values."""
    episodes = np.random.default_rng(1).normal(size=10)
    expected = stats.bootstrap((episodes,), np.mean, method="percentile", n_resamples=20_000, rng=0).confidence_interval
    np.testing.assert_allclose(bootstrap_interval([episodes.tolist()], mean), tuple(expected), atol=0.05)


def test_the_interval_contains_the_statistic_and_a_lower_level_makes_it_shorter() -> None:
    rng = np.random.default_rng(2)
    groups = [rng.normal(size=10).tolist() for _ in range(5)]
    low, high = bootstrap_interval(groups)
    narrow_low, narrow_high = bootstrap_interval(groups, level=0.5)
    assert low < narrow_low < float(iqm(np.concatenate(groups))) < narrow_high < high


def test_the_same_seed_gives_the_same_interval() -> None:
    groups = np.random.default_rng(0).normal(size=(3, 7)).tolist()
    assert bootstrap_interval(groups, seed=3) == bootstrap_interval(groups, seed=3)
    assert bootstrap_interval(groups, seed=3) != bootstrap_interval(groups, seed=4)


def test_episodes_of_one_seed_are_not_independent_evidence() -> None:
    """Five seeds differ, their episodes do not: the interval must be that of five values, not of five hundred."""
    seeds = [0.0, 1.0, 2.0, 3.0, 4.0]
    few, many = (bootstrap_interval([[s] * n for s in seeds], mean) for n in (1, 100))
    np.testing.assert_allclose(few, many, atol=0.15)
    # The standard error of the mean of five: √2 / √5 = 0.63, so the interval is about 2 ± 1.2.
    assert many[1] - many[0] == pytest.approx(2 * 1.96 * 0.632, rel=0.15)


@pytest.mark.parametrize("spread_of_seeds", [0.0, 1.0])
def test_the_interval_covers_the_truth_about_as_often_as_it_says(spread_of_seeds: float) -> None:
    """Ten seeds of five episodes with the true mean 0, 200 trials. With few seeds a percentile interval is a little too
    short. If seeds do not differ, the draw in two stages makes it too long."""
    rng = np.random.default_rng(0)
    covered = 0
    for trial in range(200):
        centres = spread_of_seeds * rng.normal(size=(10, 1))
        groups = centres + rng.normal(size=(10, 5))
        low, high = bootstrap_interval(groups.tolist(), mean, seed=trial)
        covered += low <= 0 <= high
    assert covered / 200 >= (0.87 if spread_of_seeds else 0.95)
    assert covered / 200 <= (0.99 if spread_of_seeds else 1.0)


def test_a_shifted_and_scaled_statistic_has_a_shifted_and_scaled_interval() -> None:
    groups = np.random.default_rng(5).normal(size=(4, 6))
    low, high = bootstrap_interval(groups.tolist())
    np.testing.assert_allclose(bootstrap_interval((10 + 2 * groups).tolist()), (10 + 2 * low, 10 + 2 * high), rtol=1e-9)


# ---- over several tasks


def drawn_by_a_loop(tasks: list[np.ndarray], rng: np.random.Generator) -> list[np.ndarray]:
    return [rng.choice(runs, len(runs)) for runs in tasks]


def test_aggregate_iqm_by_hand() -> None:
    """Eight runs in total: 0, 1 | 10, 11, 12, 20 | 30, 40. The two at each end are cut, whatever their task."""
    assert aggregate([[0.0, 30.0], [10.0, 11.0], [12.0, 20.0], [40.0, 1.0]], "iqm").value == (10 + 11 + 12 + 20) / 4


def test_aggregate_iqm_is_over_all_runs_and_not_over_task_means() -> None:
    table = np.random.default_rng(0).standard_cauchy((7, 5))
    assert aggregate(list(table), "iqm").value == pytest.approx(stats.trim_mean(table, 0.25, axis=None))


def test_the_bootstrap_is_stratified() -> None:
    """Tasks far apart, each without spread: nothing varies, unless a draw mixes runs of different tasks."""
    assert aggregate([[0.0] * 5, [10.0] * 5, [50.0] * 5, [100.0] * 5], "iqm") == (30.0, 30.0, 30.0)


def test_aggregate_interval_against_a_loop() -> None:
    rng = np.random.default_rng(3)
    tasks = [centre + rng.normal(size=6) for centre in (0.0, 1.0, 5.0)]
    drawn = [stats.trim_mean(np.concatenate(drawn_by_a_loop(tasks, rng)), 0.25) for _ in range(5_000)]
    found = aggregate(tasks, "iqm")
    np.testing.assert_allclose(found[1:], np.quantile(drawn, [0.025, 0.975]), atol=0.1)
    assert found.low < found.value < found.high


def test_aggregate_interval_of_one_task_is_the_plain_one() -> None:
    runs = np.random.default_rng(4).normal(size=9)
    expected = bootstrap_interval([[run] for run in runs])
    np.testing.assert_allclose(aggregate([runs], "iqm")[1:], expected, atol=0.05)


def test_aggregate_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    """Five runs on each of six tasks, normal around centres whose mean is 0. A draw of five from five has √(4 / 5) of
    the true spread. So the interval is shorter by this factor: 1.96 · 0.894 = 1.75, which covers 92 %."""
    rng = np.random.default_rng(0)
    covered = 0
    for trial in range(400):
        tasks = [rng.normal(centre, 1.0, 5) for centre in (-1.0, -0.5, -0.2, 0.2, 0.5, 1.0)]
        found = aggregate(tasks, "iqm", seed=trial)
        covered += found.low <= 0 <= found.high
    assert 0.88 <= covered / 400 <= 0.97


def test_tasks_with_different_numbers_of_runs_are_refused() -> None:
    with pytest.raises(DropError, match="3, 2 runs"):
        aggregate([[1.0, 2.0, 3.0], [1.0, 2.0]], "iqm")


@pytest.mark.parametrize("tasks", [[], [[]], [[1.0], []], [[[1.0, 2.0]]], [[1.0, float("nan")]], [[float("inf")]]])
def test_a_table_with_empty_or_infinite_scores_is_refused(tasks: list[list[float]]) -> None:
    with pytest.raises(DropError):
        aggregate(tasks, "iqm")
    with pytest.raises(DropError):
        probability_of_improvement(tasks, tasks)


def test_probability_of_improvement_by_hand() -> None:
    # First task: 3 beats 1 and 2; 2 beats 1 and ties with 2: 3.5 of 4. Second task: 5 beats 0 but not 9: 1 of 2.
    assert probability_of_improvement([[3.0, 2.0], [5.0]], [[1.0, 2.0], [0.0, 9.0]]).value == (3.5 / 4 + 1 / 2) / 2


def test_all_tasks_have_the_same_weight_whatever_their_number_of_runs() -> None:
    assert probability_of_improvement([[1.0] * 50, [0.0]], [[0.0] * 50, [1.0]]).value == 0.5


def test_equal_runs_are_ties() -> None:
    assert probability_of_improvement([[4.0] * 3], [[4.0] * 5]) == (0.5, 0.5, 0.5)
    runs = np.random.default_rng(0).normal(size=8)
    assert probability_of_improvement([runs], [runs]).value == 0.5


def test_if_all_runs_win_the_interval_has_no_width() -> None:
    assert probability_of_improvement([[5.0, 6.0], [8.0, 9.0]], [[1.0, 2.0], [3.0, 4.0]]) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize("seed", range(5))
def test_probability_of_improvement_is_mann_and_whitneys(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, 5, 7).astype(float), rng.integers(0, 6, 9).astype(float)  # many ties
    expected = stats.mannwhitneyu(x, y, alternative="greater").statistic / (7 * 9)
    assert probability_of_improvement([x], [y]).value == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(5))
def test_swapping_the_sides_gives_one_minus_the_probability(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = [rng.normal(0.3, 1.0, 6) for _ in range(4)], [rng.normal(0.0, 1.0, 5) for _ in range(4)]
    there, back = probability_of_improvement(x, y), probability_of_improvement(y, x)
    assert there.value + back.value == pytest.approx(1.0)
    np.testing.assert_allclose([there.low, there.high], [1 - back.high, 1 - back.low], atol=0.03)


def test_improvement_does_not_depend_on_the_scale_of_scores() -> None:
    rng = np.random.default_rng(6)
    x, y = [rng.normal(size=6) for _ in range(3)], [rng.normal(size=6) for _ in range(3)]
    assert probability_of_improvement([np.exp(v) for v in x], [np.exp(v) for v in y]) == probability_of_improvement(
        x, y
    )


def test_improvement_interval_against_a_loop() -> None:
    rng = np.random.default_rng(7)
    x, y = [rng.normal(0.5, 1.0, 6) for _ in range(3)], [rng.normal(0.0, 1.0, 8) for _ in range(3)]
    drawn = []
    for _ in range(5_000):
        sides = zip(drawn_by_a_loop(x, rng), drawn_by_a_loop(y, rng), strict=True)
        drawn.append(np.mean([np.mean(a[:, None] > b) + np.mean(a[:, None] == b) / 2 for a, b in sides]))
    np.testing.assert_allclose(probability_of_improvement(x, y)[1:], np.quantile(drawn, [0.025, 0.975]), atol=0.03)


def test_improvement_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    """x is N(0.5, 1) and y is N(0, 1), ten runs each on three tasks: x wins with probability Φ(0.5 / √2)."""
    rng = np.random.default_rng(1)
    truth, covered = stats.norm.cdf(0.5 / np.sqrt(2)), 0
    for trial in range(200):
        x, y = [rng.normal(0.5, 1.0, 10) for _ in range(3)], [rng.normal(0.0, 1.0, 10) for _ in range(3)]
        found = probability_of_improvement(x, y, seed=trial)
        covered += found.low <= truth <= found.high
    assert 0.88 <= covered / 200 <= 0.99


def test_both_sides_must_have_run_on_the_same_tasks() -> None:
    with pytest.raises(DropError, match="2 tasks against 1"):
        probability_of_improvement([[1.0], [2.0]], [[1.0]])


def test_every_ordered_pair_is_compared_and_both_ways_add_up() -> None:
    methods = {"a": [[3.0, 2.0], [5.0, 5.0]], "b": [[1.0, 2.0], [0.0, 9.0]], "c": [[2.0, 2.0], [5.0, 5.0]]}
    found = pairwise_improvement(methods, seed=5)
    assert list(found) == [("a", "b"), ("a", "c"), ("b", "a"), ("b", "c"), ("c", "a"), ("c", "b")]
    # a, b: 3.5 of 4, then 2 of 4. a, c: 3 beats both, 2 ties with both; then only ties. b, c: 1 of 4, then 2 of 4.
    assert found["a", "b"].value == (3.5 / 4 + 1 / 2) / 2
    assert found["a", "c"].value == (3 / 4 + 1 / 2) / 2
    assert found["b", "c"].value == (1 / 4 + 1 / 2) / 2
    for x, y in found:
        assert found[x, y].low <= found[x, y].value <= found[x, y].high
        assert found[y, x] == pytest.approx((1 - found[x, y].value, 1 - found[x, y].high, 1 - found[x, y].low))
    assert found["a", "b"] == probability_of_improvement(methods["a"], methods["b"], seed=5)
    assert pairwise_improvement({"alone": [[1.0]]}) == {}


# ---- other tasks, too


def tasks_drawn_by_a_loop(tasks: list[np.ndarray], rng: np.random.Generator) -> list[np.ndarray]:
    return [rng.choice(tasks[i], len(tasks[i])) for i in rng.integers(0, len(tasks), len(tasks))]


@pytest.mark.parametrize("statistic", ["iqm", "mean"])
def test_an_interval_over_tasks_like_these_against_a_loop(statistic: Aggregate) -> None:
    rng = np.random.default_rng(12)
    tasks = [centre + 3 * rng.normal(size=5) for centre in (0.0, 20.0, 30.0, 60.0, 65.0)]
    by_hand: dict[str, Callable[[list[np.ndarray]], Any]] = {
        "iqm": lambda drawn: stats.trim_mean(np.concatenate(drawn), 0.25),
        "mean": np.mean,
    }
    drawn = [by_hand[statistic](tasks_drawn_by_a_loop(tasks, rng)) for _ in range(3_000)]
    found = aggregate(tasks, statistic, over="tasks like these", replicates=20_000)
    np.testing.assert_allclose(found[1:], np.quantile(drawn, [0.025, 0.975]), atol=1.5)
    these = aggregate(tasks, statistic)
    assert found.value == these.value
    assert found.low < these.low - 5 < these.high + 5 < found.high  # the tasks differ far more than their runs


def test_an_interval_of_the_probability_over_tasks_like_these_against_every_draw_of_tasks() -> None:
    """One run a task: nothing but the tasks varies. All 3³ draws of three tasks with P = 0, 0.5 and 1, as counts."""
    x, y = [[0.0], [1.0], [5.0]], [[9.0], [1.0], [2.0]]
    found = probability_of_improvement(x, y, over="tasks like these", level=0.8, replicates=20_000)
    every = sorted((a + b + c) / 3 for a in (0.0, 0.5, 1.0) for b in (0.0, 0.5, 1.0) for c in (0.0, 0.5, 1.0))
    assert found.value == 0.5
    np.testing.assert_allclose(found[1:], np.quantile(every, [0.1, 0.9]))
    assert probability_of_improvement(x, y)[1:] == (0.5, 0.5)


def test_an_interval_of_the_probability_over_tasks_like_these_against_a_loop() -> None:
    rng = np.random.default_rng(13)
    shifts = (-1.0, 0.0, 0.5, 2.0)
    x, y = [rng.normal(shift, 1.0, 5) for shift in shifts], [rng.normal(0.0, 1.0, 7) for _ in shifts]
    drawn = []
    for _ in range(3_000):
        chosen = rng.integers(0, 4, 4)
        sides = [(rng.choice(x[i], 5), rng.choice(y[i], 7)) for i in chosen]
        drawn.append(np.mean([np.mean(a[:, None] > b) for a, b in sides]))
    found = pairwise_improvement({"x": x, "y": y}, over="tasks like these", replicates=20_000)["x", "y"]
    np.testing.assert_allclose(found[1:], np.quantile(drawn, [0.025, 0.975]), atol=0.03)


def test_one_task_alone_has_the_same_interval_either_way() -> None:
    runs = np.random.default_rng(14).normal(size=8)
    assert aggregate([runs], "iqm", over="tasks like these") == aggregate([runs], "iqm")


# ---- the other aggregates, and profiles


def test_median_is_over_tasks_of_means_over_runs() -> None:
    """The means are 2, 10 and 30, so it is 10. The median of all nine runs would be 3, that of the medians 9."""
    tasks = [[1.0, 2.0, 3.0], [3.0, 9.0, 18.0], [1.0, 2.0, 87.0]]
    assert aggregate(tasks, "median").value == 10.0
    assert aggregate([*tasks, [20.0, 20.0, 20.0]], "median").value == 15.0  # with four tasks, halfway between two


def test_mean_by_hand() -> None:
    assert aggregate([[0.0, 2.0], [10.0, 20.0]], "mean").value == 8.0


def test_optimality_gap_by_hand() -> None:
    """The gaps to 100 are 60, 0, 0 (120 counts as 100) and 120. A run above 100 does not make up for another run."""
    tasks = [[40.0, 100.0], [120.0, -20.0]]
    assert aggregate(tasks, "optimality_gap").value == (60 + 0 + 0 + 120) / 4
    assert aggregate(tasks, "optimality_gap", target=50.0).value == (10 + 0 + 0 + 70) / 4
    assert aggregate([[100.0, 150.0]], "optimality_gap") == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("statistic", ["iqm", "median", "mean", "optimality_gap"])
def test_every_aggregate_is_stratified_and_its_interval_contains_it(statistic: Aggregate) -> None:
    apart = aggregate([[0.0] * 5, [10.0] * 5, [50.0] * 5, [100.0] * 5], statistic)
    assert apart.low == apart.value == apart.high
    rng = np.random.default_rng(8)
    found = aggregate([centre + 5 * rng.normal(size=6) for centre in (20.0, 50.0, 90.0)], statistic)
    narrow = aggregate([centre + 5 * np.zeros(6) for centre in (20.0, 50.0, 90.0)], statistic)
    assert found.low < found.value < found.high
    assert narrow.low == narrow.high


@pytest.mark.parametrize("statistic", ["median", "mean", "optimality_gap"])
def test_aggregate_intervals_against_a_loop(statistic: Aggregate) -> None:
    by_hand: dict[str, Callable[[list[np.ndarray]], Any]] = {
        "median": lambda tasks: np.median([np.mean(runs) for runs in tasks]),
        "mean": lambda tasks: np.mean([np.mean(runs) for runs in tasks]),
        "optimality_gap": lambda tasks: np.mean([max(100 - run, 0) for runs in tasks for run in runs]),
    }
    rng = np.random.default_rng(9)
    tasks = [centre + 10 * rng.normal(size=6) for centre in (60.0, 80.0, 100.0)]
    drawn = [by_hand[statistic](drawn_by_a_loop(tasks, rng)) for _ in range(5_000)]
    found = aggregate(tasks, statistic, replicates=20_000)
    assert found.value == pytest.approx(by_hand[statistic](tasks))
    np.testing.assert_allclose(found[1:], np.quantile(drawn, [0.025, 0.975]), atol=0.4)


def test_profile_by_hand() -> None:
    """The first task has 2 runs, the second 4, and both weigh the same. A run equal to τ is not above it."""
    found = performance_profile([[10.0, 30.0], [20.0, 20.0, 40.0, 0.0]], [-1.0, 0.0, 10.0, 20.0, 35.0, 40.0])
    expected = [1.0, (1 + 3 / 4) / 2, (1 / 2 + 3 / 4) / 2, (1 / 2 + 1 / 4) / 2, (0 + 1 / 4) / 2, 0.0]
    np.testing.assert_allclose(found.value, expected)
    np.testing.assert_array_equal(found.thresholds, [-1.0, 0.0, 10.0, 20.0, 35.0, 40.0])
    assert (found.low[0], found.high[0], found.low[-1], found.high[-1]) == (1.0, 1.0, 0.0, 0.0)


def test_profile_never_rises_and_lies_within_its_band() -> None:
    rng = np.random.default_rng(10)
    found = performance_profile([rng.normal(50, 30, 5) for _ in range(7)], np.linspace(-100, 200, 61))
    for line in found[1:]:
        assert np.all(np.diff(line) <= 0)
        assert np.all((line >= 0) & (line <= 1))
    assert np.all((found.low <= found.value) & (found.value <= found.high))
    assert (found.high - found.low).max() > 0.1


def test_profile_bands_against_a_loop() -> None:
    """At τ = 5 several tasks vary, at τ = 100 only one: runs of other tasks must not be drawn into it."""
    rng = np.random.default_rng(11)
    tasks, thresholds = [centre + 10 * rng.normal(size=6) for centre in (0.0, 10.0, 100.0)], [5.0, 100.0]
    drawn = [[np.mean([np.mean(r > t) for r in drawn_by_a_loop(tasks, rng)]) for t in thresholds] for _ in range(5_000)]
    found = performance_profile(tasks, thresholds, replicates=20_000)
    np.testing.assert_allclose([found.low, found.high], np.quantile(drawn, [0.025, 0.975], axis=0), atol=1 / 18)
    assert found.high[1] <= 1 / 3


@pytest.mark.parametrize("thresholds", [[], [float("nan")], [[1.0]]])
def test_thresholds_that_are_not_finite_numbers_are_refused(thresholds: list[float]) -> None:
    with pytest.raises(DropError, match="thresholds"):
        performance_profile([[1.0, 2.0]], thresholds)


# ---- rliable
# The values of rliable 1.2.0 for these tables, with 50 000 replicates (20 000 for the profile).
# benchmarks/peers/rliable_check.py compares the two on random tables.

RLIABLE_X = [[12.0, 20, 9, 17, 25], [31.0, 28, 40, 35, 22], [55.0, 61, 48, 66, 52], [70.0, 90, 84, 77, 95]]
RLIABLE_Y = [[10.0, 15, 11, 22, 8], [33.0, 25, 30, 27, 36], [50.0, 61, 44, 49, 58], [70.0, 80, 72, 85, 60]]
RLIABLE_TIED = [[5.0, 5, 0, -10], [40.0, 45, 40, 60], [95.0, 110, 100, 130], [120.0, 100, 100, 100], [70.0, 70, 70, 20]]
RLIABLE_FOUND: list[tuple[list[list[float]], Aggregate, tuple[float, float, float]]] = [
    (RLIABLE_X, "iqm", (44.1, 40.2, 47.7)),
    (RLIABLE_X, "median", (43.8, 40.0, 47.7)),
    (RLIABLE_X, "mean", (46.85, 43.85, 49.85)),
    (RLIABLE_X, "optimality_gap", (53.15, 50.15, 56.15)),
    (RLIABLE_TIED, "iqm", (69.0, 59.0, 74.5)),
    (RLIABLE_TIED, "median", (57.5, 45.0, 70.0)),
    (RLIABLE_TIED, "mean", (63.5, 57.5, 68.75)),
    (RLIABLE_TIED, "optimality_gap", (39.5, 35.5, 44.75)),
]


@pytest.mark.parametrize(("tasks", "statistic", "expected"), RLIABLE_FOUND)
def test_aggregates_are_rliables(
    tasks: list[list[float]], statistic: Aggregate, expected: tuple[float, float, float]
) -> None:
    found = aggregate(tasks, statistic, replicates=20_000)
    assert found.value == pytest.approx(expected[0], abs=1e-9)
    np.testing.assert_allclose(found[1:], expected[1:], atol=0.5)  # with ties the quantiles are steps


def test_improvement_is_rliables() -> None:
    found = probability_of_improvement(RLIABLE_X, RLIABLE_Y, replicates=20_000)
    assert found.value == pytest.approx(0.66, abs=1e-9)
    np.testing.assert_allclose(found[1:], (0.48, 0.83), atol=0.01)


def test_profile_is_rliables() -> None:
    found = performance_profile(RLIABLE_TIED, [0.0, 40.0, 70.0, 100.0, 120.0], replicates=20_000)
    np.testing.assert_allclose(found.value, [0.9, 0.65, 0.4, 0.15, 0.05], atol=1e-9)
    np.testing.assert_allclose(found.low, [0.8, 0.5, 0.4, 0.05, 0.0], atol=1e-9)
    np.testing.assert_allclose(found.high, [1.0, 0.75, 0.4, 0.3, 0.15], atol=1e-9)

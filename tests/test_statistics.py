"""The interquartile mean and the probability of improvement against SciPy and by hand, and what a bootstrap interval
must do."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from droprl.errors import DropError
from droprl.evaluation.statistics import aggregate_iqm, bootstrap_interval, iqm, probability_of_improvement


@pytest.mark.parametrize("size", [*range(1, 14), 40, 99, 100, 101])
def test_iqm_is_the_trimmed_mean(size: int) -> None:
    values = np.random.default_rng(size).standard_cauchy(size)
    assert float(iqm(values)) == pytest.approx(stats.trim_mean(values, proportiontocut=0.25))


def test_iqm_by_hand() -> None:
    assert float(iqm(np.array([1000.0, 1, 2, 3, 4, 5, 6, -1000]))) == 3.5  # 2, 3, 4, 5
    assert float(iqm(np.array([9.0, 1.0, 5.0]))) == 5.0  # three are too few to cut any: the mean


def test_iqm_is_of_the_last_axis_and_leaves_its_values_alone() -> None:
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


def test_the_interval_holds_the_statistic_and_widens_with_its_level() -> None:
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
    """Five seeds that differ, with episodes that do not: the interval is that of five values, not of five hundred."""
    seeds = [0.0, 1.0, 2.0, 3.0, 4.0]
    few, many = (bootstrap_interval([[s] * n for s in seeds], mean) for n in (1, 100))
    np.testing.assert_allclose(few, many, atol=0.15)
    # The standard error of the mean of five: √2 / √5 = 0.63, so the interval is about 2 ± 1.2.
    assert many[1] - many[0] == pytest.approx(2 * 1.96 * 0.632, rel=0.15)


@pytest.mark.parametrize("spread_of_seeds", [0.0, 1.0])
def test_the_interval_covers_the_truth_about_as_often_as_it_says(spread_of_seeds: float) -> None:
    """Ten seeds of five episodes, true mean 0, 200 times over. Few seeds make a percentile interval a little short;
    where seeds do not differ, drawing in two stages makes it long."""
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
    """Eight runs in all: 0, 1 | 10, 11, 12, 20 | 30, 40. The two at each end go, wherever they stand."""
    assert aggregate_iqm([[0.0, 30.0], [10.0, 11.0], [12.0, 20.0], [40.0, 1.0]]).value == (10 + 11 + 12 + 20) / 4


def test_aggregate_iqm_is_of_all_runs_and_not_of_task_means() -> None:
    table = np.random.default_rng(0).standard_cauchy((7, 5))
    assert aggregate_iqm(list(table)).value == pytest.approx(stats.trim_mean(table, 0.25, axis=None))


def test_the_bootstrap_is_stratified() -> None:
    """Tasks far apart, each without spread: nothing can vary, unless a draw mixes runs of different tasks."""
    assert aggregate_iqm([[0.0] * 5, [10.0] * 5, [50.0] * 5, [100.0] * 5]) == (30.0, 30.0, 30.0)


def test_aggregate_interval_against_a_loop() -> None:
    rng = np.random.default_rng(3)
    tasks = [centre + rng.normal(size=6) for centre in (0.0, 1.0, 5.0)]
    drawn = [stats.trim_mean(np.concatenate(drawn_by_a_loop(tasks, rng)), 0.25) for _ in range(5_000)]
    found = aggregate_iqm(tasks)
    np.testing.assert_allclose(found[1:], np.quantile(drawn, [0.025, 0.975]), atol=0.1)
    assert found.low < found.value < found.high


def test_aggregate_interval_of_one_task_is_the_plain_one() -> None:
    runs = np.random.default_rng(4).normal(size=9)
    expected = bootstrap_interval([[run] for run in runs])
    np.testing.assert_allclose(aggregate_iqm([runs])[1:], expected, atol=0.05)


def test_aggregate_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    """Five runs on each of six tasks, normal around centres that cancel. A draw of five from five has √(4 / 5) of the
    spread it stands for, so that the interval is that much short: 1.96 · 0.894 = 1.75, which covers 92 %."""
    rng = np.random.default_rng(0)
    covered = 0
    for trial in range(400):
        found = aggregate_iqm([rng.normal(centre, 1.0, 5) for centre in (-1.0, -0.5, -0.2, 0.2, 0.5, 1.0)], seed=trial)
        covered += found.low <= 0 <= found.high
    assert 0.88 <= covered / 400 <= 0.97


def test_tasks_with_unequal_runs_are_refused() -> None:
    with pytest.raises(DropError, match="3, 2 runs"):
        aggregate_iqm([[1.0, 2.0, 3.0], [1.0, 2.0]])


@pytest.mark.parametrize("tasks", [[], [[]], [[1.0], []], [[[1.0, 2.0]]], [[1.0, float("nan")]], [[float("inf")]]])
def test_what_is_no_table_of_scores_is_refused(tasks: list[list[float]]) -> None:
    with pytest.raises(DropError):
        aggregate_iqm(tasks)
    with pytest.raises(DropError):
        probability_of_improvement(tasks, tasks)


def test_probability_of_improvement_by_hand() -> None:
    # First task: 3 beats 1 and 2, 2 beats 1 and ties with 2: 3.5 of 4. Second: 5 beats 0 and not 9: 1 of 2.
    assert probability_of_improvement([[3.0, 2.0], [5.0]], [[1.0, 2.0], [0.0, 9.0]]).value == (3.5 / 4 + 1 / 2) / 2


def test_every_task_counts_alike_however_many_runs_it_has() -> None:
    assert probability_of_improvement([[1.0] * 50, [0.0]], [[0.0] * 50, [1.0]]).value == 0.5


def test_equal_runs_are_ties() -> None:
    assert probability_of_improvement([[4.0] * 3], [[4.0] * 5]) == (0.5, 0.5, 0.5)
    runs = np.random.default_rng(0).normal(size=8)
    assert probability_of_improvement([runs], [runs]).value == 0.5


def test_runs_that_always_win_leave_no_doubt() -> None:
    assert probability_of_improvement([[5.0, 6.0], [8.0, 9.0]], [[1.0, 2.0], [3.0, 4.0]]) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize("seed", range(5))
def test_probability_of_improvement_is_mann_and_whitneys(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, 5, 7).astype(float), rng.integers(0, 6, 9).astype(float)  # many ties
    expected = stats.mannwhitneyu(x, y, alternative="greater").statistic / (7 * 9)
    assert probability_of_improvement([x], [y]).value == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(5))
def test_swapping_the_sides_gives_the_rest(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = [rng.normal(0.3, 1.0, 6) for _ in range(4)], [rng.normal(0.0, 1.0, 5) for _ in range(4)]
    there, back = probability_of_improvement(x, y), probability_of_improvement(y, x)
    assert there.value + back.value == pytest.approx(1.0)
    np.testing.assert_allclose([there.low, there.high], [1 - back.high, 1 - back.low], atol=0.03)


def test_improvement_does_not_notice_how_scores_are_scaled() -> None:
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


def test_both_agree_with_rliable() -> None:
    """What rliable 1.2.0 found for these tables with 50 000 replicates."""
    x = [[12.0, 20, 9, 17, 25], [31.0, 28, 40, 35, 22], [55.0, 61, 48, 66, 52], [70.0, 90, 84, 77, 95]]
    y = [[10.0, 15, 11, 22, 8], [33.0, 25, 30, 27, 36], [50.0, 61, 44, 49, 58], [70.0, 80, 72, 85, 60]]
    np.testing.assert_allclose(aggregate_iqm(x), (44.1, 40.2, 47.7), atol=0.3)
    np.testing.assert_allclose(probability_of_improvement(x, y), (0.66, 0.48, 0.83), atol=0.02)
    assert aggregate_iqm(x).value == pytest.approx(44.1)
    assert probability_of_improvement(x, y).value == pytest.approx(0.66)

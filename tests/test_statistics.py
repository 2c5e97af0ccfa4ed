"""The interquartile mean against SciPy, and what a bootstrap interval must do."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from droprl.evaluation.statistics import bootstrap_interval, iqm


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

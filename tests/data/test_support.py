"""The support of the data: states that cover it, and the distance of another state to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from helpers.builders import make_dataset
from helpers.training import learnable_dataset, save_npz

from droprl.data import map_dataset
from droprl.data.scaling import fit_scaling
from droprl.data.support import LEVELS, SMALLEST_VARIANCE, Support, decorrelation, farthest_points, fit_support

SCHEDULE: dict[str, Any] = {"steps": 20, "progress": False}


def correlated_states(n: int = 200, size: int = 4) -> np.ndarray:
    rng = np.random.default_rng(1)
    return rng.normal(size=(n, size)) @ rng.normal(size=(size, size))


def test_decorrelated_distances_are_mahalanobis_distances() -> None:
    states = correlated_states()
    covariance = np.cov(states.T, bias=True)
    covariance += SMALLEST_VARIANCE * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
    offsets = states[1:] - states[0]
    expected = np.sqrt(np.sum(offsets * np.linalg.solve(covariance, offsets.T).T, axis=1))
    np.testing.assert_allclose(np.linalg.norm(offsets @ decorrelation(states), axis=1), expected, rtol=1e-8)


def test_a_sensor_that_never_changes_leaves_distances_finite() -> None:
    states = np.column_stack([correlated_states(size=2), np.zeros(200)])
    assert np.isfinite(decorrelation(states)).all()
    assert np.isfinite(decorrelation(np.zeros((5, 3)))).all()
    assert np.isfinite(decorrelation(correlated_states(size=1))).all()


def test_each_prototype_is_the_farthest_from_those_before_it() -> None:
    states = correlated_states(60)
    chosen = farthest_points(states, 20)
    assert chosen[0] == 0
    for k in range(1, 20):
        nearest = [min(float(np.linalg.norm(s - states[c])) for c in chosen[:k]) for s in states]
        assert chosen[k] == int(np.argmax(nearest))
    np.testing.assert_array_equal(np.sort(farthest_points(states, 999)), np.arange(60))


def test_levels_are_quantiles_of_the_distances_to_other_episodes() -> None:
    data = learnable_dataset()
    scaling = fit_scaling(data)
    support = fit_support(data, scaling, n_prototypes=30)
    decorrelated = np.asarray(scaling.observations_in(data.observations)) @ support.basis
    rows = [int(np.argmin(np.linalg.norm(decorrelated - p, axis=1))) for p in np.asarray(support.prototypes)]
    distances = [
        min(np.linalg.norm(decorrelated[i] - decorrelated[r]) for r in rows if r // 20 != i // 20)
        for i in range(data.n_steps)
    ]
    np.testing.assert_allclose(support.levels, np.quantile(distances, np.linspace(0, 1, LEVELS)), rtol=1e-4)


def test_columns_on_the_disk_give_the_same_support(tmp_path: Path) -> None:
    data = learnable_dataset()
    mapped = map_dataset(save_npz(data, tmp_path / "data.npz"), tmp_path / "columns")
    assert mapped.on_disk
    for part, expected in zip(
        fit_support(mapped, fit_scaling(data)), fit_support(data, fit_scaling(data)), strict=True
    ):
        np.testing.assert_array_equal(part, expected)


def test_the_states_of_a_single_episode_support_each_other() -> None:
    data = make_dataset([(30, "timeout")])
    support = fit_support(data, fit_scaling(data))
    offsets = np.asarray(support.prototypes)[:, None] - np.asarray(support.prototypes)[None]
    distances = np.linalg.norm(offsets, axis=2) + np.where(np.eye(30), np.inf, 0.0)
    assert support.limit(1.0) == pytest.approx(distances.min(axis=1).max(), rel=1e-4)
    assert float(support.distance(jnp.full(2, 9.0))) > support.limit(1.0)


@pytest.fixture(scope="module")
def support() -> Support:
    data = learnable_dataset()
    return fit_support(data, fit_scaling(data), n_prototypes=40)


def test_the_distance_is_to_the_nearest_prototype(support: Support) -> None:
    for observation in np.random.default_rng(2).normal(size=(10, 3)).astype(np.float32):
        expected = min(np.linalg.norm(observation @ support.basis - p) for p in np.asarray(support.prototypes))
        assert float(support.distance(observation)) == pytest.approx(expected, rel=1e-5)


def test_the_share_counts_the_levels_that_lie_nearer(support: Support) -> None:
    levels = np.asarray(support.levels)
    for distance in (0.0, levels[0], levels[500], (levels[500] + levels[501]) / 2, levels[-1], 1e9):
        assert float(support.share_nearer(jnp.asarray(distance))) == pytest.approx(np.sum(levels < distance) / LEVELS)
    assert float(support.share_nearer(jnp.asarray(0.0))) == 0
    assert float(support.share_nearer(jnp.asarray(1e9))) == 1


@pytest.mark.parametrize("share", [0.0, 0.5, 0.999, 1.0])
def test_this_share_of_the_data_lies_within_the_limit(support: Support, share: float) -> None:
    assert support.limit(share) == np.quantile(np.asarray(support.levels), share, method="nearest")

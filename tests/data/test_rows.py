"""The two readers of rows: each against a dataset made by hand, and both against each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from helpers.builders import Layout, make_dataset, on_disk

from droprl.data import Dataset
from droprl.data.returns import discounted_returns
from droprl.data.rewards import Treatment
from droprl.data.rows import DeviceRows, HostRows, Recipe, Rows, TargetRule, device_rows, host_rows, rows_of
from droprl.data.scaling import fit_scaling

LAYOUT: Layout = [(3, "terminal"), (4, "timeout"), (1, "timeout"), (2, "cut")]
FIRST = [0, 0, 0, 3, 3, 3, 3, 7, 8, 8]
LAST = [2, 2, 2, 6, 6, 6, 6, 7, 9, 9]


def recipe_of(dataset: Dataset) -> Recipe:
    return Recipe(fit_scaling(dataset), Treatment(2.0), 0.9, TargetRule(td_steps=2), episodes=True)


@pytest.fixture(params=[device_rows, host_rows])
def reader(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_a_row_equals_the_row_of_the_dataset(reader: Any) -> None:
    dataset = make_dataset(LAYOUT, observation_size=3)
    recipe, every = recipe_of(dataset), np.arange(10)
    rows: Rows = reader(dataset, recipe)
    assert int(rows.n_places) == 10
    np.testing.assert_array_equal(rows.at(every), every)
    np.testing.assert_allclose(rows.observation(every), recipe.scaling.observations_in(dataset.observations), rtol=1e-6)
    np.testing.assert_allclose(rows.action(every), dataset.actions, atol=1e-6)  # the bounds are −1 and 1
    first, last = rows.episode(every)
    assert (np.asarray(first).tolist(), np.asarray(last).tolist()) == (FIRST, LAST)
    np.testing.assert_allclose(rows.return_to_go(every), discounted_returns(dataset, 0.9) / 2, rtol=1e-6)


def test_places_count_through_the_chosen_episodes(reader: Any) -> None:
    """Episode 3 has rows 8 and 9, episode 0 has rows 0, 1 and 2."""
    dataset = make_dataset(LAYOUT)
    rows: Rows = reader(dataset, recipe_of(dataset), np.array([3, 0]))
    assert int(rows.n_places) == 5
    assert np.asarray(rows.at(np.arange(5))).tolist() == [8, 9, 0, 1, 2]


def test_rows_of_any_shape_are_read(reader: Any) -> None:
    dataset = make_dataset(LAYOUT, next_observations=True)
    rows: Rows = reader(dataset, recipe_of(dataset))
    asked = np.arange(6).reshape(2, 3)
    flat = rows.target(asked.ravel())
    shaped = rows.target(asked)
    for one, other in zip(shaped, flat, strict=True):
        np.testing.assert_array_equal(np.asarray(one).reshape(np.shape(other)), other)
    assert rows.observation(asked).shape == (2, 3, 2)


@pytest.mark.parametrize("following", [True, False])
@pytest.mark.parametrize("rule", [TargetRule(1), TargetRule(3), TargetRule(None), TargetRule(1, 0.7)])
def test_both_readers_agree_on_targets(tmp_path: Path, following: bool, rule: TargetRule) -> None:
    dataset = make_dataset(LAYOUT, next_observations=following, observation_size=3)
    recipe, every = Recipe(fit_scaling(dataset), Treatment(2.0, 0.5), 0.9, rule), np.arange(10)
    device = rows_of(dataset, recipe).target(every)
    for host in (host_rows(dataset, recipe), rows_of(on_disk(dataset, tmp_path), recipe)):
        assert isinstance(host, HostRows)
        for name, expected, found in zip(device._fields, device, host.target(every), strict=True):
            assert (expected is None) == (found is None)
            if expected is not None:
                assert np.asarray(expected).dtype == found.dtype
                np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6, err_msg=name)


def test_outcomes_replace_rewards(reader: Any) -> None:
    dataset = make_dataset(LAYOUT)
    recipe = Recipe(fit_scaling(dataset), Treatment(2.0), 0.9, TargetRule(outcomes=lambda data: -data.rewards))
    np.testing.assert_array_equal(reader(dataset, recipe).target(np.arange(10)).reward, -dataset.rewards)


def test_a_device_reader_is_read_inside_a_compiled_program() -> None:
    dataset = make_dataset(LAYOUT)
    rows = rows_of(dataset, recipe_of(dataset))
    assert isinstance(rows, DeviceRows)
    compiled = jax.jit(lambda rows, row: (rows.target(row), rows.episode(row)))
    found, expected = compiled(rows, np.arange(10)), (rows.target(np.arange(10)), rows.episode(np.arange(10)))
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_unneeded_columns_are_not_made() -> None:
    dataset = make_dataset(LAYOUT, next_observations=True)
    rows = device_rows(dataset, Recipe(fit_scaling(dataset), Treatment(), 1.0, episodes=True))
    assert rows.targets is None
    assert len(rows.observations) == 10  # and no successors
    assert device_rows(dataset, Recipe(fit_scaling(dataset), Treatment(), 1.0, TargetRule())).course is None

"""The treatment of rewards: each setting by hand, and n-step sums of treated rewards against their definition."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.builders import Layout, make_dataset, on_disk, targets_by_definition

from droprl.data.rewards import Rewards, Treatment
from droprl.data.rows import Recipe
from droprl.data.transitions import PROBE_STEPS, Places, prepare
from droprl.data.windows import prepare_windows
from droprl.errors import DropError
from droprl.files.settings import from_dict

LAYOUT: Layout = [(3, "terminal"), (2, "timeout"), (1, "cut")]
REWARDS = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]  # the episodes earn 7, 24 and 32
SETTINGS = [
    Rewards("one", plus=-1.0),
    Rewards("range", times=1000.0),
    Rewards("spread", times=2.0, plus=0.5),
    Rewards("one", times=0.1),
]


def test_a_unit_of_one_leaves_rewards_alone() -> None:
    assert Rewards("one").treatment(make_dataset(LAYOUT, rewards=REWARDS), 0.5) == (1.0, 0.0)


def test_the_range_is_that_of_undiscounted_returns_of_episodes() -> None:
    """32 − 7 = 25. IQL in locomotion: divide by it and multiply by 1000, so that a reward of 1 becomes 40."""
    found = Rewards("range", times=1000.0).treatment(make_dataset(LAYOUT, rewards=REWARDS), 0.5)
    assert found.scale == pytest.approx(25 / 1000)
    assert found.treated_sum(np.array(1.0), np.array(1.0), 0.5) == pytest.approx(40.0)


def test_the_spread_is_that_of_discounted_returns_of_all_steps() -> None:
    """With γ = 0.5 the returns of the steps are 3, 4, 4, 16, 16 and 32, whose mean is 12.5."""
    spread = np.sqrt(np.mean((np.array([3, 4, 4, 16, 16, 32]) - 12.5) ** 2))
    found = Rewards("spread").treatment(make_dataset(LAYOUT, rewards=REWARDS), 0.5)
    assert found.scale == pytest.approx(spread, rel=1e-12)


@pytest.mark.parametrize("unit", ["spread", "range"])
def test_equal_returns_divide_nothing(unit: str) -> None:
    dataset = make_dataset([(1, "terminal"), (1, "terminal")], rewards=[3.0, 3.0])
    assert Rewards(unit, times=4.0).treatment(dataset, 0.9).scale == 0.25  # type: ignore[arg-type]


def test_one_less_for_every_step_by_hand() -> None:
    """IQL in AntMaze: r − 1. Two steps with γ = 0.5: (1 − 1) + 0.5 (2 − 1) = 0.5, and so on."""
    dataset = make_dataset(LAYOUT, rewards=REWARDS, next_observations=True)
    prepared = prepare(dataset, discount=0.5, td_steps=2, rewards=Rewards("one", plus=-1.0))
    batch = prepared.transitions.gather(Places(np.arange(6)))
    # 0 + ½·1, 1 + ½·3, 3 | 7 + ½·15, 15 | 31
    np.testing.assert_allclose(batch.reward, [0.5, 2.5, 3.0, 14.5, 15.0, 31.0])
    np.testing.assert_allclose(batch.discount, [0.25, 0.0, 0.0, 0.25, 0.5, 0.5])


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("disk", [False, True])
@pytest.mark.parametrize("discount", [0.9, 1.0])
def test_targets_and_probes_are_sums_of_treated_rewards(
    tmp_path: Path, setting: Rewards, disk: bool, discount: float
) -> None:
    """Treat every reward of a dataset, then apply the definition."""
    dataset = make_dataset([*LAYOUT[:2], (5, "terminal"), (4, "cut")], next_observations=True)
    scale, plus = setting.treatment(dataset, discount)
    treated = replace(dataset, rewards=dataset.rewards.astype(np.float64) / scale + plus)
    prepared = prepare(
        on_disk(dataset, tmp_path) if disk else dataset,
        discount=discount,
        td_steps=3,
        normalize_observations=False,
        rewards=setting,
    )
    batch = prepared.transitions.gather(Places(np.arange(dataset.n_steps)))
    expected = [target.reward for target in targets_by_definition(treated, discount, 3)]
    np.testing.assert_allclose(batch.reward, expected, rtol=1e-5, atol=1e-5)
    monte_carlo = targets_by_definition(treated, discount, None)
    probe = prepared.probe.batch
    rows = [int(dataset.bounds[int(e)]) + int(t) for e, t in np.asarray(probe.observation)[:, :2]]
    assert len(set(rows)) == dataset.n_steps
    assert len(rows) == PROBE_STEPS
    np.testing.assert_allclose(probe.reward, [monte_carlo[row].reward for row in rows], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("discount", [0.9, 1.0])
def test_returns_to_go_are_sums_of_treated_rewards(discount: float) -> None:
    dataset = make_dataset(LAYOUT, rewards=REWARDS)
    windows = prepare_windows(dataset, discount=discount, rewards=Treatment(2.0, -1.0)).transitions
    found = windows.gather(Places(np.arange(6))).returns_to_go[:, 0]
    treated = np.array(REWARDS) / 2 - 1
    ends = np.repeat([3, 5, 6], [3, 2, 1])
    expected = [np.sum(discount ** np.arange(end - t) * treated[t:end]) for t, end in enumerate(ends)]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_treated_rewards_become_the_same_rows_again() -> None:
    """Prepared data holds its recipe, which makes rows of other data in the same units."""
    dataset = make_dataset(LAYOUT, rewards=REWARDS)
    recipe = prepare(dataset, discount=0.5, rewards=Rewards("range", plus=1.0)).recipe
    assert isinstance(recipe, Recipe)
    assert (recipe.rewards, recipe.discount) == (Treatment(25.0, 1.0), 0.5)


def test_settings_survive_json_and_wrong_ones_are_refused() -> None:
    for setting in SETTINGS:
        assert from_dict(Rewards, asdict(setting), "here") == setting
    wrongs: tuple[dict[str, Any], ...] = (
        {"times": 0.0},
        {"times": -1.0},
        {"plus": float("nan")},
        {"times": float("inf")},
    )
    for wrong in wrongs:
        with pytest.raises(DropError, match=r"^\w+ is "):
            Rewards(**wrong)
    with pytest.raises(DropError, match="unit is 'metre'"):
        from_dict(Rewards, {"unit": "metre"}, "here")

"""Export to Minari: Minari itself reads what was written, and it comes back as the same dataset."""

from __future__ import annotations

from pathlib import Path

import minari
import numpy as np
import pytest
from helpers.builders import make_dataset, small_arrays

from droprl.data import from_arrays, load_dataset
from droprl.errors import DropError

NAMED = {"speed": np.arange(12.0), "joint": np.arange(24.0).reshape(12, 2)}


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))


def test_minari_reads_the_steps_and_how_episodes_end() -> None:
    arrays = small_arrays()
    dataset = from_arrays(**arrays, action_low=[-2, -1], action_high=[2, 1], score_range=(0, 10))
    assert dataset.to_minari("mine/plant-v0") == "mine/plant-v0"
    source = minari.load_dataset("mine/plant-v0")
    assert (source.total_episodes, source.total_steps) == (3, 12)
    assert source.action_space.low.tolist() == [-2, -1]
    for number, episode in enumerate(source.iterate_episodes()):
        rows = slice(4 * number, 4 * number + 4)
        np.testing.assert_array_equal(episode.observations[:-1], arrays["observations"][rows])
        np.testing.assert_array_equal(episode.observations[-1], arrays["next_observations"][rows][-1])
        np.testing.assert_array_equal(episode.actions, arrays["actions"][rows])
        np.testing.assert_array_equal(episode.rewards, arrays["rewards"][rows].astype(np.float64))
        assert episode.terminations.tolist() == [False, False, False, number == 0]
        assert episode.truncations.tolist() == [False, False, False, number > 0]
    assert load_dataset("mine/plant-v0").score_range == (0, 10)


def test_it_comes_back_the_same_with_its_names() -> None:
    arrays = small_arrays() | {"observations": NAMED, "next_observations": None, "timeouts": np.arange(12) % 4 == 3}
    dataset = from_arrays(**arrays)
    dataset.to_minari("mine/names-v0")
    again = load_dataset("mine/names-v0")
    for key in ("observations", "actions", "rewards", "terminals", "timeouts", "action_low", "action_high"):
        np.testing.assert_array_equal(getattr(again, key), getattr(dataset, key))
    assert again.next_observations is None  # the repeated observation is not taken for a state that was seen
    assert again.observation_parts == (("joint", 2), ("speed", 1))
    assert again.fingerprint == dataset.fingerprint


def test_the_last_observation_is_repeated_where_none_follows() -> None:
    make_dataset([(3, "terminal"), (2, "timeout")]).to_minari("mine/repeated-v0")
    source = minari.load_dataset("mine/repeated-v0")
    episode = source[0]
    np.testing.assert_array_equal(episode.observations[-1], episode.observations[-2])
    assert source.storage.metadata["droprl_last_observation_repeated"]


def test_the_task_goes_with_the_data() -> None:
    arrays = small_arrays() | {"actions": np.full((12, 1), 0.5)}
    from_arrays(**arrays, env="Pendulum-v1", time_limit=50, action_low=-2, action_high=2).to_minari("mine/pendulum-v0")
    again = load_dataset("mine/pendulum-v0")
    assert (again.env, again.time_limit) == ("Pendulum-v1", 50)
    assert minari.load_dataset("mine/pendulum-v0").env_spec.id == "Pendulum-v1"
    from_arrays(**small_arrays(), env="Nowhere-v0").to_minari("mine/nowhere-v0")
    assert load_dataset("mine/nowhere-v0").env is None


@pytest.mark.parametrize(
    ("dataset_id", "expected"), [("mine/plant-v0", "exists already"), ("no version", "is not a Minari id")]
)
def test_nothing_is_replaced_and_ids_are_checked(dataset_id: str, expected: str) -> None:
    dataset = make_dataset([(3, "terminal"), (2, "timeout")])
    dataset.to_minari("mine/plant-v0")
    with pytest.raises(DropError, match=expected) as caught:
        dataset.to_minari(dataset_id)
    assert len(str(caught.value).splitlines()) == 1
    assert load_dataset("mine/plant-v0").n_steps == 5

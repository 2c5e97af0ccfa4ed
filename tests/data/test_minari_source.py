"""Minari datasets, made in a Minari root of their own and read back."""

from __future__ import annotations

import builtins
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import minari
import numpy as np
import pytest
from minari.data_collector import EpisodeBuffer

from droprl.data import load_dataset
from droprl.errors import DropError


def refusal(source: str, **options: Any) -> str:
    with pytest.raises(DropError) as caught:
        load_dataset(source, **options)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


def stacked_entries(steps: list[Any]) -> dict[str, Any]:
    return {
        key: stacked_entries([step[key] for step in steps]) if isinstance(entry, dict) else [s[key] for s in steps]
        for key, entry in steps[0].items()
    }


MakeMinari = Callable[..., str]


@pytest.fixture
def make_minari(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeMinari:
    """Makes a small dataset in its own Minari root and returns its id."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))

    def make(
        dataset_id: str = "mine/point/test-v0",
        observation_space: gymnasium.Space | None = None,
        action_space: gymnasium.Space | None = None,
        action: Any = None,
        **options: Any,
    ) -> str:
        observations = observation_space or gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float64)
        actions = action_space or gymnasium.spaces.Box(-2.0, 2.0, (2,), np.float32)
        for space in (observations, actions):
            space.seed(0)
        buffers = []
        for ended in ("terminated", "truncated", "neither"):
            marks = [False, False, False]
            steps = [observations.sample() for _ in range(4)]
            is_dict = isinstance(observations, gymnasium.spaces.Dict)
            stacked: Any = stacked_entries(steps) if is_dict else np.stack(steps)
            buffers.append(
                EpisodeBuffer(
                    observations=stacked,
                    actions=np.stack([actions.sample() if action is None else action for _ in marks]),
                    rewards=[1.0, 2.0, 3.0],
                    terminations=[*marks[1:], ended == "terminated"],
                    truncations=[*marks[1:], ended == "truncated"],
                )
            )
        if "env" not in options:
            options |= {"observation_space": observations, "action_space": actions}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Minari warns that the environment, the author, ... are missing
            minari.create_dataset_from_buffers(dataset_id, buffers, **options)
        return dataset_id

    return make


def test_a_minari_dataset(make_minari: MakeMinari) -> None:
    dataset_id = make_minari()
    dataset = load_dataset(dataset_id)
    assert dataset.name == dataset_id
    assert dataset.lengths.tolist() == [3, 3, 3]
    assert dataset.returns.tolist() == [6, 6, 6]
    assert dataset.ends_in_terminal.tolist() == [True, False, False]
    assert dataset.timeouts.sum() == 2
    assert not dataset.last_is_cut_short
    assert list(dataset.action_low) == [-2, -2]
    assert dataset.env is None
    assert dataset.next_observations is not None
    inside = np.delete(np.arange(9), [2, 5, 8])
    np.testing.assert_array_equal(dataset.next_observations[inside], dataset.observations[inside + 1])
    assert load_dataset(f"{dataset_id}+{dataset_id}").n_episodes == 6


def test_minari_knows_the_environment_and_the_reference_returns(make_minari: MakeMinari) -> None:
    pendulum = gymnasium.make("Pendulum-v1")
    dataset_id = make_minari(
        "pendulum-v0", pendulum.observation_space, pendulum.action_space,
        env="Pendulum-v1", ref_min_score=-1500.0, ref_max_score=-100.0,
    )  # fmt: skip
    dataset = load_dataset(dataset_id)
    assert dataset.env == "Pendulum-v1"
    assert dataset.score_range == (-1500, -100)


def test_a_dictionary_of_vectors_is_joined_in_the_order_of_its_sorted_names(make_minari: MakeMinari) -> None:
    """As in Minari's AntMaze, and with a dictionary inside. The file itself says what stands where."""
    box = gymnasium.spaces.Box
    inner = gymnasium.spaces.Dict(z=box(-1, 1, (1,)), y=box(-1, 1, ()))
    goals = {"achieved_goal": box(-9, 9, (2,)), "desired_goal": box(-9, 9, (2,))}
    space = gymnasium.spaces.Dict({"observation": box(-1, 1, (3,)), "arm": inner, **goals})
    dataset_id = make_minari(observation_space=space)
    dataset = load_dataset(dataset_id)
    assert dataset.observation_parts == (
        ("achieved_goal", 2),
        ("arm/y", 1),
        ("arm/z", 1),
        ("desired_goal", 2),
        ("observation", 3),
    )
    first = next(iter(minari.load_dataset(dataset_id).iterate_episodes())).observations
    for step in range(3):
        by_hand = [
            *first["achieved_goal"][step],
            first["arm"]["y"][step],
            *first["arm"]["z"][step],
            *first["desired_goal"][step],
            *first["observation"][step],
        ]
        np.testing.assert_array_equal(dataset.observations[step], np.array(by_hand, np.float32))
    assert dataset.next_observations is not None
    assert dataset.next_observations[0, :2].tolist() == np.float32(first["achieved_goal"][1]).tolist()


@pytest.mark.parametrize("limit", [np.inf, np.finfo(np.float32).max])
def test_minari_without_bounds_falls_back_on_the_usual_ones(make_minari: MakeMinari, limit: float) -> None:
    space = gymnasium.spaces.Box(-limit, limit, (2,), np.float32)
    assert list(load_dataset(make_minari(action_space=space, action=[0.5, 0.5])).action_high) == [1, 1]


@pytest.mark.parametrize(
    ("spaces", "expected"),
    [
        (
            {"observation_space": gymnasium.spaces.Dict(eye=gymnasium.spaces.Box(0, 255, (8, 8), np.uint8))},
            "observations 'eye' have shape ('T', 8, 8); pixel",
        ),
        (
            {"observation_space": gymnasium.spaces.Dict(gear=gymnasium.spaces.Discrete(4))},
            "observations 'gear' are Discrete",
        ),
        ({"observation_space": gymnasium.spaces.Box(0, 255, (8, 8, 3), np.uint8)}, "pixel observations"),
        ({"observation_space": gymnasium.spaces.Discrete(4)}, "observations are Discrete"),
        ({"action_space": gymnasium.spaces.Discrete(4)}, "discrete actions"),
    ],
)
def test_minari_spaces_that_are_not_supported_yet(
    make_minari: MakeMinari, spaces: dict[str, gymnasium.Space], expected: str
) -> None:
    message = refusal(make_minari(**spaces))
    assert message.startswith("mine/point/test-v0: ")
    assert expected in message
    assert "supported yet" in message


def test_minari_faults_name_the_episode_and_the_step(make_minari: MakeMinari, tmp_path: Path) -> None:
    dataset_id = make_minari()
    data = tmp_path / "minari" / dataset_id / "data" / "main_data.hdf5"
    with h5py.File(data, "a") as file:
        file["episode_1/rewards"][2] = np.nan
    assert "rewards row 5 (episode 1, step 2) is nan" in refusal(dataset_id)
    with h5py.File(data, "a") as file:
        del file["episode_2/actions"]
        file["episode_2/actions"] = np.zeros((2, 2), np.float32)
    assert "actions of episode 2 has 2 rows, not 3" in refusal(dataset_id)
    with h5py.File(data, "a") as file:
        for key in ("observations", "actions", "rewards", "terminations", "truncations"):
            empty = file[f"episode_1/{key}"][: 1 if key == "observations" else 0]
            del file[f"episode_1/{key}"]
            file[f"episode_1/{key}"] = empty
    assert "episode 1 has no steps" in refusal(dataset_id)
    metadata = data.with_name("metadata.json")
    metadata.write_text(json.dumps(json.loads(metadata.read_text()) | {"total_episodes": 0}))
    assert "no episodes" in refusal(dataset_id)


def test_unknown_minari_ids(make_minari: MakeMinari, monkeypatch: pytest.MonkeyPatch) -> None:
    message = refusal("mine/other/test-v0")
    assert "minari list local" in message
    assert "download=True" in message
    assert "no such file" in refusal("hopper-medium-v2")

    def no_network(*_: Any, **__: Any) -> None:
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(minari, "download_dataset", no_network)
    assert "could not download or read it (no route)" in refusal("mine/other/test-v0", download=True)


def test_without_minari_its_ids_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def without_minari(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "minari":
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_minari)
    assert "pip install 'droprl[minari]'" in refusal("mujoco/hopper/medium-v0")

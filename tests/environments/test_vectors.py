"""Dictionaries of vectors: one stated order in data, tasks and policies, and policies that know the names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import onnx
import pytest
from helpers.builders import small_arrays
from helpers.training import tiny

from droprl import evaluate, export_onnx, fit, load_policy
from droprl.data import Dataset, from_arrays
from droprl.environments.vector_tasks import VectorObservation, as_vector, parts_of_space
from droprl.environments.vectors import column_names, vector_of
from droprl.errors import DropError
from droprl.rollout import check_fit
from droprl.train import Run

BOX = gymnasium.spaces.Box
PARTS = (("goal", 1), ("joint/angle", 2), ("joint/speed", 1))


class Reach(gymnasium.Env[dict[str, Any], np.ndarray]):
    """A task of four steps that observes a dictionary. Its entries say which they are."""

    def __init__(self, goal_size: int = 1) -> None:
        joint = gymnasium.spaces.Dict({"speed": BOX(-9, 9, ()), "angle": BOX(-9, 9, (2,))})
        self.observation_space = gymnasium.spaces.Dict({"joint": joint, "goal": BOX(-9, 9, (goal_size,))})
        self.action_space = BOX(-1, 1, (2,))
        self._goal_size = goal_size

    def _observe(self) -> dict[str, Any]:
        joint = {"speed": np.float32(3), "angle": np.array([1.0, 2.0])}
        return {"joint": joint, "goal": np.zeros(self._goal_size) + self._step}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], Any]:
        self._step = 0
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        assert action.shape == (2,)
        self._step += 1
        return self._observe(), 1.0, False, self._step == 4, {}


def data(**changes: Any) -> Dataset:
    rng = np.random.default_rng(0)
    entries: dict[str, Any] = {
        "joint": {"speed": rng.normal(size=12), "angle": rng.normal(size=(12, 2))},
        "goal": rng.normal(size=(12, 1)),
    }
    return from_arrays(**small_arrays() | {"observations": entries, "next_observations": None} | changes)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return fit(data(), tiny("bc"), out=tmp_path_factory.mktemp("run") / "bc", steps=2, progress=False)


# --- tasks ---


def test_a_task_observes_the_entries_in_the_order_of_their_sorted_names() -> None:
    env = as_vector(Reach())
    assert isinstance(env, VectorObservation)
    assert env.observation_parts == PARTS
    assert env.observation_space.shape == (4,)
    assert env.reset(seed=0)[0].tolist() == [0, 1, 2, 3]
    assert env.step(np.zeros(2))[0].tolist() == [1, 1, 2, 3]
    assert env.observation_space.contains(env.reset(seed=0)[0])


@pytest.mark.parametrize(
    "space",
    [
        BOX(-1, 1, (3,)),
        gymnasium.spaces.Dict({"eye": BOX(0, 255, (8, 8))}),
        gymnasium.spaces.Dict({"gear": gymnasium.spaces.Discrete(3)}),
        gymnasium.spaces.Discrete(3),
    ],
)
def test_other_tasks_stay_as_they_are(space: gymnasium.Space[Any]) -> None:
    env = Reach()
    env.observation_space = space
    assert parts_of_space(space) is None
    assert as_vector(env) is env


def test_names_of_columns() -> None:
    assert column_names(PARTS, 4) == ["goal", "joint/angle[0]", "joint/angle[1]", "joint/speed"]
    assert column_names(None, 2) == ["0", "1"]


# --- runs and policies ---


def test_data_run_and_policy_know_the_order(run: Run, tmp_path: Path) -> None:
    assert data().observation_parts == PARTS
    assert Run(run.path).config.data.observation_parts == PARTS
    policy = load_policy(run.path)
    assert policy.origin.observation_parts == PARTS
    assert load_policy(policy.save(tmp_path / "policy")).origin.observation_parts == PARTS


def test_a_policy_takes_a_dictionary_in_any_order(run: Run) -> None:
    policy = load_policy(run.path)
    expected = policy.act(np.array([5.0, 1.0, 2.0, 3.0]))
    given: dict[str, Any] = {"joint": {"speed": 3.0, "angle": [1.0, 2.0]}, "goal": [5.0], "camera": "not asked for"}
    np.testing.assert_array_equal(load_policy(run.path).act(given), expected)
    batch = {"joint/speed": np.full(3, 3.0), "joint/angle": np.tile([1.0, 2.0], (3, 1)), "goal": np.full((3, 1), 5.0)}
    assert load_policy(run.path).act(batch).shape == (3, 2)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"joint/speed": 3.0, "joint/angle": [1, 2]}, "the observation has no 'goal'"),
        ({"joint/speeds": 3.0, "joint/angle": [1, 2], "goal": 5}, "no 'joint/speed' (there is 'joint/speeds')"),
        (
            {"joint/speed": 3.0, "joint/angle": [1, 2, 3], "goal": 5},
            "'joint/angle' has shape (3,): pass (2,) or (n, 2)",
        ),
        ({"joint/speed": np.ones(3), "joint/angle": np.ones((2, 2)), "goal": np.ones(3)}, "different numbers of rows"),
    ],
)
def test_dictionaries_that_do_not_fit_the_policy(run: Run, given: dict[str, Any], expected: str) -> None:
    with pytest.raises(DropError) as caught:
        load_policy(run.path).act(given)
    assert expected in str(caught.value)


def test_without_names_an_observation_is_one_array() -> None:
    with pytest.raises(DropError, match="pass one array, not a dictionary"):
        vector_of({"a": 1.0}, None, "policy")


def test_an_onnx_file_names_the_parts(run: Run, tmp_path: Path) -> None:
    export_onnx(load_policy(run.path), tmp_path / "policy.onnx")
    facts = {fact.key: fact.value for fact in onnx.load(tmp_path / "policy.onnx").metadata_props}
    assert json.loads(facts["observations"]) == [["goal", 1], ["joint/angle", 2], ["joint/speed", 1]]
    assert "actions" not in facts  # the data does not name them


def test_a_policy_plays_a_task_that_observes_a_dictionary(run: Run) -> None:
    played = evaluate(run, env=Reach, episodes=2, progress=False)
    assert played.results[0].returns == [4, 4]


def test_a_task_with_other_entries_is_refused(run: Run) -> None:
    with pytest.raises(
        DropError, match=r"observes goal \(2\), joint/angle \(2\), joint/speed, and the policy"
    ) as caught:
        evaluate(run, env=lambda: Reach(goal_size=2), episodes=1, progress=False)
    assert "was trained on goal, joint/angle (2), joint/speed" in str(caught.value)


def test_a_resumed_run_may_name_its_columns_otherwise(tmp_path: Path) -> None:
    """Nothing is learned from names, and runs of earlier versions have none."""
    dataset = data()
    first = fit(dataset, tiny("bc"), out=tmp_path / "run", steps=2, progress=False)
    plain = from_arrays(**small_arrays() | {"observations": dataset.observations, "next_observations": None})
    again = fit(plain, tiny("bc"), out=tmp_path / "run", steps=2, progress=False)
    assert again.checkpoint().path == first.checkpoint().path
    check_fit(load_policy(again.path), as_vector(Reach()))

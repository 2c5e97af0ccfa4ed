"""Every fault in raw arrays gives one line with the place, the key, the row and the remedy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.builders import small_arrays
from hypothesis import given
from hypothesis import strategies as st

from droprl.data import Dataset, from_arrays
from droprl.errors import DropError


def build(**changes: Any) -> Dataset:
    """A dataset of the small arrays, some of them replaced. Other keywords, such as `action_low`, pass through."""
    return from_arrays(**{**small_arrays(), "name": "mine.npz", **changes})


def refusal(**changes: Any) -> str:
    with pytest.raises(DropError) as caught:
        build(**changes)
    message = str(caught.value)
    assert message.startswith("mine.npz: ")
    assert len(message.splitlines()) == 1
    assert message.count(": ") >= 2, "a remedy is missing"
    return message


def changed(key: str, row: int, value: Any, dtype: Any = None) -> np.ndarray:
    array = small_arrays()[key].astype(dtype) if dtype else small_arrays()[key]
    array[row] = value
    return array


def test_valid_arrays_become_a_dataset() -> None:
    arrays = small_arrays()
    dataset = build()
    for key, array in arrays.items():
        np.testing.assert_array_equal(getattr(dataset, key), array)
    assert dataset.n_episodes == 3
    assert dataset.last_is_cut_short
    assert list(dataset.action_low) == [-1, -1]
    assert list(dataset.action_high) == [1, 1]


def test_later_changes_to_the_arrays_do_not_reach_the_dataset() -> None:
    arrays = small_arrays()
    dataset = from_arrays(**arrays)
    for array in arrays.values():
        array[:] = 0
    assert dataset.observations.any()
    assert dataset.rewards.any()
    assert dataset.terminals.any()
    assert dataset.timeouts.any()


@pytest.mark.parametrize("key", ["observations", "actions", "rewards", "terminals"])
def test_missing_keys(key: str) -> None:
    assert f"{key} is missing" in refusal(**{key: None}, **({"timeouts": None} if key == "terminals" else {}))


def test_without_terminals_every_episode_times_out() -> None:
    ends = np.isin(np.arange(12), [3, 7, 11])
    dataset = build(terminals=None, timeouts=ends)
    assert not dataset.terminals.any()
    np.testing.assert_array_equal(dataset.timeouts, ends)
    assert dataset.n_episodes == 3


def test_optional_keys_may_be_missing() -> None:
    dataset = build(timeouts=None, next_observations=None)
    assert dataset.next_observations is None
    assert dataset.n_episodes == 2


@pytest.mark.parametrize("key", ["actions", "rewards", "terminals", "timeouts", "next_observations"])
def test_lengths_that_disagree(key: str) -> None:
    assert f"{key} has 11 rows but observations has 12" in refusal(**{key: small_arrays()[key][:-1]})


def test_columns_of_next_observations_that_disagree() -> None:
    assert "next_observations has shape (12, 2)" in refusal(
        next_observations=small_arrays()["next_observations"][:, :2]
    )


@pytest.mark.parametrize(
    ("key", "shape", "remedy"),
    [
        ("observations", (12,), "reshape to (T, 1)"),
        ("actions", (12,), "reshape to (T, 1)"),
        ("actions", (12, 2, 1), "reshape to one row"),
        ("observations", (), "reshape to one row"),
        ("rewards", (12, 1), "reshape to (T,)"),
        ("terminals", (12, 1), "reshape to (T,)"),
        ("timeouts", (12, 1), "reshape to (T,)"),
        ("observations", (12, 0), "at least one number"),
        ("actions", (12, 0), "at least one number"),
    ],
)
def test_wrong_ranks(key: str, shape: tuple[int, ...], remedy: str) -> None:
    message = refusal(**{key: np.zeros(shape, np.float32)})
    assert key in message
    assert str(shape) in message
    assert remedy in message


@pytest.mark.parametrize(
    "value", [np.full((12, 3), "a"), np.full((12, 3), None), np.zeros((12, 3), complex), np.zeros(12, "datetime64[s]")]
)
def test_values_that_are_not_numbers(value: np.ndarray) -> None:
    assert "observations holds" in refusal(observations=value)


def test_rows_of_different_sizes() -> None:
    assert "observations is not an array" in refusal(observations=[[1.0], [1.0, 2.0]])


@pytest.mark.parametrize("key", ["observations", "actions", "rewards", "next_observations"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_name_the_first_bad_row(key: str, value: float) -> None:
    array = changed(key, 9, value)
    array[5] = value
    assert f"{key} row 5 is {value}" in refusal(**{key: array})


@pytest.mark.parametrize("key", ["observations", "rewards", "next_observations"])
def test_values_too_large_for_float32(key: str) -> None:
    assert f"{key} row 7 is 1e+300, too large for float32" in refusal(**{key: changed(key, 7, 1e300, np.float64)})


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int8, np.int64, np.uint8, np.bool_, ">f8"])
def test_other_number_types_become_float32(dtype: Any) -> None:
    observations = np.ones((12, 3), dtype)
    dataset = build(observations=observations, rewards=observations[:, 0], next_observations=observations)
    for array in (dataset.observations, dataset.rewards, dataset.next_observations):
        assert array is not None
        assert array.dtype == np.dtype(np.float32)
        assert (array == 1).all()


def test_actions_a_rounding_error_outside_are_clipped() -> None:
    dataset = build(actions=changed("actions", 3, [1 + 5e-5, -1 - 5e-5]))
    assert list(dataset.actions[3]) == [1, -1]


def test_actions_outside_their_bounds_name_the_row_and_the_value() -> None:
    message = refusal(actions=changed("actions", 7, [0.5, 1.37]))
    assert "actions row 7 is outside [-1, 1] (1.37 in column 1): pass action_low=/action_high=" in message
    assert "actions row 0 is outside [-0.1, 0.1]" in refusal(action_low=-0.1, action_high=0.1)


def test_bounds_may_be_given_for_all_actions_or_each() -> None:
    actions = small_arrays()["actions"] * 3
    assert list(build(actions=actions, action_low=-3, action_high=[3]).action_low) == [-3, -3]
    assert list(build(actions=actions, action_low=[-3, -4], action_high=np.array([3, 4])).action_high) == [3, 4]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1, -1, "action_low 1 is not below action_high -1"),
        ([-1, 2], [1, 2], "in column 1"),
        (-np.inf, 1, "action_low is -inf"),
        (-1, np.nan, "action_high is nan"),
        (-1, None, "action_high is missing"),
        ([-1, -1, -1], 1, "action_low has shape (3,)"),
        ("low", 1, "action_low holds"),
    ],
)
def test_wrong_bounds(low: Any, high: Any, expected: str) -> None:
    assert expected in refusal(action_low=low, action_high=high)


def test_bounds_of_the_environment_are_the_last_resort() -> None:
    actions = small_arrays()["actions"][:, :1] * 2  # Pendulum's torque lies in [-2, 2]
    assert list(build(actions=actions, env="Pendulum-v1").action_high) == [2]
    assert list(build(actions=actions / 2, env="Pendulum-v1").action_high) == [1]
    assert "outside [-1, 1]" in refusal(actions=actions, env="NoSuchTask-v0")
    assert "outside [-1, 1]" in refusal(actions=actions, env="CartPole-v1")


def test_no_episode_end() -> None:
    assert "no episode ends" in refusal(terminals=np.zeros(12), timeouts=None)
    assert "no episode ends" in refusal(terminals=np.zeros(12), timeouts=np.zeros(12))


def test_no_rows() -> None:
    empty = {key: array[:0] for key, array in small_arrays().items()}
    assert "observations has no rows" in refusal(**empty)


@pytest.mark.parametrize("key", ["terminals", "timeouts"])
@pytest.mark.parametrize("value", [2, 0.5, -1, np.nan])
def test_flags_that_are_neither_0_nor_1(key: str, value: float) -> None:
    assert f"{key} row 6 is {value:g}, neither 0 nor 1" in refusal(**{key: changed(key, 6, value, np.float64)})


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int64, np.float32])
def test_flags_of_any_number_type(dtype: Any) -> None:
    dataset = build(terminals=small_arrays()["terminals"].astype(dtype))
    assert dataset.terminals.dtype == np.bool_
    assert dataset.terminals.sum() == 1


def test_a_terminal_at_the_time_limit_is_a_terminal() -> None:
    timeouts = small_arrays()["timeouts"] | small_arrays()["terminals"]
    dataset = build(timeouts=timeouts)
    assert dataset.terminals[3]
    assert not dataset.timeouts[3]
    assert dataset.timeouts.sum() == 1


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.bool_])
@pytest.mark.parametrize("shape", [(12,), (12, 1)])
def test_discrete_actions_are_not_supported_yet(dtype: Any, shape: tuple[int, ...]) -> None:
    assert "discrete actions are not supported yet" in refusal(actions=np.zeros(shape, dtype))


def test_pixel_observations_and_dict_actions_are_not_supported_yet() -> None:
    pixels = refusal(observations=np.zeros((12, 8, 8, 3), np.uint8))
    assert "pixel observations are not supported yet" in pixels
    assert "dict actions are not supported yet" in refusal(actions={"gripper": np.zeros((12, 2))})


@pytest.mark.parametrize("score_range", [(1.0, 1.0), (2.0, 1.0), (np.nan, 1.0), (0.0, np.inf), (0.0,), "ab"])
def test_score_ranges_without_a_score(score_range: Any) -> None:
    assert "score" in refusal(score_range=score_range)


def test_a_name_of_several_lines_keeps_the_message_on_one() -> None:
    with pytest.raises(DropError) as caught:
        build(name="two\nlines", rewards=None)
    assert len(str(caught.value).splitlines()) == 1


@given(
    st.sampled_from(["observations", "actions", "rewards", "next_observations"]),
    st.integers(0, 11),
    st.sampled_from([np.nan, np.inf, -np.inf]),
)
def test_any_bad_row_is_the_row_that_is_named(key: str, row: int, value: float) -> None:
    assert f"{key} row {row} is" in refusal(**{key: changed(key, row, value)})


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=30).filter(lambda m: any(map(any, m))))
def test_episodes_cover_every_row_once_for_all_marks(marks: list[tuple[bool, bool]]) -> None:
    terminals, timeouts = np.array(marks).T
    rows = np.arange(len(marks), dtype=np.float32)
    dataset = from_arrays(rows[:, None], np.zeros((len(marks), 1)), rows, terminals, timeouts)
    assert dataset.lengths.sum() == len(marks)
    assert (dataset.lengths > 0).all()
    assert not (dataset.terminals & dataset.timeouts).any()
    np.testing.assert_allclose(dataset.returns.sum(), rows.sum())

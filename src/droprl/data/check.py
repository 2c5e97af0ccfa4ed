"""Turns raw arrays into a `Dataset`, or fails with one line that says what is wrong, where, and what to do.

The data of every source is checked here, so each fault has one check and one message. `dataset` defines what a row
means. The modules named after the file formats open files and know their layouts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from droprl.data.dataset import Dataset
from droprl.environments.ids import ForeignCode
from droprl.environments.vectors import Parts, checked_parts
from droprl.errors import DropError, reason

Bound = float | Sequence[float] | np.ndarray | None
RowLabel = Callable[[int], str]

REQUIRED_KEYS = ("observations", "actions", "rewards", "terminals")
OPTIONAL_KEYS = ("timeouts", "next_observations")
BOUND_REMEDY = "pass --action-low/--action-high, or fix the data"
VALUE_REMEDY = "fix the value, or leave that episode out"
# Rounding may put logged actions outside their bounds. An overshoot up to this share of half the range is clipped. A
# larger one is a fault.
BOUND_TOLERANCE = 1e-4


def plain_row(row: int) -> str:
    """The name of a row in a message, if the source has one row for each step."""
    return f"row {row}"


def checked_dataset(
    arrays: Mapping[str, Any],
    where: str,
    *,
    name: str,
    env: str | None = None,
    score_range: tuple[float, float] | None = None,
    time_limit: int | None = None,
    action_low: Bound = None,
    action_high: Bound = None,
    row_label: RowLabel = plain_row,
    copy: bool = False,
    observation_parts: Parts | None = None,
    action_parts: Parts | None = None,
    notes: Sequence[str] = (),
) -> Dataset:
    """Check everything that training relies on. Messages begin with `where`. `row_label` names a row of the source."""
    check_columns(arrays, where)
    present = {key: numbers(arrays[key], key, where) for key in present_keys(arrays)}
    check_shapes(present, where)
    rows: dict[str, Any] = checked_rows(present, where, row_label, copy)
    if not (rows["terminals"].any() or rows["timeouts"].any()):
        raise no_end_fault(where)
    actions = rows.pop("actions")

    def fits(low: np.ndarray, high: np.ndarray) -> bool:
        return not outside(actions, low, high).any()

    low, high = action_bounds(fits, actions.shape[1], action_low, action_high, env, where)
    return Dataset(
        actions=clipped_actions(actions, low, high, where, row_label),
        next_observations=rows.pop("next_observations", None),
        **rows,
        action_low=low,
        action_high=high,
        name=name,
        env=env,
        score_range=checked_score_range(score_range, where),
        time_limit=checked_time_limit(time_limit, where),
        observation_parts=checked_parts(observation_parts, rows["observations"].shape[1], "observation_parts", where),
        action_parts=checked_parts(action_parts, actions.shape[1], "action_parts", where),
        notes=tuple(notes),
    )


def check_columns(arrays: Mapping[str, Any], where: str) -> None:
    """Refuse data that lacks a column. Of terminals and timeouts, one is enough."""
    for key in REQUIRED_KEYS:
        if arrays.get(key) is None and not (key == "terminals" and arrays.get("timeouts") is not None):
            raise fault(where, f"{key} is missing", _missing_remedy(key))


def check_shapes(columns: Mapping[str, Any], where: str) -> None:
    """Check the shapes of columns. A column is an array, or an object with a shape and a dtype that is read later."""
    for key, column in columns.items():
        _check_shape(key, column, where)
    _check_lengths(columns, where)


def checked_rows(
    present: Mapping[str, np.ndarray], where: str, row_label: RowLabel, copy: bool = False
) -> dict[str, np.ndarray]:
    """These rows of the columns (all or some) in the types of training: finite float32, and booleans."""
    rows = {
        key: _finite_float32(present[key], key, where, row_label, copy)
        for key in ("observations", "actions", "rewards", "next_observations")
        if key in present
    }
    none = np.zeros(len(rows["rewards"]), bool)
    rows["terminals"] = flags(present["terminals"], "terminals", where, row_label) if "terminals" in present else none
    rows["timeouts"] = np.zeros_like(none)
    if "timeouts" in present:  # a step with both marks is a terminal
        rows["timeouts"] = flags(present["timeouts"], "timeouts", where, row_label) & ~rows["terminals"]
    return rows


def no_end_fault(where: str) -> DropError:
    return fault(
        where,
        "no episode ends: terminals and timeouts are false in every row",
        "mark the last step of each episode in terminals or timeouts",
    )


def fault(where: str, what: str, remedy: str) -> DropError:
    """The error for every fault. It is one line, even if a file's name or a library's message has several."""
    return DropError(" ".join(f"{where}: {what}: {remedy}".splitlines()))


def require_file(path: Path) -> None:
    """Refuse a path that cannot be read as a file, with one message for each case. Libraries mix these cases up."""
    where = str(path)
    try:
        if path.is_dir():
            raise fault(where, "is a folder, not a file", "name a file of data")
        if not path.exists():
            raise fault(where, "no such file", "check the path")
        if not path.is_file():  # open() on a pipe would never return
            raise fault(where, "is not a regular file", "name a file of data")
        with path.open("rb") as file:
            if not file.read(1):
                raise fault(where, "is empty (0 bytes)", "copy or download it again")
    except PermissionError as error:
        raise fault(where, "may not be read (permission denied)", "give yourself read permission") from error
    except (OSError, ValueError) as error:
        raise fault(where, f"cannot be opened ({reason(error)})", "check the path") from error


def numbers(value: Any, key: str, where: str) -> np.ndarray:
    """The value as an array of real numbers or booleans."""
    if isinstance(value, Mapping):
        raise dict_fault(key, where)
    try:
        array = np.asarray(value)
    except Exception as error:  # an object of the user can raise any error
        raise fault(where, f"{key} is not an array ({reason(error)})", "give every row the same size") from error
    if array.dtype.kind not in "biuf":
        raise fault(where, f"{key} holds {array.dtype}, not numbers", "store it as float32")
    return array


def flags(array: np.ndarray, key: str, where: str, row_label: RowLabel = plain_row) -> np.ndarray:
    """A column of 0 and 1 as booleans."""
    if array.dtype == np.bool_:
        return array.copy()
    wrong = ~((array == 0) | (array == 1))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise fault(where, f"{key} {row_label(row)} is {array[row]:.6g}, neither 0 nor 1", "store it as booleans")
    return array.astype(np.bool_)


def dict_fault(key: str, where: str) -> DropError:
    return fault(
        where, f"{key} is a dict; dict {key} are not supported yet", "join its entries into one array of shape (T, n)"
    )


def discrete_fault(where: str, what: str) -> DropError:
    return fault(
        where,
        f"actions are {what}; discrete actions are not supported yet",
        "use a continuous-action task, or store continuous actions as float32",
    )


def pixel_fault(where: str, shape: tuple[int | str, ...], what: str = "observations") -> DropError:
    return fault(
        where,
        f"{what} have shape {shape}; pixel observations are not supported yet",
        "use state observations, one row of numbers for each step",
    )


def checked_score_range(score_range: tuple[float, float] | None, where: str) -> tuple[float, float] | None:
    """The reference returns of the score, if they are finite and in order."""
    if score_range is None:
        return None
    try:
        low, high = (float(number) for number in score_range)
    except (TypeError, ValueError, OverflowError) as error:
        raise fault(where, f"score_range is {score_range!r}", "give two numbers: (score 0, score 100)") from error
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise fault(
            where,
            f"ref_min_score {low:g} and ref_max_score {high:g} give no score",
            "reference returns must be finite, the minimum below the maximum",
        )
    return low, high


def checked_time_limit(limit: Any, where: str) -> int | None:
    if limit is None:
        return None
    number = np.asarray(limit)
    if number.shape != () or number.dtype.kind not in "iu" or number < 1:
        raise fault(where, f"time_limit is {limit!r}", "give the most steps of an episode, a whole number of 1 or more")
    return int(number)


def present_keys(arrays: Mapping[str, Any]) -> list[str]:
    return [key for key in (*REQUIRED_KEYS, *OPTIONAL_KEYS) if arrays.get(key) is not None]


def _missing_remedy(key: str) -> str:
    if key == "terminals":
        return (
            "add terminals (1 at each step that ended the task) or timeouts (1 where only the clock ended an episode)"
        )
    shape = "(T,)" if key == "rewards" else "(T, n)"
    return f"add an array of shape {shape} under that name, one row for each step"


def _check_shape(key: str, array: np.ndarray, where: str) -> None:
    if key == "actions" and array.dtype.kind in "biu":
        raise discrete_fault(where, f"of type {array.dtype}")
    if key in ("observations", "next_observations", "actions"):
        if array.ndim >= 3 and key != "actions":
            raise pixel_fault(where, array.shape)
        if array.ndim == 1:
            raise fault(where, f"{key} has shape {array.shape}, not (T, n)", "reshape to (T, 1)")
        if array.ndim != 2:
            raise fault(
                where, f"{key} has shape {array.shape}, not (T, n)", "reshape to one row of numbers for each step"
            )
        if array.shape[1] == 0:
            raise fault(where, f"{key} has shape {array.shape}: no columns", "store at least one number for each step")
    elif array.ndim != 1:
        raise fault(where, f"{key} has shape {array.shape}, not (T,)", "reshape to (T,), one number for each step")


def _check_lengths(arrays: Mapping[str, np.ndarray], where: str) -> None:
    n_steps = len(arrays["observations"])
    for key, array in arrays.items():
        if len(array) != n_steps:
            raise fault(
                where,
                f"{key} has {len(array)} rows but observations has {n_steps}",
                "store one row for each step under every key",
            )
    if n_steps == 0:
        raise fault(where, "observations has no rows", "record at least one episode")
    following = arrays.get("next_observations")
    if following is not None and following.shape != arrays["observations"].shape:
        raise fault(
            where,
            f"next_observations has shape {following.shape} but observations has {arrays['observations'].shape}",
            "store both with the same columns, or leave next_observations out",
        )


def _finite_float32(array: np.ndarray, key: str, where: str, row_label: RowLabel, copy: bool) -> np.ndarray:
    with np.errstate(all="ignore"):
        converted = array.astype(np.float32, order="C", copy=copy)
    good = np.isfinite(converted)
    if good.all():
        return converted
    at = np.unravel_index(int(np.argmin(good)), array.shape)
    value, row = array[at], row_label(int(at[0]))
    if np.isfinite(value):
        raise fault(where, f"{key} {row} is {value:.6g}, too large for float32", VALUE_REMEDY)
    raise fault(where, f"{key} {row} is {value}", VALUE_REMEDY)


def action_bounds(
    fits: Callable[[np.ndarray, np.ndarray], bool], size: int, low: Bound, high: Bound, env: str | None, where: str
) -> tuple[np.ndarray, np.ndarray]:
    """The given bounds. Without them: [-1, 1] if the actions fit, otherwise the bounds of the task's environment.

    The environment comes last on purpose. If it came first, the same file would have other bounds on a machine without
    the environment's package, and a run could not be resumed there.
    """
    if low is not None or high is not None:
        lows, highs = _bound(low, "action_low", size, where), _bound(high, "action_high", size, where)
        if (lows >= highs).any():
            column = int(np.argmax(lows >= highs))
            raise fault(
                where,
                f"action_low {lows[column]:g} is not below action_high {highs[column]:g} in column {column}",
                "give a range with room for actions",
            )
        return lows, highs
    lows, highs = np.full(size, -1.0, np.float32), np.full(size, 1.0, np.float32)
    if not fits(lows, highs):
        try:
            from_env = _environment_bounds(env, size)
        except ForeignCode as error:
            raise ForeignCode(f"{where}: {error}") from error
        lows, highs = from_env if from_env is not None else (lows, highs)
    return lows, highs


def _bound(value: Bound, key: str, size: int, where: str) -> np.ndarray:
    if value is None:
        raise fault(where, f"{key} is missing", "give both action_low and action_high, or neither")
    bound = numbers(value, key, where)
    if bound.shape not in ((), (1,), (size,)):
        raise fault(where, f"{key} has shape {bound.shape}", f"give one number, or one for each of the {size} actions")
    with np.errstate(all="ignore"):
        bound = np.array(np.broadcast_to(bound, (size,)), dtype=np.float32)
    if not np.isfinite(bound).all():
        column = int(np.argmin(np.isfinite(bound)))
        raise fault(where, f"{key} is {bound[column]} in column {column}", "give finite bounds")
    return bound


def outside(actions: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    lows, highs = low.astype(np.float64), high.astype(np.float64)
    slack = BOUND_TOLERANCE * (highs - lows) / 2
    return np.asarray((actions < lows - slack) | (actions > highs + slack))


def clipped_actions(
    actions: np.ndarray, low: np.ndarray, high: np.ndarray, where: str, row_label: RowLabel
) -> np.ndarray:
    """Clip actions that rounding has put outside their bounds. Refuse actions that lie farther outside."""
    beyond = outside(actions, low, high)
    if not beyond.any():
        return np.clip(actions, low, high)
    row, column = np.unravel_index(int(np.argmax(beyond)), actions.shape)
    raise fault(
        where,
        f"actions {row_label(int(row))} is outside [{low[column]:g}, {high[column]:g}] "
        f"({actions[row, column]:.6g} in column {column})",
        BOUND_REMEDY,
    )


def _environment_bounds(env: str | None, size: int) -> tuple[np.ndarray, np.ndarray] | None:
    """The bounds of the Gymnasium task `env`. None if the task cannot be made or has no bounds."""
    if env is None:
        return None
    try:
        import gymnasium

        from droprl.environments.simulation import make_env

        made = make_env(env)
        space = made.action_space
        made.close()
    except ForeignCode:
        raise
    except Exception:  # an unknown or broken environment tells us no bounds
        return None
    if not isinstance(space, gymnasium.spaces.Box) or space.shape != (size,) or not space.is_bounded():
        return None
    return space.low.astype(np.float32), space.high.astype(np.float32)

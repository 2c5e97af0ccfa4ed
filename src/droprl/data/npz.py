"""NumPy `.npz` files: one's own arrays under D4RL's keys, and OGBench's goal-reaching trajectories.

OGBench stores no rewards and marks in `terminals` where a trajectory stops, which is the clock and never the task; that
last row holds the final observation beside an action that was not taken. A goal makes a task of it, by OGBench's own
single-task rule: a step taken outside the goal earns -1, one taken inside earns 0 and ends the task.
"""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from droprl.data.check import (
    OPTIONAL_KEYS,
    REQUIRED_KEYS,
    Bound,
    checked_dataset,
    fault,
    flags,
    numbers,
    pixel_fault,
    require_file,
)
from droprl.data.dataset import Dataset
from droprl.errors import DropError, reason

# OGBench's tolerances around a maze's goal: for the point, whose whole position is two numbers, and for walking bodies.
POINT_GOAL_RADIUS, BODY_GOAL_RADIUS = 1.0, 0.5
_BOUND_KEYS = ("action_low", "action_high")
_ZIP_END_BYTES = 22  # the archive's last record, which counts the arrays; longer only with a comment
_OGBENCH_KEYS = ("qpos", "masks", "valids")


def load_npz(
    path: str | Path,
    *,
    env: str | None = None,
    action_low: Bound = None,
    action_high: Bound = None,
    goal: Sequence[float] | None = None,
    goal_radius: float | None = None,
) -> Dataset:
    """Read a `.npz` file; `goal` and `goal_radius` (OGBench's tolerance by default) are for files without rewards."""
    path = Path(path)
    where = str(path)
    arrays = _read(path, where)
    if action_low is None and action_high is None:
        action_low, action_high = arrays.get("action_low"), arrays.get("action_high")
    if goal is not None and "rewards" in arrays:
        raise fault(where, "rewards are in the file, so a goal has no use", "leave --goal out")

    rows = None
    if "masks" in arrays or "valids" in arrays or ("rewards" not in arrays and "qpos" in arrays):
        arrays, rows = _ogbench_steps(arrays, where, goal, goal_radius)
    elif goal is not None:
        raise fault(where, "qpos is missing, with which a goal is compared", "name an OGBench file, or add rewards")
    return checked_dataset(
        arrays,
        where,
        name=path.stem,
        env=env,
        action_low=action_low,
        action_high=action_high,
        row_label=lambda row: f"row {row if rows is None else rows[row]}",
    )


def _read(path: Path, where: str) -> dict[str, np.ndarray]:
    """Only the keys that matter. `allow_pickle=False`: reading a stranger's file must not run its code."""
    require_file(path)
    key = ""
    try:
        loaded = np.load(path, allow_pickle=False)
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            raise fault(where, "is not an .npz archive", "save it with numpy.savez_compressed")
        with loaded as file:
            arrays = {}
            for key in (*REQUIRED_KEYS, *OPTIONAL_KEYS, *_BOUND_KEYS, *_OGBENCH_KEYS):
                if key in file.files:
                    arrays[key] = file[key]
            key = ""
            _refuse_hidden(path)
            return arrays
    except DropError:
        raise
    except Exception as error:  # a damaged archive raises nearly anything: BadZipFile, ValueError, zlib.error, ...
        if "allow_pickle" in str(error):
            what = f"{key} holds Python objects, which are not read" if key else "is not an .npz archive"
            raise fault(where, what, "save plain number arrays with numpy.savez_compressed") from error
        part = f"{key} " if key else ""
        raise fault(where, f"{part}is damaged or cut short ({reason(error)})", "copy or download it again") from error


def _refuse_hidden(path: Path) -> None:
    """Each array has a checksum, but a damaged list of contents may hide one, and `timeouts` would not be missed."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        for name in names:
            archive.open(name).close()  # compares the name in the list with the one that stands before the array
    with path.open("rb") as file:
        file.seek(-_ZIP_END_BYTES, os.SEEK_END)
        end = file.read()
    if end.startswith(b"PK\x05\x06") and int.from_bytes(end[10:12], "little") != len(names):
        raise zipfile.BadZipFile("its list of contents is not whole")


def _ogbench_steps(
    arrays: dict[str, np.ndarray], where: str, goal: Sequence[float] | None, goal_radius: float | None
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """OGBench's rows as steps under D4RL's keys, and the row of the file that each step came from."""
    arrays = _same_length(arrays, where)
    if "rewards" not in arrays and goal is None:
        raise fault(
            where,
            "rewards are missing: OGBench's trajectories have no task until they are given a goal",
            "pass --goal X Y (goal=(x, y) in Python)",
        )
    rows, stops, following = _steps(arrays, where)
    if "rewards" in arrays:
        masks = flags(arrays["masks"], "masks", where) if "masks" in arrays else np.ones(len(arrays["rewards"]), bool)
        reached, rewards = ~masks[rows], arrays["rewards"][rows]
    else:
        reached = _goal_reached(arrays, rows, where, goal or (), goal_radius)
        rewards = reached.astype(np.float32) - 1.0
    kept, terminals = _until_reached(reached, stops)
    if not kept.any():
        raise fault(where, "no step is taken outside the goal", "choose another --goal or a smaller --goal-radius")
    steps = {
        "observations": arrays["observations"][rows],
        "actions": arrays["actions"][rows],
        "rewards": rewards,
        "terminals": terminals,
        "timeouts": stops & ~terminals,
    }
    if following is not None:
        steps["next_observations"] = following
    return {key: array[kept] for key, array in steps.items()}, rows[kept]


def _same_length(arrays: dict[str, np.ndarray], where: str) -> dict[str, np.ndarray]:
    """What the conversion indexes by row must have the same rows; all else is left to `check`."""
    per_row = {key: numbers(array, key, where) for key, array in arrays.items() if key not in _BOUND_KEYS}
    for key in ("observations", "actions", "terminals"):
        if key not in per_row:
            raise fault(where, f"{key} is missing", "OGBench's files hold observations, actions, terminals and qpos")
    if per_row["observations"].ndim >= 3:
        raise pixel_fault(where, per_row["observations"].shape)
    for key, array in per_row.items():
        flat = key in ("terminals", "timeouts", "rewards", "masks", "valids")
        if array.ndim != (1 if flat else 2):
            form = "(T,)" if flat else "(T, n)"
            raise fault(where, f"{key} has shape {array.shape}, not {form}", f"reshape to {form}")
        if len(array) != len(per_row["observations"]):
            raise fault(
                where,
                f"{key} has {len(array)} rows but observations has {len(per_row['observations'])}",
                "store one row a step under every key",
            )
    if len(per_row["observations"]) == 0:
        raise fault(where, "observations has no rows", "record at least one trajectory")
    return per_row


def _steps(arrays: dict[str, np.ndarray], where: str) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """(rows that are steps, whether the trajectory stops after each, the observation after each).

    OGBench gives the same trajectories in three layouts: as downloaded, where a trajectory's last row is no step; its
    loader's "compact" form, where `valids` says so; its "regular" form, which stores `next_observations`.
    """
    observations, stops = arrays["observations"], flags(arrays["terminals"], "terminals", where)
    stops[-1] = True
    if "timeouts" in arrays:
        stops |= flags(arrays["timeouts"], "timeouts", where)
    if "next_observations" in arrays:
        return np.arange(len(stops)), stops, arrays["next_observations"]
    if "valids" in arrays:
        valid = flags(arrays["valids"], "valids", where)
        rows = np.flatnonzero(valid)
        if valid[-1]:
            raise fault(where, f"valids row {len(valid) - 1} is 1, but nothing follows it", "store 0 in the last row")
        return rows, stops[rows], observations[rows + 1]
    if "qpos" not in arrays:  # one's own arrays with `masks`: every row is a step
        return np.arange(len(stops)), stops, None
    without_step = stops & np.concatenate([[True], stops[:-1]])
    if without_step.any():
        row = int(np.argmax(without_step))
        raise fault(where, f"terminals row {row} ends a trajectory of no steps", "leave that trajectory out")
    rows = np.flatnonzero(~stops)
    return rows, stops[rows + 1], observations[rows + 1]


def _goal_reached(
    arrays: dict[str, np.ndarray], rows: np.ndarray, where: str, goal: Sequence[float], goal_radius: float | None
) -> np.ndarray:
    """Whether each step was taken inside the goal: OGBench labels a step by the position that it starts from."""
    if "qpos" not in arrays:
        raise fault(where, "qpos is missing, with which a goal is compared", "name an OGBench file, or add rewards")
    width = arrays["qpos"].shape[1]
    if not 1 <= len(goal) <= width or not all(math.isfinite(number) for number in goal):
        raise fault(where, f"goal {tuple(goal)} does not fit qpos", f"give 1 to {width} finite numbers, usually X Y")
    if goal_radius is None:
        goal_radius = POINT_GOAL_RADIUS if width == 2 else BODY_GOAL_RADIUS
    if not (math.isfinite(goal_radius) and goal_radius > 0):
        raise fault(where, f"goal_radius is {goal_radius:g}", "give a positive number")
    positions = arrays["qpos"][rows, : len(goal)].astype(np.float64)
    finite = np.isfinite(positions).all(axis=1)
    if not finite.all():
        raise fault(where, f"qpos row {rows[int(np.argmin(finite))]} is not finite", "leave that trajectory out")
    distances = np.linalg.norm(positions - np.asarray(goal, dtype=np.float64), axis=1)
    reached = distances <= goal_radius
    if not reached.any():
        nearest = int(np.argmin(distances))
        raise fault(
            where,
            f"no step comes within {goal_radius:g} of the goal; the nearest is {distances[nearest]:.3g} away, "
            f"qpos row {rows[nearest]}",
            "choose another --goal, or a larger --goal-radius",
        )
    return np.asarray(reached)


def _until_reached(reached: np.ndarray, stops: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(steps kept, terminals): each trajectory from its first step outside the goal to its first step inside.

    OGBench keeps every row and only stops the bootstrap inside the goal. As episodes, the rows inside would each be one
    step long with the best possible return, and what follows them a short episode whose return is good only because few
    steps are left; cutting by return would take both for the best behaviour. So both are dropped.
    """
    kept, terminals = np.zeros_like(reached), np.zeros_like(reached)
    begin = 0
    for end in np.flatnonzero(stops) + 1:
        inside = reached[begin:end]
        if not inside.all():
            first = begin + int(np.argmin(inside))
            hits = np.flatnonzero(reached[first:end])
            last = first + int(hits[0]) if hits.size else end - 1
            kept[first : last + 1] = True
            terminals[last] = reached[last]
        begin = int(end)
    return kept, terminals

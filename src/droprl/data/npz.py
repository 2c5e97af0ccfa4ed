"""NumPy `.npz` files: your own arrays under D4RL's keys, and OGBench's goal-reaching trajectories.

OGBench stores no rewards. Its `terminals` mark the last row of a trajectory: the time limit ended it, never the task.
That row holds the final observation, and an action that was not taken. A goal turns the trajectories into a task, by
OGBench's own single-task rule: a step taken outside the goal earns -1. A step taken inside earns 0 and ends the task.
"""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Mapping, Sequence
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
from droprl.data.claims import Claim, check_bound, check_kind, check_memory, check_packing, check_rows
from droprl.data.dataset import Dataset
from droprl.errors import DropError, reason

# OGBench's tolerances around the goal of a maze: for the point (its position is two numbers), and for walking bodies.
POINT_GOAL_RADIUS, BODY_GOAL_RADIUS = 1.0, 0.5
_BOUND_KEYS = ("action_low", "action_high")
_ZIP_END_BYTES = 22  # the last record of the archive: it has the number of arrays, and is longer only with a comment
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
    """Read an `.npz` file. `goal` and `goal_radius` (default: OGBench's tolerance) are for files without rewards."""
    path = Path(path)
    where = str(path)
    arrays = _read(path, where)
    if action_low is None and action_high is None:
        action_low, action_high = arrays.get("action_low"), arrays.get("action_high")
    if goal is not None and "rewards" in arrays:
        raise fault(where, "the file has rewards, so it needs no goal", "leave --goal out")

    rows = None
    if "masks" in arrays or "valids" in arrays or ("rewards" not in arrays and "qpos" in arrays):
        arrays, rows = _ogbench_steps(arrays, where, goal, goal_radius)
    elif goal is not None:
        raise fault(
            where, "qpos is missing, so a goal cannot be compared with it", "name an OGBench file, or add rewards"
        )
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
    """The arrays of the known keys. All headers are checked before any array is read, and no code is run: pickles are
    refused."""
    require_file(path)
    key = ""
    try:
        with path.open("rb") as file:
            if file.read(2) != b"PK":
                raise fault(where, "is not an .npz archive", "save it with numpy.savez_compressed")
        with zipfile.ZipFile(path) as archive:
            names, claims = set(archive.namelist()), dict[str, Claim]()
            for key in (*REQUIRED_KEYS, *OPTIONAL_KEYS, *_BOUND_KEYS, *_OGBENCH_KEYS):
                if f"{key}.npy" in names:
                    claims[key] = _claim(archive, key, where)
            key = ""
            _check_claims(claims, path, where)
            arrays = {}
            for key in claims:
                with archive.open(f"{key}.npy") as member:
                    arrays[key] = np.lib.format.read_array(member, allow_pickle=False)
            key = ""
            _refuse_hidden(path)
            return arrays
    except DropError:
        raise
    except Exception as error:  # a damaged archive can raise any error: BadZipFile, ValueError, zlib.error, ...
        part = f"{key} " if key else ""
        raise fault(where, f"{part}is damaged or cut short ({reason(error)})", "copy or download it again") from error


def _claim(archive: zipfile.ZipFile, key: str, where: str) -> Claim:
    """What the header of an array says. Its size must be that of the array in the archive's list of contents."""
    info = archive.getinfo(f"{key}.npy")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise fault(where, f"{key} is packed in a way that NumPy does not use", "save it with numpy.savez_compressed")
    with archive.open(info) as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
        if dtype.hasobject:
            remedy = "save plain number arrays with numpy.savez_compressed"
            raise fault(where, f"{key} holds Python objects, which may not be read", remedy)
        check_kind(key, dtype, where)
        claim = Claim(shape, dtype)
        if file.tell() + claim.n_bytes != info.file_size:
            raise ValueError(
                f"its header claims {claim.n_bytes:,} bytes, but {info.file_size - file.tell():,} are there"
            )
        return claim


def _check_claims(claims: Mapping[str, Claim], path: Path, where: str) -> None:
    for key in _BOUND_KEYS:
        if key in claims:
            check_bound(key, claims[key], where)
    check_rows({key: claim for key, claim in claims.items() if key not in _BOUND_KEYS}, where)
    check_packing(claims, path, where)
    check_memory(claims.values(), where, "split it, or use a machine with more memory")


def _refuse_hidden(path: Path) -> None:
    """Refuse a file whose damaged list of contents hides an array: a lost `timeouts` would go unnoticed."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        for name in names:
            archive.open(name).close()  # compares the name in the list with the name before the array
    with path.open("rb") as file:
        file.seek(-_ZIP_END_BYTES, os.SEEK_END)
        end = file.read()
    if end.startswith(b"PK\x05\x06") and int.from_bytes(end[10:12], "little") != len(names):
        raise zipfile.BadZipFile("its list of contents lacks an array")


def _ogbench_steps(
    arrays: dict[str, np.ndarray], where: str, goal: Sequence[float] | None, goal_radius: float | None
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """OGBench's rows as steps under D4RL's keys, and the row of each step in the file."""
    arrays = _same_length(arrays, where)
    if "rewards" not in arrays and goal is None:
        raise fault(
            where,
            "rewards are missing: OGBench's trajectories need a goal",
            "pass --goal X Y",
        )
    rows, stops, following = _steps(arrays, where)
    if "rewards" in arrays:
        masks = flags(arrays["masks"], "masks", where) if "masks" in arrays else np.ones(len(arrays["rewards"]), bool)
        reached, rewards = ~masks[rows], arrays["rewards"][rows]
    else:
        reached = _goal_reached(arrays, rows, where, goal or (), goal_radius)
        rewards = reached.astype(np.float32) - 1.0
    in_task, terminals = _until_reached(reached, stops)
    if not in_task.any():
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
    return {key: array[in_task] for key, array in steps.items()}, rows[in_task]


def _same_length(arrays: dict[str, np.ndarray], where: str) -> dict[str, np.ndarray]:
    """Check that all columns have the same number of rows, because the conversion needs it. `check` checks the rest."""
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
                "store one row for each step under every key",
            )
    if len(per_row["observations"]) == 0:
        raise fault(where, "observations has no rows", "record at least one trajectory")
    return per_row


def _steps(arrays: dict[str, np.ndarray], where: str) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """The rows that are steps, whether the trajectory stops after each of them, and the observation after each.

    OGBench has three layouts for the same trajectories. As downloaded, the last row of a trajectory is not a step. In
    the "compact" form of its loader, `valids` marks the steps. The "regular" form stores `next_observations`.
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
    if "qpos" not in arrays:  # your own arrays with `masks`: every row is a step
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
    """Whether each step was taken inside the goal. Like OGBench, go by the position at which the step starts."""
    if "qpos" not in arrays:
        raise fault(
            where, "qpos is missing, so a goal cannot be compared with it", "name an OGBench file, or add rewards"
        )
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
    """The steps of the task, and which of them are terminals.

    Each trajectory counts from its first step outside the goal to the next step inside. OGBench itself keeps every row
    and only stops the bootstrap inside the goal. Here, each row inside the goal would be an episode of one step with
    the best possible return. The rows after it would be a short episode, with a good return only because few steps are
    left. A cut by return would take both for the best behaviour. So both are dropped.
    """
    in_task, terminals = np.zeros_like(reached), np.zeros_like(reached)
    begin = 0
    for end in np.flatnonzero(stops) + 1:
        inside = reached[begin:end]
        if not inside.all():
            first = begin + int(np.argmin(inside))
            hits = np.flatnonzero(reached[first:end])
            last = first + int(hits[0]) if hits.size else end - 1
            in_task[first : last + 1] = True
            terminals[last] = reached[last]
        begin = int(end)
    return in_task, terminals

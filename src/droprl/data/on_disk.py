"""Data that stays on the disk: a folder with one `.npy` file for each column. Training reads it in place.

`drop data map` (`map_dataset`) makes the folder. It checks every row once, and `dataset.json` describes what it wrote.
To open a folder is to read the files once and compare their checksums. The rows are not checked again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from droprl.data.check import (
    OPTIONAL_KEYS,
    REQUIRED_KEYS,
    Bound,
    action_bounds,
    check_columns,
    check_shapes,
    checked_rows,
    checked_score_range,
    checked_time_limit,
    clipped_actions,
    fault,
    no_end_fault,
    numbers,
    outside,
)
from droprl.data.dataset import BLOCK_ROWS, Dataset, release
from droprl.data.held_files import HeldFiles
from droprl.data.tasks import limit_of_data
from droprl.environments.vectors import Parts, checked_parts
from droprl.errors import reason
from droprl.files.durable import sync_folder
from droprl.files.plain import check_folder, clear, fresh
from droprl.files.seals import read_sealed, sealed

DESCRIPTION = "dataset.json"
REMAKE = "make the folder again with drop data map"
_FLAGS = ("terminals", "timeouts")
_DTYPES = {key: np.dtype(bool if key in _FLAGS else np.float32) for key in REQUIRED_KEYS + OPTIONAL_KEYS}
Progress = Callable[[int, int], None]  # the number of rows done, and of all rows


def is_on_disk(path: Path) -> bool:
    """Whether this is a folder of columns, complete or not."""
    return path.is_dir() and any((path / name).exists() for name in (DESCRIPTION, *map(_file, REQUIRED_KEYS)))


def load_on_disk(folder: Path, *, env: str | None = None) -> Dataset:
    """Open a folder of columns and check that they are unchanged. The columns do not stay in memory."""
    where = str(folder)
    if not (folder / DESCRIPTION).exists():
        raise fault(where, f"has no {DESCRIPTION}, so its columns were never checked", f"drop data map {where} --out …")
    check_folder(folder)
    known = read_sealed(folder / DESCRIPTION, REMAKE)
    sums = known["sha256"] if isinstance(known.get("sha256"), dict) else {}
    files = _held(folder, known)
    for path in _paths(folder, known):
        if _digest(path) != sums.get(path.name):
            raise fault(str(path), "is damaged or cut short (its checksum differs)", REMAKE)
    return _described(folder, known, files, env)


def _paths(folder: Path, known: dict[str, Any]) -> list[Path]:
    return [folder / _file(key) for key in _keys(bool(known.get("next_observations")))]


def _held(folder: Path, known: dict[str, Any]) -> HeldFiles:
    try:
        return HeldFiles(_paths(folder, known))
    except OSError as error:
        raise fault(str(error.filename), f"cannot be read ({reason(error)})", REMAKE) from error


def _described(folder: Path, known: dict[str, Any], files: HeldFiles, env: str | None = None) -> Dataset:
    """The dataset, from its description and the headers of the files."""
    where = str(folder)
    try:
        rows = int(known["n_steps"])
        columns: dict[str, Any] = {key: _mapped(folder, key, rows) for key in _keys(known["next_observations"])}
        low, high = (np.asarray(known[key], np.float32) for key in ("action_low", "action_high"))
        sizes = {columns["actions"].shape[1:], low.shape, high.shape}
        if rows < 1 or len(sizes) > 1 or columns["observations"].ndim != 2 or low.ndim != 1:
            raise fault(where, "its columns and bounds do not fit each other", REMAKE)
        score_range = checked_score_range(known["score_range"], where)
        name, fingerprint = str(known["name"]), str(known["fingerprint"])
        task = env if env is not None else known["env"]
        parts: dict[str, Any] = {
            f"{kind}_parts": checked_parts(known.get(f"{kind}_parts"), columns[f"{kind}s"].shape[1], "its names", where)
            for kind in ("observation", "action")
        }
        if not isinstance(task, str | None):
            raise ValueError(f"env is {task!r}, not text")
        time_limit = checked_time_limit(limit_of_data(known.get("time_limit"), known["env"], env), where)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise fault(f"{where}/{DESCRIPTION}", f"is damaged ({reason(error)})", REMAKE) from error
    if not files.are_still_there():
        raise fault(where, "was changed while it was opened", "run the same command again")
    files.check()
    return Dataset(
        **{"next_observations": None} | columns,
        action_low=low,
        action_high=high,
        name=name,
        env=task,
        score_range=score_range,
        time_limit=time_limit,
        written_fingerprint=fingerprint,
        files=files,
        **parts,
    )


def _mapped(folder: Path, key: str, rows: int) -> np.ndarray:
    path = folder / _file(key)
    column = _opened(path, REMAKE)
    matrix = key in ("observations", "actions", "next_observations")
    if (
        column.dtype != _DTYPES[key]
        or column.ndim != 1 + matrix
        or not column.flags.c_contiguous
        or len(column) != rows
    ):
        raise fault(str(path), f"holds {column.shape} of {column.dtype}, not {rows:,} rows of {_DTYPES[key]}", REMAKE)
    return column


def _opened(path: Path, remedy: str) -> np.ndarray:
    try:
        return np.asanyarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except Exception as error:  # a damaged header can raise any error, even one of tokenize
        raise fault(str(path), f"is damaged or cut short ({reason(error)})", remedy) from error


@contextmanager
def opened_columns(folder: Path) -> Iterator[dict[str, np.ndarray]]:
    """The user's own columns, not yet checked: D4RL's keys as `.npy` files in a folder."""
    check_folder(folder, file_links=False)
    paths = {key: folder / _file(key) for key in (*REQUIRED_KEYS, *OPTIONAL_KEYS)}
    remedy = "save plain number arrays with numpy.save"
    yield {key: _opened(path, remedy) for key, path in paths.items() if path.exists()}


def write_on_disk(
    columns: Mapping[str, Any],
    out: Path,
    where: str,
    *,
    name: str,
    env: str | None = None,
    score_range: tuple[float, float] | None = None,
    time_limit: int | None = None,
    action_low: Bound = None,
    action_high: Bound = None,
    observation_parts: Parts | None = None,
    action_parts: Parts | None = None,
    progress: Progress = lambda done, total: None,
) -> Dataset:
    """Check the columns and write them block by block. Only one block is in memory. A failure leaves no `out` behind.

    A column is an array, or another object with a shape, a dtype, and rows that a slice reads.
    """
    if out.exists():
        raise fault(str(out), "exists already", "choose another --out, or remove it")
    check_columns(columns, where)
    for key, column in columns.items():
        numbers(column[:1], key, where)
    check_shapes(columns, where)
    size, total = columns["actions"].shape[1], len(columns["observations"])

    def fits(low: np.ndarray, high: np.ndarray) -> bool:
        return not any(outside(columns["actions"][rows], low, high).any() for rows in _blocks(total))

    low, high = action_bounds(fits, size, action_low, action_high, env, where)
    known: dict[str, Any] = {
        "name": name,
        "env": env,
        "score_range": checked_score_range(score_range, where),
        "time_limit": checked_time_limit(time_limit, where),
        "action_low": low.tolist(),
        "action_high": high.tolist(),
        "n_steps": total,
        "next_observations": "next_observations" in columns,
        "observation_parts": checked_parts(
            observation_parts, columns["observations"].shape[1], "observation_parts", where
        ),
        "action_parts": checked_parts(action_parts, size, "action_parts", where),
    }
    partial = out.with_name(f".partial-{out.name}")
    try:
        clear(partial)
        partial.mkdir(parents=True)
        _write_columns(columns, partial, where, low, high, progress)
        written: dict[str, Any] = {key: _mapped(partial, key, total) for key in _keys("next_observations" in columns)}
        dataset = Dataset(**{"next_observations": None} | written, action_low=low, action_high=high, name=name)
        known["fingerprint"] = dataset.fingerprint
        known["sha256"] = {_file(key): _digest(partial / _file(key)) for key in written}
        with fresh(partial / DESCRIPTION) as file:
            file.write(sealed(known))
            file.flush()
            os.fsync(file.fileno())
        sync_folder(partial)
        os.replace(partial, out)
    except OSError as error:
        raise fault(str(out), f"cannot be written ({reason(error)})", "check the folder and the space left") from error
    finally:
        clear(partial)
    sync_folder(out.parent)
    return _described(out, known, _held(out, known))


def _write_columns(
    columns: Mapping[str, Any], folder: Path, where: str, low: np.ndarray, high: np.ndarray, progress: Progress
) -> None:
    total, ended = len(columns["observations"]), False
    files = {}
    try:
        for key in _keys("next_observations" in columns):
            files[key] = fresh(folder / _file(key))
            _write_header(files[key], key, (total, *columns[key].shape[1:]) if key in columns else (total,))
        for block in _blocks(total):
            progress(block.start, total)

            def label(row: int, first: int = block.start) -> str:
                return f"row {first + row}"

            rows = checked_rows({key: np.asarray(column[block]) for key, column in columns.items()}, where, label)
            rows["actions"] = clipped_actions(rows["actions"], low, high, where, label)
            ended = ended or bool(rows["terminals"].any() or rows["timeouts"].any())
            for key, file in files.items():
                file.write(np.ascontiguousarray(rows[key]).data)
            release(*columns.values())
        if not ended:
            raise no_end_fault(where)
        for file in files.values():
            file.flush()
            os.fsync(file.fileno())
    finally:
        for file in files.values():
            file.close()


def _write_header(file: BinaryIO, key: str, shape: tuple[int, ...]) -> None:
    descr = np.lib.format.dtype_to_descr(_DTYPES[key])
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})


def _keys(following: bool) -> list[str]:
    """The keys of the columns in a folder, with `next_observations` or without."""
    return [*REQUIRED_KEYS, "timeouts", *(["next_observations"] if following else [])]


def _blocks(total: int) -> Iterator[slice]:
    return (slice(begin, min(begin + BLOCK_ROWS, total)) for begin in range(0, total, BLOCK_ROWS))


def _file(key: str) -> str:
    return f"{key}.npy"


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise fault(str(path), f"cannot be read ({reason(error)})", REMAKE) from error

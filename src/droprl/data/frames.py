"""Datasets from tables with named columns: `from_frame` for data frames, `import_table` for CSV and Parquet files."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from droprl.data.check import Bound
from droprl.data.dataset import Dataset
from droprl.data.meaning import Meaning, Missing, RewardAt, dataset_of
from droprl.data.tables import CsvOptions, open_table, table_of_frame
from droprl.errors import DropError

_OPTION = re.compile(r"--([a-z][a-z-]*)(?: (?=(?:COLUMN|N|60s|hold|drop|end)\b))?")


def import_table(path: str | Path, meaning: Meaning, csv: CsvOptions | None = None) -> Dataset:
    """A dataset from a CSV or Parquet file."""
    path = Path(path)
    return dataset_of(open_table(path, csv), meaning, path.stem)


def from_frame(
    frame: Any,
    *,
    observations: str | Sequence[str],
    actions: str | Sequence[str],
    reward: str,
    episode: str | None = None,
    terminal: str | None = None,
    reward_at: RewardAt = "each",
    time: str | None = None,
    time_format: str | None = None,
    gap: str | float | None = None,
    length: int | None = None,
    horizon: int | None = None,
    missing: Missing = "refuse",
    action_low: Bound = None,
    action_high: Bound = None,
    env: str | None = None,
    time_limit: int | None = None,
    name: str = "frame",
) -> Dataset:
    """A dataset from a data frame of pandas or polars, an Arrow table, or a dict of columns: one row for each step.

    `observations` and `actions` are names of columns, or patterns such as "temp*". A column may hold lists of one size.
    Episodes come from the column `episode`, from pauses longer than `gap` in the column `time` (such as "60s"), from a
    fixed `length`, or the log is cut on purpose into pieces of at most `horizon` rows. An episode whose last row is not
    marked in the column `terminal` counts as timed out. With `reward_at="end"` an episode has one reward, the last that
    its rows have. `missing` says what happens with empty cells: "refuse", "hold" the last value, or "drop" the episode.
    Without bounds, the actions' bounds are their smallest and largest logged values. What was done with the rows is in
    `dataset.notes`.
    """
    bounds = [
        value if value is None else tuple(np.ravel(np.asarray(value, float)).tolist())
        for value in (action_low, action_high)
    ]
    meaning = Meaning(
        observations=(observations,) if isinstance(observations, str) else tuple(observations),
        actions=(actions,) if isinstance(actions, str) else tuple(actions),
        reward=reward,
        reward_at=reward_at,
        terminal=terminal,
        episode=episode,
        time=time,
        time_format=time_format,
        gap=None if gap is None else str(gap),
        length=length,
        horizon=horizon,
        missing=missing,
        action_low=bounds[0],
        action_high=bounds[1],
        env=env,
        time_limit=time_limit,
    )
    try:
        dataset = dataset_of(table_of_frame(frame, name), meaning, name)
    except DropError as error:
        raise DropError(_in_python(str(error))) from error
    return dataclasses.replace(dataset, notes=tuple(map(_in_python, dataset.notes)))


def _in_python(text: str) -> str:
    """The same sentence with Python's arguments: `gap=60s` for `--gap 60s`."""
    return _OPTION.sub(lambda found: f"{found[1].replace('-', '_')}=", text)

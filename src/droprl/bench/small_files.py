"""The small files of a suite: what must be in each of them. Others may have made the folder."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from droprl.errors import DropError, reason
from droprl.evaluation import Evaluation
from droprl.files.settings import check_fields
from droprl.train.run import checked_entry

AGAIN = "restore the file, or remove it and run the suite again"


@dataclass(frozen=True)
class Costs:
    """What training cost, in the process that ended it."""

    train_seconds: float
    updates: int
    updates_per_second: float
    peak_memory_mb: float
    device: str


@dataclass(frozen=True)
class DataRecord:
    """What identifies the data that a method learned from. It holds no path: paths differ between machines."""

    source: str  # names of files, a Minari id, or what was made
    sha256: dict[str, str]  # by file name
    origin: str | None  # what the files say about their origin
    made: bool  # whether it was made on the spot
    fingerprint: str  # of the arrays, as in a run's config.json
    steps: int
    episodes: int


@dataclass(frozen=True)
class Searched:
    """The episodes by which a search chooses, see `droprl.bench.searched`."""

    step: int
    first_env_seed: int
    adaptation: dict[str, Any] | None
    returns: dict[str, list[float]]  # by the training seed


_NEEDED: dict[str, tuple[type[Any], tuple[str, ...]]] = {  # by the folder that they are in
    "plays": (
        Evaluation,
        ("results", "protocol", "adaptation", "dataset", "env", "unit", "milliseconds_per_action"),
    ),
    "costs": (Costs, ()),
    "data": (DataRecord, tuple(DataRecord.__dataclass_fields__)),
    "search": (Searched, tuple(Searched.__dataclass_fields__)),
}


def checked(name: str, content: Any, where: Path) -> Any:
    """The content of the small file with this path in the folder of its suite."""
    kind = name.split("/")[0]
    if kind in _NEEDED:
        check_fields(_NEEDED[kind][0], content, _NEEDED[kind][1], str(where), AGAIN)
        if kind == "plays" and not content["results"]:
            raise DropError(f"{where}: has no episodes: {AGAIN}")
        if kind == "search" and not all(re.fullmatch("[0-9]{1,10}", seed) for seed in content["returns"]):
            raise DropError(f"{where}: returns are not of seeds: {AGAIN}")
    elif not name.endswith("/config.json"):  # of a log; its reader checks a config
        try:
            for entry in content:
                checked_entry(entry)
        except (TypeError, ValueError) as error:
            raise DropError(f"{where}: is not a log ({reason(error)}): {AGAIN}") from error
    return content


def checked_records(content: Any, where: Path) -> dict[str, list[dict[str, Any]]]:
    """The records of the data in suite.json, for each task."""
    if not isinstance(content, dict) or not all(isinstance(records, list) for records in content.values()):
        raise DropError(f"{where}: its records of the data are damaged: {AGAIN}")
    for records in content.values():
        for record in records:
            checked("data", record, where)
    return content

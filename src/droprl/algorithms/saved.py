"""Algorithms as JSON: the name and the settings."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any

from droprl.algorithms import ALGORITHMS, Algorithm
from droprl.errors import DropError
from droprl.files.seals import RESTORE
from droprl.files.settings import from_dict, shown


def algorithm_to_dict(algorithm: Algorithm) -> dict[str, Any]:
    return {"name": algorithm.name, **dataclasses.asdict(typing.cast(Any, algorithm))}


def algorithm_from_dict(content: Any, where: str, remedy: str = RESTORE) -> Algorithm:
    fields = dict(content) if isinstance(content, dict) else {}
    name = fields.pop("name", None)
    if not isinstance(name, str) or name not in ALGORITHMS:
        raise DropError(f"{where}: unknown algorithm {shown(name)}: this version knows {', '.join(ALGORITHMS)}")
    algorithm: Algorithm = from_dict(ALGORITHMS[name], {**ALGORITHMS[name].card.absent, **fields}, where, remedy)
    for field, value in vars(algorithm).items():
        if isinstance(value, int) and abs(value) >= 2**31:
            raise DropError(f"{where}: {field} is {shown(value)}: it must be less than 2³¹: {remedy}")
    return algorithm

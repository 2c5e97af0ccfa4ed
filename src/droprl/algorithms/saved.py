"""Algorithms as JSON: the name and the settings."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any

from droprl.algorithms import ALGORITHMS, Algorithm
from droprl.errors import DropError
from droprl.files.seals import RESTORE
from droprl.files.settings import from_dict


def algorithm_to_dict(algorithm: Algorithm) -> dict[str, Any]:
    return {"name": algorithm.name, **dataclasses.asdict(typing.cast(Any, algorithm))}


def algorithm_from_dict(content: Any, where: str, remedy: str = RESTORE) -> Algorithm:
    fields = dict(content) if isinstance(content, dict) else {}
    name = fields.pop("name", None)
    if not isinstance(name, str) or name not in ALGORITHMS:
        raise DropError(f"{where}: unknown algorithm {name!r}: this version knows {', '.join(ALGORITHMS)}")
    return from_dict(ALGORITHMS[name], fields, where, remedy)

"""Observations as a dictionary of arrays, joined to one matrix in the stated order of `environments.vectors`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from droprl.data.check import fault, numbers, pixel_fault
from droprl.environments.vectors import Parts, leaves


def flattened(arrays: Mapping[str, Any], where: str) -> tuple[dict[str, Any], Parts | None]:
    """The arrays with observations as one matrix. If they are a dictionary, its entries are joined, and named in the
    parts."""
    if not isinstance(arrays.get("observations"), Mapping):
        return dict(arrays), None
    joined, parts = joined_entries(arrays["observations"], "observations", where)
    found = dict(arrays) | {"observations": joined}
    if arrays.get("next_observations") is not None:
        if not isinstance(arrays["next_observations"], Mapping):
            raise fault(where, "next_observations is not a dict, as observations is", "store both in the same way")
        found["next_observations"], following = joined_entries(arrays["next_observations"], "next_observations", where)
        if following != parts:
            raise fault(
                where, "next_observations has other entries than observations", "store the same entries in both"
            )
    return found, parts


def joined_entries(content: Mapping[Any, Any], key: str, where: str) -> tuple[np.ndarray, Parts]:
    """One matrix of a dictionary of arrays, one row for each step, and the parts of its columns."""
    columns, parts = [], list[tuple[str, int]]()
    for name, value in leaves(content):
        column = numbers(value, f"{key} {name!r}", where)
        if column.ndim >= 3:
            raise pixel_fault(where, column.shape, f"{key} {name!r}")
        if column.ndim == 0:
            raise fault(where, f"{key} {name!r} is one number", "store one row for each step")
        columns.append(column[:, None] if column.ndim == 1 else column)
        if len(columns[-1]) != len(columns[0]):
            what = f"{key} {name!r} has {len(columns[-1])} rows but {parts[0][0]!r} has {len(columns[0])}"
            raise fault(where, what, "store one row for each step in every entry")
        parts.append((name, columns[-1].shape[1]))
    if not columns:
        raise fault(where, f"{key} is a dict without entries", "store at least one array")
    return np.concatenate(columns, axis=1), tuple(part for part in parts if part[1])

"""Observations that are a dictionary of vectors, flattened to one vector by one stated order, in data and in tasks.

The order: entries sorted by their name, and a dictionary inside a dictionary in the place of its own name. Its entries
are called `outer/inner`. `Parts` says which entry stands where. It goes with the data, the run and the policy.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from droprl.errors import DropError

Parts = tuple[tuple[str, int], ...]  # the name of each part of a vector and how many numbers it has, in their order
ORDER = "sorted by name"
MOST_NAME = 200  # characters


def leaves(content: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The entries by their full name, in the order in which they are flattened."""
    for key in sorted(content, key=str):
        if isinstance(content[key], Mapping):
            yield from leaves(content[key], f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", content[key]


def column_names(parts: Parts | None, size: int) -> list[str]:
    """A name for each number of the vector: the part, and the place inside it if the part has several numbers."""
    if parts is None:
        return [str(i) for i in range(size)]
    return [name if n == 1 else f"{name}[{i}]" for name, n in parts for i in range(n)]


def shown_parts(parts: Parts, most: int = 6) -> str:
    """The parts as a message shows them."""
    shown = [name if n == 1 else f"{name} ({n})" for name, n in parts[:most]]
    return ", ".join([*shown, f"and {len(parts) - most} more"] if len(parts) > most else shown)


def checked_parts(content: Any, size: int, what: str, where: str) -> Parts | None:
    """The parts from a file of a stranger: pairs of a name and a size, which fill the vector and repeat no name."""
    if content is None:
        return None
    pairs = [tuple(pair) for pair in content] if _is_pairs(content) else []
    if not pairs or sum(n for _, n in pairs) != size or len({name for name, _ in pairs}) != len(pairs):
        raise DropError(f"{where}: {what} do not name the {size} columns: write the data again, or remove {what}")
    return tuple(pairs)


def _is_pairs(content: Any) -> bool:
    return isinstance(content, Sequence) and all(
        isinstance(pair, list | tuple)
        and len(pair) == 2
        and isinstance(pair[0], str)
        and 0 < len(pair[0]) <= MOST_NAME
        and isinstance(pair[1], int)
        and not isinstance(pair[1], bool)
        and pair[1] >= 1
        for pair in content
    )


def vector_of(observation: Mapping[Any, Any], parts: Parts | None, where: str) -> np.ndarray:
    """One observation, or a batch of them, from a dictionary. The order is that of the parts, not of the dictionary."""
    if parts is None:
        raise DropError(f"{where}: the names of its observations are not known: pass one array, not a dictionary")
    given, columns = dict(leaves(observation)), []
    for name, size in parts:
        if name not in given:
            near = difflib.get_close_matches(name, given, 1)
            hint = f" (there is {near[0]!r})" if near else ""
            raise DropError(f"{where}: the observation has no {name!r}{hint}: pass {shown_parts(parts)}")
        column = np.asarray(given[name])
        if size == 1 and column.shape != (1,) and column.ndim < 2:
            column = column[..., None]
        if column.ndim not in (1, 2) or column.shape[-1] != size:
            raise DropError(f"{where}: {name!r} has shape {column.shape}: pass ({size},) or (n, {size})")
        columns.append(column)
    if len({column.shape[:-1] for column in columns}) > 1:
        rows = ", ".join(f"{name} {column.shape}" for (name, _), column in zip(parts, columns, strict=True))
        raise DropError(f"{where}: the entries have different numbers of rows ({rows}): pass one row of each")
    return np.concatenate(columns, axis=-1)

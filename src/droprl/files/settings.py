"""Frozen dataclasses from JSON. A value that does not have its field's type is refused by the field's name."""

from __future__ import annotations

import dataclasses
import math
import numbers
import types
import typing
from collections.abc import Iterable
from typing import Any, TypeVar

from droprl.errors import DropError
from droprl.files.seals import RESTORE

T = TypeVar("T")
MOST_SHOWN = 100  # characters of a value in an error


def from_dict(kind: type[T], content: Any, where: str, remedy: str = RESTORE) -> T:
    """A dataclass from the dict that `asdict` and JSON made of it. Every value must have its field's type."""
    if not isinstance(content, dict):
        raise DropError(f"{where}: holds no {kind.__name__}: {remedy}")
    hints = typing.get_type_hints(kind)
    known = {f.name for f in dataclasses.fields(typing.cast(Any, kind))}
    for name in content:
        if name not in known:
            raise DropError(f"{where}: {kind.__name__} has no field {name!r}: was it written by a newer version?")
    try:
        return kind(**{name: checked_value(hints[name], value, name, where, remedy) for name, value in content.items()})
    except (TypeError, ValueError, OverflowError) as error:  # OverflowError: a whole number too large for a float
        raise DropError(f"{where}: {error}: {remedy}") from error


def check_fields(kind: type[Any], content: Any, needed: Iterable[str], where: str, remedy: str = RESTORE) -> None:
    """Check a dict that has fields of this dataclass. Older files lack some of them, and newer files have others."""
    if not isinstance(content, dict):
        raise DropError(f"{where}: holds no {kind.__name__}: {remedy}")
    hints = typing.get_type_hints(kind)
    try:
        for name in needed:
            if name not in content:
                raise ValueError(f"it has no {name}")
        for name in hints.keys() & content.keys():
            checked_value(hints[name], content[name], name, where, remedy)
    except (TypeError, ValueError, OverflowError) as error:
        raise DropError(f"{where}: {error}: {remedy}") from error


def checked_value(hint: Any, value: Any, name: str, where: str, remedy: str) -> Any:
    """The value as its field's type hint asks for it, for example a tuple from a list."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        hint = next(h for h in arguments if h is not type(None))
        return checked_value(hint, value, name, where, remedy)
    if dataclasses.is_dataclass(hint):
        return from_dict(typing.cast(type[Any], hint), value, where, remedy)
    if origin is dict:
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            raise ValueError(f"{name} is {shown(value)}, not a table")
        return {key: checked_value(arguments[1], v, f"{name}.{key}", where, remedy) for key, v in value.items()}
    if origin is list:
        if not isinstance(value, list):
            raise ValueError(f"{name} is {shown(value)}, not a list")
        return [checked_value(arguments[0], v, name, where, remedy) for v in value]
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ValueError(f"{name} is {shown(value)}, not a list")
        each = [arguments[0]] * len(value) if arguments[-1] is ... else list(arguments)
        if len(each) != len(value):
            raise ValueError(f"{name} has {len(value)} entries, not {len(each)}")
        return tuple(checked_value(h, v, name, where, remedy) for h, v in zip(each, value, strict=True))
    if origin is typing.Literal:
        if value not in arguments:
            raise ValueError(f"{name} is {shown(value)}, not one of {', '.join(map(repr, arguments))}")
        return value
    return _plain(hint, value, name)


def shown(value: Any) -> str:
    """A value of a stranger as an error shows it."""
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**20 else "a number of many digits"
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"


def _plain(kind: type, value: Any, name: str) -> Any:
    """A bool, int, float or text of exactly this kind. A wrong one would fail later with a less clear message."""
    is_bool = isinstance(value, bool)
    if kind is int and (is_bool or not isinstance(value, numbers.Integral) or abs(int(value)) >= 2**63):
        raise ValueError(f"{name} is {shown(value)}, not a whole number of at most 19 digits")
    if kind is float and (is_bool or not isinstance(value, numbers.Real) or not math.isfinite(value)):
        raise ValueError(f"{name} is {shown(value)}, not a finite number")
    if kind in (bool, str) and not isinstance(value, kind):
        raise ValueError(f"{name} is {shown(value)}, not {'true or false' if kind is bool else 'text'}")
    return kind(value) if kind in (bool, int, float, str) else value


def differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    """The settings in which two configs differ, as `name old → new`."""
    found = []
    for name in sorted(old.keys() | new.keys()):
        a, b = old.get(name), new.get(name)
        if isinstance(a, dict) and isinstance(b, dict):
            found += differences(a, b, f"{prefix}{name}.")
        elif a != b:
            found.append(f"{prefix}{name} {a} → {b}")
    return found

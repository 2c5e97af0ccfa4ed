"""The settings of any algorithm, found by its fields and their types, and other, odd and wrong values for them."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator
from typing import Any

from droprl.errors import DropError

Setting = tuple[str, ...]  # the path of a setting: its name, after the names of the settings that hold it


def settings_of(config: Any, path: Setting = ()) -> Iterator[tuple[Setting, Any, Any]]:
    """The path, the type and the value of every setting, those of nested settings one by one."""
    hints = typing.get_type_hints(type(config))
    for name in (field.name for field in dataclasses.fields(config)):
        value = getattr(config, name)
        if dataclasses.is_dataclass(value):
            yield from settings_of(value, (*path, name))
        else:
            yield (*path, name), hints[name], value


def changed(config: Any, path: Setting, value: Any) -> Any:
    """The config with another value at this path."""
    name, *rest = path
    new = changed(getattr(config, name), tuple(rest), value) if rest else value
    return dataclasses.replace(config, **{name: new})


def changed_or_refused(config: Any, path: Setting, value: Any) -> tuple[Any, str]:
    """The changed config, or None and the reason against it."""
    try:
        return changed(config, path, value), ""
    except DropError as error:
        return None, str(error)


def plain_type(hint: Any) -> Any:
    """The type without `| None`."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return next(h for h in typing.get_args(hint) if h is not type(None))
    return hint


def of_wrong_type(hint: Any, value: Any) -> list[Any]:
    """Values that no setting of this type may have. `value` is one that it may have."""
    kind = plain_type(hint)
    missing = [None] if kind is hint else []
    if typing.get_origin(kind) is tuple:
        kinds = typing.get_args(kind)
        entries = [(wrong, *value[1:]) for wrong in of_wrong_type(kinds[0], value[0])]
        longer = [] if kinds[-1] is ... else [(*value, value[0])]
        return [*missing, *entries, value[0], "text", *longer]
    if typing.get_origin(kind) is typing.Literal:
        return [*missing, "no such choice", 1]
    wrong = {int: ["3", 2.5, True, [3]], float: ["0.5", True, [0.5]], bool: ["true", 1], str: [1, ["text"]]}
    return [*missing, *wrong[kind]]


def odd_numbers(hint: Any, value: Any) -> list[Any]:
    """-1 and 0, as a number of this type or as every entry of a tuple."""
    kind = plain_type(hint)
    if typing.get_origin(kind) is tuple:
        return [tuple(odd for _ in value) for odd in odd_numbers(typing.get_args(kind)[0], value[0])]
    return [kind(-1), kind(0)] if kind in (int, float) else []


def altered(config: Any) -> Any:
    """A config in which no setting has its default."""
    for path, hint, value in settings_of(config):
        config = changed(config, path, _other(hint, value))
    return config


def _other(hint: Any, value: Any) -> Any:
    kind = plain_type(hint)
    if value is None:
        is_choice = typing.get_origin(kind) is typing.Literal
        return typing.get_args(kind)[0] if is_choice else {int: 3, float: 0.25}[kind]
    if typing.get_origin(kind) is tuple:
        return tuple(entry + 1 for entry in value)
    if typing.get_origin(kind) is typing.Literal:
        return next(choice for choice in typing.get_args(kind) if choice != value)
    if kind is float:
        return value - 0.125 if value > 0.875 else value + 0.125  # a share stays one
    return not value if kind is bool else value + 1

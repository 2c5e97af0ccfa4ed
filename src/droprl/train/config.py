"""What a run is: everything needed to repeat it, as frozen dataclasses that go to JSON and come back."""

from __future__ import annotations

import dataclasses
import math
import numbers
import types
import typing
from dataclasses import dataclass
from typing import Any, TypeVar

from droprl.algorithms import ALGORITHMS, Algorithm
from droprl.data.dataset import Dataset
from droprl.errors import DropError
from droprl.seals import RESTORE

T = TypeVar("T")


@dataclass(frozen=True)
class DataConfig:
    """Which data a run learns from, and where its policy is to be judged."""

    source: str
    name: str
    fingerprint: str
    n_steps: int
    n_episodes: int
    env: str | None
    score_range: tuple[float, float] | None


@dataclass(frozen=True)
class RunConfig:
    algorithm: Algorithm
    data: DataConfig
    seeds: tuple[int, ...]
    steps: int
    checkpoint_every: int
    log_every: int


def data_config(dataset: Dataset, source: str) -> DataConfig:
    return DataConfig(
        source=source,
        name=dataset.name,
        fingerprint=dataset.fingerprint,
        n_steps=dataset.n_steps,
        n_episodes=dataset.n_episodes,
        env=dataset.env,
        score_range=dataset.score_range,
    )


def algorithm_to_dict(algorithm: Algorithm) -> dict[str, Any]:
    return {"name": algorithm.name, **dataclasses.asdict(typing.cast(Any, algorithm))}


def algorithm_from_dict(content: Any, where: str, remedy: str = RESTORE) -> Algorithm:
    fields = dict(content) if isinstance(content, dict) else {}
    name = fields.pop("name", None)
    if not isinstance(name, str) or name not in ALGORITHMS:
        raise DropError(f"{where}: unknown algorithm {name!r}: this version knows {', '.join(ALGORITHMS)}")
    return from_dict(ALGORITHMS[name], fields, where, remedy)


def run_config_to_dict(config: RunConfig) -> dict[str, Any]:
    fields = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    return fields | {"algorithm": algorithm_to_dict(config.algorithm), "data": dataclasses.asdict(config.data)}


def run_config_from_dict(content: Any, where: str) -> RunConfig:
    try:
        algorithm = algorithm_from_dict(content["algorithm"], where)
        data = from_dict(DataConfig, content["data"], where)
        hints = typing.get_type_hints(RunConfig)
        names = ("seeds", "steps", "checkpoint_every", "log_every")
        rest = {name: _value(hints[name], content[name], name, where, RESTORE) for name in names}
        return RunConfig(algorithm=algorithm, data=data, **rest)
    except (KeyError, TypeError, ValueError) as error:
        raise DropError(f"{where}: is not a run's config ({error}): {RESTORE}") from error


def from_dict(kind: type[T], content: Any, where: str, remedy: str = RESTORE) -> T:
    """A dataclass from what `asdict` and JSON made of it; every value must be of its field's type."""
    if not isinstance(content, dict):
        raise DropError(f"{where}: holds no {kind.__name__}: {remedy}")
    hints = typing.get_type_hints(kind)
    known = {f.name for f in dataclasses.fields(typing.cast(Any, kind))}
    for name in content:
        if name not in known:
            raise DropError(f"{where}: {kind.__name__} has no field {name!r}: was it written by a newer version?")
    try:
        return kind(**{name: _value(hints[name], value, name, where, remedy) for name, value in content.items()})
    except (TypeError, ValueError, OverflowError) as error:  # a whole number may be too large for a float
        raise DropError(f"{where}: {error}: {remedy}") from error


def _value(hint: Any, value: Any, name: str, where: str, remedy: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        hint = next(h for h in arguments if h is not type(None))
        return _value(hint, value, name, where, remedy)
    if dataclasses.is_dataclass(hint):
        return from_dict(typing.cast(type[Any], hint), value, where, remedy)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ValueError(f"{name} is {value!r}, not a list")
        each = [arguments[0]] * len(value) if arguments[-1] is ... else list(arguments)
        if len(each) != len(value):
            raise ValueError(f"{name} has {len(value)} entries, not {len(each)}")
        return tuple(_value(h, v, name, where, remedy) for h, v in zip(each, value, strict=True))
    if origin is typing.Literal:
        if value not in arguments:
            raise ValueError(f"{name} is {value!r}, none of {', '.join(map(repr, arguments))}")
        return value
    return _plain(hint, value, name)


def _plain(kind: type, value: Any, name: str) -> Any:
    """A bool, whole number, number or text; anything else would fail much later and say much less."""
    is_bool = isinstance(value, bool)
    if kind is int and (is_bool or not isinstance(value, numbers.Integral)):
        raise ValueError(f"{name} is {value!r}, not a whole number")
    if kind is float and (is_bool or not isinstance(value, numbers.Real) or not math.isfinite(value)):
        raise ValueError(f"{name} is {value!r}, not a finite number")
    if kind in (bool, str) and not isinstance(value, kind):
        raise ValueError(f"{name} is {value!r}, not {'true or false' if kind is bool else 'text'}")
    return kind(value) if kind in (bool, int, float, str) else value


def differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    """Where two configs disagree, as `name old → new`."""
    found = []
    for name in sorted(old.keys() | new.keys()):
        a, b = old.get(name), new.get(name)
        if isinstance(a, dict) and isinstance(b, dict):
            found += differences(a, b, f"{prefix}{name}.")
        elif a != b:
            found.append(f"{prefix}{name} {a} → {b}")
    return found

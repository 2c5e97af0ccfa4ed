"""What a run is: everything needed to repeat it, as frozen dataclasses that go to JSON and come back."""

from __future__ import annotations

import dataclasses
import types
import typing
from dataclasses import dataclass
from typing import Any, TypeVar

from droprl.algorithms import ALGORITHMS, Algorithm
from droprl.data.dataset import Dataset
from droprl.errors import DropError

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


def algorithm_from_dict(content: dict[str, Any], where: str) -> Algorithm:
    fields = dict(content)
    name = fields.pop("name", None)
    if name not in ALGORITHMS:
        raise DropError(f"{where}: unknown algorithm {name!r}: this version knows {', '.join(ALGORITHMS)}")
    return from_dict(ALGORITHMS[name], fields, where)


def run_config_to_dict(config: RunConfig) -> dict[str, Any]:
    fields = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    return fields | {"algorithm": algorithm_to_dict(config.algorithm), "data": dataclasses.asdict(config.data)}


def run_config_from_dict(content: dict[str, Any], where: str) -> RunConfig:
    try:
        algorithm = algorithm_from_dict(content["algorithm"], where)
        data = from_dict(DataConfig, content["data"], where)
        numbers = {name: int(content[name]) for name in ("steps", "checkpoint_every", "log_every")}
        return RunConfig(algorithm=algorithm, data=data, seeds=tuple(content["seeds"]), **numbers)
    except (KeyError, TypeError, ValueError) as error:
        raise DropError(f"{where}: is not a run's config ({error}): restore the file or train again") from error


def from_dict(kind: type[T], content: dict[str, Any], where: str) -> T:
    """A dataclass from what `asdict` and JSON made of it."""
    hints = typing.get_type_hints(kind)
    known = {f.name for f in dataclasses.fields(typing.cast(Any, kind))}
    for name in content:
        if name not in known:
            raise DropError(f"{where}: {kind.__name__} has no field {name!r}: was it written by a newer version?")
    try:
        return kind(**{name: _value(hints[name], value, where) for name, value in content.items()})
    except (TypeError, ValueError) as error:
        raise DropError(f"{where}: {error}: restore the file or train again") from error


def _value(hint: Any, value: Any, where: str) -> Any:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        if value is None:
            return None
        hint = next(h for h in typing.get_args(hint) if h is not type(None))
    if dataclasses.is_dataclass(hint) and isinstance(value, dict):
        return from_dict(typing.cast(type[Any], hint), value, where)
    if typing.get_origin(hint) is tuple:
        return tuple(value)
    if typing.get_origin(hint) is typing.Literal and value not in typing.get_args(hint):
        raise ValueError(f"{value!r} is none of {', '.join(map(repr, typing.get_args(hint)))}")
    return value


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

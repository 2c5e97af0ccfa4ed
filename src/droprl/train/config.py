"""The config of a run: everything needed to repeat it, as frozen dataclasses that are saved as JSON."""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass
from typing import Any, TypeVar

from droprl.algorithms import Algorithm
from droprl.algorithms.saved import algorithm_from_dict, algorithm_to_dict
from droprl.data.dataset import Dataset
from droprl.errors import DropError
from droprl.files.seals import RESTORE
from droprl.files.settings import checked_value, from_dict

T = TypeVar("T")


@dataclass(frozen=True)
class DataConfig:
    """The data that a run learns from, and the task that its policy is evaluated in."""

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


def run_config_to_dict(config: RunConfig) -> dict[str, Any]:
    fields = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    return fields | {"algorithm": algorithm_to_dict(config.algorithm), "data": dataclasses.asdict(config.data)}


def run_config_from_dict(content: Any, where: str) -> RunConfig:
    try:
        algorithm = algorithm_from_dict(content["algorithm"], where)
        data = from_dict(DataConfig, content["data"], where)
        hints = typing.get_type_hints(RunConfig)
        names = ("seeds", "steps", "checkpoint_every", "log_every")
        rest = {name: checked_value(hints[name], content[name], name, where, RESTORE) for name in names}
        return RunConfig(algorithm=algorithm, data=data, **rest)
    except (KeyError, TypeError, ValueError) as error:
        raise DropError(f"{where}: is not a run's config ({error}): {RESTORE}") from error

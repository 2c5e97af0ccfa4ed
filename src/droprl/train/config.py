"""The config of a run: everything needed to repeat it, as frozen dataclasses that are saved as JSON."""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass
from typing import Any, TypeVar

from droprl.algorithms import Algorithm
from droprl.algorithms.saved import algorithm_from_dict, algorithm_to_dict
from droprl.data.dataset import Dataset
from droprl.data.tasks import known_time_limit
from droprl.environments.vectors import Parts
from droprl.errors import DropError, SettingError, require
from droprl.files.seals import RESTORE
from droprl.files.settings import checked_value, from_dict, shown

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
    time_limit: int | None = None
    observation_parts: Parts | None = None
    """The name and size of each part of an observation, in their order, if the data names them."""
    action_parts: Parts | None = None


@dataclass(frozen=True)
class RunConfig:
    algorithm: Algorithm
    data: DataConfig
    seeds: tuple[int, ...]
    steps: int
    checkpoint_every: int
    log_every: int
    earlier_steps: tuple[int, ...] = ()
    """The totals that the run was first trained to, if it went on to more updates. Each has a checkpoint and a line of
    the log."""

    def __post_init__(self) -> None:
        require(self, "at least 1", "steps", "checkpoint_every", "log_every")
        seeds = self.seeds
        if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0 or max(seeds) >= 2**32:
            raise SettingError(f"seeds {shown(list(seeds))}: give different seeds from 0 to 2³² − 1, at least one")
        require(self, "at least 1", "earlier_steps")
        totals = [*self.earlier_steps, self.steps]
        if sorted(set(totals)) != totals:
            raise SettingError(f"earlier_steps {shown(list(self.earlier_steps))}: they must rise up to steps")


def data_config(dataset: Dataset, source: str) -> DataConfig:
    return DataConfig(
        source=source,
        name=dataset.name,
        fingerprint=dataset.fingerprint,
        n_steps=dataset.n_steps,
        n_episodes=dataset.n_episodes,
        env=dataset.env,
        score_range=dataset.score_range,
        time_limit=dataset.time_limit,
        observation_parts=dataset.observation_parts,
        action_parts=dataset.action_parts,
    )


def with_time_limit(content: Any, name: str) -> Any:
    """Files of older versions do not state the task's time limit. It is then known by the dataset's name."""
    if not isinstance(content, dict) or "time_limit" in content:
        return content
    return content | {"time_limit": known_time_limit(str(content.get(name)), content.get("env"))}


def run_config_to_dict(config: RunConfig) -> dict[str, Any]:
    fields = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    if not config.earlier_steps:  # most runs have none, and older versions know none
        del fields["earlier_steps"]
    return fields | {"algorithm": algorithm_to_dict(config.algorithm), "data": dataclasses.asdict(config.data)}


def run_config_from_dict(content: Any, where: str) -> RunConfig:
    try:
        algorithm = algorithm_from_dict(content["algorithm"], where)
        data = from_dict(DataConfig, with_time_limit(content["data"], "name"), where)
        hints = typing.get_type_hints(RunConfig)
        names = ["seeds", "steps", "checkpoint_every", "log_every"]
        names += ["earlier_steps"] if "earlier_steps" in content else []
        rest = {name: checked_value(hints[name], content[name], name, where, RESTORE) for name in names}
        return RunConfig(algorithm=algorithm, data=data, **rest)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise DropError(f"{where}: is not a run's config ({error}): {RESTORE}") from error

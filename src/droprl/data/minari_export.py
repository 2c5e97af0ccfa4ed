"""Writes a dataset as a Minari dataset into the local Minari root. `minari_source` reads it back.

A Minari episode of T steps has T + 1 observations. Where the state after the last step is not known, the last
observation is repeated, and the metadata says so.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from droprl.errors import DropError, reason

if TYPE_CHECKING:
    from droprl.data.dataset import Dataset

REPEATED = "droprl_last_observation_repeated"
MINARI_PARTS = {"observation_parts": "droprl_observation_parts", "action_parts": "droprl_action_parts"}


def export_minari(dataset: Dataset, dataset_id: str) -> str:
    """Returns the id. A dataset that is already there stays."""
    try:
        import minari
    except ImportError as error:
        raise DropError(
            f"{dataset_id}: to export to Minari, Minari is needed and not installed: pip install 'droprl[minari]'"
        ) from error
    import gymnasium

    try:
        _parse(dataset_id)
        exists = Path(minari.storage.get_dataset_path(dataset_id)).exists()
    except Exception as error:  # what is wrong with an id is Minari's own matter
        raise DropError(
            f"{dataset_id}: is not a Minari id ({reason(error)}): give one such as mine/plant-v0"
        ) from error
    if exists:
        raise DropError(f"{dataset_id}: exists already: choose another id, or run `minari delete {dataset_id}`")
    observations = gymnasium.spaces.Box(-np.inf, np.inf, (dataset.observation_size,), np.float32)
    actions = gymnasium.spaces.Box(dataset.action_low, dataset.action_high, dtype=np.float32)
    known: dict[str, Any] = {REPEATED: dataset.next_observations is None}
    for key, name in MINARI_PARTS.items():
        if (parts := getattr(dataset, key)) is not None:
            known[name] = json.dumps(parts)
    if dataset.score_range is not None:
        known["ref_min_score"], known["ref_max_score"] = dataset.score_range
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Minari asks for an author, a link to code, ...
            made = minari.create_dataset_from_buffers(
                dataset_id,
                _episodes(dataset),
                env=_spec(dataset),
                observation_space=observations,
                action_space=actions,
                description=f"Exported by droprl from {dataset.name}.",
            )
            made.storage.update_metadata(known)
    except Exception as error:  # full disks, ids that Minari refuses, environments that cannot be made, ...
        raise DropError(
            f"{dataset_id}: Minari could not write it ({reason(error)}): see `minari list local`"
        ) from error
    return dataset_id


def _parse(dataset_id: str) -> None:
    from minari.dataset.minari_dataset import parse_dataset_id

    parse_dataset_id(dataset_id)


def _episodes(dataset: Dataset) -> list[Any]:
    from minari.data_collector import EpisodeBuffer

    found = []
    for number, (begin, end) in enumerate(zip(dataset.bounds[:-1], dataset.bounds[1:], strict=True)):
        following = dataset.next_observations if dataset.next_observations is not None else dataset.observations
        terminals = np.asarray(dataset.terminals[begin:end])
        ends = np.arange(begin, end) == end - 1
        found.append(
            EpisodeBuffer(
                id=number,
                observations=np.concatenate([dataset.observations[begin:end], following[end - 1 : end]]),
                actions=np.asarray(dataset.actions[begin:end]),
                rewards=np.asarray(dataset.rewards[begin:end], np.float64).tolist(),
                terminations=terminals.tolist(),
                truncations=(ends & ~terminals).tolist(),
            )
        )
    return found


def _spec(dataset: Dataset) -> Any:
    """The task, if it can be made on this machine. Without it, the dataset names no task."""
    from droprl.environments.simulation import make_env

    if dataset.env is None:
        return None
    try:
        env = make_env(dataset.env, dataset.time_limit)
        env.close()
    except DropError:
        return None
    return env.spec

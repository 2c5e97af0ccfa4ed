"""Minari datasets from the local Minari root, or downloaded if asked. Minari is an optional extra.

A Minari episode of T steps holds T + 1 observations, so the observation after the last step of an episode is known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from droprl.data.check import (
    Bound,
    checked_dataset,
    dict_fault,
    discrete_fault,
    fault,
    flags,
    numbers,
    pixel_fault,
    require_file,
)
from droprl.data.claims import check_memory, check_packing
from droprl.data.dataset import Dataset
from droprl.data.dictionaries import joined_entries
from droprl.data.hdf5 import claims_in
from droprl.data.minari_export import MINARI_PARTS, REPEATED
from droprl.data.tasks import limit_of_data
from droprl.environments.vectors import leaves
from droprl.errors import DropError, reason
from droprl.files.plain import check_folder
from droprl.files.seals import parse_json, read_json

# A Box with ± the largest float as bounds means "no bounds", like ± infinity.
_UNBOUNDED = 1e18
MOST_NUMBERS = 2**24  # of an observation, pixels too
_AGAIN = "download it again, or record it again with a Minari of today"


def load_minari(
    dataset_id: str,
    *,
    download: bool = False,
    env: str | None = None,
    action_low: Bound = None,
    action_high: Bound = None,
) -> Dataset:
    """Read a Minari dataset by id. An episode without a flag at its end was cut short and counts as timed out."""
    try:
        import minari
    except ImportError as error:
        raise fault(
            dataset_id, "no such file; if this is a Minari id, Minari is not installed", "pip install 'droprl[minari]'"
        ) from error
    from droprl.environments.vector_tasks import parts_of_space  # it imports Gymnasium

    try:
        folder = Path(minari.storage.get_dataset_path(dataset_id)) / "data"
        if download and not folder.exists():
            minari.download_dataset(dataset_id)
        if not folder.exists():
            raise FileNotFoundError(folder)
        _check_files(folder)
        source = minari.load_dataset(dataset_id)
        _refuse_spaces(source.observation_space, source.action_space, dataset_id)
        stored = list(source.iterate_episodes())  # all at once: an error in between would leave the file open
        metadata = dict(source.storage.metadata)
        env_spec = source.env_spec
    except DropError:
        raise
    except FileNotFoundError as error:
        raise _unknown(dataset_id) from error
    except Exception as error:  # damaged files and failed downloads can raise any error
        if download:
            raise fault(
                dataset_id, f"Minari could not download or read it ({reason(error)})", "see `minari list remote`"
            ) from error
        raise fault(
            dataset_id,
            f"Minari could not read it ({reason(error)})",
            f"delete it with `minari delete {dataset_id}` and load it again with --download",
        ) from error
    episodes = [_episode(episode, number, dataset_id) for number, episode in enumerate(stored)]
    if not episodes:
        raise fault(dataset_id, "the dataset has no episodes", "record at least one episode")
    if action_low is None and action_high is None:
        action_low, action_high = _box_bounds(source.action_space)
    starts = np.cumsum([0, *(len(episode["rewards"]) for episode in episodes)])
    arrays = _joined(episodes, dataset_id)
    if metadata.get(REPEATED):  # our own export did not know the state after the last step
        del arrays["next_observations"]
    named, limit = (env_spec.id, env_spec.max_episode_steps) if env_spec is not None else (None, None)
    return checked_dataset(
        arrays,
        dataset_id,
        name=dataset_id,
        env=env if env is not None else named,
        time_limit=limit_of_data(limit, named, env),
        score_range=_score_range(metadata, dataset_id),
        action_low=action_low,
        action_high=action_high,
        row_label=lambda row: _row_label(row, starts),
        observation_parts=parts_of_space(source.observation_space) or _parts(metadata, "observation_parts", dataset_id),
        action_parts=_parts(metadata, "action_parts", dataset_id),
    )


def _parts(metadata: Mapping[str, Any], key: str, where: str) -> Any:
    """The names of columns that our own export has written. `checked_dataset` compares them with the columns."""
    stored = metadata.get(MINARI_PARTS[key])
    try:
        return None if stored is None else parse_json(str(stored))
    except ValueError as error:
        raise fault(where, f"its {MINARI_PARTS[key]} are damaged ({reason(error)})", _AGAIN) from error


def _check_files(folder: Path) -> None:
    """Refuse what Minari would follow or believe: links, sizes, and an environment that the file tells it to make."""
    check_folder(folder, file_links=False)
    described, main = folder / "metadata.json", folder / "main_data.hdf5"
    metadata = read_json(described, _AGAIN, infinity=True)
    if not isinstance(metadata, dict):
        raise fault(str(described), "holds no settings", _AGAIN)
    if metadata.get("data_format", "hdf5") != "hdf5":
        what = f"the data is stored as {metadata['data_format']!r}"
        raise fault(str(described), what, "record it with Minari's data_format='hdf5'")
    for name in ("observation_space", "action_space"):  # without them, Minari calls the entry point that the file names
        if not isinstance(metadata.get(name), str):
            raise fault(str(described), f"has no {name}", _AGAIN)
        _check_space(parse_json(metadata[name], infinity=True), name, str(described))
    require_file(main)
    with h5py.File(main, "r") as file:
        claims = claims_in(file, str(main))
        n_episodes = metadata.get("total_episodes")
        if not isinstance(n_episodes, int) or n_episodes > len(file):
            raise fault(str(described), f"claims {n_episodes!r} episodes, but {len(file)} are there", _AGAIN)
    check_packing(claims, main, str(main))
    check_memory(claims.values(), str(main), "use a machine with more memory")


def _check_space(content: Any, name: str, where: str) -> None:
    """Refuse a space whose shape has far more numbers than any task."""
    parts = content.values() if isinstance(content, dict) else content if isinstance(content, list) else ()
    shape = content.get("shape", []) if isinstance(content, dict) else []
    if not isinstance(shape, list) or not all(isinstance(n, int) for n in shape) or math.prod(shape) > MOST_NUMBERS:
        raise fault(where, f"{name} has shape {shape!r}", _AGAIN)
    for part in parts:
        if isinstance(part, dict | list):
            _check_space(part, name, where)


def _unknown(dataset_id: str) -> DropError:
    return fault(
        dataset_id,
        "no such file, and no such dataset in the local Minari root",
        "see `minari list local`, or add --download to fetch it (MINARI_DATASETS_PATH names another root)",
    )


def _refuse_spaces(observation_space: Any, action_space: Any, where: str) -> None:
    """Refuse unsupported spaces, before gigabytes of images are decoded."""
    from gymnasium import spaces

    if isinstance(observation_space, spaces.Dict):
        _refuse_entries(observation_space, where)
    if isinstance(action_space, spaces.Dict):
        raise dict_fault("actions", where)
    if isinstance(action_space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        raise discrete_fault(where, f"{type(action_space).__name__}")
    for key, space in (("observations", observation_space), ("actions", action_space)):
        if key == "observations" and isinstance(space, spaces.Dict):
            continue
        if not isinstance(space, spaces.Box):
            raise fault(where, f"{key} are {type(space).__name__}; only Box {key} are supported yet", "use a Box space")
    if len(observation_space.shape or ()) >= 2:
        raise pixel_fault(where, ("T", *observation_space.shape))


def _refuse_entries(space: Any, where: str) -> None:
    """A dictionary of vectors is joined to one vector. Other entries are refused by name."""
    from gymnasium import spaces

    for name, entry in leaves(space):
        what = f"observations {name!r}"
        if isinstance(entry, spaces.Box) and len(entry.shape) >= 2:
            raise pixel_fault(where, ("T", *entry.shape), what)
        if not isinstance(entry, spaces.Box):
            raise fault(where, f"{what} are {type(entry).__name__}; only Box entries are supported yet", "leave it out")


def _episode(episode: Any, number: int, where: str) -> dict[str, np.ndarray]:
    """One episode's rows: `observations` without its last entry, `next_observations` without its first."""
    observations = episode.observations
    if isinstance(observations, Mapping):
        observations, _ = joined_entries(observations, "observations", f"{where} episode {number}")
    arrays: Mapping[str, Any] = {
        "observations": observations,
        "actions": episode.actions,
        "rewards": episode.rewards,
        "terminals": episode.terminations,
        "timeouts": episode.truncations,
    }
    rows = {key: numbers(value, key, f"{where} episode {number}") for key, value in arrays.items()}
    for key, array in rows.items():
        if array.ndim == 0:
            raise fault(where, f"{key} of episode {number} is not an array", "store one row for each step")
    n_steps = len(rows["rewards"])
    if n_steps == 0:
        raise fault(where, f"rewards: episode {number} has no steps", "leave that episode out")
    for key, array in rows.items():
        expected = n_steps + 1 if key == "observations" else n_steps
        if len(array) != expected:
            raise fault(
                where,
                f"{key} of episode {number} has {len(array)} rows, not {expected} (rewards has {n_steps})",
                "record the episode again, or leave it out",
            )
    rows["next_observations"], rows["observations"] = rows["observations"][1:], rows["observations"][:-1]
    for key in ("terminals", "timeouts"):
        if rows[key].ndim != 1:
            raise fault(where, f"{key} of episode {number} has shape {rows[key].shape}, not (T,)", "reshape to (T,)")
        rows[key] = flags(rows[key], key, f"{where} episode {number}")
    if not rows["terminals"][-1]:
        rows["timeouts"][-1] = True
    return rows


def _joined(episodes: list[dict[str, np.ndarray]], where: str) -> dict[str, np.ndarray]:
    joined = {}
    for key in episodes[0]:
        parts = [episode[key] for episode in episodes]
        for number, part in enumerate(parts):
            if part.shape[1:] != parts[0].shape[1:]:
                raise fault(
                    where,
                    f"{key} of episode {number} has shape {part.shape}, unlike episode 0's {parts[0].shape}",
                    "store the same columns in every episode",
                )
        joined[key] = np.concatenate(parts)
    return joined


def _box_bounds(space: Any) -> tuple[Bound, Bound]:
    low, high = np.asarray(space.low), np.asarray(space.high)
    if not ((np.abs(low) < _UNBOUNDED).all() and (np.abs(high) < _UNBOUNDED).all()):
        return None, None
    return low.reshape(-1), high.reshape(-1)


def _score_range(metadata: Mapping[str, Any], where: str) -> tuple[float, float] | None:
    low, high = metadata.get("ref_min_score"), metadata.get("ref_max_score")
    if low is None or high is None:
        return None
    try:
        return float(low), float(high)
    except (TypeError, ValueError, OverflowError) as error:
        raise fault(where, "ref_min_score and ref_max_score are not numbers", "store them as numbers") from error


def _row_label(row: int, starts: np.ndarray) -> str:
    episode = int(np.searchsorted(starts, row, side="right")) - 1
    return f"row {row} (episode {episode}, step {row - int(starts[episode])})"

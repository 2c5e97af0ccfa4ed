"""LeRobot datasets: folders of Parquet files, v2.0 and v2.1 (a file for each episode) and v3 (files of many episodes).

Observations are the vectors among the features `observation.*`. Images and videos are named and left out. The reward is
the success label: 1 at the first successful frame, where the episode ends. If every frame of an episode has the label,
it belongs to the episode, and is paid at its last frame. Data: `data/*/*.parquet`; facts: `meta/info.json`, and
`meta/episodes.jsonl` (v2) or `meta/episodes/*/*.parquet` (v3). The templates of paths in `info.json` are not followed.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from droprl.data.check import fault
from droprl.data.columns import flags_of, numbers_of
from droprl.data.dataset import Dataset
from droprl.data.meaning import Meaning, dataset_of
from droprl.data.tables import Table, arrow, find_columns, open_parquet
from droprl.environments.vectors import MOST_NAME, Parts
from droprl.files.plain import check_folder
from droprl.files.seals import parse_json, read_json
from droprl.files.storage import read_lines

INFO = Path("meta") / "info.json"
AGAIN = "download the dataset again"
SUCCESS = ("next.success", "success", "is_success", "episode_success")
_SUCCESS, _ENDED = "success (reward)", "success (end)"  # the two columns that are made of the label
_EPISODE, _FRAME = "episode_index", "frame_index"
_NUMBERS = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "bool")
_IMAGES = ("image", "video")


def is_lerobot(folder: Path) -> bool:
    return (folder / INFO).is_file()


def load_lerobot(folder: str | Path, meaning: Meaning | None = None, successes: str | None = None) -> Dataset:
    """A dataset from a LeRobot folder.

    `meaning` overrules what is said above: other features as observations, actions or reward, and bounds of actions.
    `successes` names the successful episodes where the data has no label: "all", or for example "0-9,12".
    """
    folder = Path(folder)
    asked, known = meaning or Meaning(), _Folder.opened(folder)
    for option in ("episode", "time", "gap", "length"):
        if getattr(asked, option) is not None:
            raise fault(known.where, f"a LeRobot dataset knows its episodes, so it needs no {option}", "leave it out")
    table = known.table()
    actions = find_columns(table, asked.actions or ("action",), "--actions", ())
    if not (asked.observations or known.vectors):
        what = f"has no observation that is a vector{known.images_said()}"
        raise fault(known.where, what, "record states or joints beside the images")
    observations = find_columns(table, asked.observations or known.vectors, "--observations", actions)
    found = dataclasses.replace(asked, observations=observations, actions=actions, episode=_EPISODE, time=_FRAME)
    notes = [f"LeRobot {known.version}, {known.n_episodes:,} episodes"]
    if asked.reward is None:
        reward, said = known.success(table, successes)
        table = _with_columns(table, {_SUCCESS: reward, _ENDED: _until_the_end(reward, known.episode(table))})
        found = dataclasses.replace(found, reward=_SUCCESS, terminal=asked.terminal or _ENDED)
        notes.append(said)
    elif successes is not None:
        raise fault(known.where, "--successes and --reward both say what is rewarded", "give one of them")
    dataset = dataset_of(table, found, folder.resolve().name)
    notes += [*dataset.notes[:1], *(note for note in dataset.notes[1:] if not note.startswith("not used"))]
    return dataclasses.replace(
        dataset,
        observation_parts=known.named(dataset.observation_parts),
        action_parts=known.named(dataset.action_parts),
        notes=(*notes, *known.left_out(observations, actions)),
    )


@dataclass(frozen=True)
class _Folder:
    """What `meta/` says."""

    path: Path
    version: str
    n_episodes: int
    n_frames: int
    features: Mapping[str, Any]
    n_tasks: int

    @classmethod
    def opened(cls, path: Path) -> _Folder:
        where = str(path / INFO)
        arrow(str(path))
        check_folder(path, file_links=False)
        info = read_json(path / INFO, AGAIN)
        if not isinstance(info, dict) or not isinstance(info.get("features"), dict):
            raise fault(where, "has no features", AGAIN)
        version = info.get("codebase_version")
        if not isinstance(version, str) or not re.fullmatch(r"v(2\.[01]|3\.\d+)", version):
            remedy = "convert it with LeRobot's own scripts to v2.1 or v3.0"
            raise fault(where, f"its version is {str(version)[:20]!r}; v2.0, v2.1 and v3 are supported", remedy)
        counts = {key: info.get(key) for key in ("total_episodes", "total_frames")}
        for key, count in counts.items():
            if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count < 2**40:
                raise fault(where, f"{key} is {str(count)[:20]}", AGAIN)
        tasks = info.get("total_tasks")
        return cls(
            path,
            version,
            counts["total_episodes"] or 0,
            counts["total_frames"] or 0,
            {name: feature for name, feature in info["features"].items() if isinstance(feature, dict)},
            tasks if isinstance(tasks, int) else 1,
        )

    @property
    def where(self) -> str:
        return str(self.path)

    @property
    def vectors(self) -> tuple[str, ...]:
        """The features that are observed: vectors, sorted by name."""
        return tuple(
            sorted(name for name in self.features if name.startswith("observation.") and self._is_vector(name))
        )

    @property
    def images(self) -> list[str]:
        return sorted(name for name, feature in self.features.items() if feature.get("dtype") in _IMAGES)

    def _is_vector(self, name: str) -> bool:
        feature = self.features[name]
        shape = feature.get("shape")
        return feature.get("dtype") in _NUMBERS and isinstance(shape, list) and len(shape) == 1

    def images_said(self) -> str:
        return f" (its images: {', '.join(self.images[:6])}; pixels are not supported yet)" if self.images else ""

    def left_out(self, observations: Sequence[str], actions: Sequence[str]) -> Iterator[str]:
        if self.images:
            yield f"left out, because pixels are not supported yet: {', '.join(self.images)}"
        used = {*observations, *actions, *self.images, _EPISODE, _FRAME, "timestamp", "index", "task_index"}
        others = sorted(name for name in self.features if name not in used)
        if others:
            yield f"not used: {', '.join(others[:12])}" + (f" and {len(others) - 12} more" if len(others) > 12 else "")
        if self.n_tasks > 1:
            yield (
                f"WARNING: it mixes {self.n_tasks:,} tasks, which the policy cannot tell apart unless an observation "
                "says which: train on one task, or observe it"
            )

    def named(self, parts: Parts | None) -> Parts | None:
        """The parts by the names of the motors, where the features give each number a name of its own."""
        if parts is None:
            return None
        names = {name: self._motor_names(name, size) for name, size in parts}
        every = [one for name, size in parts for one in (names[name] or [name])]
        if len(set(every)) < len(every):  # two features have motors of the same name
            names = {name: motors and [f"{name}.{motor}" for motor in motors] for name, motors in names.items()}
        found: list[tuple[str, int]] = []
        for name, size in parts:
            motors = names[name]
            found += [(name, size)] if motors is None else [(motor, 1) for motor in motors]
        return tuple(found) if len({name for name, _ in found}) == len(found) else parts

    def _motor_names(self, name: str, size: int) -> list[str] | None:
        names = self.features.get(name, {}).get("names")
        if isinstance(names, dict) and len(names) == 1:  # {"motors": [...]}
            names = next(iter(names.values()))
        is_list = isinstance(names, list) and len(names) == size > 1
        if not is_list or not all(isinstance(one, str) and 0 < len(one) <= MOST_NAME for one in names):
            return None
        return list(names) if len(set(names)) == size else None

    # --- frames ---

    def table(self) -> Table:
        """All frames in the order of episodes, as one table. Files are read when columns are asked for."""
        files = sorted(self.path.glob("data/*/*.parquet"))
        if not files:
            raise fault(self.where, "has no data/*/*.parquet", AGAIN)
        tables = [open_parquet(file) for file in files]
        n_rows = sum(table.n_rows or 0 for table in tables)
        if n_rows != self.n_frames:
            what = f"claims {self.n_frames:,} frames, and its files have {n_rows:,}"
            raise fault(self.where, what, f"{AGAIN}: a file is missing, or does not belong to it")
        names = tuple(name for name in tables[0].names if all(name in table.names for table in tables))
        for name in (_EPISODE, _FRAME):
            if name not in names:
                raise fault(self.where, f"its files have no {name}", AGAIN)

        def read(wanted: Sequence[str]) -> Any:
            import pyarrow as pa

            parts = [table.read(list(wanted)).replace_schema_metadata() for table in tables]
            try:
                return pa.concat_tables(parts, promote_options="permissive")
            except pa.ArrowException as error:
                raise fault(self.where, "its files have columns of different types", AGAIN) from error

        starts = np.cumsum([0, *(table.n_rows or 0 for table in tables)])

        def label(row: int) -> str:
            file = int(np.searchsorted(starts, row, side="right")) - 1
            return f"row {row - int(starts[file])} of {files[file].relative_to(self.path)}"

        table = Table(self.where, names, n_rows, read, label)
        found = len(np.unique(self.episode(table)))
        if found != self.n_episodes:
            what = f"claims {self.n_episodes:,} episodes, and its files have {found:,}"
            raise fault(self.where, what, f"{AGAIN}: a file is missing, or does not belong to it")
        return table

    def episode(self, table: Table) -> np.ndarray:
        """(T,) the episode of each frame. LeRobot writes episodes one after another."""
        column = table.read([_EPISODE]).column(0)
        found = numbers_of(column, _EPISODE, self.where, table.row_label)[:, 0]
        if np.isnan(found).any() or (np.diff(found) < 0).any():
            raise fault(self.where, f"{_EPISODE} falls or is empty in its files", AGAIN)
        return found.astype(np.int64)

    # --- success ---

    def success(self, table: Table, given: str | None) -> tuple[np.ndarray, str]:
        """(T,) the reward of each frame, from the label of success, and a sentence that says which."""
        episode = self.episode(table)
        if given is not None:
            ids = np.unique(episode)
            good = ids if given.strip().lower() == "all" else _numbers(given, ids, self.where)
            said = f"reward: 1 at the end of the {len(good):,} episodes that --successes names"
            return _paid(np.isin(episode, good), episode), said
        for name in SUCCESS:
            if name in table.names:
                label = flags_of(table.read([name]).column(0), name, self.where, table.row_label)
                others = [other for other in ("next.reward", "reward") if other in table.names]
                more = f" (--reward {others[0]} takes that one instead)" if others else ""
                return _paid(label, episode), f"reward: 1 where {name} is first true, and the episode ends there{more}"
        of_episode = dict(self._episode_labels())
        if of_episode:
            good = np.array([number for number, label in of_episode.items() if label], np.int64)
            return _paid(np.isin(episode, good), episode), "reward: 1 at the end of each episode labelled a success"
        rewards = [name for name in table.names if "reward" in name]
        remedy = f"give --reward {rewards[0]}, or " if rewards else "give --reward COLUMN, or "
        what = f"has no label of success ({', '.join(SUCCESS)})"
        raise fault(self.where, what, f"{remedy}--successes all (or for example 0-9,12) to say which succeeded")

    def _episode_labels(self) -> Iterator[tuple[int, bool]]:
        """The episode's number and its label, if `meta/` has labels."""
        lines = self.path / "meta" / "episodes.jsonl"
        if lines.exists():
            for entry in read_lines(lines, parse_json, AGAIN):
                label = next((entry[key] for key in SUCCESS if key in entry), None) if isinstance(entry, dict) else None
                if isinstance(label, bool) and isinstance(entry.get(_EPISODE), int):
                    yield entry[_EPISODE], label
        for file in sorted(self.path.glob("meta/episodes/*/*.parquet")):
            table = open_parquet(file)
            name = next((name for name in SUCCESS if name in table.names), None)
            if name is not None and _EPISODE in table.names:
                read = table.read([_EPISODE, name])
                numbers = numbers_of(read.column(0), _EPISODE, table.where, table.row_label)[:, 0]
                yield from zip(
                    numbers.astype(int).tolist(),
                    flags_of(read.column(1), name, table.where, table.row_label).tolist(),
                    strict=True,
                )


def _paid(label: np.ndarray, episode: np.ndarray) -> np.ndarray:
    """1 at the first successful frame of each episode. If all its frames are labelled, at its last frame."""
    paid = np.zeros(len(label))
    first = np.flatnonzero(np.diff(episode, prepend=episode[0] - 1))
    for begin, end in zip(first, np.append(first[1:], len(label)), strict=True):
        inside = label[begin:end]
        if inside.any():
            paid[end - 1 if inside.all() else begin + int(np.argmax(inside))] = 1.0
    return paid


def _until_the_end(reward: np.ndarray, episode: np.ndarray) -> np.ndarray:
    """1 from the rewarded frame to the end of its episode: what follows a success is left out."""
    total = np.cumsum(reward)
    first = np.flatnonzero(np.diff(episode, prepend=episode[0] - 1))
    before = (total - reward)[first]
    sizes = np.diff(np.append(first, len(reward)))
    return (total - np.repeat(before, sizes) > 0).astype(float)


def _with_columns(table: Table, made: Mapping[str, np.ndarray]) -> Table:
    """The table with more columns."""

    def read(wanted: Sequence[str]) -> Any:
        import pyarrow as pa

        stored = table.read([name for name in wanted if name not in made])
        for name in wanted:
            if name in made:
                stored = stored.append_column(name, pa.chunked_array([made[name]]))
        return stored

    return dataclasses.replace(table, names=(*table.names, *made), read=read)


def _numbers(text: str, known: np.ndarray, where: str) -> np.ndarray:
    """The episodes in a list such as 0-9,12."""
    found: set[int] = set()
    for part in text.split(","):
        numbers = re.fullmatch(r"\s*(\d{1,9})(?:\s*-\s*(\d{1,9}))?\s*", part)
        if numbers is None:
            raise fault(where, f"--successes is {text[:60]!r}", "give all, or numbers of episodes, for example 0-9,12")
        low, high = int(numbers[1]), int(numbers[2] or numbers[1])
        inside = known[(known >= low) & (known <= high)]
        if not len(inside) or low not in known or high not in known:
            what = f"--successes names {part.strip()}, and the episodes are {known[0]} to {known[-1]}"
            raise fault(where, what, "name episodes of this dataset")
        found.update(inside.tolist())
    return np.array(sorted(found), np.int64)

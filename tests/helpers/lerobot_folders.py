"""LeRobot folders as LeRobot itself writes them: v2.1 with a file for each episode, v3.0 with files of many episodes.

Names, types and layout are those of lerobot/pusht on the hub: vectors are lists of a fixed size in v2.1, and lists of
any size in files that the converter to v3.0 wrote with pandas. An image is a struct of bytes and path.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

STATE, ACTION = 3, 2
Success = Sequence[Sequence[bool]] | None


def make_lerobot(
    folder: Path,
    version: str = "v2.1",
    lengths: Sequence[int] = (4, 3, 5),
    success: Success = None,
    rewards: bool = False,
    image: bool = True,
    episode_success: Sequence[bool] | None = None,
    per_file: int = 2,
    total_tasks: int = 1,
) -> dict[str, np.ndarray]:
    """Writes the folder. Returns all frames: `state`, `action` and `episode`."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    rng = np.random.default_rng(0)
    episode = np.repeat(np.arange(len(lengths)), lengths)
    frame = np.concatenate([np.arange(n) for n in lengths])
    state = rng.normal(size=(len(episode), STATE)).astype(np.float32)
    action = rng.uniform(-5, 5, (len(episode), ACTION)).astype(np.float32)

    def vectors(rows: np.ndarray) -> Any:
        values = pa.array(rows.ravel(), pa.float32())
        if version.startswith("v2"):
            return pa.FixedSizeListArray.from_arrays(values, rows.shape[1])
        offsets = pa.array(np.arange(0, rows.size + 1, rows.shape[1]), pa.int32())
        return pa.ListArray.from_arrays(offsets, values)

    columns: dict[str, Any] = {"observation.state": vectors(state), "action": vectors(action)}
    if image:
        columns["observation.image"] = pa.array(
            [{"bytes": b"\x89PNG", "path": f"frame-{i:06d}.png"} for i in range(len(episode))],
            pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
        )
    columns["episode_index"] = pa.array(episode, pa.int64())
    columns["frame_index"] = pa.array(frame, pa.int64())
    columns["timestamp"] = pa.array(frame / 10, pa.float32())
    if rewards:
        columns["next.reward"] = pa.array(np.linspace(0, 1, len(episode)), pa.float32())
    columns["next.done"] = pa.array(np.diff(episode, append=-1) != 0)
    if success is not None:
        columns["next.success"] = pa.array([one for flags in success for one in flags])
    columns["index"] = pa.array(np.arange(len(episode)), pa.int64())
    columns["task_index"] = pa.array(np.zeros(len(episode)), pa.int64())
    table = pa.table(columns)

    def write(path: Path, rows: np.ndarray) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(table.take(np.flatnonzero(rows)), path)

    meta = [
        {"episode_index": i, "tasks": ["Push the T"], "length": int(n)}
        | ({} if episode_success is None else {"success": bool(episode_success[i])})
        for i, n in enumerate(lengths)
    ]
    if version.startswith("v2"):
        for i in range(len(lengths)):
            write(folder / f"data/chunk-000/episode_{i:06d}.parquet", episode == i)
        _lines(folder / "meta/episodes.jsonl", meta)
        _lines(folder / "meta/tasks.jsonl", [{"task_index": 0, "task": "Push the T"}])
    else:
        for number, first in enumerate(range(0, len(lengths), per_file)):
            rows = (episode >= first) & (episode < first + per_file)
            write(folder / f"data/chunk-000/file-{number:03d}.parquet", rows)
        episodes = folder / "meta/episodes/chunk-000/file-000.parquet"
        episodes.parent.mkdir(parents=True)
        parquet.write_table(pa.Table.from_pylist(meta), episodes)
    _info(folder, version, table, lengths, total_tasks)
    video = folder / "videos/observation.images.top/chunk-000/file-000.mp4"
    video.parent.mkdir(parents=True)
    video.write_bytes(b"no frames in here")
    return {"state": state, "action": action, "episode": episode}


def _info(folder: Path, version: str, table: Any, lengths: Sequence[int], total_tasks: int) -> None:
    scalar: dict[str, Any] = {"shape": [1], "names": None}
    features: dict[str, Any] = {
        "observation.images.top": {"dtype": "video", "shape": [96, 96, 3], "names": ["height", "width", "channel"]},
        "observation.state": {"dtype": "float32", "shape": [STATE], "names": {"motors": ["base", "elbow", "wrist"]}},
        "action": {"dtype": "float32", "shape": [ACTION], "names": ["x", "y"]},
    }
    if "observation.image" in table.column_names:
        features["observation.image"] = {
            "dtype": "image",
            "shape": [96, 96, 3],
            "names": ["height", "width", "channel"],
        }
    for name, kind in (("next.reward", "float32"), ("next.done", "bool"), ("next.success", "bool")):
        if name in table.column_names:
            features[name] = scalar | {"dtype": kind}
    for name, kind in (
        ("timestamp", "float32"),
        *((f"{of}index", "int64") for of in ("frame_", "episode_", "", "task_")),
    ):
        features[name] = scalar | {"dtype": kind}
    v2 = version.startswith("v2")
    info = {
        "codebase_version": version,
        "robot_type": "unknown",
        "total_episodes": len(lengths),
        "total_frames": int(sum(lengths)),
        "total_tasks": total_tasks,
        "chunks_size": 1000,
        "fps": 10,
        "splits": {"train": f"0:{len(lengths)}"},
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
        if v2
        else "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "features": features,
    }
    (folder / "meta").mkdir(parents=True, exist_ok=True)
    (folder / "meta/info.json").write_text(json.dumps(info, indent=4))


def _lines(path: Path, entries: Sequence[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))

"""Checkpoints of a run: `checkpoints/<step>/`. Only the last few stay, and only complete ones are read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from droprl.errors import DropError
from droprl.files.seals import digest, read_sealed, sealed
from droprl.files.settings import check_fields
from droprl.files.storage import TEMPORARY, arrays_from_bytes, arrays_to_bytes, read_bytes, remove_folder, write_folder

KEEP = 6  # T of the paper's evaluation protocol
STATE_FILE, HEADER_FILE = "state.safetensors", "checkpoint.json"


@dataclass(frozen=True)
class Checkpoint:
    step: int
    path: Path
    scheduled: bool  # False: an interruption saved it, not the schedule
    sha256: str  # of its state file
    unlogged: dict[str, Any] | None = None  # the metrics since the last line of the log
    run: dict[str, str] | None = None  # the digests of the run that it belongs to; None in older versions

    def load(self, skeleton: Any) -> Any:
        content = read_bytes(self.path / STATE_FILE, self.sha256, skeleton, _remedy(self.path))
        return arrays_from_bytes(content, skeleton, self.path / STATE_FILE)


def save_checkpoint(
    folder: Path,
    step: int,
    state: Any,
    scheduled: bool,
    unlogged: dict[str, Any] | None = None,
    run: dict[str, str] | None = None,
) -> Checkpoint:
    content = arrays_to_bytes(state)
    path = write_checkpoint(folder, header_of(step, content, scheduled, unlogged, run), content)
    _prune(folder)
    return Checkpoint(step, path, scheduled, digest(content), unlogged, run)


def header_of(
    step: int, content: bytes, scheduled: bool, unlogged: dict[str, Any] | None, run: dict[str, str] | None
) -> dict[str, Any]:
    """What a checkpoint says of itself. `content` is its state."""
    header = {"step": step, "scheduled": scheduled, "sha256": digest(content), "unlogged": unlogged}
    return header | ({} if run is None else {"run": run})


def write_checkpoint(folder: Path, header: dict[str, Any], content: bytes) -> Path:
    path = folder / f"{header['step']:09d}"
    write_folder(path, {STATE_FILE: content, HEADER_FILE: sealed(header)})
    return path


def list_checkpoints(folder: Path) -> list[Checkpoint]:
    """All complete checkpoints, the oldest first."""
    if not folder.is_dir():
        return []
    found = []
    for path in sorted(folder.iterdir()):
        if path.name.startswith(TEMPORARY) or not path.is_dir():
            continue
        try:
            header = read_sealed(path / HEADER_FILE, _remedy(path))
            check_fields(Checkpoint, header, ("step", "scheduled", "sha256"), str(path / HEADER_FILE), _remedy(path))
            step, unlogged = header["step"], _checked_unlogged(header.get("unlogged"), path)
            found.append(Checkpoint(step, path, header["scheduled"], header["sha256"], unlogged, header.get("run")))
        except (DropError, KeyError, TypeError, ValueError) as error:
            if not path.exists():  # another process has just removed it
                continue
            if isinstance(error, DropError) and (path / HEADER_FILE).exists():
                raise
            raise DropError(f"{path / HEADER_FILE}: is missing or damaged: {_remedy(path)}") from None
    return sorted(found, key=lambda checkpoint: checkpoint.step)


def _checked_unlogged(content: Any, path: Path) -> dict[str, Any] | None:
    """The metrics since the last line of the log: sums over seeds, or pairs of such sums."""
    if content is None:
        return None
    sums, first = (content.get("sums"), content.get("first")) if isinstance(content, dict) else (None, None)
    if not isinstance(first, int) or not isinstance(sums, dict):
        raise ValueError("its metrics are damaged")
    for total in sums.values():
        if np.asarray(total, np.float32).ndim not in (1, 2):
            raise ValueError("its metrics are damaged")
    return {"first": first, "sums": sums}


def _remedy(path: Path) -> str:
    """To remove a checkpoint is safe: training makes its updates again, with the same bytes."""
    return f"restore the file, or remove the folder {path} and run the same command again"


def _prune(folder: Path) -> None:
    """Keep the last KEEP scheduled checkpoints and the newest. Remove the others."""
    checkpoints = list_checkpoints(folder)
    newest = checkpoints[-1].step
    scheduled = [c for c in checkpoints if c.scheduled]
    to_keep = {c.step for c in scheduled[-KEEP:]} | {newest}
    for checkpoint in checkpoints:
        if checkpoint.step not in to_keep:
            remove_folder(checkpoint.path)

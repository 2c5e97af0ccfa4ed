"""A run directory: `config.json`, `data.json`, `metrics.jsonl`, `checkpoints/`, `evaluations/`, `report.html`.

Only the process that holds the lock writes here. Everything in it is whole or not there.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from droprl.adapt import Policy
from droprl.data.scaling import Scaling
from droprl.data.transitions import Prepared, Spec
from droprl.errors import DropError
from droprl.train.checkpoints import Checkpoint, list_checkpoints
from droprl.train.config import RunConfig, differences, run_config_from_dict, run_config_to_dict
from droprl.train.loop import init_seed
from droprl.train.storage import read_json, write_json
from droprl.version import __version__

FORMAT = 1


@dataclass(frozen=True)
class SubTaskSummary:
    """The returns behind each sub-task's embedding, for tables and plots without the dataset."""

    mean: list[float]
    low: list[float]
    high: list[float]
    n_trajectories: list[int]


class Run:
    """A training run on disk, finished or not. Open one with `Run(path)`."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        where = self.path / "config.json"
        if not where.exists():
            raise DropError(f"{self.path}: is not a run (no config.json): give the folder that `drop train --out` made")
        content = read_json(where)
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise DropError(f"{where}: is not of format {FORMAT}: it was written by another version of droprl")
        self.config: RunConfig = run_config_from_dict(content["run"], str(where))

    @property
    def checkpoint_folder(self) -> Path:
        return self.path / "checkpoints"

    @property
    def evaluation_folder(self) -> Path:
        return self.path / "evaluations"

    def checkpoints(self) -> list[Checkpoint]:
        return list_checkpoints(self.checkpoint_folder)

    @property
    def finished(self) -> bool:
        checkpoints = self.checkpoints()
        return bool(checkpoints) and checkpoints[-1].step >= self.config.steps

    # --- what the run knows of its data ---

    def _data(self) -> dict[str, Any]:
        content: dict[str, Any] = read_json(self.path / "data.json")
        return content

    def spec(self) -> Spec:
        return Spec(**self._data()["spec"])

    def scaling(self) -> Scaling:
        return Scaling(**{name: np.asarray(v, np.float32) for name, v in self._data()["scaling"].items()})

    def sub_tasks(self) -> SubTaskSummary:
        return SubTaskSummary(**self._data()["sub_tasks"])

    # --- what training left ---

    def metrics(self) -> list[dict[str, Any]]:
        """The log, one entry a line; a line that was torn by a kill ends it."""
        return list(_whole_lines(self.path / "metrics.jsonl"))

    def state(self, seed: int, checkpoint: Checkpoint | None = None) -> Any:
        """The training state of one seed."""
        if seed not in self.config.seeds:
            raise DropError(f"{self.path}: has no seed {seed}: it trained seeds {list(self.config.seeds)}")
        checkpoints = self.checkpoints()
        if not checkpoints:
            raise DropError(f"{self.path}: has no checkpoint yet: run the same `drop train` command to go on")
        algorithm, spec = self.config.algorithm, self.spec()
        seeds = np.asarray(self.config.seeds, np.uint32)
        skeleton = jax.eval_shape(jax.vmap(lambda s: init_seed(algorithm, spec, s)), seeds)
        states = (checkpoint or checkpoints[-1]).load(skeleton)
        return jax.tree.map(lambda leaf: leaf[self.config.seeds.index(seed)], states)

    def policy(self, seed: int, checkpoint: Checkpoint | None = None) -> Policy:
        return self.config.algorithm.policy(self.state(seed, checkpoint))


def open_run(path: Path, config: RunConfig, prepared: Prepared, returns: np.ndarray) -> Run:
    """A new run directory, or the existing one if it belongs to the same command."""
    wanted = json.loads(json.dumps(run_config_to_dict(config)))
    if (path / "config.json").exists():
        run = Run(path)
        found = json.loads(json.dumps(run_config_to_dict(run.config)))
        for content in (wanted, found):
            content["data"].pop("source")  # the same data may have moved
        odd = differences(found, wanted)
        if odd:
            shown = "; ".join(odd[:3]) + (f"; and {len(odd) - 3} more" if len(odd) > 3 else "")
            raise DropError(f"{path}: holds another run ({shown}): use another --out, or remove the folder")
        return run
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DropError(f"{path}: cannot be made ({error.strerror}): choose another --out") from error
    parts = [returns[members] for members in prepared.sub_tasks]
    summary = SubTaskSummary(
        mean=[float(np.mean(p)) for p in parts],
        low=[float(np.min(p)) for p in parts],
        high=[float(np.max(p)) for p in parts],
        n_trajectories=[len(p) for p in parts],
    )
    scaling = {name: np.asarray(v).tolist() for name, v in prepared.scaling._asdict().items()}
    data = {"spec": asdict(prepared.spec), "scaling": scaling, "reward_scale": prepared.reward_scale}
    write_json(path / "data.json", data | {"sub_tasks": asdict(summary)})
    # config.json comes last: its presence says that the directory is whole.
    write_json(path / "config.json", {"format": FORMAT, "droprl": __version__, "run": wanted})
    return Run(path)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the run directory; the lock ends with the process, however it ends."""
    try:
        file = open(path / ".lock", "w")  # noqa: SIM115 - closed below, after the work
    except OSError as error:
        raise DropError(f"{path}: cannot be written ({error.strerror}): choose another --out") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise DropError(f"{path}: another process is training here: wait for it, or use another --out") from None
    finally:
        file.close()


class MetricsLog:
    """`metrics.jsonl`: one line an entry, each value a list over seeds. What lies beyond the checkpoint is redone."""

    def __init__(self, path: Path, resume_at: int) -> None:
        self._path = path
        kept = [entry for entry in _whole_lines(path) if entry["step"] <= resume_at]
        temporary = path.with_name(f".partial-{path.name}")
        temporary.write_text("".join(json.dumps(entry) + "\n" for entry in kept), encoding="utf-8")
        os.replace(temporary, path)

    def write(self, entry: dict[str, Any]) -> None:
        try:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(json.dumps(_jsonable(entry)) + "\n")
        except OSError as error:
            raise DropError(
                f"{self._path}: cannot be written ({error.strerror}): free space and run the same command again; "
                "the checkpoints are intact"
            ) from error


def _whole_lines(path: Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    with open(path, encoding="utf-8") as file:
        for line in file:
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                return


def _jsonable(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _jsonable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no NaN
    return value

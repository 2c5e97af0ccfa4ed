"""A run directory: `config.json`, `data.json`, `support.json` with its arrays, `machines.json`, `metrics.jsonl`,
`checkpoints/`, `evaluations/`, `report.html`.

A checkpoint names the digests of the config and the data that it stands on. Both, and the log up to it, are on the disk
before it is. Only the process that holds the lock writes here. Every file is complete or missing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from droprl.data.scaling import Scaling
from droprl.data.support import Support, support_shapes
from droprl.data.transitions import Prepared, Spec
from droprl.errors import DropError
from droprl.files.durable import sync_file
from droprl.files.plain import check_folder
from droprl.files.seals import checked_line, digest, from_checked_line, read_sealed, sealed
from droprl.files.settings import differences, from_dict, shown
from droprl.files.storage import arrays_from_bytes, arrays_to_bytes, read_bytes, read_lines, write_bytes
from droprl.train.checkpoints import Checkpoint, list_checkpoints
from droprl.train.config import RunConfig, run_config_from_dict, run_config_to_dict
from droprl.train.look import run_html
from droprl.train.loop import init_seed
from droprl.version import __version__

JOINING = ".joining"  # a folder that is there while more seeds are added, see `extending`
# The same data may have moved. Nothing is learned from the others, and older runs do not have them.
NOT_LEARNED = ("source", "time_limit", "observation_parts", "action_parts")
MEND = "run the same `drop train` command again to make it again, or restore the file"


@dataclass(frozen=True)
class SubTaskSummary:
    """The returns of each sub-task, for tables and plots without the dataset."""

    mean: list[float]
    low: list[float]
    high: list[float]
    n_trajectories: list[int]


class Run:
    """A training run on disk, finished or not. Open one with `Run(path)`."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        found = _read_config(self.path)
        self.config: RunConfig = run_config_from_dict(found, str(self.path / "config.json"))
        self.identity = identity_of(found)
        self._earlier = _earlier_identities(found)
        if (self.path / JOINING).exists():
            raise DropError(f"{self.path}: more seeds are being added here: run the same `drop train` command again")

    def __repr__(self) -> str:
        return f"<run {self.path}: {self.config.algorithm.name} on {self.config.data.name}>"

    def _repr_html_(self) -> str:
        """In a notebook: what it is, its losses, and its checks."""
        reached = max((checkpoint.step for checkpoint in self.checkpoints()), default=0)
        return run_html(str(self.path), self.config, reached, self.metrics())

    @property
    def checkpoint_folder(self) -> Path:
        return self.path / "checkpoints"

    @property
    def evaluation_folder(self) -> Path:
        return self.path / "evaluations"

    def checkpoints(self) -> list[Checkpoint]:
        """The saved checkpoints, the oldest first. Those of older versions do not say to which run they belong."""
        found = list_checkpoints(self.checkpoint_folder)
        for checkpoint in found:
            earlier = [identity for total, identity in self._earlier if checkpoint.step <= total]
            if checkpoint.run not in (None, self.identity, *earlier):
                raise DropError(
                    f"{checkpoint.path}: belongs to another run ({_of_other(checkpoint, self.identity)} than "
                    f"{self.path / 'config.json'} says): restore that file, or remove the folder {self.path}"
                )
        return found

    @property
    def finished(self) -> bool:
        """Whether all updates are made."""
        checkpoints = self.checkpoints()
        return bool(checkpoints) and checkpoints[-1].step >= self.config.steps

    # --- facts about the data ---

    def _data_json(self) -> dict[str, Any]:
        return read_sealed(self.path / "data.json", MEND)

    def _data(self, part: str) -> Any:
        content = self._data_json()
        if not isinstance(content.get(part), dict):
            raise DropError(f"{self.path / 'data.json'}: has no {part}: {MEND}")
        return content[part]

    def spec(self) -> Spec:
        return from_dict(Spec, self._data("spec"), str(self.path / "data.json"))

    def scaling(self) -> Scaling:
        spec, found = self.spec(), self._data("scaling")
        try:
            arrays = [np.asarray(found[name], np.float32) for name in Scaling._fields]
        except (KeyError, TypeError, ValueError, OverflowError):
            arrays = []
        shapes = [(spec.observation_size,)] * 2 + [(spec.action_size,)] * 2
        if [array.shape for array in arrays] != shapes or not np.isfinite(np.concatenate(arrays)).all():
            raise DropError(f"{self.path / 'data.json'}: its scaling is damaged: {MEND}")
        return Scaling(*arrays)

    def support(self) -> Support | None:
        """The support of the data. None in a run of an older version, which did not save it."""
        where = self.path / "support.json"
        if not where.exists():
            return None
        header = read_sealed(where, remedy := MEND)
        n = header.get("prototypes")
        if not isinstance(n, int) or not 1 <= n < 2**31:
            raise DropError(f"{where}: has no number of prototypes: {remedy}")
        file = where.with_suffix(".safetensors")
        skeleton = support_shapes(self.spec().observation_size, n)
        arrays = arrays_from_bytes(read_bytes(file, str(header.get("sha256")), skeleton, remedy), skeleton, file)
        return Support(*(np.asarray(array) for array in arrays))

    def keep_support(self, support: Support) -> None:
        content = arrays_to_bytes(support)
        write_bytes(self.path / "support.safetensors", content)
        header = {"prototypes": len(support.prototypes), "sha256": digest(content)}
        write_bytes(self.path / "support.json", sealed(header))

    @staticmethod
    def readable(part: Callable[[], Any]) -> bool:
        """Whether a file about the data exists and is undamaged. If not, it can be made again."""
        try:
            return part() is not None
        except DropError:
            return False

    def sub_tasks(self) -> SubTaskSummary | None:
        """The returns of each sub-task. None if the algorithm has no sub-tasks."""
        if self.spec().n_sub_tasks is None and "sub_tasks" not in self._data_json():
            return None
        return from_dict(SubTaskSummary, self._data("sub_tasks"), str(self.path / "data.json"))

    # --- results of training ---

    def metrics(self) -> list[dict[str, Any]]:
        """The training log, one entry for each line. A kill may leave half a line at the end, which is ignored."""
        found, n_seeds = read_log(self.path / "metrics.jsonl"), len(self.config.seeds)
        if any(len(value) != n_seeds for entry in found for value in entry.values() if isinstance(value, list)):
            raise DropError(f"{self.path / 'metrics.jsonl'}: does not have {n_seeds} seeds: restore the file")
        return found

    def checkpoint(self, step: int | None = None) -> Checkpoint:
        """The checkpoint at this update. None means the last one."""
        checkpoints = self.checkpoints()
        if not checkpoints:
            raise DropError(f"{self.path}: has no checkpoint yet: run the same `drop train` command to go on")
        if step is None:
            return checkpoints[-1]
        for checkpoint in checkpoints:
            if checkpoint.step == step:
                return checkpoint
        raise DropError(f"{self.path}: has no checkpoint at {step}: it has {[c.step for c in checkpoints]}")

    def state(self, seed: int, checkpoint: Checkpoint | None = None) -> Any:
        """The training state of one seed."""
        if seed not in self.config.seeds:
            raise DropError(f"{self.path}: has no seed {seed}: it trained seeds {list(self.config.seeds)}")
        states = (checkpoint or self.checkpoint()).load(self.shapes())
        return jax.tree.map(lambda leaf: leaf[self.config.seeds.index(seed)], states)

    def shapes(self) -> Any:
        """The shapes of a checkpoint's state, in which the seeds are the first axis of every leaf."""
        algorithm, spec = self.config.algorithm, self.spec()
        seeds = np.asarray(self.config.seeds, np.uint32)
        return jax.eval_shape(jax.vmap(lambda s: init_seed(algorithm, spec, s, jnp.int32(1))), seeds)


def _read_config(path: Path) -> Any:
    where = path / "config.json"
    if not where.exists():
        raise DropError(f"{path}: is not a run (no config.json): give the folder that `drop train --out` made")
    check_folder(path)
    return read_sealed(where, f"restore it, or remove the folder {path} and train again").get("run")


def read_config(path: Path) -> RunConfig:
    """The config of a run, also of one to which seeds are being added."""
    return run_config_from_dict(_read_config(path), str(path / "config.json"))


def identity_of(run: Any) -> dict[str, str]:
    """What a checkpoint holds of its run: the digests of the config and of the data. The same data may have moved, and
    nothing is learned from the other facts that are left out here."""
    data = {name: value for name, value in run["data"].items() if name not in NOT_LEARNED}
    config = json.dumps(run | {"data": data}, sort_keys=True)
    return {"config": digest(config.encode()), "data": run["data"]["fingerprint"]}


def _earlier_identities(run: dict[str, Any]) -> list[tuple[int, dict[str, str]]]:
    """The totals that the run went beyond, each with the identity that checkpoints up to there may have."""
    totals = list(run.get("earlier_steps", ()))
    found = []
    for i, total in enumerate(totals):
        then = {name: value for name, value in run.items() if name != "earlier_steps"} | {"steps": total}
        found.append((total, identity_of(then | ({"earlier_steps": totals[:i]} if i else {}))))
    return found


def _of_other(checkpoint: Checkpoint, identity: dict[str, str]) -> str:
    return "of other data" if (checkpoint.run or {}).get("data") != identity["data"] else "of other settings"


def open_run(path: Path, config: RunConfig, prepared: Prepared, returns: np.ndarray) -> Run:
    """A new run directory, or the existing one if it belongs to the same command."""
    wanted = _as_saved(config)
    if (path / "config.json").exists():
        run = Run(path)
        found = _as_saved(run.config)
        for content in (wanted, found):
            for name in NOT_LEARNED:
                content["data"].pop(name)
        odd = differences(found, wanted)
        names = {line.split(" ")[0] for line in odd}
        if "data.fingerprint" in names and names <= {"data.fingerprint", "data.n_steps", "data.n_episodes"}:
            raise DropError(
                f"{config.data.source}: is no longer the data that {path} was trained on ({odd[0]}): restore it, or "
                "use another --out"
            )
        if odd:
            shown = "; ".join(odd[:3]) + (f"; and {len(odd) - 3} more" if len(odd) > 3 else "")
            raise DropError(
                f"{path}: holds another run ({shown}): {_way_on(run, config, names)}use another --out, or remove the "
                "folder"
            )
        parts = [run.spec, run.scaling] + ([] if prepared.sub_tasks is None else [run.sub_tasks])
        if not all(run.readable(part) for part in parts):
            _write_data(path, prepared, returns)  # the fingerprint shows that the data is the same
        return run
    for checkpoint in list_checkpoints(path / "checkpoints"):
        if checkpoint.run != identity_of(wanted):
            whose = "of an unknown run" if checkpoint.run is None else _of_other(checkpoint, identity_of(wanted))
            raise DropError(
                f"{checkpoint.path}: is {whose}, and {path} has no config.json that says more: restore config.json, or "
                "use another --out"
            )
    _write_data(path, prepared, returns)
    write_config(path, config)  # it comes last
    return Run(path)


def _way_on(run: Run, wanted: RunConfig, names: set[str]) -> str:
    """If only more is asked for, how to go on with the run."""
    if not names <= {"seeds", "steps", "checkpoint_every", "log_every"}:
        return ""
    more = [f"--steps {wanted.steps}"] if wanted.steps > run.config.steps else []
    more += [f"--seeds {len(wanted.seeds)}"] if set(wanted.seeds) > set(run.config.seeds) else []
    return f"go on with it by `drop train {run.path} {' '.join(more)}`, " if more else ""


def write_config(path: Path, config: RunConfig) -> None:
    """Write what describes a run. If it exists, the directory is complete."""
    write_bytes(path / "config.json", sealed({"droprl": __version__, "run": _as_saved(config)}))


def identity_of_config(config: RunConfig) -> dict[str, str]:
    return identity_of(_as_saved(config))


def _as_saved(config: RunConfig) -> dict[str, Any]:
    """The config as it is in a file: JSON has no tuples."""
    content: dict[str, Any] = json.loads(json.dumps(run_config_to_dict(config)))
    return content


def _write_data(path: Path, prepared: Prepared, returns: np.ndarray) -> None:
    scaling = {name: np.asarray(v).tolist() for name, v in prepared.scaling._asdict().items()}
    treatment = prepared.recipe.rewards
    data: dict[str, Any] = {"spec": prepared.spec.to_json(), "scaling": scaling, "reward_scale": treatment.scale}
    if treatment.plus:
        data["reward_plus"] = treatment.plus
    if prepared.sub_tasks is not None:
        parts = [returns[members] for members in prepared.sub_tasks]
        summary = SubTaskSummary(
            mean=[float(np.mean(p)) for p in parts],
            low=[float(np.min(p)) for p in parts],
            high=[float(np.max(p)) for p in parts],
            n_trajectories=[len(p) for p in parts],
        )
        data["sub_tasks"] = asdict(summary)
    write_bytes(path / "data.json", sealed(data))


class MetricsLog:
    """`metrics.jsonl`: one line for each entry. Every value is a list over seeds.

    Entries after the checkpoint are removed, because training makes them again. Lines reach the disk when the system
    likes, and at the latest in `sync`, which comes before each checkpoint.
    """

    def __init__(self, path: Path, resume_at: int) -> None:
        self._path = path
        self.entries = [entry for entry in read_log(path) if entry["step"] <= resume_at]
        write_bytes(path, "".join(map(checked_line, self.entries)).encode())

    def missing(self, resume_at: int, log_every: int) -> int:
        """How many entries up to the checkpoint are not there, for example because somebody removed lines."""
        found = {entry["step"] for entry in self.entries}
        return sum(step not in found for step in range(log_every, resume_at + 1, log_every))

    def write(self, entry: dict[str, Any]) -> None:
        with self._writing(), open(self._path, "a", encoding="utf-8") as file:
            file.write(checked_line(_jsonable(entry)))

    def sync(self) -> None:
        with self._writing():
            sync_file(self._path)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise DropError(
                f"{self._path}: cannot be written ({error.strerror}): free space and run the same command again; "
                "the checkpoints are intact"
            ) from error


def read_log(path: Path) -> list[dict[str, Any]]:
    """The entries of a log. Their steps must rise. A damaged line is an error and hides none of the others."""
    last = -1

    def entry(line: str) -> dict[str, Any]:
        nonlocal last
        found = checked_entry(from_checked_line(line))
        if found["step"] <= last:
            raise ValueError(f"its step is {found['step']}, after {last}")
        last = found["step"]
        return found

    return read_lines(path, entry, "restore the file, or remove that line and lose its entry")


def checked_entry(content: Any) -> dict[str, Any]:
    """An entry of a log: its step, and for each metric a list over seeds, in which None is not a number."""
    step = content.get("step") if isinstance(content, dict) else None
    if not isinstance(step, int) or isinstance(step, bool) or abs(step) >= 2**63:
        raise ValueError(f"its step is {shown(step)}")
    for name, values in content.items():
        if name != "step" and not (isinstance(values, list) and all(map(_is_measured, values))):
            raise ValueError(f"{name} is {shown(values)}, not a list of numbers")
    return dict(content)


def _is_measured(value: Any) -> bool:
    return value is None or (isinstance(value, float | int) and not isinstance(value, bool) and abs(value) < 1e300)


def _jsonable(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _jsonable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no NaN
    return value

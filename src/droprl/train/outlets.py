"""The log of a training for programs that draw it: TensorBoard and Weights & Biases.

Both get what `metrics.jsonl` has, under the same names. Every seed is a run of its own there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

from droprl.errors import DropError, reason
from droprl.files.plain import clear
from droprl.files.seals import digest
from droprl.train.config import run_config_to_dict
from droprl.train.run import Run

FOLDER = "tensorboard"
Entry = Mapping[str, Any]


class Outlet(Protocol):
    def write(self, entry: Entry) -> None: ...

    def close(self) -> None: ...


def check_outlets(tensorboard: bool, wandb: str | None) -> None:
    """Refuse, before anything is trained, what is not installed."""
    if tensorboard:
        _tensorboard()
    if wandb is not None:
        _wandb()


@contextmanager
def outlets(run: Run, log: Sequence[Entry], tensorboard: bool, wandb: str | None) -> Iterator[list[Outlet]]:
    """`log` is what the log already holds."""
    with ExitStack() as held:
        opened: list[Outlet] = []
        if tensorboard:
            opened.append(_TensorBoard(run))
            held.callback(opened[-1].close)
            for entry in log:  # its files are written anew: a line that the log lost is lost there too
                opened[-1].write(entry)
        if wandb is not None:
            opened.append(_WeightsAndBiases(run, wandb))
            held.callback(opened[-1].close)
            for entry in log:
                opened[-1].write(entry)
        yield opened


def _of_seed(entry: Entry, place: int) -> dict[str, float]:
    """The values of one seed. A value that is not known is left out."""
    values = {name: value[place] for name, value in entry.items() if isinstance(value, list)}
    return {name: float(value) for name, value in values.items() if value is not None}


# --- TensorBoard ---


def _tensorboard() -> Any:
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError as error:
        raise DropError(f"TensorBoard needs {error.name}: pip install 'droprl[tensorboard]'") from error
    return EventFileWriter, Event, Summary


class _TensorBoard:
    """RUN/tensorboard/seed-N. `tensorboard --logdir runs` shows all runs below `runs`."""

    def __init__(self, run: Run) -> None:
        make, self._event, self._summary = _tensorboard()
        folder = run.path / FOLDER
        clear(folder)
        try:
            self._writers = [make(str(folder / f"seed-{seed}")) for seed in run.config.seeds]
        except OSError as error:
            raise DropError(f"{folder}: cannot be written ({reason(error)}): fix permissions") from error

    def write(self, entry: Entry) -> None:
        for i, writer in enumerate(self._writers):
            values = [self._summary.Value(tag=name, simple_value=v) for name, v in _of_seed(entry, i).items()]
            summary = self._summary(value=values)
            writer.add_event(self._event(step=entry["step"], wall_time=time.time(), summary=summary))

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


# --- Weights & Biases ---


def _wandb() -> Any:
    try:
        import wandb
    except ImportError as error:
        raise DropError(f"Weights & Biases needs {error.name}: pip install 'droprl[wandb]'") from error
    return wandb


class _WeightsAndBiases:
    """One run for each seed, in the group of the run's folder. WANDB_MODE=offline sends nothing."""

    def __init__(self, run: Run, project: str) -> None:
        library = _wandb()
        name = os.path.relpath(run.path) if run.path.is_relative_to(os.getcwd()) else str(run.path)
        group = name.removeprefix("runs/")
        self._runs = []
        try:
            for seed in run.config.seeds:
                settings = library.Settings(silent=True, console="off", x_disable_stats=True, disable_git=True)
                made = library.init(
                    project=project,
                    group=group,
                    name=f"{group} seed {seed}",
                    id=digest(f"{run.identity}{run.path.resolve()}{seed}".encode())[:16],
                    resume="allow",
                    reinit="create_new",
                    config=run_config_to_dict(run.config) | {"seed": seed},
                    settings=settings,
                )
                self._runs.append(made)
        except (library.errors.Error, OSError) as error:
            self.close()
            raise DropError(
                f"Weights & Biases does not work here ({reason(error)}): log in with `wandb login`, or set "
                "WANDB_MODE=offline"
            ) from error

    def write(self, entry: Entry) -> None:
        for i, made in enumerate(self._runs):
            if entry["step"] >= made.step:  # what it already has, it keeps
                made.log(_of_seed(entry, i), step=entry["step"])

    def close(self) -> None:
        for made in self._runs:
            made.finish()

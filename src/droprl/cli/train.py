"""`drop train`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import tyro

from droprl.algorithms import ALGORITHMS
from droprl.cli.options import Flag, Folder, Source, parse, print_json, use_compilation_cache
from droprl.compiler import on_accelerator
from droprl.data.sources import SourceOptions
from droprl.errors import UsageError, perhaps
from droprl.terminal import remark, say
from droprl.train import Run, default_out, extend, fit
from droprl.train.run import JOINING, read_config
from droprl.train.times import sessions_of

A = TypeVar("A")
PRESETS = ["paper", "small"]
FLAGS = ("--json", "--tensorboard", "--download")  # options without a value
if TYPE_CHECKING:
    Algo = str
else:
    Algo = Literal[tuple(ALGORITHMS)]


@dataclass(frozen=True)
class Train(Generic[A]):
    """Train an algorithm on a dataset. The same command on an unfinished run resumes it.

    `drop train RUN --steps 200000 --seeds 5` goes on with a run, finished or not.
    """

    source: Source
    """A D4RL .hdf5 file, an .npz file, a Minari id, several joined with +, or a folder of `drop data map`."""
    settings: A
    algo: Algo = "drop"
    """Which algorithm. The options under 'settings' are its own."""
    preset: str = "paper"
    """paper: the paper's sizes. small: for CPUs. For drop also literal: the paper to the letter."""
    seeds: int = 1
    """How many seeds (0, 1, …); they train side by side."""
    steps: int = 100_000
    """How many updates."""
    out: Path | None = None
    """The run directory; by default runs/DATASET/ALGO."""
    checkpoint_every: int | None = None
    """Updates between checkpoints, by default a twentieth of the steps. The last six checkpoints are kept."""
    log_every: int | None = None
    """Updates between lines of metrics.jsonl; by default a hundredth of the steps."""
    reading: SourceOptions = field(default_factory=SourceOptions)
    tensorboard: Flag = False
    """Write the log for TensorBoard too, to RUN/tensorboard: `tensorboard --logdir runs`."""
    wandb: str | None = None
    """Send the log to this project of Weights & Biases too. With WANDB_MODE=offline it stays on this machine."""
    json: Flag = False
    """Print one JSON object: the run, its updates, its seeds and whether it was finished already."""


@dataclass(frozen=True)
class GoOn:
    """Go on with a run: to more updates, with more seeds, or both. Without either, it is only finished.

    The weights are those of a run that asked for all of it at once. Where a schedule depends on the number of updates,
    as the learning rate of iql's actor does, they would not be, and more updates are refused.
    """

    run: Folder
    """The folder that `drop train` made."""
    steps: int | None = None
    """How many updates in total. Checkpoints and lines of the log keep their distance."""
    seeds: int | None = None
    """How many seeds in total. The new ones train on their own in RUN/more-seeds, and then join the run."""
    dataset: str | None = None
    """The SOURCE of the run's data, if it has moved or needs options to be read."""
    reading: SourceOptions = field(default_factory=SourceOptions)
    tensorboard: Flag = False
    """Write the log for TensorBoard too, to RUN/tensorboard."""
    wandb: str | None = None
    """Send the log to this project of Weights & Biases too."""
    json: Flag = False
    """Print one JSON object: the run, its updates, its seeds and whether it was finished already."""


def train(words: list[str]) -> None:
    use_compilation_cache()
    if names_run(words):
        _go_on(parse(GoOn, "train", words))
        return
    algo = _choice(words, "--algo", "drop", list(ALGORITHMS))
    preset = _choice(words, "--preset", "paper", [*PRESETS, *ALGORITHMS[algo].card.presets])
    kind = ALGORITHMS[algo]
    default: Any = Train(source=tyro.MISSING, settings=kind() if preset == "paper" else getattr(kind, preset)())
    options: Any = parse(Train[kind], "train", words, default)  # type: ignore[valid-type]
    dataset = options.reading.load(options.source)
    path = options.out or default_out(dataset, options.settings)
    if preset != "small" and not on_accelerator():
        say("drop: no accelerator found: on a CPU, `--preset small` trains in minutes", error=True)
    already = (path / "config.json").exists() and Run(path).finished
    run = fit(
        dataset,
        options.settings,
        out=path,
        seeds=options.seeds,
        steps=options.steps,
        checkpoint_every=options.checkpoint_every,
        log_every=options.log_every,
        source=options.source,
        tensorboard=options.tensorboard,
        wandb=options.wandb,
    )
    _say_what_is_there(run, already, options.json, options.source, options.reading)


def names_run(words: Sequence[str]) -> bool:
    """Whether the command line gives the folder of a run in place of data."""
    before = ["", *words]
    given = [word for i, word in enumerate(words) if not before[i].startswith("--") or before[i] in FLAGS]
    return any(not word.startswith("-") and (Path(word) / "config.json").exists() for word in given)


def _go_on(options: GoOn) -> None:
    before = read_config(options.run)
    already = not (options.run / JOINING).exists() and Run(options.run).finished
    reading: Any = options.reading
    source = options.dataset or (None if reading == SourceOptions() else before.data.source)
    run = extend(
        options.run,
        steps=options.steps,
        seeds=options.seeds,
        dataset=None if source is None else reading.load(source),
        tensorboard=options.tensorboard,
        wandb=options.wandb,
    )
    _say_what_is_there(run, already and run.config == before, options.json, source or "DATA", reading)


def _say_what_is_there(run: Run, already: bool, as_json: bool, source: str, reading: SourceOptions) -> None:
    config = run.config
    if as_json:
        print_json(
            {
                "run": str(run.path),
                "algorithm": config.algorithm.name,
                "dataset": config.data.name,
                "steps": config.steps,
                "seeds": list(config.seeds),
                "finished_before": already,
                "training_seconds": sum(session.seconds for session in sessions_of(run.path)),
            }
        )
        return
    done = "was finished already" if already else "is trained"
    remark(f"{run.path} {done} ({config.steps:,} updates); {next_command(run, source, reading)}")


def next_command(run: Run, source: str, reading: SourceOptions) -> str:
    """What to do with the run: play it, or judge it if no task is known that could be played."""
    folder = shlex.quote(str(run.path))
    if run.config.data.env is not None:
        return f"play it with: drop evaluate {folder}"
    words = ["drop", "judge", str(run.path), source]
    for option in fields(reading):  # what the data needs to be read
        value = getattr(reading, option.name)
        if value not in (None, False):
            words += [f"--{option.name.replace('_', '-')}"]
            words += [] if value is True else map(str, value if isinstance(value, list | tuple) else [value])
    return f"no task is known that could play it; judge it by the data with: {shlex.join(words)}"


def _choice(words: list[str], option: str, default: str, choices: list[str]) -> str:
    """The value of an option on which the other options depend."""
    chosen = default
    for i, word in enumerate(words):
        if word == option and i + 1 < len(words):
            chosen = words[i + 1]
        elif word.startswith(f"{option}="):
            chosen = word.split("=", 1)[1]
    if chosen not in choices:
        raise UsageError(f"{option} {chosen}{perhaps(chosen, choices)}: choose one of {', '.join(choices)}")
    return chosen

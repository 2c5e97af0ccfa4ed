"""`drop train`."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import tyro

from droprl.algorithms import ALGORITHMS
from droprl.cli.options import Source, parse, use_compilation_cache
from droprl.compiler import on_accelerator
from droprl.data.sources import SourceOptions
from droprl.errors import DropError
from droprl.terminal import say
from droprl.train import Run, default_out, fit

A = TypeVar("A")
PRESETS = ["paper", "small"]
if TYPE_CHECKING:
    Algo = str
else:
    Algo = Literal[tuple(ALGORITHMS)]


@dataclass(frozen=True)
class Train(Generic[A]):
    """Train an algorithm on a dataset. The same command on an unfinished run resumes it."""

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


def train(words: list[str]) -> None:
    use_compilation_cache()
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
    )
    done = "was finished already" if already else "is trained"
    say(f"{run.path} {done} ({run.config.steps:,} updates); {next_command(run, options.source, options.reading)}")


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
        raise DropError(f"{option} {chosen}: choose one of {', '.join(choices)}")
    return chosen

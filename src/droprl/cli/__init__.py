"""The command line: `drop COMMAND …` over the same functions as the Python API."""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Callable, Sequence

from droprl.errors import DropError, SettingError, UsageError, at_the_command_line, perhaps
from droprl.interrupts import ended_by_signals, signal_of
from droprl.terminal import quietly, say
from droprl.version import __version__

HELP = f"""drop {__version__}: offline reinforcement learning that keeps optimising at test time

  drop demo                 make a maze, train BC, F-BC and DROP on it, compare them, write a report: a few minutes
  drop data info SOURCE     what is in a dataset, and how each rule would cut it into sub-tasks
  drop data import FILE     make a dataset of a CSV or Parquet file, or of a LeRobot folder
  drop data export SOURCE   write a dataset for Minari
  drop data make MAZE       make maze2d-umaze, -medium, -large or maze2d-gates, without a download
  drop data map SOURCE      write a dataset as a folder that training reads from the disk: for data beyond memory
  drop train SOURCE         train an algorithm; the same command resumes
  drop evaluate RUN         play a trained run or a saved policy in its task
  drop play RUN             play one episode and write a video of it
  drop judge RUN DATA       judge a run or a saved policy from data alone, where no simulator can play it
  drop finetune RUN         improve a run in its task with a budget of steps: choose a checkpoint, K, or train on
  drop select SOURCE        choose N and K, from the data alone or with a budget of episodes
  drop bench SUITE          run tasks × methods × ways to play, and draw the figure; `drop bench list` shows the suites
  drop report RUN [RUN …]   one self-contained HTML page that compares runs, or for the folder of a suite
  drop export RUN           save one seed's policy as a folder of its own, or as an ONNX file
  drop serve POLICY         serve a policy's actions over HTTP, and show on a page how it adapts
  drop completion SHELL     what makes bash, zsh or fish complete these commands

SOURCE is a D4RL .hdf5 file, an .npz file, a Minari id, several joined with +, or a folder that `drop data map` made.
Every command explains its options with --help, and `drop help COMMAND` does the same. --quiet leaves out progress and
remarks. --debug shows the traceback of an error. -V prints the version. Whole numbers may be written as 20000 or 2e4.
Exit codes: 0, 1 for an error, 2 for a command line that makes no sense, 130 after Ctrl-C.
"""


QUIET = ("--quiet", "-q")


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point of `drop`."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # if the encoding has no "…", print "?" and do not crash
    debug, quiet = "--debug" in words, any(word in words for word in QUIET)
    words = [word for word in words if word not in ("--debug", *QUIET)]
    _repeat_to_the_bit()
    with at_the_command_line(), quietly(quiet):
        _run_or_exit(words, debug)


def _run_or_exit(words: list[str], debug: bool) -> None:
    """Exit codes: 1 for an error, 2 for a command line that makes no sense, 128 + n after signal n."""
    try:
        with ended_by_signals():
            _run(words)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except (DropError, OSError, MemoryError) as error:
        if debug:
            say(*traceback.format_exc().splitlines(), error=True)
        else:
            say(f"drop: {' '.join(str(error).split()) or 'not enough memory'}", error=True)
        raise SystemExit(2 if isinstance(error, UsageError | SettingError) else 1) from None
    except KeyboardInterrupt as stop:  # training says in the message how to go on
        say(f"drop: {stop if stop.args else 'stopped'}", error=True)
        raise SystemExit(128 + signal_of(stop)) from None


def _repeat_to_the_bit() -> None:
    """Before XLA starts, ask it for GPU programs that always give the same bits: resumed runs must match."""
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_gpu_deterministic_ops" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --xla_gpu_deterministic_ops=true".strip()


def _run(words: list[str]) -> None:
    if words[:1] == ["help"] and words[1:]:
        words = [*words[1:], "--help"]
    if not words or words[0] in ("-h", "--help", "help"):
        say(*HELP.splitlines())
        return
    if words[0] in ("--version", "-V"):
        say(__version__)
        return
    for length in (2, 1):
        command = _COMMANDS.get(" ".join(words[:length]))
        if command is not None:
            command(words[length:])
            return
    raise UsageError(_no_command(words))


def _no_command(words: list[str]) -> str:
    """What is wrong with a command line that names no command, and which command may have been meant."""
    parts = [name.split()[1] for name in _COMMANDS if name.startswith(f"{words[0]} ")]
    given = next((word for word in words[1:2] if not word.startswith("-")), None)
    if parts:
        listed = f"{', '.join(f'`{part}`' for part in parts[:-1])} or `{parts[-1]}`"
        return f"`drop {words[0]}` needs {listed} after it{perhaps(given or '', parts)}: see `drop --help`"
    both = " ".join(filter(None, (words[0], given)))
    near = perhaps(words[0], {name.split()[0] for name in (*_COMMANDS, "help")}) or perhaps(both, _COMMANDS)
    return f"there is no command {words[0]!r}{near}: see `drop --help`"


def _data_info(words: list[str]) -> None:
    from droprl.cli.data import info

    info(words)


def _data_import(words: list[str]) -> None:
    from droprl.cli.tables import import_source

    import_source(words)


def _data_export(words: list[str]) -> None:
    from droprl.cli.tables import export_source

    export_source(words)


def _data_make(words: list[str]) -> None:
    from droprl.cli.data import make

    make(words)


def _data_map(words: list[str]) -> None:
    from droprl.cli.data import map_source

    map_source(words)


def _train(words: list[str]) -> None:
    from droprl.cli.train import train

    train(words)


def _evaluate(words: list[str]) -> None:
    from droprl.cli.evaluate import evaluate

    evaluate(words)


def _play(words: list[str]) -> None:
    from droprl.cli.play import play

    play(words)


def _select(words: list[str]) -> None:
    from droprl.cli.select import select

    select(words)


def _bench(words: list[str]) -> None:
    from droprl.cli.bench import bench

    bench(words)


def _judge(words: list[str]) -> None:
    from droprl.cli.judge import judge

    judge(words)


def _finetune(words: list[str]) -> None:
    from droprl.cli.finetune import finetune

    finetune(words)


def _report(words: list[str]) -> None:
    from droprl.cli.report import report

    report(words)


def _export(words: list[str]) -> None:
    from droprl.cli.export import export

    export(words)


def _serve(words: list[str]) -> None:
    from droprl.cli.serve import serve

    serve(words)


def _completion(words: list[str]) -> None:
    from droprl.cli.completion import completion

    completion(words, list(_COMMANDS))


def _demo(words: list[str]) -> None:
    from droprl.cli.demo import demo

    demo(words)


# Each command imports its modules when it is called: `drop --help` must not wait for JAX.
_COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "data import": _data_import,
    "data info": _data_info,
    "data export": _data_export,
    "data make": _data_make,
    "data map": _data_map,
    "train": _train,
    "evaluate": _evaluate,
    "play": _play,
    "judge": _judge,
    "finetune": _finetune,
    "select": _select,
    "bench": _bench,
    "report": _report,
    "export": _export,
    "serve": _serve,
    "demo": _demo,
    "completion": _completion,
}

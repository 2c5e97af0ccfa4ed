"""Kill `drop train` with SIGKILL at random moments, let the same command finish, and compare the bytes.

    python benchmarks/kill_resume.py SOURCE [--kills 20] [--steps 2000] [--preset small] [--seeds 2]

One run trains undisturbed. Each round then starts the same command in a fresh folder and kills its whole process group:
at a moment drawn over the undisturbed run's duration, which falls into start-up, compilation, training and checkpoint
writing alike, or (a third of the kills) as soon as a half-written checkpoint shows. A round may be killed repeatedly,
and every fourth or so compiles anew. Then the command runs to its end, and every checkpoint that is left must have the
undisturbed run's bytes. After each kill what is on the disk is loaded as a reader would: a half-written file that gets
through is a torn read. Prints a table and one line of JSON; the exit code is 1 unless everything was identical and
nothing was torn.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from droprl.errors import DropError
from droprl.train import Run

POLL = 0.002  # seconds; a checkpoint of the small preset takes some ten milliseconds to write


@dataclass(frozen=True)
class Command:
    source: str
    options: tuple[str, ...]
    cache: Path  # where compiled programs are kept

    def start(self, out: Path) -> subprocess.Popen[str]:
        words = [sys.executable, "-m", "droprl", "train", self.source, *self.options, "--out", str(out)]
        return subprocess.Popen(
            words,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=os.environ | {"XDG_CACHE_HOME": str(self.cache)},
        )

    def finish(self, out: Path) -> float:
        """Run to the end; the seconds it took."""
        began = time.perf_counter()
        process = self.start(out)
        _, said = process.communicate()
        if process.returncode != 0:
            raise SystemExit(f"kill_resume: `drop train` ended with {process.returncode}: {said.strip()}")
        return time.perf_counter() - began


@dataclass
class Round:
    """What happened to one run."""

    number: int
    kills: list[str] = field(default_factory=list)  # where each kill fell
    torn_reads: int = 0
    identical: bool = False
    seconds: float = 0.0


def digests(out: Path) -> dict[str, str]:
    """Of the state of every checkpoint that is left."""
    files = sorted(out.glob("checkpoints/[0-9]*/state.safetensors"))
    return {file.parent.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def newest_step(out: Path) -> int | None:
    return max((int(path.name) for path in out.glob("checkpoints/[0-9]*")), default=None)


def half_written(out: Path) -> set[tuple[str, int]]:
    """The names and inodes of checkpoints that are being written, or were when a process ended."""
    found = set()
    for path in out.glob("checkpoints/.partial-*"):
        with suppress(FileNotFoundError):
            found.add((path.name, path.stat().st_ino))
    return found


def kill(command: Command, out: Path, delay: float | None) -> str | None:
    """Start, wait for the moment, kill the process group. Where it fell, or None if the run was over before.

    `delay` is in seconds from the start; None waits for a half-written checkpoint.
    """
    left_before = half_written(out)
    process = command.start(out)
    began = time.perf_counter()
    while process.poll() is None:
        if delay is None and half_written(out) - left_before:
            break
        if delay is not None and time.perf_counter() - began >= delay:
            break
        time.sleep(POLL)
    after = time.perf_counter() - began
    over = process.poll() is not None
    if not over:
        os.killpg(process.pid, signal.SIGKILL)
    _, said = process.communicate()
    if over and process.returncode != 0:
        raise SystemExit(f"kill_resume: `drop train` ended with {process.returncode}: {said.strip()}")
    if over:
        return None
    if half_written(out) - left_before:
        return f"writing, {after:.1f} s"
    step = newest_step(out)
    return f"{'before the first checkpoint' if step is None else f'beyond update {step:,}'}, {after:.1f} s"


def is_torn(out: Path) -> bool:
    """Whether a reader who comes after the kill gets anything but whole checkpoints."""
    if not (out / "config.json").exists():
        return False
    try:
        run = Run(out)
        for checkpoint in run.checkpoints():
            run.state(run.config.seeds[0], checkpoint)
        run.metrics()
    except DropError as error:
        print(f"torn: {error}", file=sys.stderr)
        return True
    return False


def play_round(
    number: int, command: Command, out: Path, duration: float, kills: int, rng: random.Random, expected: dict[str, str]
) -> Round:
    began = time.perf_counter()
    result = Round(number)
    for _ in range(kills):
        fell = kill(command, out, None if rng.random() < 1 / 3 else rng.uniform(0, duration))
        if fell is None:
            break
        result.kills.append(fell)
        result.torn_reads += is_torn(out)
    command.finish(out)
    result.identical = digests(out) == expected
    result.seconds = time.perf_counter() - began
    return result


def show(rounds: list[Round]) -> None:
    table = Table(title="killed with SIGKILL, then finished by the same command", title_justify="left")
    for heading in ("round", "kills", "torn reads", "identical", "seconds"):
        table.add_column(heading, justify="left" if heading == "kills" else "right")
    for r in rounds:
        fell = "; ".join(r.kills) or "none: it had finished"
        table.add_row(str(r.number), fell, str(r.torn_reads), "yes" if r.identical else "NO", f"{r.seconds:.1f}")
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("source", metavar="SOURCE", help="a dataset, as for `drop train`")
    parser.add_argument("--kills", type=int, default=20, help="how many kills in all (default: 20)")
    parser.add_argument("--steps", type=int, default=2_000, help="updates of the run (default: 2000)")
    parser.add_argument("--preset", choices=("small", "paper"), default="small")
    parser.add_argument("--algo", default="drop")
    parser.add_argument("--seeds", type=int, default=2, help="training seeds (default: 2)")
    parser.add_argument("--seed", type=int, default=0, help="of the random moments (default: 0)")
    parser.add_argument("--keep", type=Path, help="keep the run directories here")
    options = parser.parse_args()
    train = ("--preset", options.preset, "--algo", options.algo)
    home = options.keep or Path(tempfile.mkdtemp(prefix="kill-resume-"))
    words = (*train, "--seeds", str(options.seeds), "--steps", str(options.steps))
    command = Command(options.source, words, home / "cache")
    try:
        rounds = play(command, home, options.kills, random.Random(options.seed))
    finally:
        if options.keep is None:
            shutil.rmtree(home, ignore_errors=True)
    show(rounds)
    kills, torn = sum(len(r.kills) for r in rounds), sum(r.torn_reads for r in rounds)
    identical = sum(len(r.kills) for r in rounds if r.identical)
    print(json.dumps({"kills": kills, "identical": identical, "torn_read": torn, "rounds": len(rounds)}))
    raise SystemExit(0 if identical == kills >= options.kills and all(r.identical for r in rounds) and not torn else 1)


def play(command: Command, home: Path, kills: int, rng: random.Random) -> list[Round]:
    """Rounds until there were enough kills; a kill that comes after the end does not count."""
    undisturbed = home / "undisturbed"
    compiling = command.finish(undisturbed)
    expected = digests(undisturbed)
    shutil.rmtree(undisturbed)
    duration = command.finish(undisturbed)  # again, now that compiled programs are kept: as long as a round's runs
    print(f"undisturbed: {compiling:.1f} s, again {duration:.1f} s", file=sys.stderr, flush=True)
    rounds: list[Round] = []
    if digests(undisturbed) != expected:
        raise SystemExit("kill_resume: two undisturbed runs differ: this machine does not repeat itself")
    while (done := sum(len(r.kills) for r in rounds)) < kills:
        wanted = min(rng.choice((1, 1, 2, 3)), kills - done)
        out = home / f"round-{len(rounds) + 1}"
        anew = rng.random() < 1 / 4
        chosen = replace(command, cache=home / f"cache-{len(rounds) + 1}") if anew else command
        seconds = compiling if anew else duration
        rounds.append(play_round(len(rounds) + 1, chosen, out, seconds, wanted, rng, expected))
        last = rounds[-1]
        verdict = "identical" if last.identical else "DIFFERENT"
        print(
            f"kill {done + len(last.kills)}/{kills}: {'; '.join(last.kills) or 'too late'} → {verdict} "
            f"({last.seconds:.0f} s)",
            file=sys.stderr,
            flush=True,
        )
        if last.identical:
            shutil.rmtree(out)
    return rounds


if __name__ == "__main__":
    main()

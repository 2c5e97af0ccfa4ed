"""Torture: kills, power loss, full disks, hostile files and clients, a second process, NaN. Nothing may be lost.

    python benchmarks/torture [--short] [--kills 100] [--seed 0] [--out FOLDER]

All trials run the real commands on a small task that is generated here. `work.py` says what each command must leave.
`kills.py`, `power.py`, `places.py`, `damage.py`, `strangers.py` and `clients.py` disturb it. Prints a table and one
line of JSON with three counts of trials: `tried`; `survived`, which ended as without the fault, or were refused in one
line that names the file; and `lost`, in which something was lost. The exit code is 1 unless all trials survived.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # before JAX is imported: bits are compared

import clients
import damage
import places
import power
import work
from kills import rounds
from strangers import strangers
from work import Failed, Undisturbed, Work

HEADINGS = ("fault", "of", "tried", "survived", "lost")
# Bytes that are left on a full disk: less than the command needs. The longer commands have enough to begin.
FREE = {"training": (150_000, 450_000), "evaluation": (0, 1), "fine-tuning": (0, 64_000), "export": (0, 32_000)}


@dataclass
class Row:
    fault: str
    what: str
    tried: int = 0
    survived: int = 0
    lost: int = 0
    wrong: list[str] = field(default_factory=list)


class Tally:
    """The table, filled trial by trial."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], Row] = {}
        self._began = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began

    def add(self, fault: str, what: str, count: int, error: Exception | None) -> None:
        row = self.rows.setdefault((fault, what), Row(fault, what))
        row.tried += count
        row.survived += count if error is None else count - 1
        row.lost += error is not None and not isinstance(error, Failed)  # an unexpected error may lose anything
        if error is not None:
            row.wrong.append(f"{type(error).__name__}: {error}")
        verdict = "survived" if error is None else f"{type(error).__name__}: {error}"
        if count > 0:
            print(f"{self.seconds:6.0f} s  {fault}, {what}: {verdict}", file=sys.stderr, flush=True)

    def trial(self, fault: str, what: str, play: Callable[[], None]) -> None:
        try:
            play()
        except Exception as error:
            self.add(fault, what, 1, error)
        else:
            self.add(fault, what, 1, None)

    def _cells(self) -> list[tuple[str, ...]]:
        rows = sorted(self.rows.values(), key=lambda row: row.fault)
        return [(row.fault, row.what, str(row.tried), str(row.survived), str(row.lost)) for row in rows]

    def summary(self) -> dict[str, int]:
        return {key: sum(getattr(row, key) for row in self.rows.values()) for key in ("tried", "survived", "lost")}

    def show(self) -> None:
        table = Table(title="torture", title_justify="left")
        for heading in HEADINGS:
            table.add_column(heading, justify="left" if heading in HEADINGS[:2] else "right")
        for cells in self._cells():
            table.add_row(*cells)
        Console(width=100).print(table)
        for row in self.rows.values():
            for text in row.wrong:
                print(f"{row.fault}, {row.what}: {text}")

    def write(self, folder: Path) -> None:
        """Write `torture.json` with all results and `torture.md` with the table."""
        folder.mkdir(parents=True, exist_ok=True)
        spent = {"seconds": round(self.seconds), "cpu_seconds": round(cpu_seconds())}
        machine = {"cores": os.cpu_count(), "load": round(os.getloadavg()[1], 1), "python": platform.python_version()}
        content = self.summary() | spent | machine | {"rows": [asdict(row) for row in self.rows.values()]}
        (folder / "torture.json").write_text(json.dumps(content, indent=2) + "\n")
        lines = [HEADINGS, ("---", "---", "---:", "---:", "---:"), *self._cells()]
        (folder / "torture.md").write_text("".join(f"| {' | '.join(line)} |\n" for line in lines))


@dataclass(frozen=True)
class Scale:
    """How many trials to run."""

    kills: int
    damages: int  # of every kind of file
    short: bool


def torture(home: Path, tally: Tally, scale: Scale, seed: int) -> None:
    rng = random.Random(seed)
    source = work.make_data(home)
    trained, older = home / "trained" / "run", home / "older"
    work.must_succeed(["train", str(source), *work.TRAIN, "--out", str(trained)])
    work.must_succeed(work.export_words(trained, older, seed=1))
    damage_files(home, tally, (trained, older / "policy", source), scale, rng)
    for fault, what, trial in clients.trials(home, older / "policy", scale.short, rng):
        tally.trial(fault, what, trial)
    work.must_succeed(["evaluate", str(trained), "--rule=grad-ada", "--episodes=1"])  # later ones replace it
    for fault, what, trial in power.trials(home / "power", trained, source, scale.short, seed):
        tally.trial(fault, what, trial)
    works = [work.evaluation(trained), work.export(trained, older)]
    if not scale.short:
        works = [work.training(source), *works, work.fine_tuning(trained)]
    for one in works:
        known = work.undisturbed(one, home / "undisturbed", 1 if scale.short else 2)
        for count, error in rounds(one, home / "kills", known, scale.kills // len(works), seed):
            tally.add("SIGKILL", one.name, count, error)
        break_places(home / "places", tally, one, known, scale.short, rng)
        for number in (signal.SIGTERM, signal.SIGHUP) if one.name in ("training", "fine-tuning") else ():
            end = partial(power.asked_to_end, one, home / "ending", known, number, rng)
            tally.trial(number.name, one.name, end)


def damage_files(home: Path, tally: Tally, files: tuple[Path, Path, Path], scale: Scale, rng: random.Random) -> None:
    for what, path, use in damage.readers(home, *files):
        for trial in damage.damages(path, use, scale.damages, rng):
            tally.trial("damaged file", what, trial)
    for what, trial in damage.hostile(home, files[1]):
        tally.trial("hostile file", what, trial)
    for what, trial in strangers(home, files[1], files[0], files[2], scale.short):
        tally.trial("stranger", what, trial)


def break_places(place: Path, tally: Tally, one: Work, known: Undisturbed, short: bool, rng: random.Random) -> None:
    tally.trial("second process", one.name, partial(places.second_process, one, place / "two", known))
    if short:
        shutil.rmtree(place)
        return
    disk = "full disk (tmpfs)" if places.has_namespaces() else "full disk (RLIMIT_FSIZE)"
    tally.trial(disk, one.name, partial(places.full_disk, one, place / "full", known, rng.randrange(*FREE[one.name])))
    tally.trial("read-only folder", one.name, partial(places.read_only, one, place / "read-only"))
    if one.name in ("training", "fine-tuning"):
        tally.trial("NaN", one.name, partial(places.nan_in_training, one, place / "nan", known, rng))
    if one.name == "training":
        tally.trial("NaN", "a learning rate of 1e30", partial(places.divergence, one, place / "diverging"))
    shutil.rmtree(place)


def cpu_seconds() -> float:
    """CPU time of this process and of all that it started. Other work on the machine does not change it."""
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in spent)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--short", action="store_true", help="a few trials of every kind, as the tests run them")
    parser.add_argument("--kills", type=int, default=100, help="number of kills in total (default: 100)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random moments and places (default: 0)")
    parser.add_argument("--out", type=Path, help="also write torture.json and torture.md into this folder")
    options = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="torture-"))
    # All compiled programs are cached, even small ones, in a folder that only this run uses.
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(home / "cache")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    if options.short:
        os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"  # else it would spend most of its time on compiling
    tally = Tally()
    try:
        torture(home, tally, Scale(options.kills, 8 if options.short else 80, options.short), options.seed)
    except Exception as error:  # the results so far are still shown
        traceback.print_exc()
        tally.add("the torture itself", "an exception", 1, error)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    tally.show()
    summary = tally.summary()
    if options.out is not None:
        tally.write(options.out)
    print(json.dumps(summary))
    raise SystemExit(0 if summary["survived"] == summary["tried"] and not summary["lost"] else 1)


if __name__ == "__main__":
    main()

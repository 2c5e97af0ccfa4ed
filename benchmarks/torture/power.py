"""Power loss, checkpoints without their run, data that changes during training, changed results, SIGTERM and SIGHUP.

A power loss is played on a copy: `disk.py` watches a run and says what a power loss may leave at every moment of
writing. Each such state is written into a folder of its own and judged there.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from damage import damages
from disk import Choice, Disk, Moment, only_kept, states
from work import TRAIN, Failed, Lost, Undisturbed, Work, checkpoints_of, digest, must_succeed, same, start, whole_run

from droprl import fit
from droprl.algorithms import ALGORITHMS
from droprl.bench import load_bench
from droprl.bench.packing import pack, unpack
from droprl.data import Dataset, load_dataset, map_dataset
from droprl.errors import DropError
from droprl.evaluation import load_evaluations
from droprl.interrupts import Interrupted
from droprl.train import Run
from droprl.train.checkpoints import STATE_FILE
from droprl.train.loop import Loop
from droprl.train.machine import machines_of

Trial = tuple[str, str, Callable[[], None]]
SCHEDULE: dict[str, Any] = {"steps": 45, "checkpoint_every": 5, "log_every": 2, "seeds": 2, "progress": False}
STOPPED_AT = 18  # between two checkpoints and at no line of the log
LONGER = (*TRAIN[: TRAIN.index("--seeds=2")], "--seeds=1", "--steps=1500", "--checkpoint-every=100")
PACKED = Path(__file__).parents[1] / "paper" / "ablation-interval"


# --- power loss ---


def judge_power_loss(run: Path) -> None:
    """Everything that has its name is whole, and no checkpoint stands ahead of its config or its log."""
    checkpoints = list(run.glob("checkpoints/[0-9]*"))
    if checkpoints and not (run / "config.json").exists():
        raise Lost(f"after the power loss: {checkpoints[0].name} stands without config.json")
    if not (run / "config.json").exists():
        return
    found = Run(run)
    try:
        saved = found.checkpoints()
        found.metrics(), found.spec(), found.scaling(), found.sub_tasks(), found.support(), machines_of(run)
    except DropError as error:
        raise Lost(f"after the power loss: {error}") from error
    if torn := [c.step for c in saved if digest(c.path / STATE_FILE) != c.sha256]:
        raise Lost(f"after the power loss: checkpoint {torn[0]} is torn")
    if saved:
        last, every = saved[-1].step, found.config.log_every
        logged = {entry["step"] for entry in found.metrics()}
        if ahead := [step for step in range(every, last + 1, every) if step not in logged]:
            raise Lost(
                f"after the power loss: checkpoint {last} stands ahead of the log, which lacks update {ahead[0]}"
            )


def recorded_run(dataset: Dataset, algorithm: Any, place: Path) -> Disk:
    """A run that is stopped once and then trained to its end, in a new folder below `place`."""
    place.mkdir(parents=True)
    disk, run_updates = Disk(place), Loop.run

    def stops(self: Loop, states: Any, first: int, count: int) -> Any:
        count = min(count, STOPPED_AT - first) if first < STOPPED_AT else count
        answer = run_updates(self, states, first, count)
        if first + count == STOPPED_AT:
            os.kill(os.getpid(), signal.SIGTERM)
        return answer

    with disk.watched():
        Loop.run = stops  # type: ignore[method-assign]
        try:
            fit(dataset, algorithm, out=place / "runs" / "run", **SCHEDULE)
            raise Failed("SIGTERM did not stop the training")
        except Interrupted:
            pass
        finally:
            Loop.run = run_updates  # type: ignore[method-assign]
        fit(dataset, algorithm, out=place / "runs" / "run", **SCHEDULE)
    return disk


def power_loss(
    disk: Disk, moment: Moment, choose: Choice, place: Path, again: Callable[[Path], Run] | None, expected: Path
) -> None:
    """Judge one state; `again` also makes the same call there, which must end with the bytes of the recorded run."""
    shutil.rmtree(place, ignore_errors=True)
    disk.write(moment, choose, place)
    run = place / "runs" / "run"
    judge_power_loss(run)
    if again is not None:
        same(checkpoints_of(again(run).path), checkpoints_of(expected), "after the power loss")
        same({"log": Run(run).metrics()}, {"log": Run(expected).metrics()}, "after the power loss")
    shutil.rmtree(place)


def finished_run_is_kept(disk: Disk, place: Path, expected: Path) -> None:
    """When the command has ended, everything that it saved is on the disk."""
    shutil.rmtree(place, ignore_errors=True)
    disk.write(disk.moments[-1], only_kept, place)
    try:
        same(checkpoints_of(place / "runs" / "run"), checkpoints_of(expected), "after the power loss")
        whole_run(place / "runs" / "run")
    except Lost as error:
        raise Lost(f"the run had ended and is not on the disk: {error}") from error
    shutil.rmtree(place)


# --- a checkpoint belongs to one run ---


def must_not_adopt(run: Path, remove: bool, again: Callable[[Path], Run]) -> None:
    """Other settings or other data must not take over these checkpoints as their own."""
    place = Path(shutil.copytree(run, run.with_name("adopted")))
    if remove:
        (place / "config.json").unlink()
    before = checkpoints_of(place)
    try:
        again(place)
    except DropError as error:
        if str(place) not in str(error) or "\n" in str(error):
            raise Failed(f"refused, but without its name: {error}") from error
    else:
        raise Lost("the checkpoints of one run were taken for those of another")
    finally:
        same(checkpoints_of(place), before, "the checkpoints")
        shutil.rmtree(place)


# --- data that changes while training reads it ---

READS = """
import os, random, sys, threading
from pathlib import Path
import numpy as np
from droprl.data.held_files import HeldFiles
from droprl.errors import DropError

path, rng = Path(sys.argv[1]), random.Random(int(sys.argv[2]))
content = path.read_bytes()
for _ in range(int(sys.argv[3])):
    path.write_bytes(content)
    files, column = HeldFiles([path]), np.load(path, mmap_mode="r")
    said, begun = [], threading.Event()

    def read():
        try:
            while True:
                with files.reading():
                    begun.set()
                    np.asarray(column)[::16].sum()
        except DropError as error:
            said.append(str(error))

    reader = threading.Thread(target=read)
    reader.start()
    begun.wait()
    threading.Event().wait(0.01 * rng.random())
    os.truncate(path, rng.randrange(len(content)))
    reader.join()
    if not said or "was cut short" not in said[0]:
        raise SystemExit(f"not noticed: {said}")
"""


def cut_short_while_read(place: Path, seed: int, rounds: int) -> None:
    """A thread reads without a pause while the file is cut short: an error, and not the end of the process."""
    place.mkdir(parents=True, exist_ok=True)
    np.save(place / "column.npy", np.zeros((2**18, 8), np.float32))
    words = [sys.executable, "-c", READS, str(place / "column.npy"), str(seed), str(rounds)]
    answer = subprocess.run(words, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise Lost(f"the reader ended with {answer.returncode}: {answer.stderr.strip()[-200:]}")


def data_changes(source: Path, place: Path, cut: bool) -> None:
    """The command ends in one line that names the column. With the old data, the same command ends well."""
    place.mkdir(parents=True)
    columns, run = place / "columns", place / "run"
    map_dataset(source, columns)
    column = columns / "observations.npy"
    content = column.read_bytes()
    words = ["train", str(columns), *LONGER, "--out", str(run)]
    process = start(words)
    while not list(run.glob("checkpoints/[0-9]*")) and process.poll() is None:
        time.sleep(0.01)
    if cut:
        os.truncate(column, len(content) // 3)
    else:
        with open(column, "r+b") as file:
            file.seek(len(content) // 2)
            file.write(b"\1\2\3\4")
    _, said = process.communicate()
    last = said.strip().splitlines()[-1]
    if process.returncode != 1 or str(column) not in last or "while it was read" not in last:
        raise Failed(f"ended with {process.returncode}: {last}")
    whole_run(run)
    column.write_bytes(content)
    must_succeed(words)
    shutil.rmtree(place)


# --- signals that ask to end ---


def asked_to_end(one: Work, place: Path, known: Undisturbed, number: signal.Signals, rng: random.Random) -> None:
    """It ends with the signal's exit code and says how to go on; the same command ends as if nothing had been."""
    one.prepare(place)
    process = start(one.words(place))
    try:
        process.wait(timeout=rng.uniform(0.5, 0.9) * known.seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(number)
    _, said = process.communicate()
    last = said.strip().splitlines()[-1] if said.strip() else ""
    if process.returncode == -number:  # at its very end: then everything is done
        same(one.outcome(place), known.outcome, one.name)
    elif process.returncode not in (0, 128 + number):
        raise Failed(f"{one.name} ended with {process.returncode} after {number.name}: {last}")
    if process.returncode > 0 and not last.startswith("drop: stopped"):
        raise Failed(f"{one.name} did not say that it stopped: {last}")
    one.check(place, known.outcome)
    must_succeed(one.words(place))
    same(one.outcome(place), known.outcome, one.name)
    shutil.rmtree(place)


# --- all of them ---


def power_losses(home: Path, source: Path, rng: random.Random, short: bool) -> Iterator[Trial]:
    dataset = load_dataset(source)
    algorithm: Any = ALGORITHMS["bc"].tiny()
    recorded = home / "recorded"
    disk = recorded_run(dataset, algorithm, recorded)
    found = list(states(disk, rng, mixed=150))
    found = rng.sample(found, 40) if short else found
    resumed = set(rng.sample(range(len(found)), 1 if short else 10))

    def again(run: Path) -> Run:
        return fit(dataset, algorithm, out=run, **SCHEDULE)

    for number, (moment, choose) in enumerate(found):
        resumes = again if number in resumed else None
        expected = recorded / "runs" / "run"
        yield "power loss", "training", partial(power_loss, disk, moment, choose, home / "state", resumes, expected)
    ended = partial(finished_run_is_kept, disk, home / "state", recorded / "runs" / "run")
    yield "power loss", "training that has ended", ended
    other = replace(algorithm, learning_rate=0.5)
    shorter = replace(dataset, rewards=dataset.rewards + 1)
    calls: list[tuple[bool, Callable[[Path], Run]]] = [
        (True, lambda run: fit(dataset, other, out=run, **SCHEDULE)),
        (True, lambda run: fit(shorter, algorithm, out=run, **SCHEDULE)),
        (True, lambda run: fit(dataset, algorithm, out=run, **SCHEDULE | {"steps": 40})),
        (False, lambda run: fit(dataset, other, out=run, **SCHEDULE)),
    ]
    for remove, call in calls:
        what = "without config.json" if remove else "with config.json"
        yield "another command", what, partial(must_not_adopt, recorded / "runs" / "run", remove, call)


def changed_results(home: Path, trained: Path, count: int, rng: random.Random) -> Iterator[Trial]:
    """`trained` has an evaluation. A folder of a suite that is committed is packed again, now with checksums."""
    run = Run(shutil.copytree(trained, home / "evaluated"))
    for path in sorted(run.evaluation_folder.glob("*.json")):
        for trial in damages(path, lambda: load_evaluations(run), count, rng):
            yield "damaged file", "evaluation", trial
    loose, packed = Path(shutil.copytree(PACKED, home / "suite")), home / "packed"
    unpack(loose)
    pack(loose, packed)

    def read() -> Any:
        bench = load_bench(packed)
        names = [(t, m, p) for t in bench.suite.tasks for m in bench.suite.methods for p in bench.suite.plays_of(m)]
        return [bench.evaluation(*name) for name in names]

    for name in ("suite.json", "episodes.csv"):
        for trial in damages(packed / name, read, count, rng):
            yield "damaged file", "packed suite", trial


def changed_data(home: Path, source: Path, seed: int) -> Iterator[Trial]:
    yield "changed data", "cut short while it is read", partial(cut_short_while_read, home / "read", seed, 25)
    for cut in (True, False):
        what = "cut short in training" if cut else "overwritten in training"
        yield "changed data", what, partial(data_changes, source, home / "changing", cut)


def trials(home: Path, trained: Path, source: Path, short: bool, seed: int) -> Iterator[Trial]:
    home.mkdir()
    rng = random.Random(seed)
    yield from power_losses(home, source, rng, short)
    yield from changed_results(home, trained, 8 if short else 80, rng)
    if not short:
        yield from changed_data(home, source, seed)

"""Places that fail: a full disk, a read-only folder, a second process in the same place, and numbers that overflow.

If the system gives ordinary users a mount namespace, the full disk is a small tmpfs and the read-only folder is a
read-only mount. Otherwise no file may grow (RLIMIT_FSIZE), and the folder loses its permission to write.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from work import (
    FAULTY,
    STEPS,
    Answer,
    Failed,
    Lost,
    Undisturbed,
    Work,
    finish,
    must_refuse,
    must_succeed,
    same,
    start,
    tree,
)

from droprl.train import Run

NAMESPACE = ("unshare", "--map-root-user", "--mount", "sh", "-c")
# $1 is the place, $2 the bytes to leave free, $3 the folder for copies; then comes the command. It runs on a full disk,
# and again after the disk has room.
FULL = """
set -e
disk="$3/disk"; mkdir -p "$disk"; mount -t tmpfs -o size=24m tmpfs "$disk"
cp -r "$1/." "$disk"
cat /dev/zero > "$disk/filler" 2>/dev/null || true
truncate -s "-$2" "$disk/filler"
shift 2; copies="$1"; shift
(cd "$disk" && "$@" 2> "$copies/said") && code=0 || code=$?
echo $code > "$copies/code"
rm "$disk/filler"; cp -r "$disk" "$copies/full"
cd "$disk" && "$@" 2> "$copies/said-again"
cp -r "$disk" "$copies/again"
"""
READ_ONLY = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && shift && exec "$@"'


@cache
def has_namespaces() -> bool:
    try:
        probe = (*NAMESPACE, "mount -t tmpfs tmpfs /mnt")
        return subprocess.run(probe, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def full_disk(work: Work, place: Path, known: Undisturbed, free: int) -> None:
    """On a full disk the command says so and loses nothing. Once there is room, it ends well."""
    work.prepare(place / "before")
    if not has_namespaces():
        must_refuse(finish(work.words(place / "before"), "small=2000"), "cannot be written (File too large)")
        work.check(place / "before", known.outcome)
        must_succeed(work.words(place / "before"))
        same(work.outcome(place / "before"), known.outcome, work.name)
        return
    copies = place / "copies"
    copies.mkdir()
    words = [word.replace(f"{place / 'before'}/", "") for word in work.words(place / "before")]
    command = [sys.executable, str(FAULTY), "none", *words]
    arguments = ["full-disk", str(place / "before"), str(free), str(copies), *command]
    told = subprocess.run([*NAMESPACE, FULL, *arguments], capture_output=True, text=True, check=False)
    answer = Answer(int((copies / "code").read_text()), (copies / "said").read_text())
    must_refuse(answer, "cannot be written (No space left on device)")
    work.check(copies / "full", known.outcome)
    if told.returncode != 0:
        raise Failed(f"{work.name} with room again ended with {told.returncode}: {told.stderr.strip()}")
    same(work.outcome(copies / "again"), known.outcome, work.name)


def read_only(work: Work, place: Path) -> None:
    """The command is refused at once, and no byte changes."""
    work.prepare(place)
    before = tree(place)
    with _unwritable(place) as wrapper:
        answer = finish(work.words(place), before=wrapper)
    must_refuse(answer, str(place), "cannot be")
    same(tree(place), before, work.name)


@contextmanager
def _unwritable(place: Path) -> Iterator[tuple[str, ...]]:
    """The words in front of a command that forbid it to write in this place."""
    if has_namespaces():
        yield (*NAMESPACE, READ_ONLY, "read-only", str(place))
        return
    if os.geteuid() == 0:
        raise Failed("root may write everywhere, and there are no namespaces here: run this as an ordinary user")
    folders = [place, *(path for path in place.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    try:
        yield ()
    finally:
        for folder in folders:
            folder.chmod(0o755)


def second_process(work: Work, place: Path, known: Undisturbed) -> None:
    """The first process is stopped while it writes. A second one is refused, and the first then ends as if alone."""
    work.prepare(place)
    first = start(work.words(place), f"stop={1 + known.moments // 2}")
    try:
        os.waitid(os.P_PID, first.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        if first.poll() is not None:
            raise Failed(f"the first ended with {first.returncode} before the second began")
        answer = finish(work.words(place))
        first.send_signal(signal.SIGCONT)
        _, said = first.communicate()
    finally:
        first.kill()
    must_refuse(answer, "another process is")
    if first.returncode != 0:
        raise Failed(f"the first ended with {first.returncode}: {said}")
    same(work.outcome(place), known.outcome, work.name)


def nan_in_training(work: Work, place: Path, known: Undisturbed, rng: random.Random) -> None:
    """The command stops and says why. Older checkpoints are good, and the same command without the fault ends well."""
    work.prepare(place)
    update = rng.randint(100, STEPS)
    must_refuse(finish(work.words(place), f"nan={update}"), "NaN or infinit", "diverged", "unchanged")
    work.check(place, known.outcome)
    kept = [checkpoint.step for checkpoint in Run(place / "run").checkpoints()]
    if work.name == "training" and (not kept or max(kept) >= update):
        raise Lost(f"NaN came at update {update}, but the checkpoints are {kept}")
    if work.name == "fine-tuning" and list((place / "run" / "finetune").rglob("state/[0-9]*")):
        raise Lost("a state of NaN was saved")
    must_succeed(work.words(place))
    same(work.outcome(place), known.outcome, work.name)


def divergence(work: Work, place: Path) -> None:
    """Training really diverges: no network survives this learning rate."""
    work.prepare(place)
    words = [*work.words(place), "--learning-rate=1e30", "--head=gaussian"]
    must_refuse(finish(words), "NaN or infinite", "diverged")
    work.check(place, {})
    shutil.rmtree(place)

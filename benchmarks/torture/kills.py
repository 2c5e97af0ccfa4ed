"""SIGKILL: half of the kills come at a random time of a command, half while it writes, where a kill hurts most.

A round starts one command in a fresh place and kills it several times. After each kill the place is read as another
user would read it. Then the command runs to its end and must leave the same files as a command without kills.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from work import Failed, Undisturbed, Work, must_succeed, same, start

MOST_KILLS = 5  # in one round
EARLIEST = 0.2  # share of the duration. Before it Python imports modules, and nothing can be damaged


def kill_at_random(work: Work, place: Path, known: Undisturbed, rng: random.Random) -> bool:
    """One start and one kill. False if the command had ended before the kill."""
    if rng.random() < 0.5:
        process = start(work.words(place), f"kill={rng.randint(1, known.moments)}")
        _, said = process.communicate()
    else:
        process = start(work.words(place))
        try:
            _, said = process.communicate(timeout=rng.uniform(EARLIEST, 1) * known.seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            _, said = process.communicate()
    if process.returncode not in (0, -signal.SIGKILL):
        raise Failed(f"{work.name} ended with {process.returncode}: {said.strip().splitlines()[-1:]}")
    return process.returncode != 0


def play_round(work: Work, place: Path, known: Undisturbed, kills: int, rng: random.Random) -> int:
    """Play one round. The number of kills, all of which were survived."""
    work.prepare(place)
    done = 0
    while done < kills and kill_at_random(work, place, known, rng):
        work.check(place, known.outcome)
        done += 1
    must_succeed(work.words(place))
    same(work.outcome(place), known.outcome, work.name)
    if left := [path.name for path in place.rglob(".partial-*")]:
        raise Failed(f"{work.name}: {left[0]} was left behind")
    shutil.rmtree(place)
    return done


def rounds(
    work: Work, place: Path, known: Undisturbed, kills: int, seed: int
) -> Iterator[tuple[int, Exception | None]]:
    """Play two rounds at a time until there were enough kills. For each round its number of kills, and its error."""

    def one(number: int, wanted: int) -> tuple[int, Exception | None]:
        try:
            rng = random.Random(f"{seed} {work.name} {number}")
            return play_round(work, place / f"{work.name}-{number}", known, wanted, rng), None
        except Exception as error:  # an unexpected error is a result too
            return 1, error

    number = 0
    with ThreadPoolExecutor(2) as pool:
        while kills > 0:
            wanted = [min(MOST_KILLS, kills), min(MOST_KILLS, kills - MOST_KILLS)]
            pair = [(number + i, n) for i, n in enumerate(wanted) if n > 0]
            for done, error in pool.map(lambda arguments: one(*arguments), pair):
                kills -= done
                yield done, error
            number += len(pair)

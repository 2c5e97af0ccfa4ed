"""`times.json`: when a run was trained, and for how long. Nothing else depends on it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from droprl.errors import DropError
from droprl.files.plain import clear
from droprl.files.seals import read_sealed, sealed
from droprl.files.settings import from_dict
from droprl.files.storage import TEMPORARY, write_bytes

FILE = "times.json"
REMEDY = "remove it: only the record of training times is lost"


@dataclass(frozen=True)
class Session:
    """One process that trained without a pause, compilation included."""

    began: str
    """In UTC, as 2026-01-31T09:00:00+00:00."""
    first: int
    """The update that it began at."""
    last: int
    """The update that it reached."""
    seconds: float
    seeds: int


class Stopwatch:
    """Measures a session. `note` writes it down, again and again."""

    def __init__(self, run: Path, first: int, seeds: int) -> None:
        self._run, self._start = run, time.perf_counter()
        try:
            self._before = sessions_of(run)
        except DropError:  # a damaged record of times must not stop a training
            self._before = []
        self._before = [session for session in self._before if session.last <= first]
        self._session = Session(datetime.now(UTC).isoformat(timespec="seconds"), first, first, 0.0, seeds)

    def note(self, step: int) -> None:
        seconds = round(time.perf_counter() - self._start, 3)
        self._session = replace(self._session, last=step, seconds=seconds)
        _write(self._run, [*self._before, self._session])


def forget_partial_times(run: Path) -> None:
    """Remove what a killed process left of its last note. Nobody writes it again if the run is finished."""
    clear(run / f"{TEMPORARY}{FILE}")


def _write(run: Path, sessions: Sequence[Session]) -> None:
    write_bytes(run / FILE, sealed({"sessions": [asdict(one) for one in sessions]}))


def sessions_of(run: Path) -> list[Session]:
    """The sessions in order. Empty in runs of older versions."""
    where = run / FILE
    if not where.exists():
        return []
    found = read_sealed(where, REMEDY).get("sessions")
    if not isinstance(found, list):
        raise DropError(f"{where}: holds no list of sessions: {REMEDY}")
    return [from_dict(Session, one, str(where), REMEDY) for one in found]


def join_times(run: Path, more: Path) -> None:
    """Add the sessions in which the seeds of another folder were trained."""
    with suppress(DropError):
        own, others = sessions_of(run), sessions_of(more)
        _write(run, [*own, *(one for one in others if one not in own)])

"""Requests wait by client, and one thread calls the engine. Requests that wait together are answered together."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from droprl.deploy.serve.engine import Acted, Engine, Rows
from droprl.errors import DropError

ENDED = "the policy no longer answers: start the service again"
HUNG = "the policy has not come back from a call for {:.0f} s: if this lasts, start the service again"


class Busy(DropError):
    """Too many requests are waiting to be answered soon."""


class Ended(DropError):
    """The thread that answers has ended, or does not come back."""


@dataclass(frozen=True, eq=False)
class _Job:
    rows: Rows
    client: str
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[Acted]  # cancelled when the client has gone, or cannot wait any longer


class _Line:
    """The jobs that wait. Clients take turns, and the jobs of one client keep their order. Cancelled jobs drop out."""

    def __init__(self, most: int, most_each: int) -> None:
        self._most, self._most_each = most, most_each
        self._jobs: OrderedDict[str, deque[_Job]] = OrderedDict()  # the first client is the next one
        self._changed = threading.Condition()
        self._closed = False

    def __len__(self) -> int:
        with self._changed:
            return sum(map(len, self._jobs.values()))

    def add(self, job: _Job) -> None:
        with self._changed:
            if self._closed:
                raise Ended(ENDED)
            own = self._jobs.get(job.client, ())
            if len(own) >= self._most_each or sum(map(len, self._jobs.values())) >= self._most:
                self._drop_cancelled()
                own = self._jobs.get(job.client, ())
            if (waiting := sum(map(len, self._jobs.values()))) >= self._most:
                raise Busy(f"{waiting} requests are waiting already: try again in a moment")
            if len(own) >= self._most_each:
                raise Busy(f"{len(own)} requests of yours are waiting already: try again in a moment")
            self._jobs.setdefault(job.client, deque()).append(job)
            self._changed.notify()

    def take(self, room: int) -> list[_Job]:
        """The next jobs, as many as have room for their rows. It waits for the first. None are left after `close`."""
        batch: list[_Job] = []
        with self._changed:
            while not batch:
                while self._jobs:
                    client, line = next(iter(self._jobs.items()))
                    if line[0].answer.cancelled():
                        line.popleft()
                    elif batch and len(line[0].rows.observations) > room:
                        return batch  # this client is the first one next time
                    else:
                        room -= len(line[0].rows.observations)
                        batch.append(line.popleft())
                        self._jobs.move_to_end(client)
                    if not line:
                        del self._jobs[client]
                if not batch:
                    if self._closed:
                        break
                    self._changed.wait()
        return batch

    def close(self) -> None:
        """Take no more jobs. Those that wait can still be taken."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def empty(self) -> list[_Job]:
        """Close, and take all that is left."""
        self.close()
        with self._changed:
            left = [job for line in self._jobs.values() for job in line]
            self._jobs.clear()
        return left

    def _drop_cancelled(self) -> None:
        kept = {c: deque(job for job in line if not job.answer.cancelled()) for c, line in self._jobs.items()}
        self._jobs = OrderedDict((client, line) for client, line in kept.items() if line)


class Batcher:
    """Answers a single request at once. Requests that come while the engine is busy go together in the next batch."""

    def __init__(
        self,
        engine: Engine,
        most_waiting: int = 1024,
        on_batch: Callable[[int], None] | None = None,
        most_of_a_client: int | None = None,
        longest_call: float = float("inf"),
    ) -> None:
        """After `longest_call` seconds in one call of the engine, the policy counts as hung until it comes back."""
        self._engine, self._on_batch, self._longest_call = engine, on_batch, longest_call
        self._line = _Line(most_waiting, most_waiting if most_of_a_client is None else most_of_a_client)
        self._called: float | None = None  # when the call of the engine under way began
        self._ended = False
        self._thread = threading.Thread(target=self._work, name="droprl-batches", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        return len(self._line)

    @property
    def trouble(self) -> str | None:
        """Why nobody gets an answer at present, or None."""
        called = self._called
        taken = 0.0 if called is None else time.monotonic() - called
        if self._ended:
            return ENDED
        return HUNG.format(taken) if taken > self._longest_call else None

    async def act(self, rows: Rows, client: str = "") -> Acted:
        """At most `engine.largest` rows. If this is cancelled before the engine has begun, nothing is computed."""
        if (trouble := self.trouble) is not None:
            raise Ended(trouble)
        loop = asyncio.get_running_loop()
        job = _Job(rows, client, loop, loop.create_future())
        self._line.add(job)
        return await job.answer

    def close(self, seconds: float | None = None) -> bool:
        """End the thread after it has answered all requests that wait, and say whether it ended within this time."""
        self._line.close()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _work(self) -> None:
        batch: list[_Job] = []
        try:
            while batch := self._line.take(self._engine.largest):
                self._answer(batch)
        finally:  # after an error too: otherwise the remaining requests would wait for ever
            self._ended = True
            _send([(job, Ended(ENDED)) for job in (*batch, *self._line.empty())])

    def _answer(self, batch: list[_Job]) -> None:
        self._called = time.monotonic()
        try:
            answers: list[Acted | Exception] = list(self._engine.step([job.rows for job in batch]))
        except Exception as error:  # the thread must go on: the error goes to those who asked
            answers = [error] * len(batch)
        self._called = None
        if self._on_batch is not None:
            self._on_batch(sum(len(job.rows.observations) for job in batch))
        _send(list(zip(batch, answers, strict=True)))


def _send(pairs: list[tuple[_Job, Acted | Exception]]) -> None:
    """Send answers to the event loops that wait for them. A loop that has closed does not wait any more."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Job, Acted | Exception]]] = {}
    for job, answer in pairs:
        by_loop.setdefault(job.loop, []).append((job, answer))
    for loop, theirs in by_loop.items():
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_deliver, theirs)


def _deliver(pairs: list[tuple[_Job, Acted | Exception]]) -> None:
    for job, answer in pairs:
        if job.answer.done():  # already answered, or the client has gone
            continue
        if isinstance(answer, Exception):
            job.answer.set_exception(answer)
        else:
            job.answer.set_result(answer)

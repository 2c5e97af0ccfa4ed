"""A queue of requests, and one thread that calls the engine. Requests that wait together are answered together."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from droprl.deploy.serve.engine import Acted, Engine, Rows
from droprl.errors import DropError

END = None  # `close` puts this at the end of the queue
ENDED = "the policy no longer answers: start the service again"


class Busy(DropError):
    """Too many requests are waiting to be answered soon."""


class Ended(DropError):
    """The thread that answers has ended."""


@dataclass(frozen=True)
class _Job:
    rows: Rows
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[Acted]


class Batcher:
    """Answers a single request at once. Requests that come while the engine is busy go together in the next batch."""

    def __init__(self, engine: Engine, most_waiting: int = 1024, on_batch: Callable[[int], None] | None = None) -> None:
        self._engine, self._on_batch = engine, on_batch
        self._queue: queue.Queue[_Job | None] = queue.Queue(most_waiting)
        self._ahead: list[_Job | None] = []  # at most one job: taken from the queue, but not begun
        self._ended = False  # set by the thread, before it refuses the jobs that remain
        self._thread = threading.Thread(target=self._work, name="droprl-batches", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        return self._queue.qsize()

    @property
    def works(self) -> bool:
        return not self._ended

    async def act(self, rows: Rows) -> Acted:
        """At most `engine.largest` rows."""
        if self._ended:
            raise Ended(ENDED)
        loop = asyncio.get_running_loop()
        job = _Job(rows, loop, loop.create_future())
        try:
            self._queue.put_nowait(job)
        except queue.Full:
            raise Busy(f"{self._queue.maxsize} requests are waiting already: try again in a moment") from None
        if self._ended:  # the thread ended in between. If it ends later, it finds the job and refuses it
            job.answer.cancel()
            raise Ended(ENDED)
        return await job.answer

    def close(self) -> None:
        """End the thread, after it has answered all requests that wait."""
        if not self._ended:
            self._queue.put(END)
        self._thread.join()

    def _work(self) -> None:
        batch: list[_Job] = []
        try:
            while (first := self._next()) is not END:
                batch = self._gather(first)
                self._answer(batch)
        finally:  # after an error too: otherwise the remaining requests would wait for ever
            self._ended = True
            left = [*self._ahead, *self._rest()]
            _send([(job, Ended(ENDED)) for job in (*batch, *left) if job is not END])

    def _next(self) -> _Job | None:
        return self._ahead.pop() if self._ahead else self._queue.get()

    def _rest(self) -> Iterator[_Job | None]:
        with suppress(queue.Empty):
            while True:
                yield self._queue.get_nowait()

    def _gather(self, first: _Job) -> list[_Job]:
        """The jobs that wait, as many as fit into one call. The first one that does not fit goes into `_ahead`."""
        batch, room = [first], self._engine.largest - len(first.rows.observations)
        while room > 0:
            try:
                job = self._queue.get_nowait()
            except queue.Empty:
                break
            room -= 0 if job is END else len(job.rows.observations)
            if job is END or room < 0:
                self._ahead.append(job)
                break
            batch.append(job)
        return batch

    def _answer(self, batch: list[_Job]) -> None:
        try:
            answers: list[Acted | Exception] = list(self._engine.step([job.rows for job in batch]))
        except Exception as error:  # the thread must go on: the error goes to those who asked
            answers = [error] * len(batch)
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

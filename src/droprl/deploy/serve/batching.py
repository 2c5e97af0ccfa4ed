"""Requests that wait while the policy is busy are answered together: a queue, and one thread that calls the engine."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from droprl.deploy.serve.engine import Acted, Engine, Rows
from droprl.errors import DropError

END = None  # what `close` puts behind all that is waiting
ENDED = "the policy no longer answers: start the service again"


class Busy(DropError):
    """More is waiting than would be answered soon."""


class Ended(DropError):
    """Nobody is left to answer."""


@dataclass(frozen=True)
class _Job:
    rows: Rows
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[Acted]


class Batcher:
    """Nobody waits for company: a request alone is answered at once, and those that came meanwhile go together."""

    def __init__(self, engine: Engine, most_waiting: int = 1024, on_batch: Callable[[int], None] | None = None) -> None:
        self._engine, self._on_batch = engine, on_batch
        self._queue: queue.Queue[_Job | None] = queue.Queue(most_waiting)
        self._ahead: list[_Job | None] = []  # what the thread has taken from the queue and not begun: one at most
        self._ended = False  # set by the thread, before it refuses what it leaves behind
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
        if self._ended:  # meanwhile; a thread that ends later finds the job, and refuses it
            job.answer.cancel()
            raise Ended(ENDED)
        return await job.answer

    def close(self) -> None:
        """After what is waiting has been answered."""
        if not self._ended:
            self._queue.put(END)
        self._thread.join()

    def _work(self) -> None:
        batch: list[_Job] = []
        try:
            while (first := self._next()) is not END:
                batch = self._gather(first)
                self._answer(batch)
        finally:  # in order or not: whoever still waits would wait for ever
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
        """Whatever is waiting, as far as one call takes it; the first that it does not goes `_ahead` of the rest."""
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
        except Exception as error:  # the thread must live on: whoever asked is told
            answers = [error] * len(batch)
        if self._on_batch is not None:
            self._on_batch(sum(len(job.rows.observations) for job in batch))
        _send(list(zip(batch, answers, strict=True)))


def _send(pairs: list[tuple[_Job, Acted | Exception]]) -> None:
    """To the loops that wait; those that have closed do not any more."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Job, Acted | Exception]]] = {}
    for job, answer in pairs:
        by_loop.setdefault(job.loop, []).append((job, answer))
    for loop, theirs in by_loop.items():
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_deliver, theirs)


def _deliver(pairs: list[tuple[_Job, Acted | Exception]]) -> None:
    for job, answer in pairs:
        if job.answer.done():  # answered already, or whoever asked has gone
            continue
        if isinstance(answer, Exception):
            job.answer.set_exception(answer)
        else:
            job.answer.set_result(answer)

"""Requests that wait while the policy is busy are answered together: a queue, and one thread that calls the engine."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

from droprl.deploy.serve.engine import Acted, Engine, Rows
from droprl.errors import DropError


class Busy(DropError):
    """More is waiting than would be answered soon."""


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
        self._thread = threading.Thread(target=self._work, name="droprl-batches", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        return self._queue.qsize()

    @property
    def works(self) -> bool:
        return self._thread.is_alive()

    async def act(self, rows: Rows) -> Acted:
        """At most `engine.largest` rows."""
        loop = asyncio.get_running_loop()
        job = _Job(rows, loop, loop.create_future())
        try:
            self._queue.put_nowait(job)
        except queue.Full:
            raise Busy(f"{self._queue.maxsize} requests are waiting already: try again in a moment") from None
        return await job.answer

    def close(self) -> None:
        """After what is waiting has been answered."""
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        held = self._queue.get()  # taken from the queue, and not answered yet
        while held is not None:
            batch, held = self._gather(held)
            self._answer(batch)
            held = held or self._queue.get()

    def _gather(self, first: _Job) -> tuple[list[_Job], _Job | None]:
        """Whatever is waiting, as far as one call takes it, and the one that did not fit."""
        batch, room = [first], self._engine.largest - len(first.rows.observations)
        while room > 0:
            try:
                job = self._queue.get_nowait()
            except queue.Empty:
                break
            if job is None:
                self._queue.put(None)  # the end, once this batch is done
                break
            room -= len(job.rows.observations)
            if room < 0:
                return batch, job
            batch.append(job)
        return batch, None

    def _answer(self, batch: list[_Job]) -> None:
        try:
            answers: list[Acted | Exception] = list(self._engine.step([job.rows for job in batch]))
        except Exception as error:  # the thread must live on: whoever asked is told
            answers = [error] * len(batch)
        if self._on_batch is not None:
            self._on_batch(sum(len(job.rows.observations) for job in batch))
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Job, Acted | Exception]]] = {}
        for job, answer in zip(batch, answers, strict=True):
            by_loop.setdefault(job.loop, []).append((job, answer))
        for loop, pairs in by_loop.items():
            if not loop.is_closed():
                loop.call_soon_threadsafe(_deliver, pairs)


def _deliver(pairs: list[tuple[_Job, Acted | Exception]]) -> None:
    for job, answer in pairs:
        if job.answer.done():  # whoever asked has gone
            continue
        if isinstance(answer, Exception):
            job.answer.set_exception(answer)
        else:
            job.answer.set_result(answer)

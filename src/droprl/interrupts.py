"""Ctrl-C, SIGTERM and SIGHUP: each asks to save and to end. The exit code then says which one it was."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(KeyboardInterrupt):
    """A signal stopped the work. If there is a message, the state is saved, and the message says how to go on."""

    def __init__(self, *message: str, number: int = signal.SIGINT) -> None:
        super().__init__(*message)
        self.number = number


def signal_of(stop: KeyboardInterrupt) -> int:
    """Which signal it was. A shell adds 128: 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP."""
    return stop.number if isinstance(stop, Interrupted) else signal.SIGINT


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the work as Ctrl-C does, by an exception."""

    def end(number: int, frame: Any) -> None:
        raise Interrupted(number=number)

    with _handled({number: end for number in ASKING if number != signal.SIGINT}):
        yield


@contextmanager
def asked_to_stop() -> Iterator[Callable[[], int | None]]:
    """The answer is a function: it returns the signal that asked for a stop at the next safe moment, or None.

    A second Ctrl-C stops at once. Others do not hurry: a process may get SIGTERM both from its parent and with its
    group.
    """
    asked: list[int] = []

    def ask(number: int, frame: Any) -> None:
        if asked and number == signal.SIGINT:
            raise Interrupted(number=number)
        asked.append(number)

    with _handled(dict.fromkeys(ASKING, ask)):
        yield lambda: asked[0] if asked else None


@contextmanager
def _handled(handlers: dict[signal.Signals, Callable[[int, Any], None]]) -> Iterator[None]:
    """Only the main thread can do this. Under `nohup` SIGHUP is ignored and stays so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ignored = {number for number in handlers if number != signal.SIGINT and signal.getsignal(number) is signal.SIG_IGN}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items() if number not in ignored}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

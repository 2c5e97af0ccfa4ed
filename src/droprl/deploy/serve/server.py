"""uvicorn around the application: where it may listen, and how it ends."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType

import uvicorn
from fastapi import FastAPI

from droprl.deploy.serve.gate import is_loopback
from droprl.errors import DropError

DRAIN_SECONDS = 30
MOST_CONNECTIONS = 2048  # beyond it they get a 503 at once


def check_address(host: str, token: str | None) -> None:
    """Whoever can reach the port can use the policy: beyond this machine only with a token."""
    if token is not None and (not token.strip() or not token.isascii()):
        raise DropError("the token is blank or not ASCII: give one that nobody guesses")
    if token is None and not is_loopback(host):
        raise DropError(
            f"{host}: can be reached from other machines: give a token (DROP_TOKEN=… or --token), or serve on 127.0.0.1"
        )


class Server(uvicorn.Server):
    """On SIGTERM or Ctrl-C: takes no more requests, answers those under way, and ends as if nothing were wrong."""

    def __init__(
        self, app: FastAPI, host: str, port: int, when_ready: Callable[[int], None], at_end: Callable[[], None]
    ):
        super().__init__(
            uvicorn.Config(
                app,
                host=host,
                port=port,
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=DRAIN_SECONDS,
                limit_concurrency=MOST_CONNECTIONS,
                ws="none",
            )
        )
        self._when_ready, self._at_end = when_ready, at_end
        self.drained = False  # every request under way was answered before it ended

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._when_ready(self.servers[0].sockets[0].getsockname()[1])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        began = time.monotonic()
        await super().shutdown(sockets)
        self.drained = not self.force_exit and time.monotonic() - began < DRAIN_SECONDS

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """uvicorn's own would raise the signal again when all is done, and the process would seem to have crashed."""
        heard = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
        before = {sig: signal.signal(sig, self.handle_exit) for sig in heard}
        try:
            yield
        finally:
            for sig, handler in before.items():
                signal.signal(sig, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._at_end()
        super().handle_exit(sig, frame)

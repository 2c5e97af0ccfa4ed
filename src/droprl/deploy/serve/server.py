"""uvicorn around the application: where it may listen, which connections it closes, and how it ends."""

from __future__ import annotations

import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI

from droprl.deploy.serve.gate import is_loopback
from droprl.deploy.serve.live.routes import STREAM
from droprl.errors import DropError

DRAIN_SECONDS = 30
MOST_CONNECTIONS = 2048  # further connections get a 503 at once
SECONDS_TO_ASK = 10.0  # a client must send the whole head of a request in this time
SECONDS_TO_TAKE = 30.0  # a client must take some part of the answer in this time


def check_address(host: str, token: str | None) -> None:
    """Everybody who can reach the port can use the policy. So other machines may reach it only with a token."""
    if token is not None and (not token.strip() or not token.isascii()):
        raise DropError("the token is blank or not ASCII: give one that nobody can guess")
    if token is not None and token != token.strip():
        raise DropError("the token has blanks at its ends, but HTTP headers lose these: leave them out")
    if token is None and not is_loopback(host):
        raise DropError(
            f"{host}: can be reached from other machines: give a token (DROP_TOKEN=… or --token), or serve on 127.0.0.1"
        )


def most_connections() -> int:
    """At most half of the files that this process may open. Simulators and the policy need the others."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else max(1, min(MOST_CONNECTIONS, soft // 2))


class Server(uvicorn.Server):
    """On SIGTERM or Ctrl-C it takes no more requests, answers those under way, and ends without an error."""

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
                limit_concurrency=most_connections(),
                http="h11",  # `_close_the_stuck` knows the connections of this one
                ws="none",
            )
        )
        self._when_ready, self._at_end = when_ready, at_end
        self._stuck: dict[Any, tuple[Any, float]] = {}  # for each connection, its state and since when
        self.drained = False  # every request under way was answered before the end

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._when_ready(self.servers[0].sockets[0].getsockname()[1])

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:
            self._close_the_stuck(time.monotonic())
        return await super().on_tick(counter)

    def _close_the_stuck(self, now: float) -> None:
        """Close connections of clients that send no request or do not take the answer. Connections are few."""
        before, self._stuck = self._stuck, {}
        connections: list[Any] = list(self.server_state.connections)
        for connection in connections:
            cycle, unsent = connection.cycle, connection.transport.get_write_buffer_size()
            if unsent == 0 and cycle is not None and not cycle.response_complete:
                continue  # it waits for us
            state, since = before.get(connection, (None, now))
            if state != (cycle, unsent):
                since = now
            self._stuck[connection] = ((cycle, unsent), since)
            if now - since >= (SECONDS_TO_TAKE if unsent else SECONDS_TO_ASK):
                connection.transport.abort()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams, which would go on for ever. One that nobody reads cannot be closed in the normal way."""
        began = time.monotonic()
        self._at_end()
        connections: list[Any] = list(self.server_state.connections)
        for connection in connections:
            if connection.scope is not None and connection.scope["path"] == STREAM:
                connection.transport.abort()
        await super().shutdown(sockets)
        self.drained = not self.force_exit and time.monotonic() - began < DRAIN_SECONDS

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """uvicorn's own version would raise the signal again at the end, and the process would seem to have crashed."""
        signals = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
        before = {sig: signal.signal(sig, self.handle_exit) for sig in signals}
        try:
            yield
        finally:
            for sig, handler in before.items():
                signal.signal(sig, handler)

"""uvicorn around the application: where it may listen, which connections it closes, and how it ends."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any, cast

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from droprl.deploy.serve.clients import client_at, part
from droprl.deploy.serve.gate import is_loopback
from droprl.deploy.serve.live.routes import STREAM
from droprl.errors import DropError
from droprl.terminal import say

DRAIN_SECONDS = 20.0  # after SIGTERM: for the requests under way
CLOSE_SECONDS = 4.0  # and then for the threads that compute and simulate
END_SECONDS = 28.0  # at this time the process ends, whatever hangs: service managers kill after 30
MOST_CONNECTIONS = 2048  # further connections get a 503 at once
SECONDS_TO_ASK = 10.0  # a client must send the whole head of a request in this time
SECONDS_TO_TAKE = 30.0  # a client must take some part of the answer in this time
SECONDS_TO_TAKE_AT_THE_END = 5.0  # the same, after SIGTERM


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


class Connections:
    """Counts the connections, in all and of each client. uvicorn itself only counts requests."""

    def __init__(self, most: int, share: float, proxy: str | None) -> None:
        self._most, self._most_each, self._proxy = most, part(share, most), proxy
        self._open: Counter[str] = Counter()

    def enter(self, client: str) -> str | None:
        """None, or why there is no room for this connection. Call `leave` in both cases."""
        self._open[client] += 1
        if self._open.total() > self._most:
            return f"{self._most:,} connections are open, the most for all clients"
        if self._open[client] > self._most_each and client != self._proxy:
            return f"{self._most_each:,} connections of yours are open, the most for one client"
        return None

    def leave(self, client: str) -> None:
        self._open[client] -= 1
        if self._open[client] <= 0:
            del self._open[client]


class Connection(H11Protocol):
    """A connection of uvicorn that is refused in words if there is no room for it."""

    def __init__(self, connections: Connections, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._connections, self._refused = connections, False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._client = client_at(self.client[0] if self.client else "")
        reason = self._connections.enter(self._client)
        if reason is not None:
            self._refused = True
            transport.write(_full(reason))
            transport.close()

    def data_received(self, data: bytes) -> None:
        if not self._refused:
            super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.leave(self._client)
        super().connection_lost(exc)


def _full(reason: str) -> bytes:
    body = json.dumps({"error": f"{reason}: close one, or try again in a moment"})
    head = "HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\ncontent-type: application/json"
    return f"{head}\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()


class Server(uvicorn.Server):
    """On SIGTERM or Ctrl-C it takes no more requests, answers those under way, and ends without an error."""

    def __init__(
        self,
        app: FastAPI,
        host: str,
        port: int,
        when_ready: Callable[[int], None],
        at_end: Callable[[], None],
        share: float = 1.0,
        proxy: str | None = None,
    ):
        """`proxy` is the address of a proxy in front, which says for whom it asks."""
        most = most_connections()
        connection: Any = partial(Connection, Connections(most, share, None if proxy is None else client_at(proxy)))
        super().__init__(
            uvicorn.Config(
                app,
                host=host,
                port=port,
                log_level="error",  # a warning for each odd request would let strangers fill the log
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=cast(int, DRAIN_SECONDS),
                limit_concurrency=most + 1,  # of requests: clients that hang up may leave more than connections
                http=connection,
                ws="none",
                proxy_headers=proxy is not None,  # from others they would be forged
                forwarded_allow_ips=proxy,
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
            self._close_the_stuck(time.monotonic(), SECONDS_TO_TAKE)
        return await super().on_tick(counter)

    def _close_the_stuck(self, now: float, seconds_to_take: float) -> None:
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
            if now - since >= (seconds_to_take if unsent else SECONDS_TO_ASK):
                connection.transport.abort()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams, which would go on for ever. One that nobody reads cannot be closed in the normal way."""
        began = time.monotonic()
        self._at_end()
        connections: list[Any] = list(self.server_state.connections)
        for connection in connections:
            if connection.scope is not None and connection.scope["path"] == STREAM:
                connection.transport.abort()
        closing = asyncio.create_task(self._go_on_closing_the_stuck())
        await super().shutdown(sockets)
        closing.cancel()
        self.drained = not self.force_exit and time.monotonic() - began < DRAIN_SECONDS

    async def _go_on_closing_the_stuck(self) -> None:
        """uvicorn ticks no more, and would wait for clients that do not take their answers."""
        self._stuck = {}
        while True:
            self._close_the_stuck(time.monotonic(), SECONDS_TO_TAKE_AT_THE_END)
            await asyncio.sleep(0.5)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self.should_exit:
            _end_after(END_SECONDS)
        super().handle_exit(sig, frame)

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


def _end_after(seconds: float) -> None:
    """End the process then, even if the policy or a simulator never comes back."""

    def too_late() -> None:
        time.sleep(seconds)
        end_at_once(1, f"drop: stopped: something did not end within {seconds:g} s")

    threading.Thread(target=too_late, name="droprl-end", daemon=True).start()


def end_at_once(code: int, said: str | None = None) -> None:
    """Without waiting for threads, and without taking libraries apart while threads still use them."""
    if said is not None:
        with suppress(OSError, ValueError):
            say(said, error=True)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)

"""Clients that could stop the service from ending, or fill it up: viewers that do not read, clients that do not ask."""

from __future__ import annotations

import asyncio
import http.client
import resource
import socket
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import httpx
import pytest
from helpers.serving import listening, tiny_policy

from droprl.deploy.serve import server as serving
from droprl.deploy.serve.app import Limits, Service, make_app
from droprl.deploy.serve.live.routes import Watching
from droprl.deploy.serve.live.show import MOST_SHOWS, Stage
from droprl.loaded import LoadedPolicy

WATCH = b"GET /live/stream HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(scope="module")
def policy() -> LoadedPolicy:
    return tiny_policy()


@pytest.fixture
def service(policy: LoadedPolicy) -> Any:
    with closing(Service(policy, Limits(rows=1))) as made:
        yield made


def connected(address: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=20)


def until(true: Callable[[], object]) -> None:
    give_up = time.monotonic() + 20
    while not true():
        assert time.monotonic() < give_up
        time.sleep(0.02)


def unread(service: Service, address: str, server: serving.Server, monkeypatch: pytest.MonkeyPatch) -> socket.socket:
    """A viewer that never reads. The first event of its stream fills all buffers on the way."""
    wordy = service.stage.about() | {"filler": " " * 20_000_000}
    monkeypatch.setattr(service.stage, "about", lambda: wordy)
    viewer = connected(address)
    viewer.sendall(WATCH)
    until(lambda: any(c.transport.get_write_buffer_size() for c in server.server_state.connections))
    return viewer


def test_a_viewer_that_never_reads_does_not_delay_the_end(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    with listening(make_app(service), service) as (address, server), unread(service, address, server, monkeypatch):
        began = time.monotonic()
        server.should_exit = True
        until(lambda: not server.server_state.connections and server.drained)
    assert time.monotonic() - began < 5


def test_clients_that_do_not_ask_or_do_not_read_are_cut_off(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "SECONDS_TO_ASK", 1.0)
    monkeypatch.setattr(serving, "SECONDS_TO_TAKE", 1.0)
    with listening(make_app(service), service) as (address, server):
        viewer = unread(service, address, server, monkeypatch)
        silent, slow = connected(address), connected(address)
        alive = http.client.HTTPConnection(address.removeprefix("http://"), timeout=20)
        slow.sendall(b"GET /health HTTP/1.1\r\n")  # and nothing more
        for _ in range(6):
            alive.request("GET", "/health")
            assert alive.getresponse().read() == b'{"status":"ok"}'
            time.sleep(0.5)
        assert silent.recv(100) == slow.recv(100) == b""
        until(lambda: len(server.server_state.connections) == 1)  # the one that asks
        until(lambda: not service.stage._shows)
        for connection in (viewer, silent, slow, alive):
            connection.close()


def test_connections_use_at_most_half_of_the_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    for soft, most in ((256, 128), (10**6, serving.MOST_CONNECTIONS), (resource.RLIM_INFINITY, 2048)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=soft: (soft, soft))
        assert serving.most_connections() == most


def test_a_stream_that_never_began_frees_its_place(policy: LoadedPolicy) -> None:
    """The viewer leaves before the first event."""

    async def gone() -> Any:
        return {"type": "http.disconnect"}

    async def never(message: Any) -> None:
        await asyncio.Event().wait()

    stage = Stage(policy)
    for _ in range(MOST_SHOWS + 1):
        asyncio.run(Watching(stage, stage.open())({"type": "http", "asgi": {}}, gone, never))


def test_a_client_that_disconnects_within_its_body_is_not_a_server_error(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    with listening(make_app(service), service) as (address, server):
        with connected(address) as client:
            client.sendall(b"POST /act HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
            until(lambda: any(c.cycle for c in server.server_state.connections))  # type: ignore[union-attr]
        until(lambda: not server.server_state.tasks)
        measures = httpx.get(f"{address}/metrics").text
    assert 'droprl_requests_total{route="/act",status="400"} 1.0' in measures
    assert 'status="500"' not in measures
    assert caplog.records == []

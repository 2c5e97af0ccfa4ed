"""Clients that hang up, hoard, guess tokens or wait for a policy that hangs: what they may not do to the others."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from helpers.serving import client_of, listening, tiny_policy
from helpers.training import refusal

from droprl.cli.serve import serve
from droprl.deploy.serve import clients
from droprl.deploy.serve import server as serving
from droprl.deploy.serve.app import Limits, Service, make_app
from droprl.deploy.serve.clients import Guesses, client_at
from droprl.deploy.serve.engine import Acted, Rows
from droprl.errors import at_the_command_line
from droprl.loaded import LoadedPolicy

BODY = json.dumps({"observation": [0.0] * 4}).encode()
ACT = b"POST /act HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
ASKED = ACT % (len(BODY), BODY)


@pytest.fixture(scope="module")
def policy() -> LoadedPolicy:
    return tiny_policy()


@pytest.fixture(scope="module")
def service(policy: LoadedPolicy) -> Iterator[Service]:
    with closing(Service(policy, Limits(rows=1, seconds=2.0))) as made:
        yield made


class Gated:
    """The engine waits in each call until `go` is set."""

    def __init__(self, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go, self.calls, self._step = threading.Event(), 0, service.engine.step
        monkeypatch.setattr(service.engine, "step", self._gated)

    def _gated(self, parts: list[Rows]) -> list[Acted]:
        self.calls += 1
        assert self.go.wait(20)
        return self._step(parts)


@pytest.fixture
def gated(service: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gated]:
    made = Gated(service, monkeypatch)
    yield made
    made.go.set()


def until(true: Callable[[], object]) -> None:
    give_up = time.monotonic() + 20
    while not true():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def until_waiting(service: Service, n: int) -> None:
    until(lambda: service.batcher.waiting == n)  # those who have gone are counted until their turn comes


def connected(address: str, source: str = "127.0.0.1") -> socket.socket:
    port = int(address.rpartition(":")[2])
    return socket.create_connection(("127.0.0.1", port), timeout=20, source_address=(source, 0))


def test_work_of_a_client_that_hung_up_is_not_computed(service: Service, gated: Gated) -> None:
    with listening(make_app(service), service) as (address, _), ExitStack() as stack:
        first = stack.enter_context(connected(address))
        first.sendall(ASKED)
        until(lambda: gated.calls == 1)
        for n in range(1, 6):
            with connected(address) as gone:
                gone.sendall(ASKED)
                until_waiting(service, n)
        until(lambda: 'route="/act",status="499"} 5.0' in httpx.get(f"{address}/metrics").text)
        gated.go.set()
        assert first.recv(100).startswith(b"HTTP/1.1 200 ")
        until(lambda: service.batcher.waiting == 0)
    assert gated.calls == 1


def test_a_session_whose_client_hung_up_is_as_before(policy: LoadedPolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(Service(policy.adapted(rule="best"), Limits(rows=1))) as service:
        gated = Gated(service, monkeypatch)
        with listening(make_app(service), service) as (address, _), connected(address) as blocking:
            names = [httpx.post(f"{address}/sessions").json()["session"] for _ in range(2)]
            blocking.sendall(ASKED.replace(b"/act", f"/sessions/{names[0]}/act".encode()))
            until(lambda: gated.calls == 1)
            with connected(address) as gone:
                gone.sendall(ASKED.replace(b"/act", f"/sessions/{names[1]}/act".encode()))
                until(lambda: service.sessions.get(names[1]).acting)
            until(lambda: not service.sessions.get(names[1]).acting)
            gated.go.set()
            until(lambda: service.sessions.get(names[0]).steps == 1)
        assert service.sessions.get(names[1]).steps == 0


def test_every_request_has_a_deadline_and_health_knows_about_a_call_that_hangs(service: Service, gated: Gated) -> None:
    client = TestClient(make_app(service), base_url="http://localhost")
    late = client.post("/act", json={"observation": [0.0] * 4})
    assert late.status_code == 504
    assert "there was no answer within 2 s" in late.json()["error"]
    until(lambda: client.get("/health").status_code == 503)
    assert "has not come back from a call" in client.get("/health").json()["error"]
    refused = client.post("/act", json={"observation": [0.0] * 4})  # at once: to wait would be in vain
    assert refused.status_code == 503
    assert gated.calls == 1
    gated.go.set()
    until(lambda: client.get("/health").status_code == 200)
    assert client.post("/act", json={"observation": [0.0] * 4}).status_code == 200


def test_a_client_that_does_not_take_its_answers_does_not_delay_the_end(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "SECONDS_TO_TAKE_AT_THE_END", 0.5)
    with listening(make_app(service), service) as (address, server), connected(address) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        asked = threading.Thread(target=_ask_and_never_read, args=(client,), daemon=True)
        asked.start()
        until(lambda: any(c.transport.get_write_buffer_size() for c in server.server_state.connections))
        server.should_exit = True
        began = time.monotonic()
        until(lambda: not server.server_state.connections and server.drained)
    assert time.monotonic() - began < 10


def _ask_and_never_read(client: socket.socket) -> None:
    try:
        client.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2000)
    except OSError:
        return


# --- connections ---


def status(connection: socket.socket) -> bytes:
    with connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return connection.recv(1000)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no 127.0.0.2")
def test_one_client_cannot_take_all_connections(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "MOST_CONNECTIONS", 4)
    with listening(make_app(service), service, share=0.5) as (address, _), ExitStack() as stack:
        for source in ("127.0.0.2", "127.0.0.2", "127.0.0.3"):
            stack.enter_context(connected(address, source))
        time.sleep(0.1)
        assert b"2 connections of yours are open" in connected(address, "127.0.0.2").recv(1000)
        assert status(connected(address)).startswith(b"HTTP/1.1 200")
        time.sleep(0.1)
        stack.enter_context(connected(address, "127.0.0.4"))
        time.sleep(0.1)
        refused = connected(address).recv(1000)
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert b"4 connections are open, the most for all clients" in refused
    assert serving.Connections(4, 0.5, proxy="10.0.0.1").enter("10.0.0.1") is None


def test_only_a_proxy_that_was_named_says_who_asks(service: Service) -> None:
    forged = {"x-forwarded-for": "203.0.113.9"}
    for proxy, client in ((None, "127.0.0.1"), ("127.0.0.1", "203.0.113.9")):
        with listening(make_app(service), service, proxy=proxy) as (address, _):
            name = httpx.post(f"{address}/sessions", headers=forged).json()["session"]
        assert service.sessions.get(name).client == client


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("192.168.1.7", "192.168.1.7"),
        ("::ffff:192.168.1.7", "192.168.1.7"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::1"),
        ("testclient", "testclient"),
    ],
)
def test_a_client_is_an_address_or_a_network_of_ipv6(address: str, client: str) -> None:
    assert client_at(address) == client


# --- tokens ---


def test_wrong_tokens_wait_longer_each_time_and_the_memory_is_bounded() -> None:
    now = [0.0]
    guesses = Guesses(most=100, clock=lambda: now[0])
    waits = [guesses.wrong("a") for _ in range(12)]
    assert waits[0] == 0.0  # a person may mistype
    assert waits[1:] == sorted(waits[1:])
    assert (waits[1], waits[-1]) == (0.25, clients.LONGEST_WAIT)
    assert guesses.wrong("b") == 0.0
    now[0] = clients.SECONDS_REMEMBERED + 1
    assert guesses.wrong("a") == 0.0
    for n in range(10_000):
        guesses.wrong(str(n))
    assert len(guesses) == 100


def test_a_wrong_token_waits_and_a_right_one_does_not(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "SHORTEST_WAIT", 1.5)
    monkeypatch.setattr(clients, "LONGEST_WAIT", 1.5)
    client = TestClient(make_app(service, token="s3cret"), base_url="http://localhost")

    def asked(token: str | None) -> tuple[int, float]:
        began = time.monotonic()
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        return client.get("/info", headers=headers).status_code, time.monotonic() - began

    asked("wrong")
    (code, seconds) = asked("wrong")
    assert code == 401
    assert seconds >= 1.5
    assert [asked(token)[0] for token in ("s3cret", None)] == [200, 401]
    assert max(asked("s3cret")[1], asked(None)[1]) < 1.5  # a browser without a token only asks whether it needs one


# --- the end of a process whose policy hangs ---

HANGS = """
import time
from droprl.deploy.serve import server
from droprl.deploy.serve.engine import Engine
server.DRAIN_SECONDS, server.CLOSE_SECONDS = 1.5, 0.2
Engine.step = lambda self, parts: time.sleep(600)
from droprl.cli import main
main()
"""


def test_a_process_whose_policy_hangs_says_so_and_ends_in_time(policy: LoadedPolicy, tmp_path: Path) -> None:
    folder = policy.save(tmp_path / "policy")
    words = [sys.executable, "-c", HANGS, "serve", str(folder), "--port=0", "--most-rows=1", "--deadline=1"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        ready = next(line for line in iter(process.stdout.readline, "") if "is ready" in line)
        port = int(ready.split(" ")[0].rpartition(":")[2])
        asking = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        asking.request("POST", "/act", BODY, {"Content-Type": "application/json"})
        assert asking.getresponse().status == 504
        until(lambda: httpx.get(f"http://127.0.0.1:{port}/health").status_code == 503)
        with connected(f":{port}") as viewer, connected(f":{port}"):
            viewer.sendall(b"GET /live/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert any(b"hello" in viewer.recv(1000) for _ in range(2))  # after the head
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=20)
        assert process.returncode == 0, err  # the request had its answer: a 504
    finally:
        process.kill()


def test_limits_that_make_no_sense_are_refused(policy: LoadedPolicy, tmp_path: Path) -> None:
    folder = str(policy.save(tmp_path / "policy"))
    for words, said in (
        (("--client-share", "0"), "client_share is 0.0: it must be above 0 and at most 1"),
        (("--deadline", "inf"), "deadline is inf: it must be above 0 and finite"),
        (("--proxy", "nginx"), "--proxy is nginx: it must be the IP address of the proxy"),
    ):
        with at_the_command_line():
            assert said in refusal(serve, [folder, *words])


def test_the_service_tells_its_limits(policy: LoadedPolicy) -> None:
    with client_of(policy, Limits(rows=1, share=0.25, seconds=3.0)) as client:
        facts: Any = client.get("/info").json()
    assert (facts["most_of_a_client"], facts["seconds_for_a_request"]) == (0.25, 3.0)

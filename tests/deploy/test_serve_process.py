"""`drop serve` as a process: it answers, cuts off bodies that are too large, and ends without losing a request."""

from __future__ import annotations

import http.client
import json
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.serving import tiny_policy
from helpers.training import drop, refusal

from droprl.cli.serve import serve
from droprl.errors import at_the_command_line
from droprl.loaded import LoadedPolicy

JSON = {"Content-Type": "application/json"}
BODY = json.dumps({"observation": [0.5, -0.5, 0.1, 0.0]})


@pytest.fixture(scope="module")
def policy() -> LoadedPolicy:
    return tiny_policy()


@pytest.fixture(scope="module")
def folder(policy: LoadedPolicy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return policy.save(tmp_path_factory.mktemp("serve") / "policy")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    words = [sys.executable, "-m", "droprl", "serve", str(folder), "--port=0", "--most-rows=1"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = iter(process.stdout.readline, "")
    ready = next(line for line in lines if "is ready" in line)
    try:
        yield process, int(ready.split(" ")[0].rpartition(":")[2])
    finally:
        process.kill()
        process.wait()


def ask(port: int) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/act", BODY, JSON)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


@pytest.mark.parametrize("says_how_large", [True, False])
def test_a_body_of_100_mb_is_cut_off(server: tuple[subprocess.Popen[str], int], says_how_large: bool) -> None:
    _, port = server
    sent, piece, answer = 0, b" " * 65536, b""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        size = "Content-Length: 100000000" if says_how_large else "Transfer-Encoding: chunked"
        head = f"POST /act HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{size}\r\n\r\n"
        connection.sendall(head.encode())
        try:
            while sent < 100_000_000 and not select.select([connection], [], [], 0)[0]:
                connection.sendall(piece if says_how_large else b"10000\r\n" + piece + b"\r\n")
                sent += len(piece)
        except OSError:
            pass  # the server has closed the connection: its answer can still be read
        with suppress(ConnectionError):
            while part := connection.recv(65536):
                answer += part
    assert sent < 20_000_000
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"the body is larger than" in answer
    assert ask(port)[0] == 200


def test_drop_serve_refuses_in_one_line(folder: Path, tmp_path: Path) -> None:
    code, out, err = drop("serve", folder, "--host", "0.0.0.0")
    assert (code, out) == (1, "")
    assert err.startswith("drop: 0.0.0.0: can be reached from other machines: give a token")
    assert err.count("\n") == 1
    for words, said in (
        ((folder, "--most-rows", "100"), "--most-rows is 100: it must be a power of two"),
        ((folder, "--port", "70000"), "--port is 70000: it must be from 0 to 65535"),
        ((folder, "--most-sessions", "0"), "most_sessions is 0: it must be at least 1"),
        ((folder, "--session-idle", "inf"), "session_idle is inf: it must be above 0 and finite"),
        ((folder, "--session-idle", "nan"), "session_idle is nan: it must be above 0"),
        ((folder, "--token", "s3cret "), "the token has blanks at its ends"),
        ((folder, "--env", "Hopper-v4"), "Hopper-v4: its observations have 11 entries"),
        ((tmp_path / "nothing",), "is not a run"),
    ):
        with at_the_command_line():
            assert said in refusal(serve, list(map(str, words)))


def test_a_port_in_use_is_reported_in_one_line(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, err = drop("serve", folder, "--port", str(port), "--most-rows", "1")
    assert code == 1
    assert f"127.0.0.1:{port}: cannot listen there: choose another --port" in err
    assert "Traceback" not in err


def test_the_token_may_come_from_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DROP_TOKEN", " ")
    assert "the token is blank" in refusal(serve, [str(folder)])


def test_it_answers_and_after_sigterm_it_finishes_the_requests_under_way(
    server: tuple[subprocess.Popen[str], int], policy: LoadedPolicy
) -> None:
    process, port = server
    policy.reset()
    action = policy.act(np.array(json.loads(BODY)["observation"]))
    status, answer = ask(port)
    assert status == 200
    np.testing.assert_allclose(answer["action"], action, atol=1e-5)
    watching = http.client.HTTPConnection("127.0.0.1", port, timeout=60)  # this stream would never end by itself
    watching.request("GET", "/live/stream")
    assert b"hello" in watching.getresponse().readline()
    under_way = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    under_way.putrequest("POST", "/act")
    under_way.putheader("Content-Type", "application/json")
    under_way.putheader("Content-Length", str(len(BODY)))
    under_way.endheaders(BODY[:10].encode())  # the rest comes after the signal
    ask(port)  # when this is answered, the server has seen the request above
    process.send_signal(signal.SIGTERM)
    until_refused(port)
    under_way.send(BODY[10:].encode())
    answered = under_way.getresponse()
    assert answered.status == 200
    np.testing.assert_allclose(json.loads(answered.read())["action"], action, atol=1e-5)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "drained: every request was answered" in out


def until_refused(port: int) -> None:
    until = time.monotonic() + 30
    while time.monotonic() < until:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5):
                time.sleep(0.02)
        except OSError:
            return
    raise AssertionError("new connections are still taken")

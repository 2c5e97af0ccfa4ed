"""Hostile clients of `drop serve`, and policy files that ask for endless work. Honest clients must not notice.

Each trial abuses a service that really runs, on 127.0.0.1 and with a bounded number of connections. Then an honest
client must get the same bits as before, and /health must be well.
"""

from __future__ import annotations

import http.client
import json
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import damage
from work import FAULTY, Failed, Lost

TOKEN = "a token of the torture"
BODY = json.dumps({"observation": [0.5, 0.5, 0.1]}).encode()  # of a pendulum
JSON = {"content-type": "application/json", "authorization": f"Bearer {TOKEN}"}
HEAD = f"Host: localhost\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n"
ASKED = f"POST /act HTTP/1.1\r\n{HEAD}Content-Length: {len(BODY)}\r\n\r\n".encode() + BODY
MOST_SESSIONS = 10
SECONDS_TO_END = 28.0  # after SIGTERM, as the manual promises
SECONDS_TO_ASK = 10.0
Trial = tuple[str, str, Callable[[], None]]


class Served:
    """A service in a process of its own, and what it answers to an honest client."""

    def __init__(self, policy: Path) -> None:
        limits = ("--most-rows=1", f"--most-sessions={MOST_SESSIONS}", "--deadline=5", f"--token={TOKEN}")
        words = [sys.executable, str(FAULTY), "none", "serve", str(policy), "--port=0", *limits]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        ready = next((line for line in self.process.stdout if "is ready" in line), "")
        if not ready:
            raise Failed(f"the service ended with {self.process.wait()}")
        self.port = int(ready.split(" ")[0].rpartition(":")[2])
        self.right = self.ask("POST", "/act", BODY)

    def ask(self, method: str, path: str, body: bytes | None = None, token: str = TOKEN) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body, JSON | {"authorization": f"Bearer {token}"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def connected(self, sent: bytes = b"") -> socket.socket:
        made = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        with suppress(OSError):  # it may have been refused already
            made.sendall(sent)
        return made

    def must_be_well(self) -> None:
        if self.process.poll() is not None:
            raise Lost(f"the service has ended with {self.process.returncode}")
        if (answer := self.ask("POST", "/act", BODY)) != self.right or self.right[0] != 200:
            raise Lost(f"an honest client got {answer}, before it was {self.right}")
        if (health := self.ask("GET", "/health"))[0] != 200:
            raise Failed(f"/health says {health}")


def trials(home: Path, policy: Path, short: bool, rng: random.Random) -> Iterator[Trial]:
    yield from hostile_policies(home, policy)
    with _serving(policy) as served:
        abuses = (hangs_up, sends_garbage, guesses_tokens, hoards_sessions, never_ends_its_body, is_silent)
        for abuse in abuses[:2] if short else abuses:

            def play(abuse: Callable[[Served, random.Random], None] = abuse) -> None:
                abuse(served, rng)
                served.must_be_well()

            yield "hostile client", abuse.__name__.replace("_", " "), play
        yield "SIGTERM", "a service among hostile clients", partial(must_end, served)


@contextmanager
def _serving(policy: Path) -> Iterator[Served]:
    served = Served(policy)
    try:
        yield served
    finally:
        served.process.kill()
        served.process.wait()


def hangs_up(served: Served, rng: random.Random) -> None:
    for _ in range(200):
        served.connected(ASKED[: rng.choice((len(ASKED), rng.randrange(len(ASKED))))]).close()


def sends_garbage(served: Served, rng: random.Random) -> None:
    for number in range(60):
        garbage = (rng.randbytes(200), b"\x16\x03\x01\x02\x00", ASKED.replace(b"POST", rng.randbytes(4)))[number % 3]
        with served.connected(garbage) as connection, suppress(OSError):
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1000)


def guesses_tokens(served: Served, rng: random.Random) -> None:
    """Wrong tokens wait, and the right one does not, even between them."""
    began = time.monotonic()
    for _ in range(4):
        if (status := served.ask("GET", "/info", token=str(rng.random()))[0]) != 401:
            raise Lost(f"a wrong token got {status}")
    if time.monotonic() - began < 1.5:
        raise Failed("wrong tokens were not slowed down")
    began = time.monotonic()
    if served.ask("GET", "/info")[0] != 200:
        raise Failed("the right token was refused")
    if time.monotonic() - began > 1.5:
        raise Failed("the right token had to wait")


def hoards_sessions(served: Served, rng: random.Random) -> None:
    """Half of the sessions are left for others, who have another address."""
    opened = []
    while (answer := served.ask("POST", "/sessions"))[0] == 201:
        opened.append(json.loads(answer[1])["session"])
    if len(opened) != MOST_SESSIONS // 2 or answer[0] != 429:
        raise Failed(f"one client opened {len(opened)} of {MOST_SESSIONS} sessions, then got {answer}")
    for session in opened:
        served.ask("DELETE", f"/sessions/{session}")


def never_ends_its_body(served: Served, rng: random.Random) -> None:
    with ExitStack() as stack:
        slow = [stack.enter_context(served.connected(ASKED[:-5])) for _ in range(50)]
        served.must_be_well()
        for connection in slow:
            if not connection.recv(1000).startswith((b"HTTP/1.1 504", b"HTTP/1.1 408")):
                raise Failed("a body that never ends was not refused in words")


def is_silent(served: Served, rng: random.Random) -> None:
    """Connections that ask nothing are closed, those that asked only a half too."""
    with ExitStack() as stack:
        silent = [stack.enter_context(served.connected(sent)) for sent in (b"", ASKED[:30]) for _ in range(50)]
        served.must_be_well()
        until = time.monotonic() + SECONDS_TO_ASK + 10
        for connection in silent:
            connection.settimeout(max(0.1, until - time.monotonic()))
            with suppress(ConnectionError):
                connection.recv(1000)  # raises TimeoutError if it is still open


def must_end(served: Served) -> None:
    """With requests under way, silent clients, half a request, viewers, and clients that take no answer."""
    with ExitStack() as stack:
        keep: Any = [served.connected(b"GET /live/stream HTTP/1.1\r\n" + HEAD.encode() + b"\r\n") for _ in range(3)]
        keep += [served.connected(sent) for sent in (b"", ASKED[:50], ASKED[:-5]) for _ in range(10)]
        for _ in range(3):
            unread = served.connected()
            keep.append(unread)
            unread.setblocking(False)
            with suppress(BlockingIOError):
                unread.sendall((b"GET /openapi.json HTTP/1.1\r\n" + HEAD.encode() + b"\r\n") * 2000)
        under_way = [served.connected(ASKED) for _ in range(10)]
        for connection in (*keep, *under_way):
            stack.enter_context(connection)
        time.sleep(1.0)
        began = time.monotonic()
        served.process.send_signal(signal.SIGTERM)
        for connection in under_way:
            if not connection.recv(1000).startswith(b"HTTP/1.1 200"):
                raise Lost("a request under way was not answered")
        try:
            code = served.process.wait(SECONDS_TO_END + 5)
        except subprocess.TimeoutExpired:
            raise Failed(f"it still runs {time.monotonic() - began:.0f} s after SIGTERM") from None
    if code != 0:
        raise Failed(f"it ended with {code}")


def hostile_policies(home: Path, policy: Path) -> Iterator[Trial]:
    """Files whose checksums are right, and whose one action would take hours or terabytes."""
    place, canary = home / "endless", home / "canary"
    place.mkdir(exist_ok=True)
    for what, changes in (
        ("asks for a billion ascent steps", {"adaptation": {"ascent_steps": 10**9}}),
        ("asks to infer z after 2⁶³ steps", {"adaptation": {"reinference_interval": 2**63}}),
        ("asks for a guard that waits 2⁶³ steps", {"adaptation": {"guard_patience": 2**63}}),
        ("asks for a million layers", {"depths": [10**6] * 5}),
    ):

        def play(changes: dict[str, Any] = changes) -> None:
            damage._try_policy(place, policy, canary, part="algorithm", changes=changes)

        yield "hostile file", what, play

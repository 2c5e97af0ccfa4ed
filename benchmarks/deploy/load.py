"""`drop serve` under load from a second process: requests per second, latencies, and a check of every answer.

python benchmarks/deploy/load.py POLICY --out benchmarks/deploy/load.json

The service runs in its own process. This process sends requests over one connection for each client and compares each
action with that of the policy, called directly. `--one-by-one` promises exactly the bits that the policy gives for one
observation alone. In batches sums have another order, and at a kink of the networks an action may differ by about 1e-4.
So an answer is right if `policy.act` gives it for the observation alone or in a batch of 2, 4 … 64.

At the end SIGTERM comes while all clients send requests. Every request that was sent before it must get a right answer.
The exit code is 1 if an answer was wrong, failed or lost. For a short test: --requests 200.

With `--hostile`, the same is measured again with a hostile client at another address beside the honest ones. In turn
it sends requests and hangs up, opens connections that stay silent, and takes all the sessions that it can get. It goes
on as long as the honest clients do, at `--hostile-rate` connections a second. The exit code is also 1 if the p99 of the
honest clients is more than twice as long as without it. (It uses 127.0.0.2, which only Linux has without set-up.)
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import platform
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from droprl.loaded import LoadedPolicy, load_policy

HEAD = "POST /act HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
BATCHES = (2, 4, 8, 16, 32, 64)  # numbers of rows in a call of `policy.act`
COMMAND = "python benchmarks/deploy/load.py POLICY --out benchmarks/deploy/load.json"
MOST_SLOWER = 2.0  # beside a hostile client
HOSTILE_ADDRESS = "127.0.0.2"
MOST_SILENT = 200  # connections of the hostile client that stay open


@dataclass(frozen=True)
class Options:
    policy: tyro.conf.Positional[Path]
    """A policy folder or a run whose rule needs no session."""
    out: Path
    """The file for the results, as JSON."""
    requests: int = 16_667
    """Requests for each number of clients, in batches and one by one: 100,002 in all, and those around SIGTERM."""
    clients: tuple[int, ...] = (1, 8, 64)
    """Numbers of connections at the same time. Each connection sends one request at a time."""
    states: int = 2_000
    """Number of different observations, drawn with the mean and the standard deviation of the data."""
    tolerance: float = 1e-4
    """How far an action of a batch may be from that of the policy, in the task's units."""
    before_sigterm: int = 1_000
    """SIGTERM comes after this many answers of the last phase."""
    hostile: bool = False
    """Measure everything twice: quietly, and beside a hostile client."""
    hostile_rate: float = 50.0
    """Connections that the hostile client opens in a second."""


@dataclass
class Tally:
    """The answers of the service. Each must be one of the actions in `right`."""

    right: np.ndarray  # (ways to ask, states, action size)
    tolerance: float
    latencies: list[float] = field(default_factory=list)
    wrong: int = 0
    failed: int = 0
    differs_from_alone: int = 0  # by more than the tolerance: at a kink
    largest_difference: float = 0.0  # from the action for the observation alone

    def note(self, state: int, seconds: float, status: int, answer: Any) -> None:
        self.latencies.append(seconds)
        if status != 200:
            self.failed += 1
            return
        differences = np.abs(np.array(answer["action"], np.float32) - self.right[:, state]).max(axis=1)
        self.largest_difference = max(self.largest_difference, float(differences[0]))
        self.differs_from_alone += not differences[0] <= self.tolerance
        self.wrong += not differences.min() <= self.tolerance

    def as_dict(self) -> dict[str, Any]:
        return {
            "requests": len(self.latencies),
            "wrong": self.wrong,
            "failed": self.failed,
            "differs_from_alone": self.differs_from_alone,
            "largest_difference": self.largest_difference,
        }


def main(options: Options) -> None:
    policy = load_policy(options.policy)
    questions, answers = expectations(policy, options.states)
    adaptation = policy.algorithm.adaptation
    about = {
        "command": COMMAND,
        "policy": repr(policy),
        "K": None if adaptation is None else adaptation.ascent_steps,
        "adaptation": None if adaptation is None else vars(adaptation),
        "tolerance": options.tolerance,
        "states": options.states,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }
    results: list[dict[str, Any]] = []
    ends: list[dict[str, Any]] = []
    for way, words in (("batches", []), ("one by one", ["--one-by-one"])):
        # One by one, only the first answer is right: that for the observation alone, to the bit.
        right, tolerance = (answers, options.tolerance) if way == "batches" else (answers[:1], 0.0)
        server, port = start_server(options.policy, words)
        try:
            for n in options.clients:
                for rate in (0.0, options.hostile_rate) if options.hostile else (0.0,):
                    tally = Tally(right, tolerance)
                    found = asyncio.run(load(port, n, options.requests, questions, tally, rate))
                    results.append({"way": way, **found})
                    print(json.dumps(results[-1]), flush=True)
            most, tally = max(options.clients), Tally(right, tolerance)
            end = asyncio.run(drain(server, port, most, options.before_sigterm, questions, tally))
            ends.append({"way": way, **end, "exit_code": server.wait(60)})
            print(json.dumps(ends[-1]), flush=True)
        except (OSError, EOFError):
            raise SystemExit(f"the service has ended (exit code {server.wait(10)})") from None
        finally:
            server.kill()
    total = sum(found["requests"] for found in results + ends)
    report = {**about, "total_requests": total, "results": results, "sigterm": ends}
    options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    spoilt = sum(found["wrong"] + found["failed"] + found.get("lost", 0) for found in results + ends)
    if spoilt or any(end["exit_code"] for end in ends):
        raise SystemExit(f"{spoilt} of {total:,} answers are wrong, failed or lost; exit codes are in {options.out}")
    slower = [b["p99_ms"] / a["p99_ms"] for a, b in itertools.pairwise(results) if b["hostile"] and not a["hostile"]]
    if slower and max(slower) > MOST_SLOWER:
        raise SystemExit(f"beside the hostile client the p99 is {max(slower):.2f} times as long")
    print(
        f"{total:,} answers, all right" + "".join(f"; p99 x {factor:.2f} beside the hostile one" for factor in slower)
    )


def expectations(policy: LoadedPolicy, n: int) -> tuple[list[bytes], np.ndarray]:
    """Requests as bytes, and the right actions for each: (ways to ask, states, action size)."""
    rng = np.random.default_rng(0)
    mean, std = np.asarray(policy.scaling.observation_mean), np.asarray(policy.scaling.observation_std)
    states = (mean + std * rng.normal(size=(n, len(mean)))).astype(np.float32)
    answers = []
    for size in (1, *BATCHES):
        answers.append(np.empty((n, policy.spec.action_size), np.float32))
        for begin in range(0, n, size):
            policy.reset()
            answers[-1][begin : begin + size] = policy.act(states[begin : begin + size])
    bodies = (json.dumps({"observation": state.tolist()}) for state in states)
    return [(HEAD % (len(body), body)).encode() for body in bodies], np.array(answers)


def start_server(policy: Path, words: list[str]) -> tuple[subprocess.Popen[str], int]:
    command = [sys.executable, "-m", "droprl", "serve", str(policy), "--port", "0", *words]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    for line in server.stdout:
        if "is ready" in line:
            return server, int(line.split(" ")[0].rpartition(":")[2])
    raise SystemExit("the service did not start")


async def load(
    port: int, clients: int, requests: int, questions: list[bytes], tally: Tally, hostile_rate: float
) -> dict[str, Any]:
    numbers = iter(range(requests))
    began = time.perf_counter()
    did: dict[str, int] = {}
    hostile = asyncio.create_task(abuse(port, hostile_rate, questions[0], did)) if hostile_rate else None

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for i in numbers:
            asked, state = time.perf_counter(), i % len(questions)
            writer.write(questions[state])
            status, answer = await read_answer(reader)
            tally.note(state, time.perf_counter() - asked, status, answer)
        writer.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    seconds = time.perf_counter() - began
    if hostile is not None:
        hostile.cancel()
        await asyncio.gather(hostile, return_exceptions=True)
    p50, p99 = np.percentile(np.array(tally.latencies) * 1e3, [50, 99])
    return {
        "clients": clients,
        **tally.as_dict(),
        "requests_per_second": round(len(tally.latencies) / seconds, 1),
        "p50_ms": round(float(p50), 2),
        "p99_ms": round(float(p99), 2),
        "hostile": did,
        "load_average": round(os.getloadavg()[1], 1),  # of the whole machine, over the last five minutes
    }


async def abuse(port: int, rate: float, question: bytes, did: dict[str, int]) -> None:
    """Hang up, stay silent and hoard sessions, in turn and until cancelled. `did` counts what was done."""
    silent: list[asyncio.StreamWriter] = []
    hoard = b"POST /sessions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    try:
        for number in itertools.count():
            await asyncio.sleep(1 / rate)
            what = ("hung up", "silent", "sessions asked for")[number % 3]
            did[what] = did.get(what, 0) + 1
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(HOSTILE_ADDRESS, 0))
                if what == "silent":
                    silent.append(writer)
                    if len(silent) > MOST_SILENT:
                        silent.pop(0).close()
                    continue
                writer.write(question if what == "hung up" else hoard)
                await writer.drain()
                if what != "hung up":
                    status = (await reader.readline()).split(b" ")[1].decode()
                    did[f"sessions: {status}"] = did.get(f"sessions: {status}", 0) + 1
                writer.close()
            except (OSError, IndexError):
                did["cut off"] = did.get("cut off", 0) + 1
    finally:
        for writer in silent:
            writer.close()


async def drain(
    server: subprocess.Popen[str], port: int, clients: int, before: int, questions: list[bytes], tally: Tally
) -> dict[str, Any]:
    """Send SIGTERM after so many answers. All clients go on asking until their connection is closed.

    A request is lost if it was sent before the signal and got no answer. Later requests may find the service closed.
    HTTP allows that, because a client may then ask elsewhere, so they are only counted.
    """
    numbers = itertools.count()
    under_way = lost = answered_after = turned_away = 0
    signalled = False

    async def client() -> None:
        nonlocal under_way, lost, answered_after, turned_away, signalled
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for i in numbers:
            asked, state, too_late = time.perf_counter(), i % len(questions), signalled
            under_way += 1
            try:
                writer.write(questions[state])
                status, answer = await read_answer(reader)
            except (OSError, EOFError):
                lost, turned_away = lost + (not too_late), turned_away + too_late
                break
            finally:
                under_way -= 1
            tally.note(state, time.perf_counter() - asked, status, answer)
            answered_after += signalled
            if len(tally.latencies) == before:
                signalled = True
                waiting.append(under_way)
                server.send_signal(signal.SIGTERM)
        writer.close()

    waiting: list[int] = []
    await asyncio.gather(*(client() for _ in range(clients)))
    return {
        "clients": clients,
        **tally.as_dict(),
        "under_way_at_sigterm": waiting[0],
        "answered_after_sigterm": answered_after,
        "lost": lost,
        "turned_away": turned_away,
    }


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, Any]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    length = int(head.split("content-length:")[1].split("\r\n")[0])
    return int(head.split(" ")[1]), json.loads(await reader.readexactly(length))


if __name__ == "__main__":
    main(tyro.cli(Options, config=(tyro.conf.OmitArgPrefixes,)))

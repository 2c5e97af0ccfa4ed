"""`drop serve` under load from a second process: requests a second, latencies, and every answer checked.

python benchmarks/deploy/load.py POLICY --out benchmarks/deploy/load.json

The service runs in a process of its own; this one asks, over as many connections as there are clients, and compares
each action with that of the policy called directly here, one observation at a time. One that differs by more than the
tolerance is wrong. Batches are summed in another order than single rows, so the last digits differ.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from droprl.policy import LoadedPolicy, load_policy

HEAD = "POST /act HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
COMMAND = "python benchmarks/deploy/load.py POLICY --out benchmarks/deploy/load.json"


@dataclass(frozen=True)
class Options:
    policy: tyro.conf.Positional[Path]
    """A policy folder or a run whose rule needs no session."""
    out: Path
    """Where the figures go, as JSON."""
    requests: int = 33_334
    """For each number of clients: 100,002 in all."""
    clients: tuple[int, ...] = (1, 8, 64)
    """Connections that ask at once, each one request at a time."""
    states: int = 2_000
    """Different observations, drawn around the data's mean with its standard deviation."""
    tolerance: float = 1e-4
    """How far an action may be from the policy's own, in half-ranges of the action."""


@dataclass
class Tally:
    latencies: list[float]
    wrong: int = 0
    failed: int = 0
    largest_difference: float = 0.0


def main(options: Options) -> None:
    policy = load_policy(options.policy)
    states, expected = expectations(policy, options.states)
    half_range = (np.asarray(policy.scaling.action_high) - np.asarray(policy.scaling.action_low)) / 2
    server, port = start_server(options.policy)
    about = {
        "command": COMMAND,
        "policy": repr(policy),
        "adaptation": None if policy.algorithm.adaptation is None else vars(policy.algorithm.adaptation),
        "tolerance": options.tolerance,
        "states": options.states,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }
    results = json.loads(options.out.read_text(encoding="utf-8"))["results"] if options.out.exists() else []
    try:
        for n in options.clients:
            if any(result["clients"] == n for result in results):
                continue  # a result that is there is not made again
            results.append(asyncio.run(load(port, n, options, states, expected, half_range)))
            print(json.dumps(results[-1]), flush=True)
            options.out.write_text(json.dumps({**about, "results": results}, indent=1) + "\n", encoding="utf-8")
        server.send_signal(signal.SIGTERM)
        print(f"exit code after SIGTERM: {server.wait(60)}")
    except (OSError, EOFError):
        raise SystemExit(f"the service is gone (exit code {server.wait(10)})") from None
    finally:
        server.kill()


def expectations(policy: LoadedPolicy, n: int) -> tuple[list[bytes], np.ndarray]:
    """Requests as bytes, and the actions that must come back."""
    rng = np.random.default_rng(0)
    mean, std = np.asarray(policy.scaling.observation_mean), np.asarray(policy.scaling.observation_std)
    states = (mean + std * rng.normal(size=(n, len(mean)))).astype(np.float32)
    expected = []
    for state in states:
        policy.reset()
        expected.append(policy.act(state))
    bodies = (json.dumps({"observation": state.tolist()}) for state in states)
    return [(HEAD % (len(body), body)).encode() for body in bodies], np.array(expected)


def start_server(policy: Path) -> tuple[subprocess.Popen[str], int]:
    words = [sys.executable, "-m", "droprl", "serve", str(policy), "--port", "0"]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    for line in server.stdout:
        if "is ready" in line:
            return server, int(line.split(" ")[0].rpartition(":")[2])
    raise SystemExit("the service did not start")


async def load(
    port: int, clients: int, options: Options, states: list[bytes], expected: np.ndarray, half_range: np.ndarray
) -> dict[str, Any]:
    tally = Tally([])
    numbers = iter(range(options.requests))
    began = time.perf_counter()

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for i in numbers:
            asked = time.perf_counter()
            writer.write(states[i % len(states)])
            status, answer = await read_answer(reader)
            tally.latencies.append(time.perf_counter() - asked)
            if status != 200:
                tally.failed += 1
                continue
            difference = float(np.max(np.abs(np.array(answer["action"]) - expected[i % len(states)]) / half_range))
            tally.largest_difference = max(tally.largest_difference, difference)
            tally.wrong += not difference <= options.tolerance
        writer.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    seconds = time.perf_counter() - began
    p50, p99 = np.percentile(np.array(tally.latencies) * 1e3, [50, 99])
    return {
        "clients": clients,
        "requests": len(tally.latencies),
        "wrong": tally.wrong,
        "failed": tally.failed,
        "largest_difference": tally.largest_difference,
        "requests_per_second": round(len(tally.latencies) / seconds, 1),
        "p50_ms": round(float(p50), 2),
        "p99_ms": round(float(p99), 2),
        "load_average": round(os.getloadavg()[1], 1),  # of the whole machine, over the last five minutes
    }


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, Any]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    length = int(head.split("content-length:")[1].split("\r\n")[0])
    return int(head.split(" ")[1]), json.loads(await reader.readexactly(length))


if __name__ == "__main__":
    main(tyro.cli(Options, config=(tyro.conf.OmitArgPrefixes,)))

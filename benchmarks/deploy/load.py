"""`drop serve` under load from a second process: requests a second, latencies, and every answer checked.

python benchmarks/deploy/load.py POLICY --out benchmarks/deploy/load.json

The service runs in a process of its own; this one asks, over as many connections as there are clients, and compares
each action with that of the policy called directly here. `--one-by-one` promises the very bits that the policy gives
for the observation alone. In batches sums are made in another order, and at a kink of the networks an action differs by
some 1e-4: an answer is right if it is one of those that `policy.act` gives to the observation alone or among 2, 4 … 64.
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
COMPANY = (2, 4, 8, 16, 32, 64)  # rows that `policy.act` is given at once
COMMAND = "python benchmarks/deploy/load.py POLICY --out benchmarks/deploy/load.json"


@dataclass(frozen=True)
class Options:
    policy: tyro.conf.Positional[Path]
    """A policy folder or a run whose rule needs no session."""
    out: Path
    """Where the figures go, as JSON."""
    requests: int = 16_667
    """For each number of clients, in batches and one by one: 100,002 in all."""
    clients: tuple[int, ...] = (1, 8, 64)
    """Connections that ask at once, each one request at a time."""
    states: int = 2_000
    """Different observations, drawn around the data's mean with its standard deviation."""
    tolerance: float = 1e-4
    """How far an action of a batch may be from the policy's own, in the task's units."""


@dataclass
class Tally:
    latencies: list[float]
    wrong: int = 0
    failed: int = 0
    differs_from_alone: int = 0  # by more than the tolerance: at a kink
    largest_difference: float = 0.0  # from the policy asked about the observation alone


def main(options: Options) -> None:
    policy = load_policy(options.policy)
    questions, answers = expectations(policy, options.states)
    about = {
        "command": COMMAND,
        "policy": repr(policy),
        "adaptation": None if policy.algorithm.adaptation is None else vars(policy.algorithm.adaptation),
        "tolerance": options.tolerance,
        "states": options.states,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }
    results: list[dict[str, Any]] = []
    for way, words in (("batches", []), ("one by one", ["--one-by-one"])):
        # What is promised one by one is the first answer, that of the policy alone, to the bit.
        right, tolerance = (answers, options.tolerance) if way == "batches" else (answers[:1], 0.0)
        server, port = start_server(options.policy, words)
        try:
            for n in options.clients:
                results.append(
                    {"way": way, **asyncio.run(load(port, n, options.requests, questions, right, tolerance))}
                )
                print(json.dumps(results[-1]), flush=True)
            server.send_signal(signal.SIGTERM)
            results[-1]["exit_code_after_sigterm"] = server.wait(60)
        except (OSError, EOFError):
            raise SystemExit(f"the service is gone (exit code {server.wait(10)})") from None
        finally:
            server.kill()
    options.out.write_text(json.dumps({**about, "results": results}, indent=1) + "\n", encoding="utf-8")


def expectations(policy: LoadedPolicy, n: int) -> tuple[list[bytes], np.ndarray]:
    """Requests as bytes, and the actions (ways to ask, states, action size) one of which must come back."""
    rng = np.random.default_rng(0)
    mean, std = np.asarray(policy.scaling.observation_mean), np.asarray(policy.scaling.observation_std)
    states = (mean + std * rng.normal(size=(n, len(mean)))).astype(np.float32)
    answers = []
    for size in (1, *COMPANY):
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
    port: int, clients: int, requests: int, questions: list[bytes], answers: np.ndarray, tolerance: float
) -> dict[str, Any]:
    tally = Tally([])
    numbers = iter(range(requests))
    began = time.perf_counter()

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for i in numbers:
            asked = time.perf_counter()
            writer.write(questions[i % len(questions)])
            status, answer = await read_answer(reader)
            tally.latencies.append(time.perf_counter() - asked)
            if status != 200:
                tally.failed += 1
                continue
            action = np.array(answer["action"], np.float32)
            differences = np.abs(action - answers[:, i % len(questions)]).max(axis=1)
            tally.largest_difference = max(tally.largest_difference, float(differences[0]))
            tally.differs_from_alone += not differences[0] <= tolerance
            tally.wrong += not differences.min() <= tolerance
        writer.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    seconds = time.perf_counter() - began
    p50, p99 = np.percentile(np.array(tally.latencies) * 1e3, [50, 99])
    return {
        "clients": clients,
        "requests": len(tally.latencies),
        "wrong": tally.wrong,
        "failed": tally.failed,
        "differs_from_alone": tally.differs_from_alone,
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

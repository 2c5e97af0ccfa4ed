"""Updates per second of DROP on this device: `python benchmarks/speed/rates.py [--out FILE] [--profile FOLDER]`.

The paper's sizes (512 wide, batches of 1024, N = 1000, z concatenated to the state's encoding) and the default recipe
(N = 10, bilinear), for one, five and twenty seeds, in float32 and bfloat16. An update counts once for each seed. The
data is random, which does not change the time of an update. As in `drop train`, XLA makes programs that repeat to the
bit, unless --free is given. With --profile also the times of the kernels, for one seed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.extend.core import jaxprs_in_params
from jax.interpreters.partial_eval import dce_jaxpr
from rich.console import Console
from rich.table import Table

from droprl.algorithms import DROP
from droprl.algorithms.protocol import Clock
from droprl.data import Dataset, from_arrays
from droprl.train.loop import Loop

OBSERVATIONS, ACTIONS = 17, 6  # the sizes of HalfCheetah
EPISODES, LENGTH = 1_000, 200
ROUNDS = 5  # in each measurement; the median counts
SETTINGS = {
    "the paper's": DROP(conditioning="concatenate", n_sub_tasks=1_000, trajectories_per_sub_task=1),
    "the recipe": DROP(),
}


def made_up_data() -> Dataset:
    rng, rows = np.random.default_rng(0), EPISODES * LENGTH
    observations = rng.standard_normal((rows + 1, OBSERVATIONS), dtype=np.float32)
    timeouts = np.arange(1, rows + 1) % LENGTH == 0
    actions = rng.uniform(-1, 1, (rows, ACTIONS)).astype(np.float32)
    rewards = rng.standard_normal(rows, dtype=np.float32)
    return from_arrays(observations[:-1], actions, rewards, np.zeros(rows, bool), timeouts, observations[1:])


def rate(loop: Loop, seeds: int, seconds: float) -> tuple[float, float]:
    """Updates per second over all seeds, and the seconds of the first call, which compiles."""
    began = time.perf_counter()
    states, _ = loop.run(loop.init(), 0, 10)
    compiled = time.perf_counter() - began
    began = time.perf_counter()
    states, _ = loop.run(states, 10, 20)
    count = max(20, round(20 * seconds / ROUNDS / (time.perf_counter() - began)))
    took = []
    for number in range(ROUNDS):
        began = time.perf_counter()
        states, _ = loop.run(states, 30 + number * count, count)
        took.append(time.perf_counter() - began)
    return seeds * count / float(np.median(took)), compiled


def count(algorithm: DROP, dataset: Dataset) -> tuple[int, float]:
    """How many matrix products and multiplications the traced program of one update has."""
    prepared = algorithm.prepare(dataset)
    state, key = algorithm.init(jax.random.key(0), prepared.spec, Clock.at(0, 1)), jax.random.key(1)
    batch = prepared.transitions.sample(key, algorithm.batch_size)
    traced = jax.make_jaxpr(algorithm.update)(state, batch, key, Clock.at(0, 1))
    used, _ = dce_jaxpr(traced.jaxpr, [True] * len(traced.jaxpr.outvars))
    sizes = list(_products(used))
    return len(sizes), float(sum(sizes))


def _products(jaxpr: Any) -> Iterator[int]:
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            left, right = (variable.aval.shape for variable in equation.invars)
            (_, summed), (_, batched) = equation.params["dimension_numbers"]
            free = [size for i, size in enumerate(right) if i not in (*summed, *batched)]
            yield math.prod(left) * math.prod(free)
        for inner in jaxprs_in_params(equation.params):
            yield from _products(inner)


def profile(loop: Loop, folder: Path, updates: int = 20) -> list[tuple[str, float, float]]:
    """Kernels by their time: name, microseconds per update, calls per update."""
    states, _ = loop.run(loop.init(), 0, 10)
    with jax.profiler.trace(str(folder), create_perfetto_trace=True):
        loop.run(states, 10, updates)
    (trace,) = folder.glob("**/perfetto_trace.json.gz")
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    devices = {e["pid"] for e in events if e.get("name") == "process_name" and "GPU" in e["args"]["name"]}
    took, calls = Counter[str](), Counter[str]()
    for event in events:
        if event.get("ph") == "X" and event["pid"] in devices:
            took[event["name"]] += event["dur"]
            calls[event["name"]] += 1
    return [(name, total / updates, calls[name] / updates) for name, total in took.most_common()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 5, 20])
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--seconds", type=float, default=2.0, help="time of each measurement, after compiling")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--profile", type=Path, help="a new folder for the trace of the kernels")
    parser.add_argument("--count", action="store_true", help="only count the products of one update")
    parser.add_argument("--free", action="store_true", help="allow programs that do not repeat to the bit")
    given = parser.parse_args()
    if not given.free:
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_deterministic_ops=true".strip()
    dataset, found = made_up_data(), list[dict[str, Any]]()
    if given.count:
        for known in (False, True):
            data = replace(dataset, next_observations=None) if known else dataset
            for name in given.settings:
                products, multiplications = count(SETTINGS[name].resolve(data), data)
                said = "every next action is logged" if known else "behind a timeout β acts"
                print(f"{name}, {said}: {products} products, {multiplications / 1e9:.1f} G multiplications")
        return
    device = jax.devices()[0].device_kind
    table = Table(
        "settings", "precision", "seeds", "updates/s", "compiling, s", title=f"{device}, JAX {jax.__version__}"
    )
    for name in given.settings:
        resolved = SETTINGS[name].resolve(dataset)
        prepared = resolved.prepare(dataset)
        for precision in ("float32", "bfloat16"):
            algorithm = replace(resolved, precision=precision)
            for seeds in given.seeds:
                updates, compiling = rate(Loop(algorithm, prepared, range(seeds), 10**6), seeds, given.seconds)
                found.append({"settings": name, "precision": precision, "seeds": seeds, "updates_per_second": updates})
                table.add_row(name, precision, str(seeds), f"{updates:,.0f}", f"{compiling:.1f}")
            if given.profile:
                for kernel, us, calls in profile(
                    Loop(algorithm, prepared, [0], 10**6), given.profile / name / precision
                )[:40]:
                    print(f"{us:9.1f} us {calls:6.1f} × {kernel[:90]}")
    Console().print(table)
    if given.out:
        given.out.write_text(
            json.dumps({"device": device, "jax": jax.__version__, "free": given.free, "rates": found}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()

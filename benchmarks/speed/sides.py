"""One checkout's training rates and latencies as a line of JSON: `python benchmarks/speed/sides.py NAME [SEEDS …]`.

To compare two commits, run it for one and the other in turns on one machine, with `src` and `benchmarks/speed` of the
checkout on PYTHONPATH. Without SEEDS only the latency is measured. As `drop train` does, it asks XLA for programs that
repeat to the bit.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import replace
from typing import Any

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_deterministic_ops=true".strip()

import jax
from adaptation import N, latency, paper_sizes
from rates import SETTINGS, made_up_data, rate

from droprl.adapt import Adaptation
from droprl.train.loop import Loop

SECONDS = 1.5  # of each measurement


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="of the commit")
    parser.add_argument("seeds", nargs="*", type=int, help="how many at once: updates per second for each")
    given = parser.parse_args()
    found: dict[str, Any] = {"code": given.name, "device": jax.devices()[0].device_kind, "jax": jax.__version__}
    if given.seeds:
        data = made_up_data()
        algorithm = SETTINGS["the paper's"].resolve(data)
        prepared = algorithm.prepare(data)
        for precision in ("float32", "bfloat16"):
            for n in given.seeds:
                loop = Loop(replace(algorithm, precision=precision), prepared, range(n), 10**6)
                found[f"{precision} {n}"] = round(rate(loop, n, SECONDS)[0])
    for envs in (1, 100):
        point = latency(N, Adaptation(), envs, paper_sizes(), SECONDS)
        found[f"latency {envs}"] = round(point.median_ms, 3), round(point.p99_ms, 3)
    print(json.dumps(found))


if __name__ == "__main__":
    main()

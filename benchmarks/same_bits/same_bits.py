"""Are the results still the same? The weights after 200 small updates on a CPU, as one SHA-256 for each algorithm.

`same_bits.py` compares them with `expected.json` and fails if one differs. `same_bits.py --write` writes that file: run
it on the old code. The sums are right for one version of JAX on one kind of CPU; the file says which.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import sys
import tempfile
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np

from droprl import Dataset, fit, from_arrays
from droprl.algorithms import ALGORITHMS

EXPECTED = Path(__file__).with_name("expected.json")
UPDATES, SEEDS = 200, 2


def dataset() -> Dataset:
    """Forty episodes with all kinds of ends. Actions and returns depend on the observations."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(5, 40, 40)
    ends, rows = np.cumsum(lengths) - 1, int(lengths.sum())
    observations = rng.normal(size=(rows, 4))
    level = np.repeat(rng.uniform(0, 2, len(lengths)), lengths)
    terminals, timeouts = np.zeros(rows, bool), np.zeros(rows, bool)
    terminals[ends[::3]], timeouts[ends] = True, True
    timeouts &= ~terminals
    return from_arrays(
        observations=observations,
        actions=np.tanh(observations[:, :2] + level[:, None] - 1 + 0.1 * rng.normal(size=(rows, 2))),
        rewards=level + 0.1 * observations[:, 0],
        terminals=terminals,
        timeouts=timeouts,
        next_observations=observations + 0.1 * rng.normal(size=observations.shape),
        name="same-bits",
    )


def sums(names: tuple[str, ...]) -> dict[str, str]:
    found, data = {}, dataset()
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            run = fit(data, ALGORITHMS[name].small(), out=folder, seeds=SEEDS, steps=UPDATES, progress=False)
            state = run.checkpoint().path / "state.safetensors"
            found[name] = hashlib.sha256(state.read_bytes()).hexdigest()
        print(f"{name:10} {found[name]}", flush=True)
    return found


def machine() -> dict[str, str]:
    return {"jax": jax.__version__, "machine": platform.machine()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("algos", nargs="*", default=list(ALGORITHMS), help="all, if none is named")
    parser.add_argument("--write", action="store_true", help="write expected.json with the sums of this code")
    options = parser.parse_args()
    found = sums(tuple(options.algos))
    if options.write:
        EXPECTED.write_text(json.dumps(machine() | {"sha256": found}, indent=2) + "\n")
        return
    expected = json.loads(EXPECTED.read_text())
    if {key: expected[key] for key in machine()} != machine():
        print(f"expected.json was made with {expected['jax']} on {expected['machine']}: differences may mean nothing")
    known = {name: value for name, value in found.items() if name in expected["sha256"]}
    odd = [name for name, value in known.items() if expected["sha256"][name] != value]
    print(f"{len(known) - len(odd)} of {len(known)} are the same bits" + (f"; not {', '.join(odd)}" if odd else ""))
    if new := sorted(found.keys() - known.keys()):
        print(f"expected.json does not know {', '.join(new)} yet")
    sys.exit(bool(odd))


if __name__ == "__main__":
    main()

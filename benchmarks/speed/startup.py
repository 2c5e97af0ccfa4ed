"""How long `drop train --preset small` takes from its first import to its first update: cold, and with the cache.

    python benchmarks/speed/startup.py [--rounds 3]

Each round is a separate process with a small synthetic file. The first round fills the cache of compiled programs. CPU
seconds are printed too, because other work on the machine changes the seconds of the clock.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

CODE = """
import json, sys, time
from droprl.cli import main
import droprl.train.loop as loop
run = loop.Loop.run
def timed(self, states, first, count):
    answer = run(self, states, first, count)
    if first == 0:
        print(json.dumps([time.clock_gettime(time.CLOCK_BOOTTIME), time.process_time()]), flush=True)
    return answer
loop.Loop.run = timed
main(sys.argv[1:])
"""


def first_update(source: Path, out: Path, cache: Path) -> tuple[float, float]:
    """Seconds of the clock and of the CPU, from the start of the process to the end of its first update."""
    import time

    words = ["train", str(source), "--preset", "small", "--steps", "2", "--checkpoint-every", "2", "--out", str(out)]
    began = time.clock_gettime(time.CLOCK_BOOTTIME)
    answer = subprocess.run(
        [sys.executable, "-c", CODE, *words],
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"XDG_CACHE_HOME": str(cache)},
    )
    ended, cpu = json.loads(answer.stdout.splitlines()[0])
    return ended - began, cpu


def main() -> None:
    from synthetic import write_hdf5

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "data.hdf5"
        write_hdf5(source, 100_000)
        taken = []
        for number in range(options.rounds + 1):
            taken.append(first_update(source, Path(folder) / f"run{number}", Path(folder) / "cache"))
            print(
                f"{'cached' if number else 'cold  '}  {taken[-1][0]:5.1f} s  {taken[-1][1]:5.1f} s of CPU", flush=True
            )
    clock, cpu = min(taken[1:])
    print(json.dumps({"startup_seconds": round(clock, 2), "startup_cpu_seconds": round(cpu, 2)}))


if __name__ == "__main__":
    main()

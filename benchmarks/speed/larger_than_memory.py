"""Train on more data than memory may hold: fifty million transitions within 4 GB of resident memory.

    python benchmarks/speed/larger_than_memory.py FOLDER [--rows 50000000] [--steps 2000] [--limit 4.0]

Writes a synthetic D4RL file of 3 GB into FOLDER, maps it into columns of the same size with `drop data map`, and trains
on it with `drop train --preset small`, which is killed once and resumed. All files are removed at the end. For every
process it measures the peak of resident memory with pages of mapped files (VmHWM, counted by the kernel), and the peak
of anonymous memory (RssAnon, read twenty times per second). Fails above the limit.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from synthetic import write_hdf5


class Peak(NamedTuple):
    seconds: float
    total: float  # GB of resident memory at the peak, pages of mapped files included
    own: float  # GB of anonymous memory at its peak


def watched(words: list[str], kill_when: Path | None = None) -> Peak:
    """Run `drop` to its end, or kill it as soon as the file `kill_when` exists."""
    began, total, own = time.perf_counter(), 0.0, 0.0
    process = subprocess.Popen([sys.executable, "-m", "droprl", *words])
    while process.poll() is None:
        try:
            status = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        except OSError:
            break
        found = {line.split(":")[0]: line.split()[1] for line in status if line.startswith(("VmHWM", "RssAnon"))}
        peak, now = (1024 * int(found.get(field, 0)) / 1e9 for field in ("VmHWM", "RssAnon"))
        total, own = max(total, peak), max(own, now)
        if kill_when is not None and kill_when.exists():
            process.send_signal(signal.SIGKILL)
            break
        time.sleep(0.05)
    if process.wait() != (-signal.SIGKILL if kill_when is not None else 0):
        raise SystemExit(f"drop {' '.join(words)}: ended with {process.returncode}")
    return Peak(time.perf_counter() - began, total, own)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=50_000_000)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--limit", type=float, default=4.0, help="GB of resident memory")
    options = parser.parse_args()
    folder = options.folder / f"larger-than-memory-{os.getpid()}"
    folder.mkdir(parents=True)
    file, columns, run = folder / "synthetic.hdf5", folder / "columns", folder / "run"
    try:
        write_hdf5(file, options.rows)
        peaks = {"map": watched(["data", "map", str(file), "--out", str(columns)])}
        sizes = {
            "file_gb": file.stat().st_size / 1e9,
            "columns_gb": sum(f.stat().st_size for f in columns.iterdir()) / 1e9,
        }
        file.unlink()
        every = str(max(1, options.steps // 4))
        train = ["train", str(columns), "--preset", "small", "--steps", str(options.steps), "--out", str(run)]
        train += ["--checkpoint-every", every]
        peaks["train"] = watched(train, kill_when=run / "checkpoints" / f"{int(every):09d}")
        peaks["resume"] = watched(train)
    finally:
        shutil.rmtree(folder)
    for name, peak in peaks.items():
        print(f"{name:7s} {peak.seconds:6.0f} s   peak {peak.total:5.2f} GB resident, {peak.own:5.2f} GB its own")
    print(json.dumps({"rows": options.rows, **sizes, "peaks": {name: peak._asdict() for name, peak in peaks.items()}}))
    if max(peak.total for peak in peaks.values()) > options.limit:
        raise SystemExit(f"more than {options.limit} GB were resident")


if __name__ == "__main__":
    main()

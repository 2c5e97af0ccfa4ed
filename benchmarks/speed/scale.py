"""Time per update and memory against the size of the data, the number of sub-tasks and the number of seeds.

    python benchmarks/speed/scale.py [--out FOLDER] [--quick | --ratio]

Every point runs in a separate process, so that each has its own peak of resident memory. Networks are small (width 32,
batch 64); the synthetic data has the sizes of hopper and comes from memory and from the disk. The fastest of some
rounds counts, by the clock, which other work on the machine disturbs, and by CPU time over all threads, which the
figure shows. Writes scale.json, scale.md and scale.svg.
`mapped_vs_memory` is the update rate from the disk over that from memory, measured in turns in one process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from panels import Panel, draw

if TYPE_CHECKING:
    from droprl.data import Dataset
    from droprl.data.transitions import Prepared
    from droprl.train.loop import Loop

SIZES, SUB_TASKS, SEEDS = (10**4, 10**5, 10**6, 10**7), (1, 10, 100, 1000, 5000), (1, 2, 4, 8, 16, 32)
ROWS, N, SEED = 10**6, 10, 1  # the values while another quantity is varied
ROUND = 32  # the fewest updates in a round, because every call has a fixed cost
POINT = ("varied", "rows", "sub_tasks", "seeds", "data")
COLUMNS = (*POINT, "ms_per_update", "cpu_ms_per_update", "table_mb", "start_mb", "peak_mb")


# --- data on the disk and in memory, in one process ---


def mapped_vs_memory(rows: int = 200_000, rounds: int = 5, updates: int = 1024) -> dict[str, float]:
    """Updates per second of `--preset small` with columns on the disk and in memory, and their ratio.

    Each is a median over rounds in turns. Batches are gathered some chunks ahead, so a turn is many chunks long and
    begins when no chunk is being gathered any more: the batches of a turn are then gathered in the same turn.
    """
    from concurrent.futures import wait

    from synthetic import arrays

    from droprl import DROP, from_arrays, load_dataset, map_dataset

    with tempfile.TemporaryDirectory() as folder:
        columns: dict[str, Any] = dict(arrays(rows))
        np.savez(f"{folder}/data.npz", **columns)
        map_dataset(f"{folder}/data.npz", f"{folder}/columns")
        both = load_dataset(f"{folder}/columns"), from_arrays(**columns)
        loops = [_loop(dataset, DROP.small(), 1)[0] for dataset in both]
        states = [loop.init() for loop in loops]
        rates: list[list[float]] = [[], []]
        chunks: Any = loops[0].chunks  # type: ignore[attr-defined]
        for number in range(rounds + 1):
            for i, loop in enumerate(loops):
                wait([coming for _, coming in chunks._coming])
                began = time.perf_counter()
                states[i], _ = loop.run(states[i], number * updates, updates)
                rates[i].append(updates / (time.perf_counter() - began))
    disk, memory = (np.array(of[1:]) for of in rates)  # the first round compiles
    return {
        "mapped_vs_memory": float(np.median(disk / memory)),
        "mapped_updates_per_second": float(np.median(disk)),
        "memory_updates_per_second": float(np.median(memory)),
    }


def _loop(dataset: Dataset, algorithm: Any, seeds: int) -> tuple[Loop, Prepared]:
    from droprl.train.disk_loop import DiskLoop
    from droprl.train.loop import Loop

    resolved = algorithm.resolve(dataset)
    prepared = resolved.prepare(dataset)
    return (DiskLoop if dataset.on_disk else Loop)(resolved, prepared, range(seeds), 10**6), prepared


# --- one point, in a separate process ---


def measure(source: str, sub_tasks: int, seeds: int, seconds: float) -> dict[str, float]:
    import jax

    from droprl import DROP, load_dataset

    dataset = load_dataset(source)
    start = _resident("VmRSS")
    algorithm = DROP(width=32, batch_size=64, n_sub_tasks=sub_tasks)
    loop, prepared = _loop(dataset, algorithm, seeds)
    states, first, count = loop.init(), 0, ROUND
    clock: list[float] = []
    cpu: list[float] = []
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends or len(clock) < 6:
        began = time.perf_counter(), time.process_time()
        states, _ = loop.run(states, first, count)
        clock.append((time.perf_counter() - began[0]) / count)
        cpu.append((time.process_time() - began[1]) / count)
        first += count
        count = int(np.clip(0.2 / clock[-1], ROUND, 4096))
    table = [] if dataset.on_disk else jax.tree.leaves(prepared.transitions)
    return {
        "ms_per_update": 1e3 * min(clock[2:]) / seeds,  # other work on the machine only adds time
        "cpu_ms_per_update": 1e3 * min(cpu[2:]) / seeds,
        "table_mb": sum(leaf.nbytes for leaf in table) / 2**20,
        "start_mb": start,
        "peak_mb": _resident("VmHWM"),
    }


def _resident(field: str) -> float:
    """MiB of resident memory of this process, with pages of mapped files."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


# --- all points ---


def points(quick: bool) -> list[dict[str, Any]]:
    sizes, counts, seeds = (SIZES[:2], SUB_TASKS[:2], SEEDS[:2]) if quick else (SIZES, SUB_TASKS, SEEDS)
    rows = 10**5 if quick else ROWS
    both = ("memory", "disk")
    asked = [{"varied": "rows", "rows": size, "sub_tasks": N, "seeds": SEED, "data": d} for size in sizes for d in both]
    asked += [{"varied": "sub_tasks", "rows": rows, "sub_tasks": n, "seeds": SEED, "data": "memory"} for n in counts]
    asked += [{"varied": "seeds", "rows": rows, "sub_tasks": N, "seeds": s, "data": "memory"} for s in seeds]
    return asked


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "scale")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each point is measured")
    parser.add_argument("--quick", action="store_true", help="only the smallest points")
    parser.add_argument("--point", help=argparse.SUPPRESS)
    parser.add_argument("--ratio", action="store_true", help="only mapped_vs_memory")
    options = parser.parse_args()
    if options.point:
        asked = json.loads(options.point)
        print(json.dumps(measure(asked["source"], asked["sub_tasks"], asked["seeds"], options.seconds)))
        return
    if options.ratio:
        print(json.dumps(mapped_vs_memory()))
        return
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for point in points(options.quick):
            found.append(point | _measured(point, Path(folder), options.seconds))
            print("  ".join(f"{key} {_shown(found[-1][key])}" for key in COLUMNS), flush=True)
    write(found, options.out)
    print(json.dumps({"points": len(found), "folder": str(options.out)}))


def _measured(point: dict[str, Any], folder: Path, seconds: float) -> dict[str, float]:
    from synthetic import write_hdf5

    from droprl import map_dataset

    file = folder / f"{point['rows']}.hdf5"
    columns = file.with_suffix("")
    if not file.exists():
        write_hdf5(file, point["rows"])
        map_dataset(file, columns)
    asked = point | {"source": str(columns if point["data"] == "disk" else file)}
    command = [sys.executable, __file__, "--seconds", str(seconds), "--point", json.dumps(asked)]
    cache = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(folder / "compiled")}
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=cache)
    measured: dict[str, float] = json.loads(answer.stdout.splitlines()[-1])
    return measured


# --- the files ---


def write(found: list[dict[str, Any]], out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / "scale.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    head = "| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS) + "\n"
    lines = ("| " + " | ".join(_shown(point[key]) for key in COLUMNS) + " |\n" for point in found)
    (out / "scale.md").write_text(head + "".join(lines), encoding="utf-8")
    (out / "scale.svg").write_text(figure(found), encoding="utf-8")


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return value
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def figure(found: list[dict[str, Any]]) -> str:
    titles = {"rows": "transitions", "sub_tasks": "sub-tasks N", "seeds": "seeds"}
    measures = {"cpu_ms_per_update": "CPU ms per update and seed", "peak_mb": "peak resident MiB"}
    places = {"memory": "data in memory", "disk": "data on the disk"}
    panels = []
    for measure, heading in measures.items():
        for varied, title in titles.items():
            of = [point for point in found if point["varied"] == varied]
            series = {
                name: {point[varied]: point[measure] for point in of if point["data"] == data}
                for data, name in places.items()
            }
            panels.append(Panel(heading, title, {name: line for name, line in series.items() if line}))
    note = "the fastest of some rounds; small networks (width 32, batch 64); every point is a separate process"
    return draw("What an update costs against scale", note, panels)


if __name__ == "__main__":
    main()

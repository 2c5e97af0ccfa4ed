"""ONNX files and the JAX policies they come from: do they act alike, how large are they, how fast?

    python benchmarks/deploy/onnx_table.py --data FOLDER

FOLDER holds HDF5 files like those of D4RL. On each dataset a small DROP is trained for a moment; neither agreement nor
speed depends on how well it was trained. It is exported with every rule and compared over 1,000 states of the data. Two
sizes of network are timed on the first dataset. Writes onnx_table.json beside this file and prints the tables of
docs/deploy.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnxruntime

import droprl
from droprl.deploy.agreement import agreement
from droprl.deploy.program import program_of
from droprl.loaded import LoadedPolicy

HERE = Path(__file__).parent
DATASETS = ("hopper-medium-replay", "walker2d-medium-replay", "halfcheetah-medium-replay")
RULES = ("best", "grad", "best-ada", "grad-ada")
STATES = 1000
BATCHES = {1: 500, 100: 50}  # rows in one call: how many calls are timed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=500, help="updates of the small networks")
    arguments = parser.parse_args()
    found: dict[str, Any] = {"machine": machine(), "steps": arguments.steps, "agreement": [], "speed": []}
    found["adaptation"] = asdict(droprl.DROP.small().adaptation)  # K is one of its settings. Each row has its own rule
    with tempfile.TemporaryDirectory() as folder:
        for name in DATASETS:
            dataset = droprl.load_dataset(arguments.data / f"{name}.hdf5")
            run = droprl.fit(
                dataset, droprl.DROP.small(), out=f"{folder}/{name}", steps=arguments.steps, progress=False
            )
            states = drawn(dataset)
            for rule in RULES:
                policy = droprl.load_policy(run.path, rule=rule)
                found["agreement"].append({"dataset": name, "rule": rule, **compared(policy, states, Path(folder))})
            if name == DATASETS[0]:
                wide = droprl.fit(dataset, droprl.DROP(), out=f"{folder}/wide", steps=5, progress=False)
                for width, path in ((droprl.DROP.small().width, run.path), (droprl.DROP().width, wide.path)):
                    for rule in ("best-ada", "grad-ada"):
                        policy = droprl.load_policy(path, rule=rule)
                        found["speed"] += speed(policy, states, Path(folder), {"width": width, "rule": rule})
    found["machine"]["load_after"] = os.getloadavg()[0]
    (HERE / "onnx_table.json").write_text(json.dumps(found, indent=1) + "\n")
    print(tables(found))


def machine() -> dict[str, Any]:
    versions = {"onnxruntime": onnxruntime.__version__, "jax": jax.__version__, "python": platform.python_version()}
    return {"cores": os.cpu_count(), "load_before": os.getloadavg()[0], **versions}


def drawn(dataset: droprl.Dataset) -> np.ndarray:
    rows = np.random.default_rng(0).choice(len(dataset.observations), STATES, replace=False)
    return np.asarray(dataset.observations[rows], np.float32)


def session_of(path: Path, threads: int = 0) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(path, options)


# --- does it act alike? ---


def compared(policy: LoadedPolicy, states: np.ndarray, folder: Path) -> dict[str, Any]:
    """At the first step of an episode, and at a second one with the memory of the first, as an export compares."""
    program = program_of(policy)
    session = session_of(droprl.export_onnx(policy, folder / "policy.onnx").path)

    def file(given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return dict(zip(program.outputs, session.run(program.outputs, given), strict=True))

    found = agreement(policy, program, file, (states, states[::-1]))
    return {"states": STATES, "wrong": found.wrong, "largest": found.largest, "ties": found.ties} | {
        "largest_gap_of_ties": found.largest_gap
    }


# --- how fast is it? ---


def speed(policy: LoadedPolicy, states: np.ndarray, folder: Path, row: dict[str, Any]) -> list[dict[str, Any]]:
    file = droprl.export_onnx(policy, folder / "policy.onnx")
    saved = policy.save(folder / "policy")
    sizes = {"onnx_bytes": file.size, "folder_bytes": sum(part.stat().st_size for part in saved.iterdir())}
    rows = []
    for batch, times in BATCHES.items():
        began = time.perf_counter()
        session = session_of(file.path, threads=1 if batch == 1 else 0)
        loaded = time.perf_counter() - began
        seen = states[:batch]
        policy.reset()
        few = row["width"] > droprl.DROP.small().width and batch > 1
        calls = {"onnx": partial(session.run, None, {"observations": seen}), "jax": partial(policy.act, seen)}
        measured = in_turn(calls, times // 5 if few else times)
        rows.append({**row, **sizes, "batch": batch, "load_s": loaded, **measured})
    return rows


def in_turn(calls: Mapping[str, Callable[[], Any]], times: int) -> dict[str, float]:
    """Milliseconds of each call. The calls take turns, so that other work on the machine affects all of them alike."""
    spent: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(times):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            spent[name].append(1e3 * (time.perf_counter() - began))
    figures = {"median": 50, "p99": 99}
    return {f"{name}_{word}": float(np.percentile(s, q)) for name, s in spent.items() for word, q in figures.items()}


def tables(found: dict[str, Any]) -> str:
    lines = ["| dataset | " + " | ".join(RULES) + " |", "|---|" + "---:|" * len(RULES)]
    for name in DATASETS:
        rows = [row for row in found["agreement"] if row["dataset"] == name]
        cells = [f"{row['largest']:.1g}" + (f" ({row['ties']} tied)" if row["ties"] else "") for row in rows]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += ["", "| width | rule | batch | file, MB | load, s | ONNX median | ONNX p99 | JAX median | JAX p99 |"]
    lines.append("|---:|---|---:|---:|---:|---:|---:|---:|---:|")
    for row in found["speed"]:
        times = [f"{row[name]:.2f}" for name in ("onnx_median", "onnx_p99", "jax_median", "jax_p99")]
        first = [row["width"], row["rule"], row["batch"], f"{row['onnx_bytes'] / 1e6:.1f}", f"{row['load_s']:.1f}"]
        lines.append("| " + " | ".join(map(str, [*first, *times])) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()

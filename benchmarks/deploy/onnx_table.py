"""ONNX files against the JAX policies they come from: do they act alike, how large are they, how fast.

    python benchmarks/deploy/onnx_table.py --data FOLDER

FOLDER holds D4RL-like HDF5 files. On each dataset a small DROP is trained for a moment (what it computes does not
depend on how well it was trained), exported by every rule, and compared over 1,000 states of the data; two sizes of
network are timed on the first dataset. Writes onnx_table.json beside this file and prints the tables of docs/deploy.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnxruntime

import droprl
from droprl.policy import LoadedPolicy

HERE = Path(__file__).parent
DATASETS = ("hopper-medium-replay", "walker2d-medium-replay", "halfcheetah-medium-replay")
RULES = ("best", "grad", "best-ada", "grad-ada")
STATES = 1000
SAME_SCORE = 1e-5  # scores are in standard deviations of returns: this far apart they are equal but for rounding
BATCHES = {1: 500, 100: 50}  # rows at once, and how many times each is timed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=500, help="updates of the small networks")
    arguments = parser.parse_args()
    found: dict[str, Any] = {"machine": machine(), "steps": arguments.steps, "agreement": [], "speed": []}
    with tempfile.TemporaryDirectory() as folder:
        for name in DATASETS:
            dataset = droprl.load_dataset(arguments.data / f"{name}.hdf5")
            run = droprl.fit(
                dataset, droprl.DROP.small(), out=f"{folder}/{name}", steps=arguments.steps, progress=False
            )
            states = drawn(dataset)
            for rule in RULES:
                policy = droprl.load_policy(run.path, rule=rule)
                found["agreement"].append({"dataset": name, "rule": rule, **agreement(policy, states, Path(folder))})
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


def agreement(policy: LoadedPolicy, states: np.ndarray, folder: Path) -> dict[str, Any]:
    """At the first step of an episode, and at a second one with what the first left in memory.

    Where two embeddings score the same but for rounding, file and policy may choose differently. Such a tie is counted
    apart, and only if the scores of both choices at the state where they were made say so.
    """
    session = session_of(droprl.export_onnx(policy, folder / "policy.onnx").path)
    kinds = json.loads(session.get_modelmeta().custom_metadata_map["memory"])
    memory = {name: np.full((STATES, *k["shape"]), k["start"], k["type"]) for name, k in kinds.items()}
    names = [output.name for output in session.get_outputs()]
    carry, tied, gaps, largest = policy.start(STATES), np.zeros(STATES, bool), [0.0], 0.0
    for step, seen in enumerate((states, states[::-1])):
        answer = dict(zip(names, session.run(None, {"observations": seen, **memory}), strict=True))
        memory = {name: answer[f"next_{name}"] for name in memory}
        carry, actions = policy.step(carry, seen, jax.random.key(0))
        if step == 0 or not memory:  # z is new
            z, scores = np.asarray(carry.inferred.z), np.asarray(carry.inferred.score)
            other = np.max(np.abs(z - answer["embedding"]), axis=1) > 1e-2
            gap = np.abs(scores - answer["score"])
            gaps += list(gap[other])
            tied = other & (gap < SAME_SCORE)
        largest = max(largest, float(np.max(np.abs(answer["actions"] - actions)[~tied])))
    return {"states": STATES, "largest": largest, "ties": len(gaps) - 1, "largest_gap_of_ties": float(max(gaps))}


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
    """Milliseconds of each. They take turns, so that what else the machine does troubles all of them alike."""
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

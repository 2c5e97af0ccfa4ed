"""A suite's folder as if the suite had run: evaluations, logs, and its page."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np

from droprl.bench import Bench, Suite, load_suite
from droprl.bench.page.build import build_suite_report
from droprl.bench.page.render import render_suite
from droprl.bench.suite import Method
from droprl.files.seals import checked_line, sealed
from droprl.files.storage import write_bytes, write_json
from droprl.report.contents import EmbeddingWalk
from droprl.train import Run
from droprl.train.config import DataConfig, RunConfig, run_config_to_dict
from helpers.benches import TINY

TASKS = ("hopper-medium", "walker2d-medium-replay", "halfcheetah-medium")
ENTRIES = (("BC", "BC"), ("DROP", "once"), ("DROP", "always"))


def make_suite(folder: Path) -> Suite:
    (folder / "tiny.toml").write_text(TINY, encoding="utf-8")
    suite = load_suite(folder / "tiny.toml").changed(tasks=TASKS)
    return dataclasses.replace(suite, methods=suite.methods[::-1])  # BC first


def make_evaluation(task: str, returns: np.ndarray, **changes: Any) -> dict[str, Any]:
    results = [
        {"seed": s, "step": 20, "returns": (10 * row).tolist(), "lengths": [5] * len(row), "scores": row.tolist()}
        for s, row in enumerate(returns)
    ]
    made: dict[str, Any] = {
        "algorithm": "drop", "rule": None, "adaptation": None, "changed": {}, "dataset": task, "env": "Hopper-v4",
        "protocol": "last", "results": results, "unit": "D4RL-normalised score", "mean": 0.0, "iqm": 0.0,
        "interval": [0.0, 0.0], "caveat": None, "milliseconds_per_action": 0.5,
    }  # fmt: skip
    return made | changes


def play(bench: Bench, **changes: Any) -> dict[tuple[str, str, str], np.ndarray]:
    """Write every cell of the suite as if it had been played: scores of three seeds with four episodes each."""
    rng = np.random.default_rng(0)
    scores: dict[tuple[str, str, str], np.ndarray] = {}
    for task in bench.suite.tasks:
        for method in bench.suite.methods:
            for way in bench.suite.plays_of(method):
                scores[task, method.name, way] = rng.normal(30 + 20 * len(scores) % 70, 5, size=(3, 4))
                content = make_evaluation(task, scores[task, method.name, way], **changes)
                write_json(bench.play_path(task, method, way), content)
    return scores


def shown(bench: Bench) -> str:
    return render_suite(build_suite_report(bench, "drop report out"))


def cells_of(page: str, section: str) -> list[list[str]]:
    """The cells of a section's first table, row by row, without tags. A bar stands before small text."""
    [body] = re.findall(rf'<section id="{section}".*?</section>', page, re.S)
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", body.split("</table>")[0], re.S)
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.S) for row in rows]
    return [[re.sub(r"<[^>]+>", "", c.replace("<small>", "|")) for c in row] for row in cells]


def play_six(bench: Bench) -> None:
    """Six checkpoints for every cell. The last one is the worst: it scores 10, and each one before it scores 16."""
    for task in bench.suite.tasks:
        for method in bench.suite.methods:
            for way in bench.suite.plays_of(method):
                content = make_evaluation(task, np.full((3, 4), 10.0))
                before = [r | {"scores": [16.0] * 4, "step": i} for i in range(15, 20) for r in content["results"]]
                write_json(bench.play_path(task, method, way), content | {"results": content["results"] + before})


def make_run(bench: Bench, task: str, method: Method) -> Run:
    """A run directory without training: settings, and a log of two seeds."""
    algorithm: Any = method.algorithm("small", "test")
    algorithm = dataclasses.replace(algorithm, **({"discount": 0.5} if method.algo == "drop" else {}))
    data = DataConfig("source", task, "0", 100, 10, "Hopper-v4", None)
    config = RunConfig(algorithm, data, (0, 1), 20, 10, 10)
    path = bench.run_path(task, method)
    write_bytes(path / "config.json", sealed({"run": run_config_to_dict(config)}))
    write_bytes(path / "data.json", sealed({"reward_scale": 4.0}))
    log = [{"step": step, "clone_loss": [1.0 / step, 3.0 / step], "score_r2": [0.5, None]} for step in (10, 20)]
    (path / "metrics.jsonl").write_text("".join(map(checked_line, log)), encoding="utf-8")
    return Run(path)


def walk_of(scores: list[float], rewards: list[float]) -> EmbeddingWalk:
    n = len(scores)
    return EmbeddingWalk(
        "grad-ada", [(0.0, 0.0), (1.0, 1.0)], [1.0, 2.0], [(0.5, 0.5)] * n, [0] * n, scores, rewards, 1.0
    )

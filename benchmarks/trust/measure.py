"""Does the guard hold the return, and what does it cost? `python benchmarks/trust/measure.py [--data FILE.hdf5]`.

The data is a generated maze2d-umaze, or the file of --data. Trains DROP with and without the constraint (small preset).
Then it plays with right and with corrupted observations, with restrained and with free ascent, with and without the
guard. Every episode is kept in results/DATASET.json, and a play in this file is not repeated. `--table` only prints the
results in that folder.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from faults import FAULTS, FaultyEnv
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

from droprl import DROP, Dataset, Run, fit, load_dataset, load_policy
from droprl.data.dataset import normalized_scores
from droprl.data.maze_walks import make_maze_dataset
from droprl.errors import DropError
from droprl.evaluation.evaluation import EVALUATION_SEED, task_of
from droprl.evaluation.statistics import bootstrap_interval
from droprl.files.settings import differences
from droprl.loaded import LoadedPolicy
from droprl.rollout import rollout

Constraint = Literal["lagrangian", "none"]
RESULTS = Path(__file__).parent / "results"
MAZE, MAZE_STEPS = "maze2d-umaze", 60_000
NEAREST = "guarded, nearest z_n"
WAYS: dict[str, dict[str, Any]] = {
    "unguarded": {},
    "guarded": {"guard": True},
    NEAREST: {"guard": True, "guard_fallback": "nearest"},
}
FREE: dict[str, Any] = {"region": "none", "ascent_steps": 20, "step_rule": "normalized", "starts": 1}


@dataclass(frozen=True)
class Case:
    """A case to play without and with the guard; with free ascent also with a guard that takes the nearest z_n."""

    name: str
    constraint: Constraint = "lagrangian"
    fault: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)


def cases() -> Iterator[Case]:
    yield Case("as trained")
    for fault in FAULTS:
        yield Case(fault, fault=fault)
    yield Case("no constraint", "none")
    for length in (0.5, 2.0, 8.0):
        yield Case(f"no constraint, free ascent by {20 * length:g}", "none", settings=FREE | {"step_size": length})


# --- playing ---


def played(policy: LoadedPolicy, fault: str | None, episodes: int) -> dict[str, Any]:
    make, _ = task_of(policy.origin, None)
    mean, deviation = np.asarray(policy.scaling.observation_mean), np.asarray(policy.scaling.observation_std)
    faulty = make if fault is None else lambda: FaultyEnv(make(), FAULTS[fault], mean, deviation)
    try:
        result = rollout(policy, faulty, episodes, seed=EVALUATION_SEED, n_envs=episodes)
    except DropError as error:  # without a guard there is no action at NaN
        return {"seed": policy.origin.seed, "refused": str(error)}
    returns, score_range = np.array(result.returns), policy.origin.score_range
    return {
        "seed": policy.origin.seed,
        "scores": (returns if score_range is None else normalized_scores(returns, score_range)).tolist(),
        "lengths": result.lengths,
        "guarded": result.guarded,
    }


def guard_cost(run: Run, n_envs: int, calls: int = 300) -> dict[str, float]:
    """Milliseconds of a call without and with the guard, measured in turns.

    Other work on the machine only adds time, so the tenth percentile counts.
    """
    policies = [load_policy(run.path, guard=guard) for guard in (False, True)]
    size = policies[0].spec.observation_size
    observations = np.random.default_rng(0).standard_normal((n_envs, size), dtype=np.float32)
    carries, key = [policy.start(n_envs) for policy in policies], jax.random.key(0)
    times = np.zeros((calls + 1, 2))
    for i in range(calls + 1):
        for j, policy in enumerate(policies):
            began = time.perf_counter()
            policy.step(carries[j], observations, key)
            times[i, j] = 1e3 * (time.perf_counter() - began)
    without, with_guard = np.percentile(times[1:], 10, axis=0)  # the first call compiles
    return {"ms": float(without), "guarded_ms": float(with_guard), "ratio": float(with_guard / without)}


def measure(dataset: Dataset, where: Path, runs: Path, seeds: int, steps: int, episodes: int) -> None:
    sizes = {"updates": steps, "episodes": episodes, "seeds": seeds}
    found = opened(where, dataset.name, sizes | {"adaptation": asdict(DROP.small().adaptation)})
    trained: dict[Constraint, Run] = {}
    for constraint in ("lagrangian", "none"):
        algorithm = replace(DROP.small(), constraint=constraint)
        trained[constraint] = fit(dataset, algorithm, out=runs / dataset.name / constraint, seeds=seeds, steps=steps)
    for case in cases():
        plays = found["plays"].setdefault(case.name, {})
        for how, guarding in WAYS.items():
            if how in plays or (how == NEAREST and not case.settings):  # only free ascent takes z far away
                continue
            path, settings = trained[case.constraint].path, case.settings | guarding
            policies = [load_policy(path, seed=seed, **settings) for seed in range(seeds)]
            plays[how] = [played(policy, case.fault, episodes) for policy in policies]
            print(dataset.name, case.name, how, [_mean(r) for r in plays[how]], flush=True)
            _write(where, found)
    if "cost" not in found:
        found["cost"] = {str(n): guard_cost(trained["lagrangian"], n) for n in (1, 10)}
        _write(where, found)


def opened(where: Path, dataset: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The results so far. They must have these settings: one table cannot mix two."""
    if not where.exists():
        return {"dataset": dataset, **settings, "plays": {}}
    found: dict[str, Any] = json.loads(where.read_text())
    odd = differences({name: found.get(name) for name in settings}, settings)
    if odd:
        raise SystemExit(f"{where}: was measured with other settings ({'; '.join(odd[:3])}): use another --out")
    return found


def _write(where: Path, found: dict[str, Any]) -> None:
    where.parent.mkdir(parents=True, exist_ok=True)
    where.write_text(json.dumps(found) + "\n")


# --- the results ---


def show(found: dict[str, Any]) -> None:
    console = Console(width=140)
    headings = ("", "unguarded", "guarded", "difference (95 %)", "guard steps in", "by the nearest z_n")
    title = f"{found['dataset']}: mean scores of {found['seeds']} seeds × {found['episodes']} episodes"
    table = Table(*headings, title=title, box=MARKDOWN)
    for name, plays in found["plays"].items():
        if len(plays) >= 2:
            nearest = f"{np.mean([r['scores'] for r in plays[NEAREST]]):.1f}" if NEAREST in plays else ""
            table.add_row(name, *_row(plays["unguarded"], plays["guarded"]), nearest)
    console.print(table)
    for n, cost in found.get("cost", {}).items():
        times = f"{cost['ms']:.2f} ms, guarded {cost['guarded_ms']:.2f} ms, ratio {cost['ratio']:.2f}"
        console.print(f"a call for {n} environments: {times}")


def _mean(result: dict[str, Any]) -> float | str:
    return "refused" if "refused" in result else round(float(np.mean(result["scores"])), 1)


def _row(unguarded: list[dict[str, Any]], guarded: list[dict[str, Any]]) -> tuple[str, ...]:
    """The difference is between episodes with the same seeds. Training seeds and episodes are both resampled."""
    if any("refused" in result for result in guarded):
        return "–", "refused", "–", "–"
    share = sum(sum(r["guarded"]) for r in guarded) / sum(sum(r["lengths"]) for r in guarded)
    if any("refused" in result for result in unguarded):
        return "refused", f"{np.mean([r['scores'] for r in guarded]):.1f}", "–", f"{100 * share:.1f} %"
    plain, held = (np.array([r["scores"] for r in results]) for results in (unguarded, guarded))
    low, high = bootstrap_interval((held - plain).tolist(), lambda values: values.mean(axis=-1))
    difference = f"{(held - plain).mean():+.1f} ({low:+.1f} … {high:+.1f})"
    return f"{plain.mean():.1f}", f"{held.mean():.1f}", difference, f"{100 * share:.1f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="a file with another task instead of the maze")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--runs", type=Path, default=Path("runs/trust"), help="folder for the trained runs")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--episodes", type=int, default=10)
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    if not given.table:
        dataset = load_dataset(given.data) if given.data else make_maze_dataset(MAZE, MAZE_STEPS, seed=0)
        measure(dataset, given.out / f"{dataset.name}.json", given.runs, given.seeds, given.steps, given.episodes)
    for path in sorted(given.out.glob("*.json")):
        show(json.loads(path.read_text()))


if __name__ == "__main__":
    main()

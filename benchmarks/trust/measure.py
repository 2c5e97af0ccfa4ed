"""Does the guard hold the return, and what does it cost? `python benchmarks/trust/measure.py [--data FILE.hdf5]`.

Without --data in maze2d-umaze, made on the spot; with it on that file. Trains DROP with and without the constraint
(small preset), then plays with right and with corrupted observations, with restrained and unrestrained ascent, guarded
and not. Every episode is kept in results/DATASET.json, and a play that is there is not made again; `--table` prints
what is there, and no more.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from faults import FAULTS, FaultyEnv
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

from droprl import DROP, Dataset, Run, fit, load_dataset, load_policy
from droprl.adapt import Adaptation, Trust
from droprl.adapt.policy import Carry
from droprl.data.dataset import normalized_scores
from droprl.data.maze import make_maze_dataset
from droprl.evaluation.evaluation import EVALUATION_SEED, task_of
from droprl.evaluation.statistics import bootstrap_interval
from droprl.policy import LoadedPolicy
from droprl.rollout import rollout

Constraint = Literal["lagrangian", "none"]
RESULTS = Path(__file__).parent / "results"
MAZE, MAZE_STEPS = "maze2d-umaze", 60_000
LIMIT = Adaptation().guard_quantile
UNRESTRAINED = {"region": "none", "ascent_steps": 20, "step_rule": "normalized", "step_size": 0.5}


@dataclass(frozen=True)
class Play:
    """One way to play; `same` names those that differ only in the guard."""

    same: str
    constraint: Constraint = "lagrangian"
    fault: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        how = {True: ", guarded", False: ""}[bool(self.settings.get("guard"))]
        return self.same + (f", {self.settings['rule']}" if "rule" in self.settings else how)


def plays() -> Iterator[Play]:
    guard = {"guard": True}
    for fault in (None, *FAULTS):
        same = fault or "as trained"
        yield Play(same, fault=fault)
        yield Play(same, fault=fault, settings=guard)
        yield Play(same, fault=fault, settings={"rule": "best"})  # z from before the fault, held throughout
    yield Play("no constraint", "none")
    yield Play("no constraint, unrestrained", "none", settings=UNRESTRAINED)
    yield Play("no constraint, unrestrained", "none", settings=UNRESTRAINED | guard)


# --- playing ---


def played(policy: LoadedPolicy, fault: str | None, episodes: int) -> dict[str, Any]:
    make, _ = task_of(policy.origin, None)
    deviation = np.asarray(policy.scaling.observation_std)
    told: list[Trust] = []
    under_way: list[np.ndarray] = []
    last = np.full((episodes, policy.spec.observation_size), np.nan)

    def record(carry: Carry, observations: np.ndarray, rewards: np.ndarray) -> None:
        told.append(policy.trust_after(carry, observations))
        under_way.append(np.any(observations != last, axis=1))  # an episode that is over shows its last state for ever
        last[:] = observations

    result = rollout(
        policy,
        make if fault is None else lambda: FaultyEnv(make(), FAULTS[fault], deviation),
        episodes,
        seed=EVALUATION_SEED,
        n_envs=episodes,
        record=record,
    )
    playing = np.concatenate(under_way)
    far = np.concatenate([t.state_share > LIMIT for t in told])[playing]
    guarded = [np.zeros(episodes) if t.guarded is None else t.guarded for t in told]
    score_range = policy.origin.score_range
    scores = np.array(result.returns)
    return {
        "seed": policy.origin.seed,
        "scores": (scores if score_range is None else normalized_scores(scores, score_range)).tolist(),
        "lengths": result.lengths,
        "far_states": float(np.mean(far)),
        "guarded": float(np.mean(np.concatenate(guarded)[playing])),
    }


def guard_cost(run: Run, n_envs: int, calls: int = 300) -> dict[str, float]:
    """Milliseconds of a call without and with the guard, in turns: the tenth fastest of a hundred, as whatever else
    runs on a machine only adds."""
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
    found: dict[str, Any] = {"dataset": dataset.name, "plays": {}}
    if where.exists():
        found = json.loads(where.read_text())
    trained: dict[Constraint, Run] = {}
    for constraint in ("lagrangian", "none"):
        algorithm = replace(DROP.small(), constraint=constraint)
        out = runs / dataset.name / constraint
        trained[constraint] = fit(dataset, algorithm, out=out, seeds=seeds, steps=steps)
    found |= {"updates": steps, "episodes": episodes, "seeds": seeds}
    for play in plays():
        if play.name in found["plays"]:
            continue
        policies = [load_policy(trained[play.constraint].path, seed=s, **play.settings) for s in range(seeds)]
        found["plays"][play.name] = [played(policy, play.fault, episodes) for policy in policies]
        print(dataset.name, play.name, [round(float(np.mean(r["scores"])), 1) for r in found["plays"][play.name]])
        _write(where, found)
    if "cost" not in found:
        found["cost"] = {str(n): guard_cost(trained["lagrangian"], n) for n in (1, 10)}
        _write(where, found)


def _write(where: Path, found: dict[str, Any]) -> None:
    where.parent.mkdir(parents=True, exist_ok=True)
    where.write_text(json.dumps(found, indent=1) + "\n")


# --- what came out ---


def show(found: dict[str, Any]) -> None:
    console = Console(width=140)
    headings = ("play", "score", "95 % of IQM", "far states", "guard steps in", "guarded − unguarded, same episodes")
    table = Table(*headings, title=f"{found['dataset']}", box=MARKDOWN)
    for name, results in ((p.name, found["plays"][p.name]) for p in plays() if p.name in found["plays"]):
        scores = [np.array(r["scores"]) for r in results]
        low, high = bootstrap_interval([s.tolist() for s in scores])
        plain = found["plays"].get(name.removesuffix(", guarded"))
        gain = "" if plain is results else _gain(scores, [np.array(r["scores"]) for r in plain])
        shares = (f"{100 * np.mean([r[key] for r in results]):.1f} %" for key in ("far_states", "guarded"))
        table.add_row(name, f"{np.mean(scores):.1f}", f"{low:.0f} … {high:.0f}", *shares, gain)
    console.print(table)
    for n, cost in found.get("cost", {}).items():
        times = f"{cost['ms']:.2f} ms, guarded {cost['guarded_ms']:.2f} ms, ratio {cost['ratio']:.2f}"
        console.print(f"a call for {n} environments: {times}")


def _gain(scores: list[np.ndarray], plain: list[np.ndarray]) -> str:
    """The mean difference, and two standard errors over all pairs of episodes with the same seeds."""
    pairs = np.concatenate(scores) - np.concatenate(plain)
    return f"{pairs.mean():+.1f} ± {2 * pairs.std(ddof=1) / np.sqrt(len(pairs)):.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="a file with a task of its own instead of the maze")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--runs", type=Path, default=Path("runs/trust"), help="where models are trained")
    parser.add_argument("--seeds", type=int, default=2)
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

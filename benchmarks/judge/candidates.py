"""Policies with a known truth, to calibrate `drop judge`: `python benchmarks/judge/candidates.py --data FOLDER`.

For every set of `SETS` small policies of very different quality are trained and then played. `OUT/SET.json` has the
truth of each: the score of every episode within the task's time limit, and its discounted return when the clock does
not stop it. The second is what `drop judge` estimates, because a timeout is not the end of the task.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from droprl.algorithms import BC, DROP, FBC, Algorithm
from droprl.cli.options import use_compilation_cache
from droprl.data import Dataset, load_dataset
from droprl.data.dataset import normalized_scores
from droprl.data.made import make_dataset
from droprl.files.storage import write_json
from droprl.loaded import LoadedPolicy, policy_of_run
from droprl.rollout import env_maker, rollout
from droprl.train import fit

DISCOUNT = 0.99
LONGEST = 600  # steps: 0.99^600 is 0.002, so nothing of a discounted return comes later
SEED = 30_000  # the environments' seeds begin here
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Set:
    """A dataset with a task that can be played."""

    name: str
    source: str  # a maze that is made here, or a file of the folder
    purpose: str  # "choose" the judge's settings, or "confirm" them
    steps: int = 30_000  # of a maze
    seed: int = 0  # of a maze
    episodes: int = 40  # that measure the truth


SETS = (
    Set("umaze", "maze2d-umaze", "choose"),
    Set("large", "maze2d-large", "choose", 64_000),
    Set("medium", "maze2d-medium", "choose", 48_000),
    Set("gates", "maze2d-gates", "choose", 20_000),
    Set("hopper-medium-replay", "hopper-medium-replay.hdf5", "choose", episodes=20),
    Set("umaze-30-walks", "maze2d-umaze", "confirm", 9_000, seed=1),
    Set("gates-lucky", "maze2d-gates-luck80-junctions2", "confirm", 20_000, seed=1),
    Set("hopper-mixture", "hopper-mixture.hdf5", "confirm", episodes=20),
    Set("walker2d-mixture", "walker2d-mixture.hdf5", "confirm", episodes=20),
)
WIDTH, BATCH = 64, 256


def data_of(one: Set, folder: Path) -> Dataset:
    if one.source.endswith(".hdf5"):
        return load_dataset(folder / one.source)
    return make_dataset(one.source, one.steps, one.seed)


def policies(dataset: Dataset, runs: Path, steps: int) -> Iterator[tuple[str, LoadedPolicy]]:
    """The candidates by name, from the poorest training to the riskiest search. `drop` is the last checkpoint."""

    def trained(name: str, algorithm: Algorithm, updates: int) -> Any:
        every = max(1, updates // 4)
        return fit(dataset, algorithm, out=runs / name, steps=updates, checkpoint_every=every, progress=False)

    yield "bc, 5 % of the updates", policy_of_run(trained("bc-early", BC(width=WIDTH, batch_size=BATCH), steps // 20))
    yield "bc", policy_of_run(trained("bc", BC(width=WIDTH, batch_size=BATCH), steps))
    for share in (0.4, 0.1, 0.03):
        algorithm = FBC(width=WIDTH, batch_size=BATCH, top_fraction=share)
        yield f"fbc {share:.0%}", policy_of_run(trained(f"fbc-{share:g}", algorithm, steps))
    run = trained("drop", DROP(width=WIDTH, batch_size=BATCH), steps)
    yield "drop, first checkpoint, best-ada", policy_of_run(run, step=run.checkpoints()[0].step, rule="best-ada")
    yield "drop, best-ada of all", policy_of_run(run, rule="best-ada", candidates="all")
    free: dict[str, Any] = {"candidates": "all", "region": "none", "ascent_steps": 30}
    yield "drop, grad-ada without limits", policy_of_run(run, rule="grad-ada", **free)
    yield "drop", policy_of_run(run)


def truth(policy: LoadedPolicy, dataset: Dataset, episodes: int) -> dict[str, list[float]]:
    """The score and the discounted return of every episode."""
    limit = dataset.time_limit or LONGEST
    paid: list[np.ndarray] = []
    assert dataset.env is not None
    assert dataset.score_range is not None
    make = env_maker(dataset.env, max(limit, LONGEST))
    rollout(
        policy, make, episodes, seed=SEED, n_envs=episodes, record=lambda carry, seen, rewards: paid.append(rewards)
    )
    rewards = np.array(paid)  # (steps, episodes), 0 after the end of an episode
    scores = normalized_scores(rewards[:limit].sum(axis=0), dataset.score_range)
    weights = DISCOUNT ** np.arange(len(rewards))
    return {"scores": scores.tolist(), "discounted": (weights @ rewards).tolist()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder with the MuJoCo files; mazes are made here")
    parser.add_argument("--runs", type=Path, default=Path("runs/judge"), help="folder for the trained runs")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "truth")
    parser.add_argument("--steps", type=int, default=2_000)
    parser.add_argument("--only", nargs="*", help="names of sets")
    options = parser.parse_args()
    use_compilation_cache()
    options.out.mkdir(parents=True, exist_ok=True)
    for one in SETS:
        where = options.out / f"{one.name}.json"
        if (options.only and one.name not in options.only) or where.exists():
            continue
        began = time.process_time()
        dataset = data_of(one, options.data or Path())
        found = {
            name: truth(policy, dataset, one.episodes)
            for name, policy in policies(dataset, options.runs / one.name, options.steps)
        }
        seconds = time.process_time() - began
        write_json(where, {"set": one.name, "cpu_seconds": seconds, "candidates": found})
        means = ", ".join(f"{name} {np.mean(t['scores']):.0f}" for name, t in found.items())
        print(f"{one.name}: {seconds:.0f} s of CPU; {means}", flush=True)


if __name__ == "__main__":
    main()

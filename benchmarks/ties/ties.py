"""In which order should trajectories stand that earned the same? `python benchmarks/ties/ties.py FILE.hdf5 …`.

In AntMaze every success earns 1. From each file, trajectories are taken from the front of an order until they have
STEPS steps, and are cloned; the clones are played. All orders put successes first. Among these: as in the data; the
fewest steps to the goal first; the most steps first; and the fewest steps less what the first state foretells. Every
episode is kept in results/NAME.json.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from droprl import BC, Dataset, evaluate, fit, load_dataset
from droprl.data.first_states import foretold_returns

RESULTS = Path(__file__).parent / "results"
STEPS, UPDATES, SEEDS, EPISODES = 15_000, 5_000, 3, 25


def less_foretold(dataset: Dataset) -> np.ndarray:
    """(E,) the lengths less what the first state foretells of them, among the successes."""
    won = np.flatnonzero(dataset.returns > 0)
    found = np.zeros(dataset.n_episodes)
    lengths = dataset.lengths[won].astype(np.float64)
    found[won] = lengths - foretold_returns(part(dataset, won, rewards_at_end=lengths))[0]
    return found


ORDERS: dict[str, Callable[[Dataset], np.ndarray]] = {
    "as in the data": lambda dataset: np.zeros(dataset.n_episodes),
    "fewest steps first": lambda dataset: dataset.lengths.astype(np.float64),
    "most steps first": lambda dataset: -dataset.lengths.astype(np.float64),
    "fewest steps for its first state": less_foretold,
}


def part(dataset: Dataset, episodes: np.ndarray, rewards_at_end: np.ndarray | None = None) -> Dataset:
    rows = np.concatenate([np.arange(dataset.bounds[e], dataset.bounds[e + 1]) for e in episodes])
    rewards = dataset.rewards[rows]
    if rewards_at_end is not None:
        rewards = np.zeros(len(rows), np.float32)
        rewards[np.cumsum(dataset.lengths[episodes]) - 1] = rewards_at_end
    ends = np.cumsum(dataset.lengths[episodes]) - 1
    timeouts = dataset.timeouts[rows].copy()
    timeouts[ends[-1]] |= not dataset.terminals[rows[-1]]
    return replace(
        dataset,
        observations=dataset.observations[rows],
        actions=dataset.actions[rows],
        rewards=rewards,
        terminals=dataset.terminals[rows],
        timeouts=timeouts,
        next_observations=None if dataset.next_observations is None else dataset.next_observations[rows],
    )


def clone(dataset: Dataset, title: str, env: str) -> dict[str, Any]:
    order = np.lexsort((ORDERS[title](dataset), -dataset.returns))
    enough = int(np.searchsorted(np.cumsum(dataset.lengths[order]), STEPS)) + 1
    chosen = part(dataset, order[:enough])
    with tempfile.TemporaryDirectory() as folder:
        run = fit(chosen, BC.small(), out=folder, seeds=SEEDS, steps=UPDATES, progress=False)
        played = evaluate(run, episodes=EPISODES, env=env, progress=False)
    scores = [result.values for result in played.results]
    print(f"{dataset.name}, {title}: {enough} trajectories, score {np.mean(scores):.1f}", flush=True)
    return {
        "data": dataset.name,
        "order": title,
        "trajectories": enough,
        "steps": chosen.n_steps,
        "mean_length": float(chosen.lengths.mean()),
        "mean_distance_of_starts": float(np.linalg.norm(chosen.observations[chosen.bounds[:-1], :2], axis=1).mean()),
        "scores_of_each_seed": scores,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--env", help="the task to play; by default that of the data")
    options = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    for path in options.files:
        dataset = load_dataset(path)
        env = options.env or dataset.env
        assert env is not None
        results = [clone(dataset, title, env) for title in ORDERS]
        text = "[\n" + ",\n".join(json.dumps(result) for result in results) + "\n]\n"
        (RESULTS / f"{dataset.name}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

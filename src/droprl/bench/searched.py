"""The same search for every method: as many candidates, each a training with a play, and as many episodes to choose by.

The episodes that choose begin from other environment seeds than those that are reported. And a training seed has no
say in its own choice: its candidate is the one with the highest mean over the episodes of all other seeds. Nothing is
trained for the search beyond the candidates themselves. OUT/search/TASK/METHOD/PLAY.json has the episodes.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from droprl.bench.results import Bench
from droprl.bench.suite import Method, label
from droprl.evaluation.evaluation import task_of
from droprl.files.seals import sealed
from droprl.files.storage import write_bytes
from droprl.loaded import policy_of_run
from droprl.report.table import Cell, Number, Table
from droprl.rollout import rollout
from droprl.train import Run

SEARCH_SEED = 30_000  # the environments' seeds begin here
CHOSEN = "{}, chosen by search"


class Choice(NamedTuple):
    """What one training seed of a searched method plays on one task."""

    seed: int
    candidate: str
    mean: float  # over the episodes of the other seeds that chose it; a D4RL-normalised score, or a return
    episodes: int  # played to choose, over all candidates, by all other seeds
    scores: float  # what this seed then earned in the reported episodes


def search_path(bench: Bench, task: str, method: Method, play: str) -> Path:
    path = bench.play_path(task, method, play)
    return bench.out / "search" / path.relative_to(bench.out / "plays")


def is_searched(bench: Bench, task: str, method: Method) -> bool:
    """Whether the episodes to choose by are played, as the suite asks. True if the method is in no search."""
    search = bench.suite.search
    if search is None or not any(method.name in names for names in search.of.values()):
        return True
    return all(
        (found := bench.small_file(search_path(bench, task, method, play))) is not None
        and len(found["returns"]) == bench.suite.seeds
        and found["step"] == bench.suite.steps_of(method)
        and all(len(returns) == search.episodes for returns in found["returns"].values())
        and bench.adapts_as_asked(found["adaptation"], method, play)
        for play in bench.suite.plays_of(method)
    )


def play_search(bench: Bench, task: str, method: Method, run: Run) -> None:
    """Play the episodes to choose by, with the last checkpoint of every seed."""
    assert bench.suite.search is not None
    for play, settings in bench.suite.plays_of(method).items():
        policies = {seed: policy_of_run(run, seed, **settings) for seed in run.config.seeds}
        episodes = bench.suite.search.episodes
        found = {
            seed: rollout(policy, task_of(policy.origin, None)[0], episodes, seed=SEARCH_SEED).returns
            for seed, policy in policies.items()
        }
        adaptation = next(iter(policies.values())).algorithm.adaptation
        content = {
            "step": run.config.steps,
            "first_env_seed": SEARCH_SEED,
            "adaptation": None if adaptation is None else asdict(adaptation),
            "returns": {str(seed): list(returns) for seed, returns in found.items()},
        }
        write_bytes(search_path(bench, task, method, play), sealed(content))


def choices(bench: Bench, checkpoints: int = 1) -> dict[str, dict[str, list[Choice]]]:
    """For each searched method and task, what each training seed plays. A task without all candidates is left out."""
    if bench.suite.search is None:
        return {}
    found: dict[str, dict[str, list[Choice]]] = {}
    for name, members in bench.suite.search.of.items():
        methods = [method for method in bench.suite.methods if method.name in members]
        by_task = {task: _chosen(bench, task, methods, checkpoints) for task in bench.suite.tasks}
        whole = len(methods) == len(members)
        if kept := {task: of_seeds for task, of_seeds in by_task.items() if of_seeds and whole}:
            found[CHOSEN.format(name)] = kept
    return found


def _chosen(bench: Bench, task: str, methods: list[Method], checkpoints: int) -> list[Choice]:
    names, choosing, earned = [], [], []
    episodes = 0 if bench.suite.search is None else bench.suite.search.episodes
    for method in methods:
        for play in bench.suite.plays_of(method):
            searched: Any = bench.small_file(search_path(bench, task, method, play))
            scores = bench.scores(task, method, play, checkpoints)
            if searched is None or scores is None or len(scores) != len(searched["returns"]):
                return []
            if any(len(returns) != episodes for returns in searched["returns"].values()):
                return []  # of another search
            seeds = sorted(searched["returns"], key=int)
            names.append(label(method, play))
            choosing.append([searched["returns"][seed] for seed in seeds])
            earned.append(scores)
    table, result = np.array(choosing), []  # candidates, seeds, episodes
    for i, seed in enumerate(seeds):
        means = np.delete(table, i, axis=1).mean(axis=(1, 2))
        best = int(means.argmax())  # of equals the first
        spent = table.shape[0] * (table.shape[1] - 1) * table.shape[2]
        result.append(Choice(int(seed), names[best], float(means[best]), spent, float(earned[best][i])))
    return result


def search_table(bench: Bench) -> Table | None:
    """Which candidate each seed plays, and by how many episodes it was chosen."""
    rows: list[tuple[Cell, ...]] = [
        (task, name, str(c.seed), c.candidate, Number(c.mean), Number(c.episodes, decimals=0), Number(c.scores))
        for name, by_task in choices(bench).items()
        for task, of_seeds in by_task.items()
        for c in of_seeds
    ]
    if not rows or bench.suite.search is None:
        return None
    header = ("task", "method", "seed", "candidate", "return in the search", "episodes of the search", "then earned")
    note = (
        f"Every method has {bench.suite.search.candidates} candidates, a training with a play each, and "
        f"{bench.suite.search.episodes} episodes for each candidate and seed. A seed takes the candidate with the "
        "highest mean return over the episodes of all other seeds. The reported episodes are others."
    )
    return Table(f"{bench.suite.title}: what the search chose", header, tuple(rows), note)

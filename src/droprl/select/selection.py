"""`select` trains one run for each N, and chooses one of them and a number of ascent steps K.

With a budget of episodes it does as the paper: the fitting loss keeps the four best N, and the episodes choose among
these. Without a budget nothing is played: the choice is made as `droprl.judge` judges, from the data alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from droprl.algorithms import DROP
from droprl.data.dataset import Dataset
from droprl.errors import DropError
from droprl.evaluation import evaluate
from droprl.files.seals import read_sealed, sealed
from droprl.files.settings import from_dict
from droprl.files.storage import write_bytes
from droprl.judging import Estimate, Estimation, choose, estimates
from droprl.loaded import LoadedPolicy, policy_of_run
from droprl.rollout import EnvMaker
from droprl.terminal import Screen
from droprl.train import Run, fit

KEPT = 4  # how many N the fitting loss keeps: the paper's "four best"
SELECTION_SEED = 20_000  # the environments' seeds begin here: an evaluation must not play the episodes that chose


@dataclass(frozen=True)
class Setting:
    """One choice of N and K, and what is known about it."""

    n_sub_tasks: int
    trajectories_per_sub_task: int
    ascent_steps: int
    run: str
    fitting_loss: float  # the cloning loss on the data after training, the mean over seeds
    kept: bool  # whether N is one of the `KEPT` with the lowest fitting loss
    estimate: float | None = None  # from the data alone: the discounted return
    interval: tuple[float, float] | None = None  # 90 %, of the estimate: it shows how far the ensemble disagrees
    supported: float | None = None  # the share of the steps that it would take which are like steps of the log
    played: tuple[float, ...] = ()  # the returns of the episodes that were played with it


@dataclass(frozen=True)
class Selection:
    """All settings, which one was chosen, and how many episodes that took."""

    candidates: tuple[Setting, ...]
    chosen: int  # its place among the candidates
    episodes: int  # played online, over all candidates

    @property
    def best(self) -> Setting:
        return self.candidates[self.chosen]


def select(
    dataset: Dataset,
    algorithm: DROP | None = None,
    *,
    out: str | Path,
    n_sub_tasks: Sequence[int] = (5, 10, 20, 50, 100),
    ascent_steps: Sequence[int] | None = None,
    budget: int = 0,
    steps: int = 20_000,
    seeds: int = 1,
    judging: Estimation | None = None,
    source: str | None = None,
    env: str | EnvMaker | None = None,
    progress: bool = True,
) -> Selection:
    """Train DROP once for each N (in `out/N…`, resumed like any run) and choose N and K.

    `budget` is the number of episodes that may be played in total; 0 plays none. M follows from N: sub-tasks of equal
    size hold all trajectories.
    """
    algorithm = algorithm or DROP()
    ks = tuple(ascent_steps) if ascent_steps is not None else (algorithm.adaptation.ascent_steps,)
    numbers = _sizes(dataset, n_sub_tasks)
    if not ks or min(ks) < 0 or len(set(ks)) < len(ks):
        raise DropError(f"ascent_steps are {list(ks)}: give different numbers, at least 0")
    if budget < 0 or 0 < budget < min(KEPT, len(numbers)) * len(ks):
        least = min(KEPT, len(numbers)) * len(ks)
        raise DropError(
            f"budget is {budget} episodes: give 0, or at least {least}, one for each N and K to choose from"
        )
    console = Screen(error=True, quiet=not progress)
    runs = []
    for n in numbers:
        sized = replace(algorithm, n_sub_tasks=n, trajectories_per_sub_task=dataset.n_episodes // n)
        console.print(f"N = {n}: {dataset.n_episodes // n} trajectories in each sub-task")
        runs.append(
            fit(dataset, sized, out=Path(out) / f"N{n}", seeds=seeds, steps=steps, source=source, progress=progress)
        )
    losses = [_fitting_loss(run) for run in runs]
    kept = set(np.argsort(losses, kind="stable")[:KEPT].tolist())
    candidates = [
        Setting(n, dataset.n_episodes // n, k, str(run.path), losses[i], i in kept)
        for i, (n, run) in enumerate(zip(numbers, runs, strict=True))
        for k in ks
    ]
    if budget:
        episodes = budget // sum(c.kept for c in candidates)
        candidates = [_played(c, episodes, env, progress) if c.kept else c for c in candidates]
        chosen = int(np.argmax([float(np.mean(c.played)) if c.played else -np.inf for c in candidates]))
    else:
        with console.status(f"judging {len(candidates)} candidates by the data …") as status:
            candidates, chosen = _estimated(candidates, dataset, judging or Estimation(), status.update)
    selection = Selection(tuple(candidates), chosen, sum(len(c.played) for c in candidates))
    write_bytes(Path(out) / "selection.json", sealed(asdict(selection)))
    return selection


def load_selection(out: str | Path) -> Selection:
    """The selection in a folder that `select` made."""
    where = Path(out) / "selection.json"
    again = "run `drop select` again"
    found = from_dict(Selection, read_sealed(where, again), str(where), again)
    if not 0 <= found.chosen < len(found.candidates):
        raise DropError(f"{where}: chose a candidate that is not there: {again}")
    return found


def _sizes(dataset: Dataset, n_sub_tasks: Sequence[int]) -> list[int]:
    """Each N for which the data has enough trajectories, the smallest first."""
    if not n_sub_tasks or min(n_sub_tasks) < 1:
        raise DropError(f"n_sub_tasks are {list(n_sub_tasks)}: give numbers of at least 1")
    found = sorted({n for n in n_sub_tasks if n <= dataset.n_episodes})
    if not found:
        raise DropError(
            f"{dataset.name}: has {dataset.n_episodes} trajectories, fewer than any N of {list(n_sub_tasks)}: add a "
            "smaller N"
        )
    return found


def _fitting_loss(run: Run) -> float:
    logged = [entry["probe_clone_loss"] for entry in run.metrics() if "probe_clone_loss" in entry]
    if not logged:
        raise DropError(f"{run.path}: its log has no cloning loss: remove the folder and select again")
    return float(np.mean(logged[-1]))


def _estimated(
    candidates: Sequence[Setting], dataset: Dataset, config: Estimation, say: Callable[[str], None]
) -> tuple[list[Setting], int]:
    """The candidates with their estimates, each the mean over its seeds, and the place of the chosen one."""
    policies = [_policies(c) for c in candidates]
    every = [policy for seeds in policies for policy in seeds]
    found = estimates(
        every, dataset, config, done=lambda n: say(f"judging by the data: {n} of {len(every)} policies …")
    )
    left = iter(found)
    means = [_mean([next(left) for _ in seeds]) for seeds in policies]
    rows = [
        replace(c, estimate=e.value, interval=e.interval, supported=e.near_pairs)
        for c, e in zip(candidates, means, strict=True)
    ]
    return rows, choose(means)


def _mean(found: Sequence[Estimate]) -> Estimate:
    """Of the seeds of one candidate. They are judged by the same data, so their errors go together."""
    names = ("value", "sampling", "disagreement", "near_pairs", "near_states")
    means: dict[str, Any] = {name: float(np.mean([getattr(e, name) for e in found])) for name in names}
    return replace(found[0], **means)


def _policies(candidate: Setting) -> list[LoadedPolicy]:
    run = Run(candidate.run)
    return [policy_of_run(run, seed, ascent_steps=candidate.ascent_steps) for seed in run.config.seeds]


def _played(candidate: Setting, episodes: int, env: str | EnvMaker | None, progress: bool) -> Setting:
    """The candidate with the returns of `episodes` episodes, which its seeds share."""
    policies, returns = _policies(candidate), []
    for i, policy in enumerate(policies):
        share = len(range(i, episodes, len(policies)))
        if share:
            found = evaluate(policy, episodes=share, env=env, seed=SELECTION_SEED + 1000 * i, progress=progress)
            returns += [value for result in found.results for value in result.returns]
    return replace(candidate, played=tuple(returns))

"""The experiments behind docs/recipe.md, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from experiment import Job

PLAYS: dict[str, dict[str, Any]] = {
    "first": {"rule": "first"},
    "best": {"rule": "best"},
    "best-ada": {"rule": "best-ada"},
    "grad-ada": {"rule": "grad-ada", "ascent_steps": 10, "starts": 16},
}


def tiny() -> list[Job]:
    s = {"width": 64, "batch_size": 64, "constraint": "none", "decomposition": "behavior", "n_sub_tasks": 20}
    s |= {"trajectories_per_sub_task": 5}
    return [
        Job("tiny", d, f"s{k}", settings=s | {"score_smoothing": k}, plays=PLAYS, steps=400, seeds=2, episodes=3)
        for d in ("hopper-medium-replay",)
        for k in (0.0, 1.0)
    ]


DATASETS = {
    "hopper-random": 1371,
    "hopper-medium": 216,
    "hopper-medium-replay": 738,
    "hopper-medium+hopper-expert": 283,
    "walker2d-random": 1402,
    "walker2d-medium": 127,
    "walker2d-medium-replay": 513,
    "walker2d-medium+walker2d-expert": 196,
    "halfcheetah-random": 32,
    "halfcheetah-medium": 100,
    "halfcheetah-medium-replay": 200,
    "halfcheetah-medium+halfcheetah-expert": 160,
    "maze2d-umaze": 334,
    "maze2d-medium": 167,
    "door-human": 25,
    "pen-expert": 100,
}
RULES = {rule: {"rule": rule} for rule in ("first", "best", "grad", "best-ada", "grad-ada")}


def main() -> list[Job]:
    """Every dataset: the rules under two decompositions, beside cloning."""
    size: dict[str, Any] = {"width": 256, "batch_size": 512}
    budget: dict[str, Any] = {"steps": 12_000, "seeds": 5, "episodes": 10, "checkpoints": 6}
    plays = {name: rule | {"ascent_steps": 10, "starts": 5} for name, rule in RULES.items()}
    jobs = []
    for dataset, episodes in DATASETS.items():
        for rule in ("rank", "behavior"):
            cut = {"decomposition": rule, "n_sub_tasks": 10, "trajectories_per_sub_task": episodes // 10}
            settings = size | cut | {"constraint": "none"}
            jobs.append(Job("main", dataset, rule, settings=settings, plays=plays, **budget))
        jobs += [Job("main", dataset, name, name, size, {name: {}}, **budget) for name in ("bc", "fbc")]
    return jobs


EXPERIMENTS: dict[str, Callable[[], list[Job]]] = {"tiny": tiny, "main": main}

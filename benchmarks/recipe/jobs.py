"""The experiments behind docs/recipe.md, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from experiment import Job

# Each dataset and its number of trajectories.
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
MEDIUM_REPLAY = ("hopper-medium-replay", "walker2d-medium-replay", "halfcheetah-medium-replay")
SEARCHED = (*MEDIUM_REPLAY, "hopper-medium")  # where settings were compared; the other datasets saw only the outcome

SMALL: dict[str, Any] = {"width": 128, "batch_size": 256}
MIDDLE: dict[str, Any] = {"width": 256, "batch_size": 512}
PAPER: dict[str, Any] = {"width": 512, "batch_size": 1024}
SHORT_ASCENT = {"ascent_steps": 10, "starts": 5}
RULES = {rule: {"rule": rule} | SHORT_ASCENT for rule in ("first", "best", "grad", "best-ada", "grad-ada")}


def cut(dataset: str, rule: str, n: int = 10) -> dict[str, Any]:
    """N sub-tasks of equal size."""
    return {"decomposition": rule, "n_sub_tasks": n, "trajectories_per_sub_task": max(1, DATASETS[dataset] // n)}


def search() -> list[Job]:
    """Small networks: how trajectories are grouped, and how z enters β."""
    budget: dict[str, Any] = {"steps": 5_000, "seeds": 2}
    jobs = []
    for dataset in ("hopper-medium", "walker2d-medium-replay", "hopper-medium-replay", "halfcheetah-medium-replay"):
        jobs += [Job("search", dataset, name, name, SMALL, {name: {}}, **budget) for name in ("bc", "fbc")]
        for conditioning in ("modulate", "concatenate"):
            for rule in ("behavior", "rank"):
                settings = SMALL | cut(dataset, rule) | {"constraint": "none", "conditioning": conditioning}
                jobs.append(Job("search", dataset, f"{rule}-{conditioning}", settings=settings, plays=RULES, **budget))
    return jobs


def choose() -> list[Job]:
    """The same at a middle size on every dataset, with the number of sub-tasks."""
    plays = {name: RULES[name] for name in ("first", "best-ada", "grad-ada")}
    jobs = []
    for dataset in DATASETS:
        for n in (10, 25) if DATASETS[dataset] >= 50 else (10,):
            for conditioning in ("modulate", "concatenate"):
                for rule in ("behavior", "rank"):
                    settings = MIDDLE | cut(dataset, rule, n) | {"constraint": "none", "conditioning": conditioning}
                    name = f"{rule}{n}-{conditioning}"
                    jobs.append(Job("choose", dataset, name, settings=settings, plays=plays, steps=12_000, seeds=3))
    return jobs


def score() -> list[Job]:
    """What a right score model needs: measured on held-out trajectories, nothing is played."""
    variants: dict[str, dict[str, Any]] = {
        "n-step 20": {},
        "TD(0)": {"td_steps": 1},
        "n-step 5": {"td_steps": 5},
        "Monte Carlo": {"td_steps": 100_000},
        "TD(0.95)": {"td_lambda": 0.95},
        "raw rewards": {"scale_rewards": False},
        "discount 0.99": {"discount": 0.99},
        "discount 0.999": {"discount": 0.999},
        "rate 3e-4": {"learning_rate": 3e-4},
        "target rate 0.05": {"target_rate": 0.05},
        "no LayerNorm": {"score_layer_norm": False},
        "three score models": {"score_models": 3},
    }
    return [
        Job("score", dataset, name, settings=SMALL | cut(dataset, "rank") | variant, steps=10_000, held_out=True)
        for dataset in SEARCHED
        for name, variant in variants.items()
    ]


def embedding() -> list[Job]:
    """Which loss may move φ, and in which space."""
    plays = {name: RULES[name] for name in ("first", "best-ada")}
    jobs = []
    for dataset in SEARCHED:
        for space in ("whitened", "tanh"):
            for td in (False, True):
                settings = MIDDLE | cut(dataset, "rank") | {"embedding_space": space, "td_into_embedding": td}
                name = f"{space}, {'cloning and TD' if td else 'cloning'}"
                jobs.append(Job("embedding", dataset, name, settings=settings, plays=plays, steps=10_000))
    return jobs


def constraint() -> list[Job]:
    """The paper's ablation: return against the number of ascent steps, unbounded, with and without the constraint."""
    variants: dict[str, dict[str, Any]] = {
        "lagrangian": {},
        "lagrangian, from 1, uncapped": {"multiplier_start": 1.0, "multiplier_max": 1e6},
        "hinge": {"constraint": "hinge", "threshold": 0.0},
        "none": {"constraint": "none"},
    }
    plays: dict[str, dict[str, Any]] = {}
    for k in (0, 10, 25, 50, 100, 200, 500):
        plays[f"K{k}"] = {"rule": "grad", "ascent_steps": k, "region": "none"}
    return [
        Job("constraint", dataset, name, settings=MIDDLE | cut(dataset, "rank") | variant, plays=plays, steps=10_000)
        for dataset in SEARCHED
        for name, variant in variants.items()
    ]


def ascent() -> list[Job]:
    """How far, and how: step size, step rule and region of Grad-Ada."""
    grad_ada = {"rule": "grad-ada"} | SHORT_ASCENT
    plays: dict[str, dict[str, Any]] = {
        "best-ada": {"rule": "best-ada"},
        "trust 0.05": grad_ada | {"trust_radius": 0.05},
        "trust 0.1": grad_ada | {"trust_radius": 0.1},
        "trust 0.25": grad_ada | {"trust_radius": 0.25},
        "trust 0.5": grad_ada | {"trust_radius": 0.5},
        "trust 1": grad_ada | {"trust_radius": 1.0, "ascent_steps": 30},
        "box": grad_ada | {"region": "box", "ascent_steps": 30},
        "normalized": grad_ada | {"step_rule": "normalized", "step_size": 0.05},
    }
    return [
        Job("ascent", dataset, "rank", settings=MIDDLE | cut(dataset, "rank"), plays=plays, steps=10_000)
        for dataset in SEARCHED
    ]


def luck() -> list[Job]:
    """Is f about behaviour or about luck? Held-out trajectories, and which sub-task wins where."""
    jobs = []
    for dataset in SEARCHED:
        for rule in ("rank", "behavior"):
            for n in (10, 50):
                for smoothing in (0.0, 1.0):
                    settings = SMALL | cut(dataset, rule, n) | {"score_smoothing": smoothing}
                    name = f"{rule}{n}" + (", smoothed" if smoothing else "")
                    jobs.append(Job("luck", dataset, name, settings=settings, steps=10_000, held_out=True))
    return jobs


def main() -> list[Job]:
    """Every dataset at the paper's size: the rules beside cloning."""
    budget: dict[str, Any] = {"steps": 12_000, "checkpoints": 6, "late": ("grad-ada", "bc", "fbc")}
    jobs = []
    for dataset in DATASETS:
        for rule in ("rank", "behavior"):
            settings = PAPER | cut(dataset, rule)
            jobs.append(Job("main", dataset, rule, settings=settings, plays=RULES, **budget))
        jobs += [Job("main", dataset, name, name, PAPER, {name: {}}, **budget) for name in ("bc", "fbc")]
    return jobs


EXPERIMENTS: dict[str, Callable[[], list[Job]]] = {
    made.__name__: made for made in (search, choose, score, embedding, constraint, ascent, luck, main)
}

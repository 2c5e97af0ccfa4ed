"""The experiments behind docs/recipe.md, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from experiment import Job

from droprl.adapt import Adaptation

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
SEARCHED = (*MEDIUM_REPLAY, "hopper-medium")  # settings were compared on these; other datasets saw only the outcome

# Only the experiment `constraint` has the constraint. Elsewhere it would change nothing: its multiplier stays at 0.
# The defaults when these results were made.
EARLIER: dict[str, Any] = {
    "decomposition": "rank",
    "rank_by": "return",
    "top_share": None,
    "score_models": 1,
    "cross_fit": False,
    "learn_home": False,
    "adaptation": Adaptation(keep="last", candidates="all"),
}
SMALL: dict[str, Any] = EARLIER | {"width": 128, "batch_size": 256, "constraint": "none"}
MIDDLE: dict[str, Any] = EARLIER | {"width": 256, "batch_size": 256, "constraint": "none"}
CLONING: dict[str, Any] = {"width": 256, "batch_size": 256}
FRACTION: dict[str, Any] = {"bc": {}, "fbc": {"top_fraction": 0.1}}  # the default when these results were made
SEARCH: dict[str, Any] = {"steps": 8_000, "seeds": 3}  # for small networks
HELD_OUT: dict[str, Any] = SEARCH | {"held_out": True}
KEPT = 0.89  # a tenth of the trajectories, rounded up, is held out
SHORT_ASCENT: dict[str, Any] = {"ascent_steps": 10, "starts": 5, "keep": "last", "candidates": "all"}
RULES = {rule: {"rule": rule} | SHORT_ASCENT for rule in ("first", "best", "grad", "best-ada", "grad-ada")}


def cut(dataset: str, rule: str, n: int = 10, kept: float = 1.0) -> dict[str, Any]:
    """N sub-tasks of equal size. `kept` is the share of trajectories that is kept for training."""
    size = max(1, int(kept * DATASETS[dataset]) // n)
    return {"decomposition": rule, "n_sub_tasks": n, "trajectories_per_sub_task": size}


def choose() -> list[Job]:
    """How trajectories are grouped, and how z enters β."""
    plays = RULES | {"grad-ada near": RULES["grad-ada"] | {"trust_radius": 0.1}}
    jobs = []
    for dataset in SEARCHED:
        for conditioning in ("concatenate", "bilinear"):
            for rule in ("rank", "behavior"):
                settings = MIDDLE | cut(dataset, rule) | {"conditioning": conditioning}
                name = f"{rule}10-{conditioning}"
                jobs.append(Job("choose", dataset, name, settings=settings, plays=plays, steps=40_000, seeds=3))
    return jobs


def score() -> list[Job]:
    """Which settings make the score model right, by measures on held-out trajectories. Nothing is played."""
    variants: dict[str, dict[str, Any]] = {
        "n-step 20": {},
        "TD(0)": {"td_steps": 1},
        "n-step 5": {"td_steps": 5},
        "n-step 100": {"td_steps": 100},
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
        Job("score", dataset, name, settings=SMALL | cut(dataset, "rank", kept=KEPT) | variant, **HELD_OUT)
        for dataset in (*SEARCHED, "halfcheetah-medium", "halfcheetah-random", "walker2d-medium")
        for name, variant in variants.items()
    ]


def luck() -> list[Job]:
    """Does f learn behaviour or luck? Measured on held-out trajectories and by the sub-tasks that win."""
    jobs = []
    for dataset in DATASETS:
        for rule in ("rank", "behavior"):
            for smoothing in (0.0, 1.0):
                settings = SMALL | cut(dataset, rule, kept=KEPT) | {"score_smoothing": smoothing}
                name = rule + (", smoothed" if smoothing else "")
                jobs.append(Job("luck", dataset, name, settings=settings, **HELD_OUT))
    return jobs


def embedding() -> list[Job]:
    """Which loss moves φ, in which space, and how z enters β."""
    variants: dict[str, dict[str, Any]] = {
        "as it is": {},
        "TD too": {"td_into_embedding": True},
        "tanh": {"embedding_space": "tanh"},
        "tanh, TD too": {"embedding_space": "tanh", "td_into_embedding": True},
        "z concatenated": {"conditioning": "concatenate"},
    }
    return [
        Job(
            "embedding",
            dataset,
            name,
            settings=SMALL | cut(dataset, "rank", kept=KEPT) | variant,
            **HELD_OUT,
        )
        for dataset in SEARCHED
        for name, variant in variants.items()
    ]


def constraint() -> list[Job]:
    """The paper's ablation: the return over the number of unbounded ascent steps, with and without the constraint."""
    variants: dict[str, dict[str, Any]] = {
        "none": {},
        "lagrangian": {"constraint": "lagrangian"},
        "hinge": {"constraint": "hinge", "threshold": 0.0},
        "lagrangian, threshold 0": {"constraint": "lagrangian", "threshold": 0.0},
    }
    grad_ada = {"rule": "grad-ada", "region": "none", "starts": 1, "reinference_interval": 10}
    plays = {f"K{k}": grad_ada | {"ascent_steps": k} for k in (0, 10, 50, 100, 250, 500)}
    return [
        Job("constraint", dataset, name, settings=SMALL | cut(dataset, "behavior") | variant, plays=plays, **SEARCH)
        for name, variant in variants.items()
        for dataset in ("hopper-medium", "walker2d-medium-replay")
    ]


def ascent() -> list[Job]:
    """How far and how to ascend: step size, step rule and region of Grad-Ada."""
    grad_ada = {"rule": "grad-ada"} | SHORT_ASCENT
    plays: dict[str, dict[str, Any]] = {
        "best-ada": {"rule": "best-ada"},
        "trust 0.25": grad_ada | {"trust_radius": 0.25},
        "trust 0.1": grad_ada | {"trust_radius": 0.1},
        "trust 0.5": grad_ada | {"trust_radius": 0.5},
        "trust 1": grad_ada | {"trust_radius": 1.0, "step_size": 0.3},
        "box": grad_ada | {"region": "box", "step_size": 0.3},
        "normalized": grad_ada | {"step_rule": "normalized", "step_size": 0.05},
    }
    return [
        Job("ascent", dataset, "behavior", settings=SMALL | cut(dataset, "behavior"), plays=plays, **SEARCH)
        for dataset in ("walker2d-medium-replay", "hopper-medium-replay", "hopper-medium", "halfcheetah-medium-replay")
    ]


def sizes() -> list[Job]:
    """How many sub-tasks: the same trajectories cut into more or fewer sub-tasks, and as in the paper's table."""
    plays = {name: RULES[name] for name in ("first", "best-ada", "grad-ada")}
    jobs = []
    for dataset in ("maze2d-umaze", "maze2d-medium", *SEARCHED, "walker2d-medium", "halfcheetah-medium"):
        variants = {f"N {n}": cut(dataset, "rank", n) for n in (5, 10, 50)}
        variants["paper's table"] = {"sub_task_sizes": "paper"}
        for name, variant in variants.items():
            jobs.append(Job("sizes", dataset, name, settings=SMALL | variant, plays=plays, **SEARCH))
    return jobs


def main() -> list[Job]:
    """The rules of test time and cloning, on every dataset."""
    budget: dict[str, Any] = {"steps": 24_000, "checkpoints": 6}
    plays = {name: RULES[name] for name in ("grad-ada", "best-ada", "first", "best", "grad")}
    plays |= {"grad-ada near": RULES["grad-ada"] | {"trust_radius": 0.1}}
    jobs = []
    for dataset in DATASETS:
        for rule in ("behavior", "rank"):
            settings, late = MIDDLE | cut(dataset, rule), ("grad-ada",) if rule == "behavior" else ()
            jobs.append(Job("main", dataset, rule, settings=settings, plays=plays, late=late, **budget))
        for name in ("bc", "fbc"):
            settings = CLONING | FRACTION[name]
            jobs.append(Job("main", dataset, name, name, settings, {name: {}}, late=(name,), **budget))
    return jobs


def paper_size() -> list[Job]:
    """The locomotion datasets with networks as wide as in the paper. The last six checkpoints are played."""
    budget: dict[str, Any] = {"steps": 24_000, "checkpoints": 6}
    wide: dict[str, Any] = {"width": 512, "batch_size": 512}
    plays = {name: RULES[name] for name in ("grad-ada", "best-ada", "first", "best", "grad")}
    jobs = []
    for dataset in DATASETS:
        if dataset.startswith(("hopper", "walker2d", "halfcheetah")):
            settings = EARLIER | wide | {"constraint": "none"} | cut(dataset, "rank")
            late = ("grad-ada",)
            jobs.append(Job("paper_size", dataset, "rank", settings=settings, plays=plays, late=late, **budget))
            for name in ("bc", "fbc"):
                settings = wide | FRACTION[name]
                jobs.append(Job("paper_size", dataset, name, name, settings, {name: {}}, late=(name,), **budget))
    return jobs


EXPERIMENTS: dict[str, Callable[[], list[Job]]] = {
    made.__name__: made for made in (choose, score, luck, embedding, constraint, ascent, sizes, main, paper_size)
}

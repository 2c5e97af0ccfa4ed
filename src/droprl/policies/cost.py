"""What one action may cost. A stranger's policy file must not make it take an hour, or a terabyte of memory."""

from __future__ import annotations

import math

import jax

from droprl.errors import DropError
from droprl.policies.adaptive import ASCENDS
from droprl.policies.policy import Policy

MOST_MULTIPLICATIONS = 10**12  # a few minutes on one core, a second on a GPU. The paper's sizes need a thousandth
MOST_NUMBERS = 2**28  # 1 GiB: what the networks hold at a time
PER_STEP = 3  # evaluations of the networks in one step of ascent: a gradient costs as much as two


def check_cost(policy: Policy, where: str) -> None:
    """Refuse a policy that needs too much for one action. The arithmetic is rough, and computes nothing."""
    sizes = [leaf.shape for leaf in jax.tree.leaves(policy)]
    n_weights, search, evaluations, side_by_side = sum(map(math.prod, sizes)), policy.search, 1, 1
    said = f"{n_weights:,} weights"
    if search is not None:
        settings, n = search.adaptation, len(search.embeddings)
        starts = 1 if settings.rule == "grad" else min(settings.starts or n, n)
        n_steps = settings.ascent_steps if settings.rule in ASCENDS else 0
        evaluations, side_by_side = n + PER_STEP * n_steps * (starts + settings.warm_start), n
        said += f", {n:,} embeddings, {n_steps:,} ascent_steps from {starts:,} starts"
    tokens = policy.traits.tokens
    work = n_weights * tokens * evaluations
    numbers = tokens * side_by_side * sum(math.prod(shape[:-1]) for shape in sizes if len(shape) > 1)
    for needed, most, what in (
        (work, MOST_MULTIPLICATIONS, "multiplications"),
        (numbers, MOST_NUMBERS, "numbers in memory"),
    ):
        if needed > most:
            raise DropError(
                f"{where}: one action would need {needed:.0e} {what} ({said}), and at most {most:.0e} are allowed: "
                "lower ascent_steps or starts, or train a smaller policy"
            )

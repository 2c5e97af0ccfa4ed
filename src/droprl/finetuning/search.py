"""Algorithms 3 and 4: play the checkpoints and numbers of ascent steps k, and choose those that earn most.

The paper plays every variant once, each from a start of its own, goes through the checkpoints one after another, and
keeps the first of equals. Here:

- All variants of a round play the same episode, so no variant wins by its starting place. This is always so.
- The order differs: if the budget is too small for all variants, it still covers every checkpoint, and values of k from
  the whole range. If the budget pays for all, the order does not matter.
- Of equals the newest checkpoint wins, then the fewest ascent steps.
- More rounds than one, and k = 0, are options of `finetune`: they are not in the paper.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from droprl.errors import DropError
from droprl.finetuning.ledger import Ledger, Played, ledger_entry
from droprl.rollout import Trajectory

SEARCH_SEED = 1_000_000  # the environment's seeds for the search begin here, far from the seeds of an evaluation


class Variant(NamedTuple):
    """One way to play a run's policy."""

    step: int  # the checkpoint
    ascent_steps: int | None  # k; None if the algorithm infers nothing


class Chosen(NamedTuple):
    variant: Variant
    mean_return: float  # the highest of several noisy numbers, hence optimistic


PlayVariant = Callable[
    [Variant, int, int], Trajectory
]  # the variant, the environment's seed, the largest number of steps


def variants(steps: Sequence[int], ascent_steps: Sequence[int | None]) -> list[Variant]:
    """Every pair of a checkpoint and a k: first all checkpoints with the first k, the newest checkpoint first."""
    return [Variant(step, k) for k in ascent_steps for step in sorted(steps, reverse=True)]


def spread(largest: int) -> list[int]:
    """0 … largest in the order of van der Corput: the first few always cover the range evenly."""
    bits = largest.bit_length()
    return sorted(range(largest + 1), key=lambda k: int(f"{k:0{bits}b}"[::-1], 2))


def search(
    ledger: Ledger,
    among: list[Variant],
    rounds: int | None,
    play: PlayVariant,
    on_episode: Callable[[Chosen | None], None],
) -> Chosen:
    """Play every variant once in each round, and choose. If `rounds` is None, the budget sets the number of rounds.

    A round after the first begins only if the budget pays for the whole round.
    """
    while True:
        round_, place = divmod(len(ledger.played), len(among))
        if round_ == rounds or not ledger.fits(1 if round_ == 0 else len(among) - place):
            break
        variant, seed = among[place], SEARCH_SEED + round_
        ledger.add(ledger_entry(play(variant, seed, ledger.left), *variant, seed))
        on_episode(best(ledger.played, len(among)))
    chosen = best(ledger.played, len(among))
    if chosen is None:
        raise DropError(f"no episode ended within the budget of {ledger.budget:,} steps: give more")
    return chosen


def best(episodes: Sequence[Played], n_variants: int) -> Chosen | None:
    """The variant with the highest mean return over whole rounds, or over an unfinished first round.

    If means are equal, the newest checkpoint wins, then the fewest ascent steps: nearest to the run's own policy.
    """
    whole = [episode for episode in episodes if episode.whole]
    rounds = max(1, len(whole) // n_variants)
    returns: dict[Variant, list[float]] = {}
    for episode in whole[: rounds * n_variants]:
        returns.setdefault(Variant(episode.step, episode.ascent_steps), []).append(episode.episode_return)
    means = [Chosen(variant, float(np.mean(values))) for variant, values in returns.items()]
    return max(means, key=lambda c: (c.mean_return, c.variant.step, -(c.variant.ascent_steps or 0)), default=None)

"""Algorithms 3 and 4: the checkpoint, and the number of ascent steps k, that earn most when they are played.

The paper plays every variant once. Further rounds make the choice less a matter of luck. The paper begins with the
oldest checkpoint. Here a budget that is too small for all variants still sees every checkpoint, and values of k from
the whole range. With a budget for all, the order does not matter. All variants of a round play the same episode. So no
variant wins by its starting place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from droprl.errors import DropError
from droprl.finetuning.ledger import Ledger, Played, played
from droprl.rollout import Trajectory

SEARCH_SEED = 1_000_000  # environments' seeds for choosing begin here, far from those for evaluating


class Variant(NamedTuple):
    """One way to play a run's policy."""

    step: int  # the checkpoint
    ascent_steps: int | None  # k; None where nothing is inferred


class Chosen(NamedTuple):
    variant: Variant
    mean_return: float  # what it was chosen for: the highest of several noisy numbers, hence optimistic


Play = Callable[[Variant, int, int], Trajectory]  # the variant, the environment's seed, the most steps


def variants(steps: Sequence[int], ascent_steps: Sequence[int | None]) -> list[Variant]:
    """Every pair; for each k the checkpoints from the newest back."""
    return [Variant(step, k) for k in ascent_steps for step in sorted(steps, reverse=True)]


def spread(largest: int) -> list[int]:
    """0 … largest in the order of van der Corput: any first few of them cover the range evenly."""
    bits = largest.bit_length()
    return sorted(range(largest + 1), key=lambda k: int(f"{k:0{bits}b}"[::-1], 2))


def search(
    ledger: Ledger, among: list[Variant], rounds: int | None, play: Play, on_episode: Callable[[Chosen | None], None]
) -> Chosen:
    """Play every variant once in each round, and choose. `rounds` of None: as many as the budget pays for.

    A round beyond the first begins only if all of it fits.
    """
    while True:
        round_, place = divmod(len(ledger.played), len(among))
        if round_ == rounds or not ledger.fits(1 if round_ == 0 else len(among) - place):
            break
        variant, seed = among[place], SEARCH_SEED + round_
        ledger.add(played(play(variant, seed, ledger.left), *variant, seed))
        on_episode(best(ledger.played, len(among)))
    chosen = best(ledger.played, len(among))
    if chosen is None:
        raise DropError(f"no episode ended within the budget of {ledger.budget:,} steps: give more")
    return chosen


def best(episodes: Sequence[Played], n_variants: int) -> Chosen | None:
    """The variant with the highest mean return over whole rounds, or over the first round as far as it went.

    Of equals it is the newest checkpoint with the fewest ascent steps, which is nearest to what the run plays anyway.
    """
    whole = [episode for episode in episodes if episode.whole]
    rounds = max(1, len(whole) // n_variants)
    returns: dict[Variant, list[float]] = {}
    for episode in whole[: rounds * n_variants]:
        returns.setdefault(Variant(episode.step, episode.ascent_steps), []).append(episode.episode_return)
    means = [Chosen(variant, float(np.mean(values))) for variant, values in returns.items()]
    return max(means, key=lambda c: (c.mean_return, c.variant.step, -(c.variant.ascent_steps or 0)), default=None)

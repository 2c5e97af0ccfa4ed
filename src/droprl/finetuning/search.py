"""Algorithms 3 and 4: the checkpoint, and the number of ascent steps k, that earn most when they are played.

The paper plays every candidate once; further rounds make the choice less a matter of luck. The paper begins with the
oldest checkpoint. Here the order is such that a budget too small for all
still sees every checkpoint and values of k from the whole range; with a budget for all, the order does not matter.
All candidates of a round play the same episode, so that none wins by its starting place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from droprl.errors import DropError
from droprl.finetuning.ledger import Ledger, Played, played
from droprl.rollout import Trajectory

SEARCH_SEED = 1_000_000  # environments' seeds for choosing begin here, far from those for evaluating


class Candidate(NamedTuple):
    step: int  # the checkpoint
    ascent_steps: int | None  # k; None where nothing is inferred


class Chosen(NamedTuple):
    candidate: Candidate
    mean_return: float  # what it was chosen for: the highest of several noisy numbers, hence optimistic


Play = Callable[[Candidate, int, int], Trajectory]  # the candidate, the environment's seed, the most steps


def candidates(steps: Sequence[int], ascent_steps: Sequence[int | None]) -> list[Candidate]:
    """Every pair; for each k the checkpoints from the newest back."""
    return [Candidate(step, k) for k in ascent_steps for step in sorted(steps, reverse=True)]


def spread(largest: int) -> list[int]:
    """0 … largest in the order of van der Corput: any first few of them cover the range evenly."""
    bits = largest.bit_length()
    return sorted(range(largest + 1), key=lambda k: int(f"{k:0{bits}b}"[::-1], 2))


def search(
    ledger: Ledger, among: list[Candidate], rounds: int | None, play: Play, on_episode: Callable[[Chosen | None], None]
) -> Chosen:
    """Play every candidate once a round, for so many rounds (None: as many as the budget pays for), and choose.

    A round beyond the first begins only if all of it fits.
    """
    while True:
        round_, place = divmod(len(ledger.played), len(among))
        if round_ == rounds or not ledger.fits(1 if round_ == 0 else len(among) - place):
            break
        candidate, seed = among[place], SEARCH_SEED + round_
        ledger.add(played(play(candidate, seed, ledger.left), *candidate, seed))
        on_episode(best(ledger.played, len(among)))
    chosen = best(ledger.played, len(among))
    if chosen is None:
        raise DropError(f"no episode ended within the budget of {ledger.budget:,} steps: give more")
    return chosen


def best(episodes: Sequence[Played], n_candidates: int) -> Chosen | None:
    """The highest mean return over whole rounds, or over the first as far as it went.

    Of equals the newest checkpoint with the fewest ascent steps: the one nearest to what the run would play anyway.
    """
    whole = [episode for episode in episodes if episode.whole]
    rounds = max(1, len(whole) // n_candidates)
    returns: dict[Candidate, list[float]] = {}
    for episode in whole[: rounds * n_candidates]:
        returns.setdefault(Candidate(episode.step, episode.ascent_steps), []).append(episode.episode_return)
    means = [Chosen(candidate, float(np.mean(values))) for candidate, values in returns.items()]
    return max(means, key=lambda c: (c.mean_return, c.candidate.step, -(c.candidate.ascent_steps or 0)), default=None)

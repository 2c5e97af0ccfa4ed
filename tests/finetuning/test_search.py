"""The search of Algorithms 3 and 4 on known returns."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from droprl.adapt.inference import Adaptation, infer
from droprl.finetuning.ledger import Ledger, Played
from droprl.finetuning.search import SEARCH_SEED, Chosen, Variant, best, search, spread, variants
from droprl.rollout import Trajectory

CHECKPOINTS = (4, 8, 12)


def episode_that_earns(total: float, length: int = 2, whole: bool = True) -> Trajectory:
    rewards = np.zeros(length, np.float32)
    rewards[0] = total
    empty = np.zeros((length, 1), np.float32)
    return Trajectory(empty, empty, rewards, empty, np.zeros(length, np.int32), np.array(False), np.array(whole))


def searched(
    folder: Path, returns: dict[tuple[int, Variant], float], budget: int = 10_000, rounds: int | None = 1
) -> tuple[Chosen, Ledger]:
    """A search in which the table says what each variant earns in each round. An episode has two steps."""
    ledger = Ledger(folder / "played.jsonl", budget, longest=2)

    def play(variant: Variant, seed: int, limit: int) -> Trajectory:
        assert limit == ledger.left
        return episode_that_earns(returns[seed - SEARCH_SEED, variant])

    among = variants(CHECKPOINTS, [*spread(5)])
    return search(ledger, among, rounds, play, lambda chosen: None), ledger


def random_returns(seed: int, rounds: int = 1) -> dict[tuple[int, Variant], float]:
    rng = np.random.default_rng(seed)
    pairs = [Variant(step, k) for step in CHECKPOINTS for k in range(6)]
    return {(r, pair): float(np.float32(rng.normal())) for r in range(rounds) for pair in pairs}


def algorithm_4(returns: dict[tuple[int, Variant], float], k_max: int) -> tuple[int | None, int, float]:
    """The two loops of the paper's Algorithm 4."""
    best_t, best_k, r_max = None, 0, -np.inf
    for t in CHECKPOINTS:
        for k in range(k_max + 1):
            if r_max < returns[0, Variant(t, k)]:
                best_t, best_k, r_max = t, k, returns[0, Variant(t, k)]
    return best_t, best_k, r_max


@pytest.mark.parametrize("seed", range(20))
def test_the_search_chooses_as_algorithm_4(tmp_path: Path, seed: int) -> None:
    returns = random_returns(seed)
    (variant, earned), ledger = searched(tmp_path, returns)
    assert (*variant, earned) == algorithm_4(returns, 5)
    assert (len(ledger.played), ledger.spent) == (18, 36)


def test_the_papers_budget_pays_for_exactly_its_variants(tmp_path: Path) -> None:
    """0.3M = 6 checkpoints × 50 values of k × 1000 steps an episode, each once."""
    steps, ks = range(95_000, 101_000, 1_000), [k for k in spread(50) if k >= 1]
    ledger = Ledger(tmp_path / "played.jsonl", 300_000, longest=1000)
    search(ledger, variants(steps, ks), 1, lambda *_: episode_that_earns(1.0, 1000), lambda chosen: None)
    assert ledger.spent == 300_000
    assert sorted((p.step, p.ascent_steps) for p in ledger.played) == [(t, k) for t in steps for k in range(1, 51)]


def test_the_search_finds_the_k_of_a_task_whose_answer_is_known(tmp_path: Path) -> None:
    """The score is z itself, so k steps of 0.1 end at z = 0.1 k. The task pays most for z = 0.7, and the checkpoints
    start at 0.0, 0.35 and -0.15: only from the first does a number of steps, seven, end there."""
    starts = {4: 0.0, 8: 0.35, 12: -0.15}

    def play(variant: Variant, seed: int, limit: int) -> Trajectory:
        settings = Adaptation("grad", variant.ascent_steps or 0, step_size=0.1, region="none", keep="last")
        found = infer(lambda z: z[0], jnp.full((1, 1), starts[variant.step]), settings)
        return episode_that_earns(1.0 - abs(float(found.z[0]) - 0.7))

    ledger = Ledger(tmp_path / "played.jsonl", 100, longest=2)
    chosen = search(ledger, variants(CHECKPOINTS, [k for k in spread(10) if k]), 1, play, lambda chosen: None)
    assert chosen.variant == Variant(4, 7)
    assert chosen.mean_return == pytest.approx(1.0, abs=1e-5)
    assert len(ledger.played) == 30


@pytest.mark.parametrize("seed", range(5))
def test_more_rounds_choose_the_highest_mean(tmp_path: Path, seed: int) -> None:
    returns = random_returns(seed, rounds=3)
    (variant, earned), _ = searched(tmp_path, returns, rounds=3)
    means = {c: np.mean([returns[r, c] for r in range(3)]) for _, c in returns}
    assert variant == max(means, key=lambda c: means[c])
    assert earned == pytest.approx(means[variant])


def test_only_the_first_round_may_begin_without_budget_for_all_of_it(tmp_path: Path) -> None:
    returns = random_returns(1, rounds=3)
    _, ledger = searched(tmp_path / "a", returns, budget=36 + 35, rounds=None)
    assert ledger.spent == 36
    _, ledger = searched(tmp_path / "b", returns, budget=36 + 36 + 1, rounds=None)
    assert ledger.spent == 72
    (variant, _), ledger = searched(tmp_path / "c", returns, budget=9)
    assert ledger.spent == 8
    assert [(p.step, p.ascent_steps) for p in ledger.played] == [(12, 0), (8, 0), (4, 0), (12, 4)]
    assert returns[0, variant] == max(p.episode_return for p in ledger.played)


def test_equal_returns_choose_the_newest_checkpoint_then_the_fewest_ascent_steps(tmp_path: Path) -> None:
    returns = dict.fromkeys(random_returns(0), 0.0)
    assert searched(tmp_path / "a", returns)[0].variant == (12, 0)
    returns |= {(0, Variant(4, 1)): 1.0, (0, Variant(8, 3)): 1.0, (0, Variant(8, 2)): 1.0}
    assert searched(tmp_path / "b", returns)[0].variant == (8, 2)


def test_only_whole_rounds_count(tmp_path: Path) -> None:
    """Without a time limit the budget may end inside a round. A lucky variant of that round must not win by it."""
    episodes = [Played(step, 0, 0, float(step), 1, True) for step in CHECKPOINTS]
    unlucky = [Played(4, 0, 1, 99.0, 1, True), Played(8, 0, 1, 999.0, 1, False)]
    assert best([*episodes, *unlucky], 3) == (Variant(12, 0), 12.0)
    assert best(episodes[:1], 3) == (Variant(4, 0), 4.0)
    assert best(unlucky[1:], 3) is None


@pytest.mark.parametrize("largest", [0, 1, 2, 7, 8, 50])
def test_the_first_few_values_of_k_cover_the_range(largest: int) -> None:
    order = spread(largest)
    assert sorted(order) == list(range(largest + 1))
    assert order[0] == 0
    for n in range(1, len(order) + 1):
        gaps = np.diff([*sorted(order[:n]), largest + 1])
        assert gaps.max() <= 4 * (largest + 1) / n

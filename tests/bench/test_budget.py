"""The budget curve by hand: which candidate how many episodes choose, and that no episode both chooses and judges."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from helpers.played import BC, DROP, bench_at, write_played

from droprl.bench import Bench
from droprl.bench.budget import (
    BUDGETS,
    BudgetCurve,
    Candidate,
    budget_curve,
    mean_curve,
    method_curves,
    recorded_episodes,
)
from droprl.errors import DropError


def one_seed(*scores: float, n: int = 20) -> dict[Candidate, list[float]]:
    """Candidates whose scores never vary. The first is the last checkpoint, the second the one before it, and so on."""
    return {Candidate(0, 100 - i, "once"): [score] * n for i, score in enumerate(scores)}


def test_two_candidates_that_never_vary() -> None:
    """0 episodes: the last checkpoint. 1: only the last has played. 2: both have played, and the better is known."""
    found = budget_curve(one_seed(10.0, 20.0), (0, 1, 2, 3, 50))
    np.testing.assert_allclose(found.score, [10, 10, 20, 20, 20])
    np.testing.assert_array_equal(found.low, found.score)  # one seed: no width
    np.testing.assert_array_equal(found.high, found.score)
    np.testing.assert_array_equal(found.exhausted, [False, False, False, False, True])  # 25 each, only 10 may choose
    np.testing.assert_allclose(budget_curve(one_seed(20.0, 10.0), (0, 1, 2)).score, 20)


def test_episodes_are_spent_in_turn() -> None:
    """After k episodes the first k candidates have played."""
    np.testing.assert_allclose(budget_curve(one_seed(4.0, 1.0, 9.0, 7.0), range(6)).score, [4, 4, 4, 9, 9, 9])


def test_among_equals_the_preferred_one_is_chosen_and_not_a_random_one() -> None:
    """The other candidate scores 5 in most episodes and never more. It is never chosen, or its −100 would count."""
    tied = {Candidate(0, 2, "once"): [5.0] * 6, Candidate(0, 1, "once"): [5.0] * 5 + [-100.0]}
    assert budget_curve(tied, (2,)).score == 5.0
    by_name = {Candidate(0, 7, "zebra"): [1.0, 1.0], Candidate(0, 7, "ant"): [2.0, 2.0]}
    np.testing.assert_allclose(budget_curve(by_name, (0, 1, 2)).score, [1, 1, 2])  # as listed, not by the alphabet


def test_the_default_is_the_last_checkpoint_under_the_first_play() -> None:
    steps_and_plays = {(1, "a"): 1.0, (2, "a"): 2.0, (1, "b"): 3.0, (2, "b"): 4.0}
    episodes = {Candidate(0, step, play): [score] * 4 for (step, play), score in steps_and_plays.items()}
    # In turn: step 2 under a (2), step 2 under b (4), step 1 under a (1), step 1 under b (3).
    np.testing.assert_allclose(budget_curve(episodes, range(5)).score, [2, 2, 4, 4, 4])


def test_estimates_choose_without_episodes_and_set_the_order_of_turns_with_episodes() -> None:
    episodes = one_seed(10.0, 20.0, 30.0)
    right = {candidate: values[0] for candidate, values in episodes.items()}
    np.testing.assert_allclose(budget_curve(episodes, (0, 1, 3), estimates=right).score, 30)
    wrong = {candidate: -values[0] for candidate, values in episodes.items()}
    np.testing.assert_allclose(budget_curve(episodes, (0, 1, 2, 3), estimates=wrong).score, [10, 10, 20, 30])
    middle = dict(zip(episodes, (0.0, 2.0, 1.0), strict=True))
    np.testing.assert_allclose(budget_curve(episodes, (0, 1, 2), estimates=middle).score, [20, 20, 30])


def test_a_candidate_that_varies_by_hand() -> None:
    """The default always scores 5. The other scored 0, 0, 20, 20: two of these episodes choose and two judge.

    One episode each: half of the time it is a 20, and two of the other three (0, 0, 20) judge: 20 / 3. Otherwise 5.
    Two episodes each: in one of six splits two 20s choose, and 0 and 0 judge: 0. In four splits a 0 and a 20 choose
    (10 > 5), and a 0 and a 20 judge: 10. In one split 0 and 0 choose, which is less than 5: the default's 5.
    """
    episodes = {Candidate(0, 2, "once"): [5.0] * 4, Candidate(0, 1, "once"): [0.0, 0.0, 20.0, 20.0]}
    found = budget_curve(episodes, (0, 1, 2, 4, 400), draws=40_000)
    expected = [5, 5, (20 / 3 + 5) / 2, (1 * 0 + 4 * 10 + 1 * 5) / 6, (1 * 0 + 4 * 10 + 1 * 5) / 6]
    np.testing.assert_allclose(found.score, expected, atol=0.08)
    np.testing.assert_array_equal(found.exhausted, [False, False, False, False, True])


def test_what_one_episode_chooses_is_right_on_average_over_recordings() -> None:
    """The other scores 0 or 20, equally likely. After one episode each, its 10 is chosen half of the time, else 5."""
    rng, found = np.random.default_rng(0), []
    for seed in range(1_500):
        other = (20.0 * rng.integers(0, 2, 6)).tolist()
        episodes = {Candidate(0, 2, "once"): [5.0] * 6, Candidate(0, 1, "once"): other}
        found.append(budget_curve(episodes, (2,), draws=50, seed=seed).score[0])
    assert np.mean(found) == pytest.approx(7.5, abs=4 * np.std(found) / np.sqrt(len(found)))


def test_choosing_among_equals_gains_nothing() -> None:
    """Eight candidates of pure noise. If an episode both chose and judged, the best of eight would seem above 0."""
    rng, found = np.random.default_rng(1), []
    for seed in range(300):
        episodes = {Candidate(0, step, "once"): rng.normal(size=10).tolist() for step in range(8)}
        found.append(budget_curve(episodes, (40,), draws=50, seed=seed).score[0])
    assert abs(np.mean(found)) < 4 * np.std(found) / np.sqrt(len(found))
    assert np.std(found) / np.sqrt(len(found)) < 0.03  # the best of eight means of five is 0.64


def test_more_episodes_choose_better() -> None:
    rng = np.random.default_rng(2)
    episodes = {Candidate(0, step, "once"): (5 * rng.normal(size=200) - step).tolist() for step in range(6)}
    found = budget_curve(episodes, (0, 6, 60, 600))
    assert np.all(np.diff(found.score) > 0)
    assert found.score[-1] == pytest.approx(0, abs=1)


def test_every_seed_chooses_among_its_own_and_the_interval_is_over_seeds() -> None:
    episodes = {
        Candidate(0, 2, "once"): [10.0] * 4,
        Candidate(0, 1, "once"): [0.0] * 4,
        Candidate(1, 2, "once"): [0.0] * 4,
        Candidate(1, 1, "once"): [20.0] * 4,
    }
    found = budget_curve(episodes, (0, 2))
    np.testing.assert_allclose(found.seeds, [[[10, 10], [0, 20]]])
    np.testing.assert_allclose(found.score, [5, 15])
    np.testing.assert_allclose(found.low, [0, 10])
    np.testing.assert_allclose(found.high, [10, 20])


def test_the_same_seed_gives_the_same_curve() -> None:
    rng = np.random.default_rng(3)
    episodes = {Candidate(s, step, "once"): rng.normal(size=8).tolist() for s in range(3) for step in range(4)}
    first, again, other = (budget_curve(episodes, draws=100, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.score, again.score)
    assert not np.array_equal(first.score, other.score)
    np.testing.assert_array_equal(first.budgets, BUDGETS)


def test_all_tasks_have_the_same_weight_in_the_mean() -> None:
    curves = [budget_curve(one_seed(10.0, 20.0), (0, 2)), budget_curve(one_seed(30.0, 60.0), (0, 2))]
    found = mean_curve(curves)
    np.testing.assert_allclose(found.score, [20, 40])
    assert found.seeds.shape == (2, 1, 2)
    with pytest.raises(DropError, match="same budgets"):
        mean_curve([curves[0], budget_curve(one_seed(1.0), (0, 3))])
    with pytest.raises(DropError, match="different numbers of seeds"):
        mean_curve([curves[0], budget_curve({Candidate(s, 1, "once"): [1.0, 1.0] for s in (0, 1)}, (0, 2))])


def test_recorded_episodes_come_from_the_plays(tmp_path: Path) -> None:
    bench = bench_at(tmp_path, plays=("once", "always"))
    write_played(bench, "a-medium", DROP, "once", {(0, 5): [1.0, 1.0], (0, 10): [2.0, 2.0]})
    write_played(bench, "a-medium", DROP, "always", {(0, 5): [3.0, 3.0], (0, 10): [4.0, 4.0]})
    found = recorded_episodes(bench, "a-medium", DROP)
    assert found[Candidate(0, 10, "always")] == [4.0, 4.0]  # scores, not returns
    assert len(found) == 4
    curve: BudgetCurve = budget_curve(found, (0, 2, 4))
    np.testing.assert_allclose(curve.score, [2, 4, 4])
    assert recorded_episodes(bench, "a-medium", BC) == {}


def rules_bench(tmp_path: Path) -> Bench:
    """The suite lists a baseline first, then DROP's own rule. Under both, the last checkpoint is the worse one."""
    bench = bench_at(tmp_path)
    plays = {"First": {"rule": "first"}, "Own": {"rule": "auto"}}
    bench = dataclasses.replace(bench, suite=bench.suite.changed(plays=plays, protocol="paper"))
    for task, more in (("a-medium", 0.0), ("b_random", 100.0)):
        for play, score in (("First", 1.0), ("Own", 2.0)):
            seeds = {(seed, step): [more + score + gain] * 4 for seed in (0, 1) for step, gain in ((5, 8), (10, 0))}
            write_played(bench, task, DROP, play, seeds)
    return bench


def test_without_episodes_the_choice_is_the_methods_default_play(tmp_path: Path) -> None:
    """It is not the first one listed. The turns are: Own at 10 (2), First at 10 (1), Own at 5 (10), First at 5 (9)."""
    bench = rules_bench(tmp_path)
    [curve] = method_curves(bench, (0, 1, 2, 3, 4, 8, 9)).values()
    np.testing.assert_allclose(curve.score - 50, [2, 2, 2, 10, 10, 10, 10])  # the mean of both tasks
    assert (curve.candidates, curve.most) == (4, 8)
    np.testing.assert_array_equal(curve.exhausted, [False] * 6 + [True])


def test_a_method_without_enough_episodes_on_a_task_has_no_curve(tmp_path: Path) -> None:
    bench = rules_bench(tmp_path)
    write_played(bench, "a-medium", BC, BC.name, {(0, 10): [1.0, 1.0]})  # the other task is not played yet
    assert list(method_curves(bench)) == ["DROP"]
    write_played(bench, "b_random", BC, BC.name, {(0, 10): [1.0, 1.0]})
    assert list(method_curves(bench)) == ["DROP", BC.name]
    write_played(bench, "b_random", BC, BC.name, {(0, 10): [1.0]})  # no episode is left to judge
    assert list(method_curves(bench)) == ["DROP"]


def test_returns_of_several_tasks_are_left_out_of_the_budget(tmp_path: Path) -> None:
    bench = rules_bench(tmp_path)
    for play in bench.suite.plays:
        seeds = {(seed, step): [3000.0] * 4 for seed in (0, 1) for step in (5, 10)}
        write_played(bench, "b_random", DROP, play, seeds, scored=False)
    np.testing.assert_allclose(method_curves(bench, (0, 3))["DROP"].score, [2, 10])


@pytest.mark.parametrize(
    ("episodes", "options", "message"),
    [
        ({}, {}, "no candidates"),
        (one_seed(1.0, n=1), {}, "at least two"),
        ({Candidate(0, 1, "a"): [1.0] * 4, Candidate(0, 2, "a"): [1.0] * 5}, {}, "4, 5 recorded episodes"),
        (one_seed(1.0, 2.0), {"estimates": {Candidate(0, 100, "once"): 1.0}}, "no finite estimate"),
        (one_seed(1.0), {"budgets": (-1,)}, "none below 0"),
        (one_seed(1.0), {"budgets": ()}, "budgets"),
        (one_seed(1.0), {"draws": 0}, "draws is 0"),
    ],
)
def test_what_cannot_be_judged_is_refused(
    episodes: dict[Candidate, list[float]], options: dict[str, object], message: str
) -> None:
    with pytest.raises(DropError, match=message):
        budget_curve(episodes, **options)  # type: ignore[arg-type]

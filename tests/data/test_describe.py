"""`drop data info`: plain numbers for scripts, and a page of at most eighty columns for people."""

from __future__ import annotations

import io
import json
from dataclasses import asdict

import numpy as np
import pytest

from droprl.cli.describe import print_description
from droprl.data import Dataset, from_arrays
from droprl.data.describe import Description, describe
from droprl.terminal import Screen


def dataset_with(returns: list[float], name: str = "arrays", score_range: tuple[float, float] | None = None) -> Dataset:
    """Episodes of two steps with these returns. The first ends the task, and the last is cut short."""
    rewards = np.repeat(np.array(returns) / 2, 2)
    terminals, timeouts = np.zeros((2, len(rewards)), bool)
    timeouts[3:-1:2] = True
    terminals[1] = True
    zeros = np.zeros((len(rewards), 1))
    return from_arrays(zeros, zeros, rewards, terminals, timeouts, name=name, score_range=score_range)


def page(description: Description) -> str:
    console = Screen(width=80, record=True, file=io.StringIO())
    print_description(description, console)
    return console.export_text()


def test_a_description_is_plain_numbers() -> None:
    dataset = dataset_with([2, 4, 6, 8], score_range=(0, 10))
    description = json.loads(json.dumps(asdict(describe(dataset)), allow_nan=False))
    assert (description["n_steps"], description["n_episodes"]) == (8, 4)
    assert (description["n_terminals"], description["n_timeouts"], description["last_is_cut_short"]) == (1, 2, True)
    assert description["lengths"]["median"] == 2
    assert description["returns"] == {
        "min": 2, "lower_quartile": 3.5, "median": 5, "upper_quartile": 6.5, "max": 8, "mean": 5,
    }  # fmt: skip
    assert description["scores"]["mean"] == pytest.approx(50)
    assert sum(description["histogram_counts"]) == 4
    cuts = {cut["rule"]: cut for cut in description["cuts"]}
    assert list(cuts) == ["random", "quantization", "rank"]
    assert cuts["rank"]["n_trajectories"] == 4
    assert cuts["rank"]["first_returns"] == [8, 8]
    assert cuts["rank"]["last_returns"] == [2, 2]
    assert (description["best_fraction"], description["best_trajectories"], description["best_steps"]) == (0.5, 2, 4)


def test_without_reference_returns_there_are_no_scores() -> None:
    assert describe(dataset_with([1, 2])).scores is None


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4, 1e6])
def test_the_page_fits_eighty_columns_without_cropping(scale: float) -> None:
    returns = list(np.linspace(-1, 1, 300) * scale)
    shown = page(describe(dataset_with(returns, "hopper-medium-replay-v2", score_range=(0, 1000))))
    assert "the last is cut short" in shown
    assert "F-BC clones the best 150 of 300 trajectories (50.0%, 300 steps)" in " ".join(shown.split())
    assert "█" in shown
    for line in ("random", "quantization", "rank"):
        assert sum(row.strip().startswith(line) for row in shown.splitlines()) == 1
    for header in ("sub-tasks", "episodes", "first returns", "last returns"):
        assert header in shown


def test_a_rare_return_still_shows() -> None:
    shown = page(describe(dataset_with([0.0] * 999 + [100.0])))
    assert "▏ 1" in shown


@pytest.mark.parametrize("value", [0.0, 1e6, -1e-9])
def test_equal_returns_make_one_bar(value: float) -> None:
    description = describe(dataset_with([value] * 3))
    assert description.histogram_counts == (3,)
    assert "█" in page(description)


def test_the_page_names_columns_and_their_ranges() -> None:
    entries = {"clock": 1.7e9 + np.arange(12.0), "joint": np.tile(np.arange(40.0), (12, 1))}
    ends = np.arange(12) % 4 == 3
    shown = page(describe(from_arrays(entries, np.full((12, 2), 0.25), np.arange(12.0), timeouts=ends)))
    assert "obs clock" in shown
    assert "obs joint[20]" in shown  # 24 rows in all: 22 observations and both actions
    assert "obs joint[21]" not in shown
    assert [line.split()[:4] for line in shown.splitlines() if " act 1" in line] == [["act", "1", "0.25", "0.25"]]
    assert "and 19 more: --json has all of them" in shown
    assert "0 to 11, mean 5.5; 91.7% of steps are not 0" in shown
    words = " ".join(shown.split())
    assert "warning: observation clock has one value near 1.7e+09" in words
    assert "To do: subtract its start" in words
    assert "Limit: fewer than 10 episodes." in words
    assert max(map(len, shown.splitlines())) <= 80


# --- ties ------------------------------------------------------------------------------------------------------------


def test_ties_are_counted_and_shown() -> None:
    """Twelve walks earn 1 at their end and eight earn nothing. With N = 10, Rank puts two into each sub-task: six hold
    only successes and four only failures, and each stands beside one that is alike."""
    won, lengths = [1, 0, 1, 1, 0] * 4, [3, 9, 5, 4, 9] * 4
    ends = np.cumsum(lengths) - 1
    rewards, terminals, timeouts = np.zeros(ends[-1] + 1), np.zeros(ends[-1] + 1, bool), np.zeros(ends[-1] + 1, bool)
    rewards[ends] = won
    terminals[ends], timeouts[ends] = np.array(won, bool), ~np.array(won, bool)
    zeros = np.zeros((len(rewards), 1))
    description = describe(from_arrays(zeros, zeros, rewards, terminals, timeouts))
    ties = description.ties
    assert ties is not None
    assert (ties.n_trajectories, ties.n_returns, ties.n_alike, ties.n_best, ties.best_return) == (20, 2, 10, 12, 1.0)
    assert (ties.best_lengths.min, ties.best_lengths.median, ties.best_lengths.max) == (3, 4, 5)
    assert ties.best_discounted == pytest.approx(0.99**3)  # the median walk is paid in its fourth step
    shown = " ".join(page(description).split())
    assert "20 of 20 trajectories share their return with another. There are 2 different returns." in shown
    assert "10 of its sub-tasks hold the same return as one beside them" in shown
    assert "the median one is worth 0.97 at its first state" in shown


def test_a_mixed_sub_task_is_not_alike() -> None:
    """Rank by twos: (1, 1), (1, 0), (0, 0), (0, 0). The first stands beside a mixed one, the last two are alike."""
    ties = describe(dataset_with([1.0, 1.0, 1.0] + [0.0] * 17)).ties
    assert ties is not None
    assert ties.n_alike == 8


def test_few_ties_are_not_worth_a_word() -> None:
    description = describe(dataset_with([*range(30), 29]))
    assert description.ties is None
    assert "Ties" not in page(description)

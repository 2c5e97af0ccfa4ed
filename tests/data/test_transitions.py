"""The table that training reads and the batches drawn from it: every successor, every weight, every probability."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import jax
import numpy as np
import pytest
from helpers.builders import Layout, make_dataset, targets_by_definition
from helpers.plain import PLAIN
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from droprl import DROP
from droprl.data import Dataset
from droprl.data.rewards import Rewards
from droprl.data.rows import DeviceRows, TargetColumns, TargetRule
from droprl.data.scaling import Scaling, fit_scaling
from droprl.data.transitions import PROBE_STEPS, Batch, Places, Prepared, Transitions, prepare

MIXED: Layout = [(3, "terminal"), (4, "timeout"), (1, "timeout"), (2, "cut")]
ALL = [np.array([0, 1, 2, 3])]
BOTH = [np.array([0, 1])]
RAW: dict[str, Any] = {"normalize_observations": False, "rewards": Rewards("one")}


def rows_of(transitions: Transitions, n_rows: int) -> Batch:
    """Every row of the data, in order, as NumPy sees it."""
    in_numpy: DeviceRows = jax.tree.map(np.asarray, transitions.rows)
    return transitions.over(in_numpy._replace(order=None)).gather(Places(np.arange(n_rows)))


def device_rows_of(prepared: Prepared[Transitions]) -> DeviceRows:
    assert isinstance(prepared.transitions.rows, DeviceRows)
    return prepared.transitions.rows


def targets_of(prepared: Prepared[Transitions]) -> TargetColumns:
    targets = device_rows_of(prepared).targets
    assert targets is not None
    return targets


def places(observations: Any) -> list[tuple[int, int]]:
    return [(int(episode), int(step)) for episode, step in np.asarray(observations)[:, :2]]


def is_known(batch: Batch, row: int) -> bool:
    return batch.next_action_known is None or bool(batch.next_action_known[row])


def check_against_definition(
    dataset: Dataset, prepared: Prepared, discount: float, n_steps: int | np.ndarray | None
) -> None:
    """Check with one n for all rows, or with one n for each row."""
    batch = rows_of(prepared.transitions, dataset.n_steps)
    if isinstance(n_steps, np.ndarray):
        by_n = {int(n): targets_by_definition(dataset, discount, int(n)) for n in np.unique(n_steps)}
        expected = [by_n[int(n)][row] for row, n in enumerate(n_steps)]
    else:
        expected = targets_by_definition(dataset, discount, n_steps)
    known = np.array([t.known for t in expected])
    np.testing.assert_array_equal(batch.has_target, known.astype(np.float32))
    np.testing.assert_allclose(batch.reward[known], [t.reward for t in expected if t.known], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(batch.discount[known], [t.discount for t in expected if t.known], rtol=1e-6)
    found = places(batch.next_observation)
    for row, target in enumerate(expected):
        if target.known and target.discount > 0:
            assert found[row] == target.successor
            assert is_known(batch, row) is not target.past_end
            if not target.past_end:
                np.testing.assert_allclose(batch.next_action[row], dataset.actions[row + target.horizon], atol=1e-6)


@pytest.mark.parametrize("next_observations", [True, False])
@pytest.mark.parametrize("n_steps", [1, 3, None])
def test_every_row_has_the_target_of_the_definition(next_observations: bool, n_steps: int | None) -> None:
    dataset = make_dataset(MIXED, next_observations=next_observations)
    prepared = prepare(dataset, ALL, discount=0.9, td_steps=n_steps, **RAW)
    check_against_definition(dataset, prepared, 0.9, n_steps)


def test_the_rows_of_a_timed_out_episode_by_hand() -> None:
    """Episode 1 has four steps. Three-step targets, with and without the state after the timeout."""
    shown = rows_of(prepare(make_dataset(MIXED, next_observations=True), ALL, td_steps=3, **RAW).transitions, 10)
    assert places(shown.next_observation)[3:7] == [(1, 3), (1, 4), (1, 4), (1, 4)]
    assert [is_known(shown, row) for row in range(3, 7)] == [True, False, False, False]
    assert shown.has_target[3:7].tolist() == [1, 1, 1, 1]
    hidden = rows_of(prepare(make_dataset(MIXED), ALL, td_steps=3, **RAW).transitions, 10)
    assert places(hidden.next_observation)[3:6] == [(1, 3), (1, 3), (1, 3)]
    assert hidden.next_action_known is None  # no target bootstraps from a state without a logged action
    assert hidden.has_target[3:7].tolist() == [1, 1, 1, 0]


def test_after_a_terminal_nothing_is_earned() -> None:
    for next_observations in (True, False):
        dataset = make_dataset(MIXED, next_observations=next_observations)
        for n_steps, ended in ((1, [2]), (2, [1, 2]), (None, [0, 1, 2])):
            batch = rows_of(prepare(dataset, ALL, td_steps=n_steps, **RAW).transitions, 10)
            assert np.flatnonzero(np.asarray(batch.discount) == 0).tolist() == ended
            assert np.all(batch.has_target[ended] == 1)


TOTAL = 10  # a fixed number of steps, so all examples share the compiled look-ups


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    inner = sorted(draw(st.sets(st.integers(1, TOTAL - 1), max_size=5)))
    bounds = [0, *inner, TOTAL]
    lengths = [b - a for a, b in pairwise(bounds)]
    endings: list[Any] = [draw(st.sampled_from(["terminal", "timeout"])) for _ in lengths[:-1]]
    last: Any = draw(st.sampled_from(["terminal", "timeout", "cut"]))
    return list(zip(lengths, [*endings, last], strict=True))


@settings(max_examples=40, deadline=None)
@given(layout=layouts(), next_observations=st.booleans(), n_steps=st.sampled_from([1, 3, None]))
def test_nothing_crosses_from_one_episode_to_the_next(
    layout: Layout, next_observations: bool, n_steps: int | None
) -> None:
    """Observations and rewards name their episode: R is a multiple of its number, and s' contains it."""
    episode = np.repeat(np.arange(len(layout)), [length for length, _ in layout])
    rewards = (100.0**episode).tolist()
    dataset = make_dataset(layout, rewards=rewards, next_observations=next_observations)
    prepared = prepare(dataset, [np.arange(len(layout))], discount=0.5, td_steps=n_steps, **RAW)
    batch = rows_of(prepared.transitions, TOTAL)
    assert [e for e, _ in places(batch.next_observation)] == episode.tolist()
    assert episode[np.asarray(targets_of(prepared).next_action)].tolist() == episode.tolist()
    shares = np.asarray(batch.reward) / np.array(rewards)
    assert np.all((shares >= 0) & (shares < 2))
    check_against_definition(dataset, prepared, 0.5, n_steps)


def test_next_observations_that_are_not_the_next_row_are_used() -> None:
    dataset = make_dataset([(3, "terminal"), (2, "timeout")], next_observations=True)
    assert dataset.next_observations is not None
    changed = dataset.next_observations.copy()
    changed[0] = (50, 51)
    for n_steps, expected in ((1, [(50, 51), (0, 2)]), (2, [(0, 2), (0, 1)])):
        prepared = prepare(replace(dataset, next_observations=changed), BOTH, td_steps=n_steps, **RAW)
        assert places(rows_of(prepared.transitions, 5).next_observation)[:2] == expected


def test_each_observation_is_stored_once() -> None:
    """Only the four states after the last steps are not a row of the data."""
    prepared = prepare(make_dataset(MIXED, next_observations=True), ALL, **RAW)
    assert len(device_rows_of(prepared).observations) == 10 + 4
    assert len(device_rows_of(prepare(make_dataset(MIXED), ALL, **RAW)).observations) == 10


# --- TD(λ): each row draws its own n ---


@settings(max_examples=25, deadline=None)
@given(layout=layouts(), next_observations=st.booleans(), td_lambda=st.sampled_from([0.5, 0.8]))
def test_with_td_lambda_each_row_has_the_target_of_its_own_horizon(
    layout: Layout, next_observations: bool, td_lambda: float
) -> None:
    """The end of the episode cuts the horizon, as in any n-step target."""
    dataset = make_dataset(layout, next_observations=next_observations)
    prepared = prepare(dataset, [np.arange(len(layout))], discount=0.5, td_lambda=td_lambda, **RAW)
    drawn = TargetRule(td_lambda=td_lambda).horizon(TOTAL)
    assert isinstance(drawn, np.ndarray)
    assert len(np.unique(drawn)) > 2
    check_against_definition(dataset, prepared, 0.5, drawn)
    episode = np.repeat(np.arange(len(layout)), [length for length, _ in layout])
    assert [e for e, _ in places(rows_of(prepared.transitions, TOTAL).next_observation)] == episode.tolist()


@pytest.mark.parametrize("td_lambda", [0.5, 0.9])
def test_horizons_are_geometric(td_lambda: float) -> None:
    """One long episode without its end. n is read from γ to the power of n. Its chance is (1 − λ) λⁿ⁻¹."""
    size, kept = 20_000, 19_000
    prepared = prepare(make_dataset([(size, "timeout")]), [np.array([0])], discount=0.9, td_lambda=td_lambda, **RAW)
    horizon = np.rint(np.log(np.asarray(targets_of(prepared).discount[:kept], float)) / np.log(0.9)).astype(int)
    mean, spread = 1 / (1 - td_lambda), np.sqrt(td_lambda) / (1 - td_lambda)
    assert abs(horizon.mean() - mean) < 4 * spread / np.sqrt(kept)
    chance = (1 - td_lambda) * td_lambda ** np.arange(6)
    counts = np.bincount(horizon, minlength=8)[1:7]
    rest = kept - counts.sum()
    assert stats.chisquare([*counts, rest], kept * np.array([*chance, 1 - chance.sum()])).pvalue > 1e-3
    assert abs(np.corrcoef(horizon[:-1], horizon[1:])[0, 1]) < 4 / np.sqrt(kept)  # each row draws for itself


def same_tables(one: Prepared, other: Prepared) -> bool:
    leaves, others = jax.tree.leaves(one.transitions), jax.tree.leaves(other.transitions)
    return all(np.array_equal(a, b) for a, b in zip(leaves, others, strict=True))


def test_a_td_lambda_of_zero_is_one_step() -> None:
    dataset = make_dataset(MIXED, next_observations=True)
    one_step, zero, half, again = (
        prepare(dataset, ALL, discount=0.9, td_steps=1, td_lambda=td_lambda, **RAW)
        for td_lambda in (None, 0.0, 0.5, 0.5)
    )
    assert same_tables(zero, one_step)
    assert not same_tables(half, one_step)
    assert same_tables(half, again)  # drawn once: a resumed run learns from the same targets
    for found, expected in zip(
        half.probe.batch, one_step.probe.batch, strict=True
    ):  # the targets of the probe go to the end
        np.testing.assert_array_equal(found, expected)


def test_drop_takes_td_lambda_instead_of_td_steps() -> None:
    dataset = make_dataset(MIXED, next_observations=True)
    sizes: dict[str, Any] = {"n_sub_tasks": 2, "trajectories_per_sub_task": 2, "discount": 0.9}
    one_step, three_steps = (DROP(**PLAIN, td_steps=n, **sizes).prepare(dataset) for n in (1, 3))
    assert same_tables(DROP(**PLAIN, td_steps=3, td_lambda=0.0, **sizes).prepare(dataset), one_step)
    assert not same_tables(three_steps, one_step)


# --- drawing ---


def chi_square_is_plausible(counts: np.ndarray) -> bool:
    """Whether equal chances explain these counts: false once in a thousand if they do."""
    expected = counts.sum() / len(counts)
    return bool(np.sum((counts - expected) ** 2) / expected < stats.chi2.ppf(0.999, len(counts) - 1))


def test_sub_task_uniform_then_step_uniform() -> None:
    """Sub-tasks of 2, 9 and 81 steps; one episode is in none. Transition-uniform sampling would give 2, 10, 88 %."""
    layout: Layout = [(9, "terminal"), (2, "timeout"), (40, "timeout"), (7, "terminal"), (41, "terminal")]
    sub_tasks = [np.array([2, 4]), np.array([1]), np.array([0])]
    prepared = prepare(make_dataset(layout), sub_tasks, **RAW)
    size = 20_000
    batch = jax.jit(prepared.transitions.sample, static_argnums=1)(jax.random.key(0), size)
    drawn = np.asarray(batch.sub_task)
    assert chi_square_is_plausible(np.bincount(drawn, minlength=3))
    for n, episodes in enumerate(sub_tasks):
        found = places(np.asarray(batch.observation)[drawn == n])
        every_step = [(e, t) for e in episodes for t in range(layout[e][0])]
        assert set(found) == set(every_step)
        assert chi_square_is_plausible(np.array([found.count(place) for place in every_step]))


def test_a_batch_holds_the_rows_of_the_draw() -> None:
    dataset = make_dataset(MIXED, next_observations=True)
    prepared = prepare(dataset, [np.array([1, 3]), np.array([0])], td_steps=2, **RAW)
    batch = prepared.transitions.sample(jax.random.key(3), 64)
    rows = [int(dataset.bounds[e] + t) for e, t in places(np.asarray(batch.observation))]
    whole = rows_of(prepared.transitions, dataset.n_steps)
    assert batch.fold is None  # nobody asked for it
    for name in set(Batch._fields) - {"sub_task", "fold"}:
        np.testing.assert_array_equal(getattr(batch, name), getattr(whole, name)[rows], err_msg=name)


def test_a_step_without_a_target_is_still_cloned_and_counted() -> None:
    dataset = make_dataset([(2, "timeout"), (1, "timeout")], rewards=[1, 10, 100])
    prepared = prepare(dataset, [np.array([1]), np.array([0])], **RAW)
    rows, groups = prepared.transitions
    assert groups is not None
    assert np.asarray(rows.at(np.arange(3))).tolist() == [2, 0, 1]
    assert np.asarray(groups.begin).tolist() == [0, 1]
    assert np.asarray(groups.size).tolist() == [1, 2]
    assert np.asarray(targets_of(prepared).has_target).tolist() == [1, 0, 0]
    assert prepared.probe.sub_task_returns.tolist() == [100, 11]


def test_the_probe_looks_to_the_end_of_the_episode_from_rows_of_its_sub_task() -> None:
    dataset = make_dataset(MIXED, next_observations=True)
    probe = prepare(dataset, [np.array([1, 3]), np.array([0])], discount=0.9, td_steps=1, **RAW).probe
    monte_carlo = targets_by_definition(dataset, 0.9, None)
    for i, (e, t) in enumerate(places(np.asarray(probe.batch.observation))):
        target = monte_carlo[int(dataset.bounds[e]) + t]
        assert e in ([1, 3], [0])[int(probe.batch.sub_task[i])]
        assert float(probe.batch.reward[i]) == pytest.approx(target.reward, rel=1e-5, abs=1e-6)
        assert float(probe.batch.discount[i]) == pytest.approx(target.discount)
    assert len(probe.batch.reward) == PROBE_STEPS
    assert places(np.asarray(probe.starts)) == [(0, 0), (1, 0), (2, 0), (3, 0)]


# --- scaling ---


def test_rewards_are_divided_by_the_spread_of_discounted_returns() -> None:
    """Returns at γ = 0.5: 3, 4, 4 and 16, 16; their mean is 8.6."""
    dataset = make_dataset([(3, "terminal"), (2, "timeout")], rewards=[1, 2, 4, 8, 16], next_observations=True)
    spread = np.sqrt(np.mean((np.array([3, 4, 4, 16, 16]) - 8.6) ** 2))
    prepared = prepare(dataset, [np.array([0, 1])], discount=0.5)
    assert prepared.reward_scale == pytest.approx(spread)
    np.testing.assert_allclose(rows_of(prepared.transitions, 5).reward, np.array([1, 2, 4, 8, 16]) / spread, rtol=1e-6)


def test_rewards_without_spread_are_left_alone() -> None:
    prepared = prepare(make_dataset([(3, "terminal")], rewards=[0, 0, 0]), [np.array([0])])
    assert prepared.reward_scale == 1.0
    assert np.all(np.isfinite(targets_of(prepared).reward))


def test_observations_have_zero_mean_and_unit_variance() -> None:
    dataset = make_dataset([(40, "timeout")], observation_size=4, next_observations=True)
    constant = dataset.observations.copy()
    constant[:, 2] = 7.0
    dataset = replace(dataset, observations=constant)
    table = np.asarray(device_rows_of(prepare(dataset, [np.array([0])])).observations)
    np.testing.assert_allclose(table[:40].mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(table[:40].std(axis=0)[[1, 3]], 1, atol=1e-5)
    np.testing.assert_array_equal(table[:40, [0, 2]], 0)  # these never change, so they are only shifted
    assert dataset.next_observations is not None
    mean, std = dataset.observations[:, 3].mean(), dataset.observations[:, 3].std()
    # The state after the timeout is in the same units as the others.
    np.testing.assert_allclose(table[-1, 3], (dataset.next_observations[-1, 3] - mean) / std, rtol=1e-4)


def test_actions_go_to_the_unit_box_and_back() -> None:
    low, high = np.array([-2, 0.5], np.float32), np.array([6, 1.5], np.float32)
    scaling = Scaling(np.zeros(1), np.ones(1), low, high)
    middle = (low + high) / 2
    np.testing.assert_allclose(scaling.actions_in(np.stack([low, high, middle])), [[-1, -1], [1, 1], [0, 0]])
    out = scaling.actions_out(np.array([[-1, -1], [1, 1], [0.5, 0]]))
    np.testing.assert_allclose(out, np.array([[-2, 0.5], [6, 1.5], [4, 1]]))
    dataset = replace(make_dataset(MIXED), action_low=low, action_high=high)
    fitted = fit_scaling(dataset)
    np.testing.assert_allclose(fitted.actions_out(fitted.actions_in(dataset.actions)), dataset.actions, atol=1e-6)
    table = device_rows_of(prepare(dataset, ALL)).actions
    np.testing.assert_allclose(table[:, 0], (dataset.actions[:, 0] - 2) / 4, atol=1e-6)

"""The gates: what they pay and how often, that the data obeys the cap, and that playing plays the data's task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from helpers.training import drop, refusal, tiny
from scipy.stats import binomtest

from droprl import evaluate, fit, load_dataset
from droprl.bench.task_data import find_task_data, task_source
from droprl.data import Dataset
from droprl.data.describe import describe
from droprl.data.gate_walks import NOISE, make_gates_dataset, walk_gates
from droprl.data.made import can_be_made, make_dataset
from droprl.environments.gates import LOWER, MOST_JUNCTIONS, OPEN, UPPER, Gates, gates_named
from droprl.environments.gates_env import GatesEnv
from droprl.environments.simulation import make_env
from droprl.rollout import longest_episode

EVERY_LUCK = [0.0, 0.3, 0.5, 0.9]


@pytest.fixture(scope="module")
def made() -> Dataset:
    return make_gates_dataset(Gates(), n_steps=30_000, seed=0)


def ways(dataset: Dataset, gates: Gates) -> list[tuple[bool, ...]]:
    """Where each recorded episode went right, by its positions alone."""
    found = []
    for begin, end in zip(dataset.bounds[:-1], dataset.bounds[1:], strict=True):
        rows, columns = dataset.observations[begin:end, :2].T
        at = [int(np.argmax(columns >= gates.block(k) + 0.5)) for k in range(gates.junctions)]
        found.append(tuple(round(float(rows[i])) == gates.row_of(k, True) for k, i in enumerate(at)))
    return found


def returns_of(gates: Gates, choices: tuple[bool, ...], episodes: int, noise: float = 0.0) -> np.ndarray:
    env = GatesEnv(gates)
    walks = [walk_gates(env, choices, np.random.default_rng([7, e]), noise) for e in range(episodes)]
    assert all(walk.arrived for walk in walks)
    return np.array([walk.rewards.sum() for walk in walks])


# --- names ---


@pytest.mark.parametrize("luck", EVERY_LUCK)
@pytest.mark.parametrize("junctions", [1, 3, 4])
@pytest.mark.parametrize("cap", [None, 0])
def test_a_name_says_everything(luck: float, junctions: int, cap: int | None) -> None:
    gates = Gates(luck, junctions, cap)
    found = gates_named(gates.data_name)
    assert found is not None
    assert (found.luck, found.junctions, found.most_right) == (luck, junctions, gates.most_right)
    assert gates_named(gates.name) == Gates(luck, junctions)  # the cap belongs to the data, not to the task
    assert can_be_made(gates.data_name)


def test_other_names_and_impossible_gates_are_refused() -> None:
    assert gates_named("maze2d-umaze") is gates_named("maze2d-gates-luck") is None
    assert Gates().name == Gates().data_name == "maze2d-gates"
    for changes, fault in (
        ({"luck": 0.95}, "luck is 0.95"),
        ({"luck": 0.333}, "luck is 0.333"),
        ({"luck": float("nan")}, "luck is nan"),
        ({"junctions": 0}, "junctions is 0"),
        ({"junctions": MOST_JUNCTIONS + 1}, "junctions is 7"),
        ({"cap": 3}, "right everywhere"),
        ({"cap": -1}, "cap is -1"),
    ):
        assert fault in refusal(Gates, **changes)
    for name in ("maze2d-gates-luck050", "maze2d-gates-luck50", "maze2d-gates-cap1"):
        assert f"droprl/{name}-v0" in refusal(make_env, f"droprl/{name}-v0")  # a task has one id, or none
    assert "luck is 0.95" in refusal(make_env, "droprl/maze2d-gates-luck95-v0")
    assert "needs at least 1 step" in refusal(make_gates_dataset, Gates(), 0)
    assert "choose one of maze2d-umaze" in refusal(make_dataset, "maze2d-tiny")


# --- what the gates pay ---


def test_a_wrong_gate_is_open_one_time_in_ten_and_nobody_sees_it() -> None:
    env = GatesEnv(Gates())
    seen = [(env.reset(seed=seed)[0], tuple(env.open)) for seed in range(4_000)]
    opened = np.array([of for _, of in seen])
    assert binomtest(int(opened.sum()), opened.size, OPEN).pvalue > 1e-4
    assert np.abs(np.corrcoef(opened.T) - np.eye(3)).max() < 0.06  # each junction has its own luck
    states = np.array([state for state, _ in seen])
    assert np.abs(np.corrcoef(states[:, :2].T, opened.T)[:2, 2:]).max() < 0.06
    fixed: dict[tuple[bool, ...], list[Any]] = {}
    for seed in range(200):  # the same walk sees the same states, whatever is open
        state, _ = env.reset(seed=seed)
        env._state = (2.0, 1.0, 0.0, 0.0)
        assert state.shape == (4,)
        steps = [env.step(np.array([1.0, 1.0], np.float32)) for _ in range(60)]
        fixed.setdefault(tuple(env.open), [step[0] for step in steps])
    assert len(fixed) > 2
    first = next(iter(fixed.values()))
    assert all(np.array_equal(first, other) for other in fixed.values())


@pytest.mark.parametrize("luck", EVERY_LUCK)
def test_the_value_of_each_choice_is_what_the_docs_say(luck: float) -> None:
    gates, episodes = Gates(luck), 150
    assert (returns_of(gates, (True,) * 3, 20) == 3.0).all()  # right everywhere: certain
    wrong = returns_of(gates, (False,) * 3, episodes, NOISE)
    error = 4 * wrong.std() / np.sqrt(episodes)
    assert wrong.mean() == pytest.approx(3 * gates.wrong_value, abs=error)
    assert gates.wrong_value == OPEN * gates.prize < 0.5
    mixed = returns_of(gates, (False, True, True), episodes, NOISE)
    assert mixed.mean() == pytest.approx(gates.expected_return(2), abs=4 * mixed.std() / np.sqrt(episodes) + 1e-9)
    assert gates.expected_return(2) < 3.0
    assert (gates.prize > 1) == (luck >= 0.3)  # then a lucky wrong choice pays more than a right one


@pytest.mark.parametrize("luck", EVERY_LUCK)
def test_luck_is_the_share_of_chance_in_the_variance_of_a_junction(luck: float) -> None:
    """By drawing: a coin chooses the way, and chance opens the gate."""
    rng, gates = np.random.default_rng(0), Gates(luck)
    right, opened = rng.random(400_000) < 0.5, rng.random(400_000) < OPEN
    paid = np.where(right, 1.0, np.where(opened, gates.prize, 0.0))
    explained = np.where(right, 1.0, gates.wrong_value)  # what the choice alone is worth
    assert np.var(paid - explained) / np.var(paid) == pytest.approx(luck, abs=0.01)


def test_a_junction_pays_once_and_walls_stop_the_ball() -> None:
    env = GatesEnv(Gates())
    env.reset(seed=0)
    assert env.gates.row_of(0, True) == UPPER != env.gates.row_of(1, True) == LOWER
    paid, place = 0.0, np.zeros(4)
    for push in [(-1, 0)] * 15 + [(0, 1)] * 50 + [(0, -1)] * 30 + [(0, 1)] * 25:  # up, through, back, and through again
        place, reward, *_ = env.step(np.array(push, np.float32))
        paid += float(reward)
    assert paid == 1.0
    for row in (1.6, 1.99, 2.0, 2.3):  # the wedge turns the ball to the nearer way, and nowhere it is in a wall
        env.reset(seed=0)
        env._state, place = (row, 2.0, 0.0, 0.0), np.zeros(4)
        while place[1] < env.gates.block(0) + 0.5:
            place, *_ = env.step(np.array([0, 1], np.float32))
            assert env._is_free(place[0], place[1])
        assert 0.5 < abs(place[0] - 2) < 1
        assert (place[0] < 2) == (row < 2)
    rng, pushes = np.random.default_rng(0), np.zeros(2, np.float32)
    for step in range(2_000):
        if step % 10 == 0:
            pushes = rng.uniform(-1, 1, 2).astype(np.float32)
        place, _, arrived, *_ = env.step(pushes)
        assert env._is_free(place[0], place[1])
        if arrived:
            env.reset(seed=step)
    env.reset(seed=0)
    for _ in range(60):
        place, *_ = env.step(np.array([-1, -1], np.float32))
    assert (place[2:] == 0).all()  # in a corner


def test_the_environment_is_gymnasiums_and_repeats_with_the_seed() -> None:
    env = make_env("droprl/maze2d-gates-luck30-junctions4-v0")
    check_env(env.unwrapped, skip_render_check=True)
    assert longest_episode(env) == Gates(junctions=4).time_limit
    unwrapped: Any = env.unwrapped
    assert (unwrapped.gates.luck, unwrapped.gates.junctions) == (0.3, 4)
    starts = [(*env.reset(seed=3)[0], *unwrapped.open) for _ in range(2)]
    assert starts[0] == starts[1]


# --- the data ---


def test_every_trajectory_obeys_the_cap_and_every_way_is_taken(made: Dataset) -> None:
    found = ways(made, Gates())
    assert max(map(sum, found)) == 2
    assert set(found) == set(Gates().choices)
    capped = Gates(cap=1, junctions=4)
    assert max(map(sum, ways(make_gates_dataset(capped, 6_000), capped))) == 1
    assert len(capped.choices) == 5


@pytest.mark.parametrize("luck", [0.5, 0.9])
def test_the_best_trajectories_by_return_were_lucky(luck: float) -> None:
    """The top twentieth earned more than the optimum, and behaves worse than it. With much luck, mostly wrongly."""
    gates = Gates(luck)
    made = make_gates_dataset(gates, 30_000, seed=1)
    n_right = np.array([sum(way) for way in ways(made, gates)])
    top = np.argsort(-made.returns)[: made.n_episodes // 20]
    assert made.returns[top].min() > max(map(gates.expected_return, range(3))) + 0.5
    assert made.returns.max() > 3.0
    if luck == 0.9:
        assert (n_right[top] < 2).mean() > 0.3


def test_the_mean_of_the_data_is_score_0(made: Dataset) -> None:
    low, high = Gates().score_range
    assert made.returns.mean() == pytest.approx(low, abs=4 * made.returns.std() / made.n_episodes**0.5)
    assert high == returns_of(Gates(), (True,) * 3, 1)[0]
    assert made.score_range == (low, high)


def test_ends_are_marked_rightly(made: Dataset) -> None:
    assert not made.last_is_cut_short
    assert made.ends_in_terminal.all()  # all arrive
    last = len(Gates().rows[0]) - 2
    assert made.next_observations is not None
    ends = made.next_observations[made.bounds[1:] - 1, 1]
    assert (np.round(ends) == last).all()
    assert (np.round(made.observations[:, 1]) < last).all()
    follows = (made.next_observations[:-1] == made.observations[1:]).all(axis=1)
    np.testing.assert_array_equal(follows, ~made.terminals[:-1])


def test_a_walker_that_does_not_arrive_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gates, "time_limit", 150)  # the walkers need about 175 steps
    made = make_gates_dataset(Gates(), 1_000)
    assert (made.lengths <= 150).all()
    assert made.timeouts.sum() == (~made.ends_in_terminal).sum() > 0


def test_the_seed_determines_every_byte() -> None:
    def make(seed: int, n_steps: int = 1_000) -> Dataset:
        return make_dataset("maze2d-gates-luck30", n_steps, seed)

    assert make(3).fingerprint == make(3).fingerprint != make(4).fingerprint
    np.testing.assert_array_equal(make(3, 2_000).observations[: make(3).n_steps], make(3).observations)


# --- from the command line to the score ---


def test_the_file_plays_the_task_that_it_was_made_in(tmp_path: Path) -> None:
    code, out, error = drop(
        *("data", "make", "maze2d-gates", "--luck", "0.3", "--junctions", "2", "--cap", "0", "--steps", "600"),
        *("--out", tmp_path / "renamed.hdf5"),
    )
    assert (code, error) == (0, "")
    assert "600" not in out  # whole episodes
    dataset, gates = load_dataset(tmp_path / "renamed.hdf5"), Gates(0.3, 2, 0)
    described = describe(dataset)
    assert described.env == "droprl/maze2d-gates-luck30-junctions2-v0"
    assert (described.time_limit, described.score_range) == (gates.time_limit, gates.score_range)
    assert dataset.fingerprint == make_gates_dataset(gates, 600).fingerprint
    code, out, _ = drop("data", "info", tmp_path / "renamed.hdf5")
    assert (code, "droprl/maze2d-gates-luck30-junctions2-v0" in out, "100 at 2.0" in out) == (0, True, True)
    run = fit(dataset, tiny("bc"), out=tmp_path / "run", seeds=1, steps=2, progress=False)
    played = evaluate(run, episodes=2, progress=False)
    assert played.env == described.env
    assert all(length <= gates.time_limit for length in played.results[0].lengths)
    env: Any = make_env(played.env).unwrapped
    assert env.gates.prize == gates.prize


def test_options_of_the_gates_are_refused_elsewhere(tmp_path: Path) -> None:
    code, _, error = drop("data", "make", "maze2d-umaze", "--luck", "0.3", "--out", tmp_path / "x.hdf5")
    assert code == 2
    assert "maze2d-umaze: has no luck" in error


def test_a_suite_makes_its_gates_itself() -> None:
    assert task_source("maze2d-gates-luck60", None) is None
    assert "where its file is" in refusal(task_source, "maze2d-gates-lucky", None)


def test_a_suite_finds_the_data_by_the_tasks_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("droprl.bench.task_data.MAZE_STEPS", 400)
    found = find_task_data("maze2d-gates-luck60", None)
    assert (found.name, found.env) == ("maze2d-gates-luck60", "droprl/maze2d-gates-luck60-v0")
    assert found.score_range == Gates(0.6).score_range
    assert gymnasium.spec(str(make_env(str(found.env)).spec.id)).max_episode_steps == Gates().time_limit  # type: ignore[union-attr]

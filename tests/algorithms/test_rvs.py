"""RvS-R: the outcome of a step by hand, its loss in NumPy, and a policy that does what it is asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.builders import Layout, make_dataset
from helpers.losses import SPEC, action_distribution, drawn_like, make_batch
from helpers.training import refusal, tiny
from scipy import stats

from droprl import load_policy
from droprl.algorithms.bc import BCState
from droprl.algorithms.protocol import Clock
from droprl.algorithms.rvs import RvS
from droprl.data import Dataset, from_arrays
from droprl.data.returns import average_returns_to_go
from droprl.train import Run, fit

MIXED: Layout = [(3, "terminal"), (2, "timeout"), (1, "cut")]
REWARDS = [1, 2, 4, 8, 16, 32]
OUTCOMES = [7 / 4, 6 / 3, 4 / 2, 24 / 2, 16 / 1, 32 / 1]  # with a clock of four steps
FOUR: Any = replace(RvS.small(), horizon=4)
RESOLVED = RvS(width=8, horizon=10, target_return=30.0, outcome_mean=1.0, outcome_std=4.0)
KEY = jax.random.key(0)


@pytest.fixture
def _double_precision() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


in_double_precision = pytest.mark.usefixtures("_double_precision")


def random_state(rvs: RvS) -> BCState:
    return drawn_like(lambda: rvs.init(KEY, SPEC, Clock.at(0, 1)), seed=1)


# --- outcomes ---


def test_average_returns_to_go_by_hand() -> None:
    """Behind a terminal the clock runs on and nothing is earned; a timeout and the file's end hide what follows."""
    assert average_returns_to_go(make_dataset(MIXED, rewards=REWARDS), 4).tolist() == OUTCOMES
    # An episode on the whole clock has the same average however it ended.
    for ending in ("terminal", "timeout"):
        whole = make_dataset([(3, ending)], rewards=[1, 2, 4])
        assert average_returns_to_go(whole, 3).tolist() == [7 / 3, 6 / 2, 4]
    # A clock that is too short never divides by fewer steps than were taken.
    assert average_returns_to_go(make_dataset(MIXED, rewards=REWARDS), 1)[:3].tolist() == [7 / 3, 6 / 2, 4]


@pytest.mark.parametrize("episode", [0, 1, 2])
def test_outcomes_do_not_cross_episodes(episode: int) -> None:
    whose = np.repeat([0, 1, 2], [3, 2, 1])
    changed = np.where(whose == episode, 1000.0, REWARDS)
    found = average_returns_to_go(make_dataset(MIXED, rewards=changed.tolist()), 4)
    assert (found != OUTCOMES).tolist() == (whose == episode).tolist()


def test_what_is_left_open_comes_from_the_data() -> None:
    dataset = make_dataset(MIXED, rewards=REWARDS)
    found = RvS().resolve(dataset)
    outcomes = [7 / 3, 6 / 2, 4 / 1, 24 / 2, 16, 32]  # the longest trajectory has three steps
    assert (found.horizon, found.target_return) == (3, 32.0)
    assert found.outcome_mean == pytest.approx(np.mean(outcomes))
    assert found.outcome_std == pytest.approx(np.std(outcomes))
    assert found.resolve(make_dataset([(9, "timeout")])) == found  # resolved is resolved
    by_hand = RvS(target_return=-5.0, horizon=4, outcome_mean=0.0, outcome_std=1.0)
    assert by_hand.resolve(dataset) == by_hand


def test_outcomes_that_are_all_alike_are_only_shifted() -> None:
    alike = RvS().resolve(make_dataset([(3, "timeout"), (3, "timeout")], rewards=[2.0] * 6))
    assert alike.outcome_std == 1.0
    np.testing.assert_array_equal(alike.target(), [0.0])


def test_the_policy_is_trained_on_normalised_outcomes_and_probed_on_the_same() -> None:
    dataset = make_dataset(MIXED, rewards=REWARDS)
    rvs = replace(FOUR, normalize_observations=False).resolve(dataset)
    prepared = rvs.prepare(dataset)
    normalised = (np.array(OUTCOMES) - np.mean(OUTCOMES)) / np.std(OUTCOMES)
    np.testing.assert_allclose(prepared.transitions.rows.targets.reward, normalised, rtol=1e-6)
    row_of = {place: row for row, place in enumerate([(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0)])}
    for batch in (prepared.transitions.sample(KEY, 64), prepared.probe.batch):
        rows = [row_of[(int(episode), int(step))] for episode, step in np.asarray(batch.observation)]
        assert len(set(rows)) == 6
        np.testing.assert_allclose(batch.reward, normalised[rows], rtol=1e-6)
    assert prepared.sub_tasks is None


# --- the loss ---


@in_double_precision
@pytest.mark.parametrize("changes", [{}, {"head": "deterministic"}, {"conditioning": "bilinear"}])
def test_the_loss_and_its_gradient(changes: dict[str, Any]) -> None:
    """−log π(a|s, ω) per action dimension without ½ log 2π, against NumPy, and its finite differences."""
    rvs, batch = replace(RESOLVED, **changes), make_batch()
    policy = random_state(rvs).behavior_policy

    def by_hand(policy: Any) -> float:
        losses = []
        for s, a, outcome in zip(batch.observation, batch.action, batch.reward, strict=True):
            mean, std = action_distribution(policy, np.asarray(s), np.asarray([outcome]))
            losses.append(np.mean(-stats.norm.logpdf(np.asarray(a), mean, std) - 0.5 * np.log(2 * np.pi)))
        return float(np.mean(losses))

    found, gradient = jax.jit(jax.value_and_grad(rvs.loss))(policy, batch)
    assert float(found) == pytest.approx(by_hand(policy), rel=1e-9)
    rng, leaves = np.random.default_rng(0), jax.tree.leaves(policy)
    direction = [rng.normal(size=leaf.shape) for leaf in leaves]
    moved = [
        jax.tree.unflatten(jax.tree.structure(policy), [x + h * d for x, d in zip(leaves, direction, strict=True)])
        for h in (1e-6, -1e-6)
    ]
    slope = (by_hand(moved[0]) - by_hand(moved[1])) / 2e-6
    expected = sum(float(jnp.sum(g * d)) for g, d in zip(jax.tree.leaves(gradient), direction, strict=True))
    assert slope == pytest.approx(expected, rel=1e-5)


# --- the target ---


def test_the_target_is_the_outcome_of_a_whole_episode_normalised() -> None:
    """30 over ten steps is an outcome of 3, and (3 − 1) / 4 to the policy, at every state."""
    np.testing.assert_allclose(RESOLVED.target(), [0.5])
    np.testing.assert_array_equal(RESOLVED.policy(random_state(RESOLVED)).z, RESOLVED.target())


def test_nothing_is_guessed_where_the_data_was_not_asked() -> None:
    dataset = make_dataset(MIXED, rewards=REWARDS)
    for action in (lambda: RvS().prepare(dataset), lambda: RvS().policy(random_state(RESOLVED))):
        assert refusal(action).endswith("call resolve(dataset) first")


LENGTH, EPISODES = 5, 80
WORST, BEST = -0.75 * LENGTH, 0.75 * LENGTH


def graded_dataset() -> Dataset:
    """Episodes of every quality q: the action that was best at s, sign(s), taken with the strength q, which it pays."""
    rng = np.random.default_rng(0)
    quality = np.repeat(np.linspace(-0.75, 0.75, EPISODES), LENGTH)
    side = rng.choice([-1.0, 1.0], LENGTH * EPISODES)
    timeouts = np.zeros(LENGTH * EPISODES, bool)
    timeouts[LENGTH - 1 :: LENGTH] = True
    return from_arrays(
        observations=np.stack([side * rng.uniform(0.5, 1.5, len(side)), rng.normal(size=len(side))], axis=1),
        actions=(quality * side)[:, None],
        rewards=quality,
        terminals=np.zeros_like(timeouts),
        timeouts=timeouts,
        action_low=[-1.0],
        action_high=[1.0],
        name="graded",
    )


GRADED: Any = tiny("rvs", width=32, learning_rate=3e-3, batch_size=64)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("rvs") / "run"
    return fit(graded_dataset(), GRADED, out=out, steps=1500, log_every=1500, checkpoint_every=1500, progress=False)


def earned(rvs: RvS, state: BCState) -> float:
    """What an episode of the graded task pays this policy, on average: its action towards the right side, each step."""
    rng = np.random.default_rng(1)
    dataset = graded_dataset()
    side = rng.choice([-1.0, 1.0], 200)
    observations = np.stack([side * rng.uniform(0.5, 1.5, 200), rng.normal(size=200)], axis=1)
    policy, scaling = rvs.policy(state), rvs.prepare(dataset).scaling
    actions = policy.act((), jnp.asarray(scaling.observations_in(observations.astype(np.float32))), KEY)[1]
    return LENGTH * float(np.mean(side * np.asarray(actions)[:, 0]))


def test_the_policy_earns_about_what_it_is_asked_for(run: Run) -> None:
    rvs: Any = run.config.algorithm
    state = run.state(0)
    assert rvs.target_return == pytest.approx(BEST)
    targets = (WORST, 0.5 * WORST, 0.0, 0.5 * BEST, BEST)
    earnings = [earned(replace(rvs, target_return=target), state) for target in targets]
    np.testing.assert_allclose(earnings, targets, atol=0.15 * BEST)
    assert earnings == sorted(earnings)


def test_the_target_travels_with_runs_and_saved_policies(run: Run, tmp_path: Path) -> None:
    rvs: Any = run.config.algorithm
    saved = load_policy(run.path).save(tmp_path / "policy")
    written = [
        json.loads((run.path / "config.json").read_text())["run"],
        json.loads((saved / "policy.json").read_text()),
    ]
    for content in written:
        assert content["algorithm"]["target_return"] == pytest.approx(BEST)
    loaded: Any = load_policy(saved)
    np.testing.assert_array_equal(loaded.policy.z, rvs.target())


# --- is it working? ---


def test_the_diagnosis_of_a_policy_that_reacts(run: Run) -> None:
    found = {name: value[0] for name, value in run.metrics()[-1].items() if name != "step"}
    # From about q = −0.6 to 0.75 at a spread of the actions of 0.43.
    assert found["target_reaction"] == pytest.approx((0.75 + 0.6) / 0.43, rel=0.15)
    assert found["target_share"] == pytest.approx(1 / EPISODES, abs=0.01)
    assert found["target_share"] > 0
    assert found["probe_clone_loss_permuted"] > found["probe_clone_loss"] + 1
    assert [check.healthy for check in GRADED.checks(found)] == [True, True]


def test_the_diagnosis_of_a_policy_that_does_not() -> None:
    """Without weights from ω to the decoder nothing can react; and a target beyond all data was seen nowhere."""
    dataset = graded_dataset()
    rvs = replace(GRADED, target_return=2 * BEST).resolve(dataset)
    prepared = rvs.prepare(dataset)
    state = jax.jit(lambda: rvs.init(KEY, prepared.spec, Clock.at(0, 1)))()
    deaf = eqx.tree_at(
        lambda p: p.action_decoder.layers[0].weight, state.averaged, replace_fn=lambda w: w.at[:, 0].set(0)
    )
    found = jax.jit(rvs.diagnose)(state._replace(averaged=deaf), prepared.probe)
    assert float(found["target_reaction"]) == 0.0
    assert float(found["target_share"]) == 0.0
    assert float(found["probe_clone_loss"]) == pytest.approx(float(found["probe_clone_loss_permuted"]))
    said = [check.meaning.split(":")[0] for check in rvs.checks({k: float(v) for k, v in found.items()})]
    assert said == ["ignored target", "target out of reach"]
    assert rvs.checks({}) == []


# --- settings ---


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("target_return", float("nan")),
        ("target_return", "high"),
        ("outcome_mean", float("inf")),
        ("outcome_std", 0.0),
        ("outcome_std", float("inf")),
        ("horizon", 0),
        ("width", 0),
        ("batch_size", 0),
        ("learning_rate", -1.0),
        ("average_rate", 0.0),
    ],
)
def test_a_senseless_setting_is_refused_by_name(name: str, value: Any) -> None:
    settings: dict[str, Any] = {name: value}
    assert refusal(lambda: RvS(**settings)).startswith(f"{name} is {value!r}: it must be ")

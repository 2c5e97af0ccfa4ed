"""Onestep: its losses in NumPy, which network learns from which, and a bandit with a known improved policy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.losses import SPEC, action_distribution, drawn_like, make_batch, scores_of_each
from helpers.training import refusal, tiny
from scipy import stats

from droprl.algorithms.onestep import Onestep, OnestepNetworks, OnestepState, kl_of_policies
from droprl.algorithms.protocol import Clock
from droprl.data import Dataset, from_arrays
from droprl.data.transitions import Probe
from droprl.train.loop import Loop

PLAIN = Onestep(width=8, depth=2, batch_size=5, kl_weight=0.3, temperature=0.5, value_samples=3, weight_max=1.2)
CONFIGS = {
    "reverse-kl": replace(PLAIN, score_models=2, score_layer_norm=False),
    "exponential": replace(PLAIN, improvement="exponential"),
}
KEY, NOTHING = jax.random.key(7), np.zeros(0)
PARTS = ("behavior_policy", "score_model", "improved_policy")
every_config = pytest.mark.parametrize("onestep", CONFIGS.values(), ids=CONFIGS)
both = pytest.mark.parametrize("improvement", ["reverse-kl", "exponential"])
in_double_precision = pytest.mark.usefixtures("_double_precision")


@pytest.fixture
def _double_precision() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


@cache
def make_state(onestep: Onestep) -> OnestepState:
    """Random weights, also for the averages."""
    return drawn_like(lambda: onestep.init(KEY, SPEC, Clock.at(0, 1)), seed=1)


@cache
def compiled(onestep: Onestep) -> Any:
    gradient = jax.jit(jax.value_and_grad(onestep.loss, has_aux=True))
    return lambda networks, averaged: gradient(networks, averaged, make_batch(), KEY)


# --- the paper in NumPy ---


def divergence(policy: Any, beta: Any, s: np.ndarray) -> float:
    """KL(π ‖ β) = Σ log σ_β / σ_π + (σ_π² + (μ_π − μ_β)²) / 2 σ_β² − ½."""
    (mean, std), (base, base_std) = (action_distribution(p, s, NOTHING) for p in (policy, beta))
    return float(np.sum(np.log(base_std / std) + (std**2 + (mean - base) ** 2) / (2 * base_std**2) - 0.5))


def sampled(policy: Any, s: np.ndarray, key: jax.Array) -> np.ndarray:
    mean, std = action_distribution(policy, s, NOTHING)
    return np.clip(mean + std * np.asarray(jax.random.normal(key, mean.shape)), -1, 1)


def cloning(policy: Any, s: np.ndarray, a: np.ndarray) -> float:
    mean, std = action_distribution(policy, s, NOTHING)
    return float(np.mean(-stats.norm.logpdf(a, mean, std) - 0.5 * np.log(2 * np.pi)))


def reference(onestep: Onestep, networks: OnestepNetworks, fixed: OnestepNetworks) -> dict[str, float]:
    """The means over `make_batch`, and the weights of exponential. `fixed` are the averages."""
    batch, keys = make_batch(), jax.random.split(KEY, 5)
    clone, errors, improvement, weights = [], [], [], []
    for i in range(5):
        s, a, _, reward, discount, next_s, next_a, known, _ = (np.asarray(leaf)[i] for leaf in batch[:9])
        clone.append(cloning(networks.behavior_policy, s, a))
        if not known:  # behind a timeout: the action of the behaviour, never that of the improved policy
            next_a = action_distribution(fixed.behavior_policy, next_s, NOTHING)[0]
        target = reward + discount * scores_of_each(fixed.score_model, next_s, next_a, NOTHING)
        errors.append(target - scores_of_each(networks.score_model, s, a, NOTHING))

        def q(s: np.ndarray, a: np.ndarray) -> float:
            return float(scores_of_each(fixed.score_model, s, a, NOTHING).min())

        pi = networks.improved_policy
        if onestep.improvement == "reverse-kl":
            kl = divergence(pi, fixed.behavior_policy, s)
            improvement.append(onestep.kl_weight * kl - q(s, sampled(pi, s, keys[i])))
            continue
        value = np.mean([q(s, sampled(fixed.behavior_policy, s, k)) for k in jax.random.split(keys[i], 3)])
        weights.append(min(np.exp((q(s, a) - value) / onestep.temperature), onestep.weight_max))
        improvement.append(weights[-1] * cloning(pi, s, a))
    td = np.mean(np.sum(np.square(errors), axis=1)[np.asarray(batch.has_target) == 1])
    found = {"clone_loss": np.mean(clone), "td_loss": td, "objective": -np.mean(improvement)}
    return {
        **{k: float(v) for k, v in found.items()},
        "capped": float(np.sum(np.equal(weights, onestep.weight_max)) / 5),
    }


def total(found: dict[str, float]) -> float:
    return found["clone_loss"] + found["td_loss"] - found["objective"]


@in_double_precision
@every_config
def test_the_losses_and_their_gradients(onestep: Onestep) -> None:
    """Against the paper, and each part against finite differences with fixed averages."""
    state = make_state(onestep)
    (loss, metrics), gradient = compiled(onestep)(state.networks, state.averaged)
    expected = reference(onestep, state.networks, state.averaged)
    for name in ("clone_loss", "td_loss", "objective"):
        assert float(metrics[name]) == pytest.approx(expected[name], rel=1e-6), name
    assert float(loss) == pytest.approx(total(expected), rel=1e-6)
    if onestep.improvement == "exponential":
        assert 0 < expected["capped"] < 1  # some weights are above the cap, some below
    rng = np.random.default_rng(0)
    for part in PARTS:
        own = getattr(state.networks, part)
        direction = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), own)
        moved = [
            reference(onestep, replace(state.networks, **{part: step(own, direction, h)}), state.averaged)
            for h in (1e-5, -1e-5)
        ]
        along = sum(
            float(np.sum(np.asarray(g) * d))
            for g, d in zip(jax.tree.leaves(getattr(gradient, part)), jax.tree.leaves(direction), strict=True)
        )
        assert (total(moved[0]) - total(moved[1])) / 2e-5 == pytest.approx(along, rel=1e-4, abs=1e-6), part


def step(tree: Any, direction: Any, size: float) -> Any:
    return jax.tree.map(lambda leaf, d: leaf + size * d, tree, direction)


def test_the_divergence_equals_its_definition() -> None:
    """The definition is the integral of p · log p / q. The divergence of a policy from itself is 0."""
    pi, beta, s = make_state(PLAIN).networks.improved_policy, make_state(PLAIN).networks.behavior_policy, np.ones(3)
    integrals = []
    for mean, std, base, base_std in zip(
        *action_distribution(pi, s, NOTHING), *action_distribution(beta, s, NOTHING), strict=True
    ):
        p, q = stats.norm(mean, std), stats.norm(base, base_std)
        a = np.linspace(mean - 9 * std, mean + 9 * std, 20001)
        integrals.append(np.trapezoid(p.pdf(a) * (p.logpdf(a) - q.logpdf(a)), a))
    assert sum(integrals) > 0.1
    both_ways = jax.jit(lambda: (kl_of_policies(pi, beta, jnp.ones(3)), kl_of_policies(pi, pi, jnp.ones(3))))()
    np.testing.assert_allclose(both_ways, [sum(integrals), 0.0], rtol=1e-4, atol=1e-6)


# --- which network learns from which ---


def leaves(tree: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def same(a: Any, b: Any) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(leaves(a), leaves(b), strict=True))


@in_double_precision
@every_config
def test_no_gradient_of_the_behaviour_or_its_q_depends_on_the_improved_policy(onestep: Onestep) -> None:
    state = make_state(onestep)
    other = drawn_like(lambda: onestep.init(KEY, SPEC, Clock.at(0, 1)), seed=2).networks.improved_policy
    one, two = (
        compiled(onestep)(replace(state.networks, improved_policy=pi), replace(state.averaged, improved_policy=pi))[1]
        for pi in (state.networks.improved_policy, other)
    )
    for part in PARTS:
        assert same(getattr(one, part), getattr(two, part)) is (part != "improved_policy"), part
        assert max(np.abs(leaf).max() for leaf in leaves(getattr(one, part))) > 1e-3


def test_the_average_of_the_improved_policy_acts() -> None:
    state = make_state(PLAIN)
    policy = PLAIN.policy(state)
    assert same(policy.behavior_policy, state.averaged.improved_policy)
    assert policy.z.shape == (0,)
    assert not same(state.averaged.improved_policy, state.averaged.behavior_policy)
    assert not same(state.averaged.improved_policy, state.networks.improved_policy)


# --- a bandit ---

SPREAD = 0.3  # standard deviation of the logged actions


def usual(s: np.ndarray) -> np.ndarray:
    """The mean of the logged actions at s."""
    return 0.2 * s[:, 0]


def best(s: np.ndarray) -> np.ndarray:
    return 0.2 * s[:, 0] + 0.4 * np.sign(s[:, 1])


def paid(s: np.ndarray, a: np.ndarray) -> np.ndarray:
    return -((a - best(s)) ** 2)


@cache
def bandit() -> Dataset:
    """Every step is an episode, so its value is its reward."""
    rng = np.random.default_rng(0)
    s = rng.uniform(0.3, 1.0, (3000, 2)) * rng.choice([-1.0, 1.0], (3000, 2))
    a = np.clip(usual(s) + SPREAD * rng.normal(size=3000), -1, 1)
    ends = np.ones(3000, bool)
    return from_arrays(s, a[:, None], paid(s, a), ends, action_low=[-1.0], action_high=[1.0], name="bandit")


BANDIT: Any = tiny(
    "onestep", width=48, batch_size=64, learning_rate=3e-3, value_samples=4,
    normalize_observations=False, score_layer_norm=False,
)  # fmt: skip


@cache
def trained(improvement: Any) -> tuple[Onestep, OnestepState, dict[str, float]]:
    """With α = τ chosen so that the precision of β, 1 / σ², equals that of Q / α, which is 2 / α."""
    strength = 2 * SPREAD**2 / float(np.std(bandit().rewards))
    algorithm = replace(BANDIT, improvement=improvement, kl_weight=strength, temperature=strength)
    loop = Loop(algorithm, algorithm.prepare(bandit()), [0], 1000)
    began = loop.init()
    assert same(began.networks.improved_policy, began.networks.behavior_policy)
    states, _ = loop.run(began, 0, 1000)
    found = {name: float(value[0]) for name, value in loop.diagnose(states).items()}
    return algorithm, jax.tree.map(lambda leaf: leaf[0], states), found


@both
def test_the_improved_policy_of_a_bandit_is_the_known_one(improvement: str) -> None:
    """Both improvements lead to β · exp(Q / α). With a Gaussian β and a quadratic Q this is a Gaussian, here half-way
    between the usual action and the best one. It is better both by Q and in the task."""
    algorithm, state, found = trained(improvement)
    policy, s = algorithm.policy(state), bandit().observations[:300]
    actions = np.asarray(jax.jit(lambda: policy.act((), jnp.asarray(s), KEY)[1])())[:, 0]
    known = 0.5 * (usual(s) + best(s))
    assert np.abs(actions - known).mean() < 0.06  # it is 0.2 from the usual action and from the best
    assert paid(s, actions).mean() > 0.5 * paid(s, usual(s)).mean()
    assert found["score_r2"] > 0.9
    assert found["improvement"] > 0
    assert 0.1 < found["policy_kl"] < 1.0
    assert all(check.healthy for check in algorithm.checks(found))
    assert ("clipped_share" in found) is (improvement == "exponential")


def test_the_behaviour_and_its_q_do_not_depend_on_the_improvement() -> None:
    one, two = (trained(improvement)[1].averaged for improvement in ("reverse-kl", "exponential"))
    for part in PARTS:
        apart = max(
            float(np.abs(a - b).max())
            for a, b in zip(leaves(getattr(one, part)), leaves(getattr(two, part)), strict=True)
        )
        assert (apart < 1e-3) is (part != "improved_policy"), part


# --- is it working? ---

HEALTHY = {"score_r2": 0.5, "improvement": 0.1, "policy_kl": 0.4, "clipped_share": 0.01}


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"score_r2": 0.01}, "uninformed Q"),
        ({"score_r2": -1.5}, "uninformed Q"),
        ({"improvement": -0.1}, "no improvement"),
        ({"policy_kl": 30.0}, "left the data"),
        ({"clipped_share": 0.6}, "clipped weights"),
    ],
)
def test_each_silent_failure_is_named_and_nothing_else(changes: dict[str, float], kind: str) -> None:
    assert all(check.healthy for check in PLAIN.checks(HEALTHY))
    said = [check.meaning.split(":")[0] for check in PLAIN.checks(HEALTHY | changes) if not check.healthy]
    assert said == [kind]


def test_without_measures_nothing_is_judged() -> None:
    assert PLAIN.checks({}) == []
    assert len(PLAIN.checks({k: v for k, v in HEALTHY.items() if k != "clipped_share"})) == 3


def test_with_almost_no_temperature_a_weight_is_the_cap_or_zero() -> None:
    """It is capped before it can overflow. The diagnosis reports the share of weights at the cap."""
    cold = replace(CONFIGS["exponential"], temperature=1e-30)
    state, batch = make_state(cold), make_batch()
    probe = Probe(batch, batch.observation, jnp.zeros(1))

    def weigh() -> Any:
        keys, networks = jax.random.split(jax.random.key(0), 5), state.averaged
        log_weight = jax.vmap(cold.log_weight, (None, None, 0, 0))
        log_weights = log_weight(networks.behavior_policy, networks.score_model, batch, keys)
        return jnp.exp(log_weights), cold.diagnose(state, probe)["clipped_share"]

    weights, share = jax.jit(weigh)()
    at_cap = np.asarray(weights) > 1
    np.testing.assert_allclose(weights, np.where(at_cap, 1.2, 0.0), rtol=1e-6)
    assert 0 < float(share) < 1
    assert float(share) == pytest.approx(at_cap.mean())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kl_weight", -0.1),
        ("temperature", 0.0),
        ("temperature", float("nan")),
        ("weight_max", 0.0),
        ("value_samples", 0),
        ("score_models", 0),
        ("depth", 0),
        ("td_steps", 0),
        ("discount", 1.5),
        ("target_rate", 0.0),
        ("batch_size", 0),
        ("learning_rate", 0.0),
    ],
)
def test_a_senseless_setting_is_refused_by_name(name: str, value: Any) -> None:
    settings: dict[str, Any] = {name: value}
    assert refusal(lambda: Onestep(**settings)).startswith(f"{name} is {value!r}: it must be ")

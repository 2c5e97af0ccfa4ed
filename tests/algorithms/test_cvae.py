"""DROP with a CVAE: equations 10 and 11 in NumPy, what each loss moves, and which encoder tells steps apart."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.losses import (
    SPEC,
    action_distribution,
    drawn_like,
    make_batch,
    mlp,
    scores_of_each,
)
from helpers.training import tiny
from scipy import integrate, stats

from droprl.algorithms.cvae import CVAENetworks, CVAEState, DropCVAE, kl_to_prior
from droprl.algorithms.drop import DROP
from droprl.algorithms.protocol import Clock
from droprl.data import Dataset, from_arrays
from droprl.data.transitions import Batch
from droprl.train.loop import Loop

SIZES: dict[str, Any] = {"embedding_size": 2, "width": 8, "depths": (2, 1, 1, 1, 2), "batch_size": 5}
PLAIN = DropCVAE(**SIZES, discount=0.9, threshold=0.1, kl_weight=0.3, n_latents=3)
CONFIGS = {
    "default": PLAIN,
    "gaussian": replace(PLAIN, head="gaussian", score_layer_norm=False),
    "state": replace(PLAIN, encoder="state", conditioning="concatenate"),
}
KEY, MULTIPLIER = jax.random.key(7), 0.7
PARTS = ("encoder", "behavior_policy", "score_model")

every_config = pytest.mark.parametrize("cvae", CONFIGS.values(), ids=CONFIGS)
in_double_precision = pytest.mark.usefixtures("_double_precision")


@pytest.fixture
def _double_precision() -> Any:
    with jax.enable_x64(True):
        yield


@cache
def make_state(cvae: DropCVAE) -> CVAEState:
    """Random weights, also for the averaged networks, so that f̄ differs from f."""
    return drawn_like(lambda: cvae.init(jax.random.key(0), SPEC, Clock.at(0, 1)), seed=1)


def draws() -> tuple[np.ndarray, np.ndarray]:
    """For the batch of five: the noise of the latents, and the place of each unseen embedding in its box."""
    noise_key, unseen_key = jax.random.split(KEY)
    return np.asarray(jax.random.normal(noise_key, (5, 2))), np.asarray(jax.random.uniform(unseen_key, (5, 2)))


# --- the KL term ---


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (1.3, 0.4), (-0.7, 2.0), (3.0, 0.05)])
def test_the_kl_term_is_the_integral_that_defines_it(mean: float, std: float) -> None:
    q, p = stats.norm(mean, std), stats.norm(0.0, 1.0)
    integral, _ = integrate.quad(
        lambda z: q.pdf(z) * (q.logpdf(z) - p.logpdf(z)), mean - 12 * std, mean + 12 * std, points=[mean]
    )
    assert float(kl_to_prior(jnp.array([mean]), jnp.log(jnp.array([std])))) == pytest.approx(integral, abs=1e-4)


def test_the_kl_term_adds_up_over_independent_dimensions() -> None:
    means, log_stds = jnp.array([1.3, -0.7, 0.0]), jnp.log(jnp.array([0.4, 2.0, 1.0]))
    alone = [float(kl_to_prior(means[i : i + 1], log_stds[i : i + 1])) for i in range(3)]
    assert float(kl_to_prior(means, log_stds)) == pytest.approx(sum(alone), rel=1e-6)


# --- equations 10 and 11, in NumPy ---


def encoded(networks: CVAENetworks, s: np.ndarray, a: np.ndarray, sees_action: bool) -> tuple[np.ndarray, np.ndarray]:
    """φ's mean and standard deviation."""
    out = mlp(networks.encoder.network, np.concatenate([s, a]) if sees_action else s)
    return out[:2], np.exp(np.clip(out[2:], -5, 2))


def reference(cvae: DropCVAE, networks: CVAENetworks, target: Any, batch: Batch) -> dict[str, float]:
    beta, f, (noise, place) = networks.behavior_policy, networks.score_model, draws()
    steps = [[np.asarray(leaf)[i] for leaf in batch[:9]] for i in range(5)]
    latents, clone, divergence, errors, gaps = [], [], [], [], []
    for (s, a, *_), epsilon in zip(steps, noise, strict=True):
        mean, std = encoded(networks, s, a, cvae.encoder == "state-action")
        latents.append(mean + std * epsilon)
        action_mean, action_std = action_distribution(beta, s, latents[-1])
        clone.append(np.mean(-stats.norm.logpdf(a, action_mean, action_std) - 0.5 * np.log(2 * np.pi)))
        divergence.append(sum(0.5 * (m**2 + d**2 - 1) - np.log(d) for m, d in zip(mean, std, strict=True)) / 2)
    low, high = np.min(latents, axis=0), np.max(latents, axis=0)
    for (s, a, _, reward, discount, next_s, next_a, known, _), z, at in zip(steps, latents, place, strict=True):
        # Both sides have the z of (s, a), not that of (s', a').
        next_a = next_a if known else action_distribution(beta, next_s, z)[0]
        errors.append(reward + discount * scores_of_each(target, next_s, next_a, z) - scores_of_each(f, s, a, z))
        both = (low + at * (high - low), z)
        unseen, own = (scores_of_each(f, s, action_distribution(beta, s, z)[0], z).min() for z in both)
        gaps.append(unseen - own)
    td = np.mean(np.sum(np.square(errors), axis=1)[np.asarray(batch.has_target) == 1])
    found = {"clone_loss": np.mean(clone), "kl": np.mean(divergence), "td_loss": td, "gap": np.mean(gaps)}
    total = found["clone_loss"] + cvae.kl_weight * found["kl"] + td + MULTIPLIER * (found["gap"] - cvae.threshold)
    return {name: float(value) for name, value in found.items()} | {"total": float(total)}


OBJECTIVES = ("clone_loss", "kl", "td_loss", "gap", "total")


@cache
def compiled(cvae: DropCVAE) -> Any:
    def objectives(networks: CVAENetworks, target: Any, batch: Batch) -> tuple[jax.Array, jax.Array]:
        total, metrics = cvae.loss(networks, target, jnp.asarray(MULTIPLIER), batch, KEY)
        values = jnp.stack([{**metrics, "total": total}[name] for name in OBJECTIVES])
        return values, values

    return jax.jit(jax.jacrev(objectives, (0, 1), has_aux=True))


@in_double_precision
@every_config
def test_every_loss_is_that_of_the_paper(cvae: DropCVAE) -> None:
    state, batch = make_state(cvae), make_batch()
    _, values = compiled(cvae)(state.networks, state.averaged.score_model, batch)
    expected = reference(cvae, state.networks, state.averaged.score_model, batch)
    for name, value in zip(OBJECTIVES, values, strict=True):
        assert float(value) == pytest.approx(expected[name], rel=1e-6), name


@in_double_precision
@every_config
def test_what_each_loss_moves(cvae: DropCVAE) -> None:
    """Equation 10 moves φ and β. Equation 11 moves only f. Nothing moves the target."""
    state = make_state(cvae)
    (gradients, target_gradients), _ = compiled(cvae)(state.networks, state.averaged.score_model, make_batch())
    moved = {
        name: {p for p in PARTS if any(np.any(leaf[i] != 0) for leaf in jax.tree.leaves(getattr(gradients, p)))}
        for i, name in enumerate(OBJECTIVES)
    }
    assert moved["clone_loss"] == {"encoder", "behavior_policy"}
    assert moved["kl"] == {"encoder"}
    assert moved["td_loss"] == moved["gap"] == {"score_model"}
    assert moved["total"] == set(PARTS)
    assert all(np.all(leaf == 0) for leaf in jax.tree.leaves(target_gradients))


@in_double_precision
def test_the_encoders_gradient_is_a_finite_difference() -> None:
    """Through the sampled z: cloning and KL move φ as the reparametrised objective says."""
    state, batch = make_state(PLAIN), make_batch()
    target = state.averaged.score_model
    (gradients, _), _ = compiled(PLAIN)(state.networks, target, batch)
    rng = np.random.default_rng(0)
    direction = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), state.networks.encoder)
    ends = []
    for h in (1e-6, -1e-6):
        encoder = jax.tree.map(lambda leaf, d, h=h: np.asarray(leaf) + h * d, state.networks.encoder, direction)
        losses = reference(PLAIN, replace(state.networks, encoder=encoder), target, batch)
        ends.append(losses["clone_loss"] + PLAIN.kl_weight * losses["kl"])
    pairs = zip(jax.tree.leaves(gradients.encoder), jax.tree.leaves(direction), strict=True)
    along = sum(float(np.sum(np.asarray(g)[OBJECTIVES.index("total")] * d)) for g, d in pairs)
    assert along == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-5)


# --- where test time starts ---


@in_double_precision
def test_the_latents_are_those_of_the_latest_steps_by_the_averaged_encoder() -> None:
    """Of five latents three are kept. If eight are kept, five new ones replace the oldest."""
    batch = make_batch()
    for n, kept in ((3, 3), (8, 5)):
        cvae = replace(PLAIN, n_latents=n)
        before = make_state(cvae)
        before = before._replace(optimizer=cvae._optimizer().init(before.networks))

        def updated(cvae: DropCVAE = cvae, before: CVAEState = before) -> tuple[jax.Array, Any]:
            after = cvae.update(before, batch, KEY, Clock.at(0, 1))[0]
            return after.latents, after.averaged.encoder

        latents, encoder = jax.jit(updated)()
        means = [
            encoded(replace(before.averaged, encoder=encoder), np.asarray(s), np.asarray(a), True)[0]
            for s, a in zip(batch.observation, batch.action, strict=True)
        ]
        expected = np.concatenate([np.stack(means)[:kept], np.asarray(before.latents)[: n - kept]])
        np.testing.assert_allclose(latents, expected, rtol=1e-6)
        embeddings = np.asarray(cvae.policy(before._replace(latents=latents)).embeddings)
        np.testing.assert_array_equal(embeddings, np.concatenate([np.zeros((1, 2)), np.asarray(latents)]))


@in_double_precision
def test_the_averages_act() -> None:
    state = make_state(PLAIN)
    acting = PLAIN.policy(state)
    for part in ("behavior_policy", "score_model"):
        pairs = zip(jax.tree.leaves(getattr(acting, part)), jax.tree.leaves(getattr(state.averaged, part)), strict=True)
        assert all(np.array_equal(a, b) for a, b in pairs)


# --- which encoder tells steps apart ---


def two_modes(n_episodes: int = 40, length: int = 10) -> Dataset:
    """At every state half the episodes go left, half right. Right pays if the state is positive, else left pays."""
    rng = np.random.default_rng(0)
    observations = rng.uniform(-1, 1, (n_episodes * length, 1))
    side = np.repeat(np.where(np.arange(n_episodes) % 2, 0.6, -0.6), length)[:, None]
    actions = side + rng.normal(0, 0.05, side.shape)
    terminals = np.zeros(len(side), bool)
    terminals[length - 1 :: length] = True
    rewards = np.sign(observations[:, 0]) * np.sign(side[:, 0])
    return from_arrays(observations, actions, rewards, terminals, name="two-modes")


@cache
def learned(encoder: str) -> tuple[DropCVAE, Any, dict[str, float]]:
    cvae: Any = tiny("drop-cvae", encoder=encoder, embedding_size=2, discount=0.1, width=32, batch_size=128)
    prepared = cvae.prepare(two_modes())
    loop = Loop(cvae, prepared, [0], 600)
    states, _ = loop.run(loop.init(), 0, 600)
    found = {name: float(value[0]) for name, value in loop.diagnose(states).items()}
    return cvae, jax.tree.map(lambda leaf: leaf[0], states), found


def test_a_latent_of_state_and_action_says_which_mode() -> None:
    """A policy that knows no mode has the loss 0.6² / 2 = 0.18; one with the wrong mode has a larger loss."""
    cvae, _, found = learned("state-action")
    assert found["probe_kl"] > 0.5
    assert found["probe_clone_loss"] < 0.02
    assert found["probe_clone_loss_permuted"] > 0.2
    assert all(check.healthy for check in cvae.checks(found))


def test_a_latent_of_the_state_alone_is_empty() -> None:
    cvae, _, found = learned("state")
    assert found["probe_kl"] < 0.02
    assert found["probe_clone_loss"] == pytest.approx(0.18, abs=0.02)
    assert found["probe_clone_loss_permuted"] == pytest.approx(found["probe_clone_loss"], rel=0.02)
    unhealthy = {check.meaning.split(":")[0] for check in cvae.checks(found) if not check.healthy}
    assert {"empty latent", "unused embedding"} <= unhealthy


def paid(encoder: str, rule: Any) -> float:
    """The mean reward of one step by this rule, over many states."""
    cvae, state, _ = learned(encoder)
    policy = replace(cvae, adaptation=replace(cvae.adaptation, rule=rule)).policy(state)
    observations = np.linspace(-1, 1, 41)[:, None] * np.sqrt(3)  # a uniform variable in standard deviations
    observations = observations[np.abs(observations[:, 0]) > 0.2]  # near 0 both modes are right
    start = policy.start(len(observations))
    actions = jax.jit(lambda: policy.act(start, jnp.asarray(observations), KEY)[1])()
    far = np.abs(np.asarray(actions)[:, 0]) > 0.3  # actions between the modes are not in the data
    return float(np.mean(np.sign(observations[:, 0]) * np.sign(np.asarray(actions)[:, 0]) * far))


@pytest.mark.parametrize("rule", ["best-ada", "grad-ada"])
def test_adaptation_finds_the_mode_that_pays(rule: str) -> None:
    assert paid("state-action", rule) > 0.9
    assert paid("state", rule) < 0.3


def test_the_shared_settings_have_drops_defaults() -> None:
    """By default f is learned as in DROP, by one score model, and the rule is not chosen by evidence."""
    ours, theirs = vars(DropCVAE()), vars(DROP())
    shared = set(ours) & set(theirs) - {"embedding_size", "threshold"}  # DROP leaves them to the data
    assert {"td_steps", "target_rate", "constraint", "multiplier_max"} <= shared
    shared -= {"score_models", "adaptation"}
    assert {name: ours[name] for name in shared} == {name: theirs[name] for name in shared}

"""Actors and critics by role, compared with SciPy, numerical integration and matrix products in NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.losses import mlp
from scipy.stats import norm

from droprl.networks.actors import BORDER, DeterministicActor, GaussianActor, LatentDecoder, TanhGaussianActor
from droprl.networks.critics import Critic, Ensemble, Value
from droprl.networks.perceptrons import MLP

KEY, HIDDEN = jax.random.key(0), (5, 4)
S: Any = np.array([0.3, -1.2, 0.7])
A: Any = np.array([0.4, -0.9])


@pytest.fixture(autouse=True)
def _double_precision() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def wide(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), tree)


def test_a_deterministic_actor_is_tanh_of_its_network() -> None:
    actor = wide(DeterministicActor(3, 2, HIDDEN, KEY))
    np.testing.assert_allclose(actor.mode(S), np.tanh(mlp(actor.network, S)), rtol=1e-12)
    np.testing.assert_array_equal(actor.sample(S, KEY), actor.mode(S))


def test_a_gaussian_actor_has_the_density_of_independent_normals() -> None:
    actor = wide(GaussianActor(3, 2, HIDDEN, KEY))
    log_std = np.array([0.3, -0.7])
    actor = _with_log_std(actor, log_std)
    expected = norm.logpdf(A, np.tanh(mlp(actor.network, S)), np.exp(log_std)).sum()
    assert float(actor.log_probability(S, A)) == pytest.approx(expected, rel=1e-12)


def _with_log_std(actor: GaussianActor, log_std: np.ndarray) -> GaussianActor:
    changed: GaussianActor = eqx.tree_at(lambda made: made.log_std, actor, jnp.asarray(log_std))
    return changed


def test_the_deviation_of_a_gaussian_actor_stays_in_its_range() -> None:
    """Without the limit e⁻⁵, the density of actions that are copied exactly would grow without bound."""
    actor = _with_log_std(wide(GaussianActor(3, 2, HIDDEN, KEY)), np.array([-50.0, 50.0]))
    expected = norm.logpdf(A, np.tanh(mlp(actor.network, S)), np.exp([-5.0, 2.0])).sum()
    assert float(actor.log_probability(S, A)) == pytest.approx(expected, rel=1e-12)


def test_gaussian_samples_have_its_mean_and_deviation_and_stay_inside() -> None:
    actor = _with_log_std(wide(GaussianActor(3, 2, HIDDEN, KEY)), np.array([-3.0, 1.0]))
    drawn = np.asarray(jax.vmap(actor.sample, (None, 0))(jnp.asarray(S), jax.random.split(KEY, 20_000)))
    assert np.abs(drawn).max() <= 1.0
    mean = np.tanh(mlp(actor.network, S))
    assert drawn[:, 0].mean() == pytest.approx(mean[0], abs=3 * np.exp(-3) / np.sqrt(20_000))
    assert drawn[:, 0].std() == pytest.approx(np.exp(-3), rel=0.03)


def test_the_density_of_a_tanh_gaussian_integrates_to_one_and_has_its_moments() -> None:
    actor = wide(TanhGaussianActor(3, 1, HIDDEN, KEY))
    grid = np.linspace(-1 + 1e-4, 1 - 1e-4, 40_001)[:, None]
    density = np.exp(np.asarray(jax.vmap(actor.log_probability, (None, 0))(jnp.asarray(S), jnp.asarray(grid))))
    assert np.trapezoid(density, grid[:, 0]) == pytest.approx(1.0, abs=2e-3)
    drawn = np.asarray(jax.vmap(actor.sample, (None, 0))(jnp.asarray(S), jax.random.split(KEY, 50_000)))
    assert drawn.mean() == pytest.approx(np.trapezoid(density * grid[:, 0], grid[:, 0]), abs=0.01)


def test_a_sample_comes_with_its_own_log_probability() -> None:
    actor = wide(TanhGaussianActor(3, 2, HIDDEN, KEY))
    for key in jax.random.split(KEY, 5):
        action, log_probability = actor.sample_with_log_probability(jnp.asarray(S), key)
        assert float(log_probability) == pytest.approx(float(actor.log_probability(S, action)), rel=1e-8)


def test_an_action_at_its_bound_has_a_finite_log_probability_and_gradient() -> None:
    actor = wide(TanhGaussianActor(3, 2, HIDDEN, KEY))
    at_bound = jnp.asarray([1.0, -1.0])
    value, gradient = jax.value_and_grad(lambda a: a.log_probability(jnp.asarray(S), at_bound))(actor)
    inside = actor.log_probability(S, at_bound * (1 - BORDER))
    assert float(value) == pytest.approx(float(inside), rel=1e-9)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_the_decoder_of_a_vae_sees_state_and_latent() -> None:
    decoder, z = wide(LatentDecoder(3, 2, 4, HIDDEN, KEY)), np.array([0.1, -2.0, 0.5, 1.0])
    np.testing.assert_allclose(decoder(S, z), np.tanh(mlp(decoder.network, np.concatenate([S, z]))), rtol=1e-12)


def test_critics_are_their_networks_and_members_have_weights_of_their_own() -> None:
    value = wide(Value(3, HIDDEN, KEY))
    assert float(value(S)) == pytest.approx(mlp(value.network, S)[0], rel=1e-12)
    ensemble = wide(Ensemble(lambda key: Critic(3, 2, HIDDEN, key), 3, KEY))
    found = np.asarray(ensemble(jnp.asarray(S), jnp.asarray(A)))
    alone = [jax.tree.map(lambda leaf, i=i: leaf[i], ensemble.members) for i in range(3)]
    np.testing.assert_allclose(found, [mlp(one.network, np.concatenate([S, A]))[0] for one in alone], rtol=1e-12)
    assert len(set(found.tolist())) == 3


def test_orthogonal_weights_keep_lengths_times_the_root_of_two() -> None:
    network = MLP(4, (6,), 3, KEY, orthogonal=True)
    first, last = (np.asarray(layer.weight) for layer in network.layers)
    np.testing.assert_allclose(first.T @ first, 2 * np.eye(4), atol=1e-6)
    np.testing.assert_allclose(last @ last.T, 2 * np.eye(3), atol=1e-6)
    assert not any(np.any(np.asarray(layer.bias)) for layer in network.layers)

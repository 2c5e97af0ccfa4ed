"""The z-space, how z enters β, and ensembles of score models. `test_losses` checks the networks' values by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from droprl.networks.actors import BehaviorPolicy, Conditioning, PolicyHead
from droprl.networks.critics import ScoreEnsemble, ScoreModel, score_of_behavior
from droprl.networks.embeddings import TaskEmbedding

T = TypeVar("T")
WIDTH, SIZE = 8, 2
rng = np.random.default_rng(0)
S, A, Z = (jnp.asarray(rng.normal(size=(20, size)), jnp.float32) for size in (3, 2, SIZE))


def drawn_like(make: Callable[[], T], seed: int) -> T:
    """The result of `make`, with every weight drawn at random: no weight keeps a special value such as 0 or 1."""
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(make)
    return jax.tree.map(lambda leaf: jnp.asarray(0.5 * rng.normal(size=leaf.shape), leaf.dtype), shapes)


def policy(conditioning: Conditioning, head: PolicyHead = "deterministic") -> BehaviorPolicy:
    return BehaviorPolicy(3, 2, SIZE, WIDTH, (1, 2), head, jax.random.key(0), conditioning)


def distributions(beta: BehaviorPolicy) -> Any:
    return jax.vmap(lambda s, z: beta.distribution(beta.encode(s), z))(S, Z)


# --- conditioning ---


@pytest.mark.parametrize("head", ["deterministic", "gaussian"])
def test_bilinear_without_its_products_is_concatenation(head: PolicyHead) -> None:
    bilinear, concatenated = policy("bilinear", head), policy("concatenate", head)
    first, *rest = bilinear.action_decoder.layers
    assert first.weight.shape == (WIDTH, SIZE + WIDTH + SIZE * WIDTH)

    def with_weights(beta: BehaviorPolicy, weight: jax.Array) -> BehaviorPolicy:
        layers = (eqx.tree_at(lambda layer: layer.weight, first, weight), *rest)
        parts = (bilinear.state_encoder, layers)
        return eqx.tree_at(lambda b: (b.state_encoder, b.action_decoder.layers), beta, parts)

    same = with_weights(concatenated, first.weight[:, : SIZE + WIDTH])
    without = with_weights(bilinear, first.weight.at[:, SIZE + WIDTH :].set(0.0))
    for found, expected in zip(distributions(without), distributions(same), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert np.abs(distributions(bilinear)[0] - distributions(same)[0]).max() > 1e-3


def test_bilinear_gives_every_z_its_own_first_layer() -> None:
    """W(z) e + U z + b with W(z) = W_0 + Σ z_k W_k, by hand."""
    beta = policy("bilinear")
    first = beta.action_decoder.layers[0]
    weight, bias = np.asarray(first.weight), np.asarray(first.bias)
    own, rest = weight[:, SIZE : SIZE + WIDTH], weight[:, SIZE + WIDTH :].reshape(WIDTH, SIZE, WIDTH)
    for s, z in zip(S[:5], Z[:5], strict=True):
        encoded = beta.state_encoder(s)
        x = (own + np.einsum("k,ikj->ij", z, rest)) @ np.asarray(encoded) + weight[:, :SIZE] @ z + bias
        for layer in beta.action_decoder.layers[1:]:
            x = np.asarray(layer.weight) @ np.maximum(x, 0) + np.asarray(layer.bias)
        np.testing.assert_allclose(beta.mode(beta.encode(s), z), np.tanh(x), rtol=1e-4, atol=1e-6)


# --- the z-space ---


embedding_table = jax.jit(TaskEmbedding.table)


def test_whitened_embeddings_have_zero_mean_and_unit_variance() -> None:
    for seed in range(3):
        table = embedding_table(drawn_like(lambda: TaskEmbedding(7, 3, 8, 2, "whitened", jax.random.key(0)), seed))
        np.testing.assert_allclose(np.mean(table, axis=0), 0, atol=1e-6)
        np.testing.assert_allclose(np.var(table, axis=0), 1, rtol=1e-5)


def test_one_sub_task_has_a_finite_embedding_and_gradient() -> None:
    def total(phi: TaskEmbedding) -> jax.Array:
        return jnp.sum(phi.table() ** 2 + phi.table())

    phi = drawn_like(lambda: TaskEmbedding(1, 3, 8, 2, "whitened", jax.random.key(0)), seed=0)
    value, gradient = jax.jit(jax.value_and_grad(total))(phi)
    assert float(value) == 0.0
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradient))


# --- several score models ---


MODELS = [drawn_like(lambda: ScoreModel(3, 2, SIZE, WIDTH, (1, 1), True, jax.random.key(0)), seed) for seed in range(3)]
alone = np.array([jax.vmap(model)(S, A, Z) for model in MODELS])  # (members, rows)


def test_each_member_scores_as_if_it_were_alone() -> None:
    found = jax.vmap(ScoreEnsemble(MODELS).each)(S, A, Z)
    assert found.shape == (20, 3)
    np.testing.assert_allclose(found, alone.T, rtol=1e-5, atol=1e-6)


def test_the_score_of_an_ensemble_is_its_lowest() -> None:
    assert len(set(alone.argmin(axis=0))) > 1  # no member is the lowest everywhere
    np.testing.assert_allclose(jax.vmap(ScoreEnsemble(MODELS))(S, A, Z), alone.min(axis=0), rtol=1e-5, atol=1e-6)


def test_the_score_of_a_behaviour_is_the_lowest_of_its_members_at_its_own_action() -> None:
    beta, ensemble = policy("bilinear"), ScoreEnsemble(MODELS)
    for s, z in zip(S[:5], Z[:5], strict=True):
        encoded = beta.encode(s)
        expected = min(float(model(s, beta.mode(encoded, z), z)) for model in MODELS)
        assert float(score_of_behavior(ensemble, beta, s, encoded, z)) == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_one_model_is_an_ensemble_of_one() -> None:
    np.testing.assert_array_equal(jax.vmap(MODELS[0].each)(S, A, Z), alone[0][:, None])

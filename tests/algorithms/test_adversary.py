"""The adversarial constraint: what it penalises, what it moves, and that it takes away what an ascent promises."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.plain import PLAIN
from helpers.training import learnable_dataset

from droprl.adapt import Adaptation, Search
from droprl.algorithms.adversary import adversarial_penalty
from droprl.algorithms.drop import DROP
from droprl.train.loop import Loop

DROP_WITH = DROP(
    **PLAIN | {"adaptation": Adaptation(trust_radius=0.5)},
    n_sub_tasks=4,
    trajectories_per_sub_task=3,
    embedding_size=2,
    discount=0.9,
    width=16,
    depths=(1, 1, 1, 1, 1),
    batch_size=64,
    learning_rate=3e-3,
    constraint_share=1.0,
    constraint="adversarial",
    threshold=0.02,
    multiplier_max=30.0,
    score_layer_norm=False,
)


def trained(drop: DROP) -> Any:
    loop = Loop(drop, drop.prepare(learnable_dataset()), [0], 600)
    return jax.tree.map(lambda leaf: leaf[0], loop.run(loop.init(), 0, 600)[0])


@pytest.fixture(scope="module")
def constrained() -> Any:
    return trained(DROP_WITH)


@pytest.fixture(scope="module")
def free() -> Any:
    return trained(replace(DROP_WITH, constraint="none"))


def search_of(state: Any) -> Search:
    networks = state.networks
    return Search(networks.behavior_policy, networks.score_model, networks.embedding.table(), DROP_WITH.adaptation)


def promised(state: Any) -> np.ndarray:
    """How much the best of many points within the trust region promises above the best z_n, at each of some states."""
    search, rng = search_of(state), np.random.default_rng(0)
    around = rng.normal(size=(200, 2))
    offsets = jnp.asarray(around / np.linalg.norm(around, axis=1, keepdims=True) * rng.uniform(0, 0.5, (200, 1)))

    def at(observation: jax.Array) -> jax.Array:
        score = jax.vmap(search.score_at(observation))
        scores = score(search.embeddings)
        return jnp.max(score(search.embeddings[jnp.argmax(scores)] + offsets)) - jnp.max(scores)

    states = DROP_WITH.prepare(learnable_dataset()).probe.batch.observation[:100]
    return np.asarray(jax.jit(jax.vmap(at))(states))


def test_it_takes_away_what_an_ascent_promises(constrained: Any, free: Any) -> None:
    before, after = promised(free), promised(constrained)
    assert before.mean() > 0.02  # there is something to take away
    assert after.mean() < 0.5 * before.mean()


def test_it_moves_the_score_model_alone(free: Any) -> None:
    states = DROP_WITH.prepare(learnable_dataset()).probe.batch.observation[:32]

    def penalty(search: Search) -> jax.Array:
        return adversarial_penalty(search, states, -1.0, jax.random.key(0))[0]

    gradient = jax.grad(penalty)(search_of(free))
    assert not any(np.any(leaf) for leaf in jax.tree.leaves((gradient.behavior_policy, gradient.embeddings)))
    assert any(np.any(leaf) for leaf in jax.tree.leaves(gradient.score_model))


def test_the_penalty_is_the_mean_square_beyond_the_threshold(free: Any) -> None:
    """With thresholds so low that every state counts, the square root tells how far each lies beyond."""
    states = DROP_WITH.prepare(learnable_dataset()).probe.batch.observation[:1]
    search, key = search_of(free), jax.random.key(3)
    (low, found), (lower, _) = (adversarial_penalty(search, states, eta, key) for eta in (-5.0, -7.0))
    assert float(jnp.sqrt(lower) - jnp.sqrt(low)) == pytest.approx(2.0, rel=1e-4)
    assert float(jnp.sqrt(low)) == pytest.approx(float(found["gap"]) + 5.0, rel=1e-4)
    assert float(found["violations"]) == 1.0
    assert float(adversarial_penalty(search, states, 1e6, key)[0]) == 0.0

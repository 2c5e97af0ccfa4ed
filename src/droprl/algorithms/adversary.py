"""The adversarial constraint: an ascent like that of test time looks for a z that f overrates, and f is lowered there.

The paper bounds a mean over random z. An ascent does not draw z at random: it goes where f is highest. So here the z̃ of
the constraint is found by an ascent from the best z_n, and every state counts by itself:

    E_s [ relu( f(s, β(s, z̃), z̃) − max_n f(s, β(s, z_n), z_n) − η )² ]

If the mean of the square is ε², the ascent promises less than η + ε/√p above the best z_n at all but a share p of the
training states (Markov's inequality).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from droprl.adapt import Search
from droprl.adapt.inference import Score, embedding_box
from droprl.algorithms.protocol import Metrics

ADVERSARY_STEPS = 8
BEYOND = 1.5  # it travels so many times as far as test time may


def adversarial_penalty(search: Search, states: Array, threshold: float, key: Array) -> tuple[Array, Metrics]:
    """The mean penalty over these states. It moves f alone, and f at z̃ alone: the z_n are where f learns returns."""
    still = jax.lax.stop_gradient(search)
    reach = _reach(still)

    def of_state(observation: Array, key: Array) -> tuple[Array, Array]:
        score = still.score_at(observation)
        scores = jax.vmap(score)(still.embeddings)
        start = still.embeddings[jnp.argmax(scores)]
        radius = reach * jax.random.uniform(key)  # so that every distance up to the longest is tried
        return jax.lax.stop_gradient((_climbed(score, start, radius), jnp.max(scores)))

    z, highest = jax.vmap(of_state)(states, jax.random.split(key, len(states)))

    def score_of(observation: Array, z: Array) -> Array:
        action = jax.lax.stop_gradient(still.action(observation, z))
        return jnp.min(search.score_model.each(observation, action, z))

    gain = jax.vmap(score_of)(states, z) - highest
    excess = jax.nn.relu(gain - threshold)
    return jnp.mean(excess**2), {"gap": jnp.mean(gain), "violations": jnp.mean(excess > 0)}


def _reach(search: Search) -> Array:
    """How far the adversary may go from its start: farther than the ascent of test time."""
    if search.adaptation.region == "trust":
        return jnp.asarray(BEYOND * search.adaptation.trust_radius)
    low, high = embedding_box(search.embeddings)
    return BEYOND * jnp.linalg.norm(high - low)


def _climbed(score: Score, start: Array, radius: Array) -> Array:
    """Normalised steps uphill, within `radius` of the start. All of them together could go twice as far."""

    def step(_: int, z: Array) -> Array:
        direction = jax.grad(score)(z)
        z = z + 2 * radius / ADVERSARY_STEPS * direction / (jnp.linalg.norm(direction) + 1e-8)
        offset = z - start
        return start + offset * jnp.minimum(1.0, radius / jnp.sqrt(jnp.sum(offset**2) + 1e-12))

    return jax.lax.fori_loop(0, ADVERSARY_STEPS, step, start)

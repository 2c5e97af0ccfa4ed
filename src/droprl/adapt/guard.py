"""The guard: it takes z back to a sub-task's own embedding where the ascent leaves what the data supports.

Everything is written for one state, as in `inference`; whether a policy is guarded is a field of `Adaptation`.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from droprl.adapt.inference import Inferred, Score
from droprl.data.support import Support


class Guard(NamedTuple):
    """The limits of one policy."""

    support: Support
    state_limit: Array  # the distance from the data beyond which the scores at a state mean nothing
    embedding_limit: Array  # |z − z_n| beyond which z belongs to no sub-task

    def checked(
        self, observation: Array, found: Inferred, held: Array, score: Score, embeddings: Array
    ) -> tuple[Inferred, Array]:
        """What may be used in place of the z that was found, and whether that is another one.

        A z too far out becomes the nearest z_n. At a state too far out no score counts, and so neither does the z it
        led to: the episode stays with the sub-task nearest to the z that it had before, `held`.
        """
        far_state = self.support.distance(observation) > self.state_limit
        nearest, distance = nearest_embedding(found.z, embeddings)
        steps_in = far_state | (distance > self.embedding_limit)
        n = jnp.where(far_state, nearest_embedding(held, embeddings)[0], nearest)
        safe = Inferred(embeddings[n], score(embeddings[n]), n)
        return jax.tree.map(lambda a, b: jnp.where(steps_in, a, b), safe, found), steps_in


def make_guard(support: Support, embeddings: Array, quantile: float) -> Guard:
    limits = support.limit(quantile), embedding_limit(embeddings)
    return Guard(*jax.tree.map(jnp.asarray, (support, *limits)))


def embedding_limit(embeddings: Array) -> Array:
    """Half the way from a z_n to the next one, in the median. Beside a single z_n no z is safe.

    β and f were only ever trained at the z_n: nearer to one than to any other they may be asked for a neighbourhood.
    """
    if embeddings.shape[0] < 2:
        return jnp.zeros((), embeddings.dtype)
    nearest_other = jax.lax.map(lambda z: jnp.sort(_distances(z, embeddings))[1], embeddings)
    return 0.5 * jnp.median(nearest_other)


def nearest_embedding(z: Array, embeddings: Array) -> tuple[Array, Array]:
    """The number of the z_n nearest to z, and how far it is."""
    distances = _distances(z, embeddings)
    nearest = jnp.argmin(distances).astype(jnp.int32)
    return nearest, distances[nearest]


def _distances(z: Array, embeddings: Array) -> Array:
    return jnp.sqrt(jnp.sum((embeddings - z) ** 2, axis=1))

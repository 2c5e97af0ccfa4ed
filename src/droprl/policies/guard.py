"""The guard: what a policy uses instead, if an observation or the ascent leaves what the data supports.

Everything is written for one state, as in `inference`. A field of `Adaptation` says whether a policy has a guard.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from droprl.adapt.inference import Adaptation, GuardFallback, Inferred, Score
from droprl.data.support import Support

DATA_SHARE = 0.999  # `guard_margin` multiplies the distance within which this share of the data's own states lies


class Guarded(NamedTuple):
    """What the guard remembers of an episode, and what it did at the last action."""

    believed: Array  # the last observation that the guard believed
    known: Array  # bool: the guard has believed an observation in this episode
    doubts: Array  # how many observations in a row the guard did not believe
    held: Array  # bool: the action used `believed` instead of its own observation
    replaced: Array  # bool: the z in use is the guard's choice

    @property
    def stepped_in(self) -> Array:
        return self.held | self.replaced

    def used(self, observations: Array) -> Array:
        """The observations that the actions use: `believed` if the guard holds it, otherwise their own."""
        return jnp.where(self.held[..., None], self.believed, observations)


class Guard(NamedTuple):
    """The limits of one policy."""

    support: Support
    state_limit: Array  # an observation farther from the data than this is a fault and not a state
    patience: Array  # how many faults in a row are replaced by an earlier observation
    embedding_limit: Array  # a z farther than this from every z_n belongs to no sub-task

    def start(self, n: int) -> Guarded:
        """The guard's memory of n episodes that begin now."""
        believed = jnp.zeros((n, self.support.basis.shape[0]), self.support.basis.dtype)
        no = jnp.zeros(n, bool)
        return Guarded(believed, known=no, doubts=jnp.zeros(n, jnp.int32), held=no, replaced=no)

    def read(self, observation: Array, before: Guarded) -> Guarded:
        """Decide whether to use this observation, or the last one that the guard believed in this episode.

        If no data is like this observation, β and f mean nothing there. The state a few steps ago was nearly the same.
        """
        doubted = ~(self.support.distance(observation) <= self.state_limit)  # NaN is never within the limit
        doubts = jnp.where(doubted, before.doubts + 1, 0)
        believed = jnp.where(doubted, before.believed, observation)
        held = doubted & before.known & (doubts <= self.patience)
        return Guarded(believed, before.known | ~doubted, doubts, held, before.replaced)

    def settled(self, guarded: Guarded) -> Array:
        """Whether a z inferred now may stay: the guard believes the observation, or its patience is at an end."""
        return (guarded.doubts == 0) | (guarded.doubts > self.patience)

    def checked(
        self, found: Inferred, score: Score, embeddings: Array, fallback: GuardFallback
    ) -> tuple[Inferred, Array]:
        """The z that was found, or a z_n if the found z belongs to no sub-task. The bool says which.

        If z is far out, the nearest z_n is nearest by chance only. The z_n of the start was chosen by f, at a place
        where f was trained.
        """
        distances = _distances(found.z, embeddings)
        too_far = ~(jnp.min(distances) <= self.embedding_limit)
        n = found.start if fallback == "start" else jnp.argmin(distances).astype(found.start.dtype)
        safe = Inferred(embeddings[n], score(embeddings[n]), n)
        return jax.tree.map(lambda a, b: jnp.where(too_far, a, b), safe, found), too_far


def make_guard(support: Support, embeddings: Array, adaptation: Adaptation) -> Guard:
    state_limit = adaptation.guard_margin * support.limit(DATA_SHARE)
    limits = state_limit, adaptation.guard_patience, embedding_limit(embeddings, adaptation.trust_radius)
    return Guard(*jax.tree.map(jnp.asarray, (support, *limits)))


def embedding_limit(embeddings: Array, trust_radius: float) -> Array:
    """Half the median distance from a z_n to the next one, but at least the radius that a trust region allows.

    β and f were trained at the z_n only. They may still be asked about a z that is nearer to one z_n than to the rest.
    """
    allowed = jnp.asarray(1.01 * trust_radius, embeddings.dtype)  # the border counts as inside, however it is rounded
    if embeddings.shape[0] < 2:
        return allowed
    nearest_other = jax.lax.map(lambda z: jnp.sort(_distances(z, embeddings))[1], embeddings)
    return jnp.maximum(0.5 * jnp.median(nearest_other), allowed)


def nearest_distance(z: Array, embeddings: Array) -> Array:
    """|z − z_n| for the nearest z_n."""
    return jnp.min(_distances(z, embeddings))


def _distances(z: Array, embeddings: Array) -> Array:
    return jnp.sqrt(jnp.sum((embeddings - z) ** 2, axis=1))

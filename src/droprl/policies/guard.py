"""The guard: what an action goes by where a reading or the ascent leaves what the data supports.

Everything is written for one state, as in `inference`; whether a policy is guarded is a field of `Adaptation`.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from droprl.adapt.inference import Adaptation, GuardFallback, Inferred, Score
from droprl.data.support import Support

DATA_SHARE = 0.999  # of the data's own states: how far out these lie is what `guard_margin` multiplies


class Guarded(NamedTuple):
    """What the guard remembers of an episode, and what it did at the last action."""

    believed: Array  # the last observation that was believed
    known: Array  # bool: there was one in this episode
    doubts: Array  # how many observations in a row were not
    held: Array  # bool: the action went by that one instead of its own
    replaced: Array  # bool: the z in use is the guard's choice

    @property
    def stepped_in(self) -> Array:
        return self.held | self.replaced

    def gone_by(self, observations: Array) -> Array:
        """What the actions at these observations went by."""
        return jnp.where(self.held[..., None], self.believed, observations)


class Guard(NamedTuple):
    """The limits of one policy."""

    support: Support
    state_limit: Array  # the distance from the data beyond which an observation is a fault and not a state
    patience: Array  # how many faults in a row are waited out
    embedding_limit: Array  # |z − z_n| beyond which z belongs to no sub-task

    def start(self, n: int) -> Guarded:
        """Of n episodes that begin now."""
        believed = jnp.zeros((n, self.support.basis.shape[0]), self.support.basis.dtype)
        no = jnp.zeros(n, bool)
        return Guarded(believed, known=no, doubts=jnp.zeros(n, jnp.int32), held=no, replaced=no)

    def read(self, observation: Array, before: Guarded) -> Guarded:
        """Whether to go by this observation, or by the last of the episode that was believed.

        At a reading like none of the data β and f mean nothing, and the state of a few steps ago was nearly this one.
        """
        doubted = ~(self.support.distance(observation) <= self.state_limit)  # NaN is within no limit
        doubts = jnp.where(doubted, before.doubts + 1, 0)
        believed = jnp.where(doubted, before.believed, observation)
        held = doubted & before.known & (doubts <= self.patience)
        return Guarded(believed, before.known | ~doubted, doubts, held, before.replaced)

    def settled(self, guarded: Guarded) -> Array:
        """Whether a z inferred now may be kept: at a reading that is believed, or that no patience is left for."""
        return (guarded.doubts == 0) | (guarded.doubts > self.patience)

    def checked(
        self, found: Inferred, score: Score, embeddings: Array, fallback: GuardFallback
    ) -> tuple[Inferred, Array]:
        """The z that was found, or where it belongs to no sub-task a z_n; and whether that is so.

        To a z far out the nearest z_n is nearest by chance; that of the start was chosen by f, where f was trained.
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
    """Half the way from a z_n to the next one, in the median, and what a trust region allows anyway.

    β and f were only ever trained at the z_n: nearer to one than to any other they may be asked for a neighbourhood.
    """
    allowed = jnp.asarray(1.01 * trust_radius, embeddings.dtype)  # on its border is inside, however that is rounded
    if embeddings.shape[0] < 2:
        return allowed
    nearest_other = jax.lax.map(lambda z: jnp.sort(_distances(z, embeddings))[1], embeddings)
    return jnp.maximum(0.5 * jnp.median(nearest_other), allowed)


def nearest_distance(z: Array, embeddings: Array) -> Array:
    """|z − z_n| of the nearest z_n."""
    return jnp.min(_distances(z, embeddings))


def _distances(z: Array, embeddings: Array) -> Array:
    return jnp.sqrt(jnp.sum((embeddings - z) ** 2, axis=1))

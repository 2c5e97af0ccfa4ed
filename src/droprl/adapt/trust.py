"""How sure a policy is of an action it took: what to log beside it, and when to ask a person instead."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from droprl.adapt.adaptive import AdaptivePolicy, Episode
from droprl.adapt.guard import nearest_distance
from droprl.data.support import Support
from droprl.policies.policy import Carry, Policy


class Trust(NamedTuple):
    """For one action, or for each of several. What a policy cannot tell is None."""

    score: Any
    """f(s, β(s, z), z): the return that the score model promises from here, with the z in use. Under a guard s is the
    observation that the action went by."""
    embedding_distance: Any
    """How far that z lies from the nearest z_n; whitened embeddings have a standard deviation of 1."""
    state_distance: Any
    """How far the state lies from the nearest of the data's prototypes, in standard deviations."""
    state_share: Any
    """The share of the data's own states that lie nearer to it: 0.99 is farther out than 99 % of them."""
    guarded: Any
    """Whether the guard stepped in: the action went by an earlier observation, or z is the guard's. None: no guard."""


def trust(policy: Policy, support: Support | None, carry: Carry, observations: Array) -> Trust:
    """Of the actions just taken at these normalised observations, with the memory after them."""
    score = embedding_distance = state_distance = state_share = stepped_in = None
    if isinstance(policy, AdaptivePolicy) and isinstance(carry, Episode):
        z, gone_by = carry.inferred.z, observations
        if carry.guarded is not None:
            stepped_in, gone_by = carry.guarded.stepped_in, carry.guarded.gone_by(observations)
        score = jax.vmap(lambda observation, z: policy.score_at(observation)(z))(gone_by, z)
        embedding_distance = jax.vmap(lambda z: nearest_distance(z, policy.embeddings))(z)
    if support is not None:
        state_distance = jax.vmap(support.distance)(observations)
        state_share = support.share_nearer(jnp.asarray(state_distance))
    return Trust(score, embedding_distance, state_distance, state_share, stepped_in)

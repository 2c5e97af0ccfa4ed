"""How sure a policy is of an action it took: what to log beside it, and when to ask a person instead."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from droprl.data.support import Support
from droprl.policies.guard import nearest_distance
from droprl.policies.policy import Carry, Policy


class Trust(NamedTuple):
    """For one action, or for each of several. A field is None where the policy cannot tell."""

    score: Any
    """f(s, β(s, z), z) with the z in use: the return that the score model promises from here. Under a guard s is the
    observation that the action went by."""
    embedding_distance: Any
    """How far this z lies from the nearest z_n. Whitened embeddings have a standard deviation of 1."""
    state_distance: Any
    """How far the state lies from the nearest of the data's prototypes, in standard deviations."""
    state_share: Any
    """The share of the data's own states that lie nearer to it: 0.99 is farther out than 99 % of them."""
    guarded: Any
    """Whether the guard stepped in: it used an earlier observation, or chose z itself. None without a guard."""


def trust(policy: Policy, support: Support | None, carry: Carry, observations: Array) -> Trust:
    """Of the actions just taken at these normalised observations, with the memory after them."""
    score = embedding_distance = state_distance = state_share = None
    known, search = policy.facts(carry), policy.search
    if search is not None:
        z, went_by = known["embedding"], observations
        if "held" in known:
            went_by = jnp.where(known["held"][..., None], known["believed"], observations)
        score = jax.vmap(lambda observation, z: search.score_at(observation)(z))(went_by, z)
        embedding_distance = jax.vmap(lambda z: nearest_distance(z, search.embeddings))(z)
    if support is not None:
        state_distance = jax.vmap(support.distance)(observations)
        state_share = support.share_nearer(jnp.asarray(state_distance))
    return Trust(score, embedding_distance, state_distance, state_share, known.get("guarded"))

"""How sure a policy is of an action that it took. Log this beside the action, or ask a person if it is not sure."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from droprl.data.support import Support
from droprl.policies.guard import nearest_distance
from droprl.policies.policy import Carry, Policy


class Trust(NamedTuple):
    """For one action, or for each of several. A field is None if the policy cannot tell."""

    score: Any
    """f(s, β(s, z), z) with the z in use: the return that the score model promises from here. With a guard, s is the
    observation that the action used."""
    embedding_distance: Any
    """How far this z lies from the nearest z_n. Whitened embeddings have a standard deviation of 1."""
    state_distance: Any
    """How far the state lies from the nearest of the data's prototypes, in standard deviations."""
    state_share: Any
    """The share of the data's own states that lie nearer: at 0.99 the state is farther out than 99 % of them."""
    guarded: Any
    """Whether the guard stepped in: it used an earlier observation, or chose z itself. None without a guard."""


def trust(policy: Policy, support: Support | None, carry: Carry, observations: Array) -> Trust:
    """For the actions just taken at these normalised observations. `carry` is the memory after the actions."""
    score = embedding_distance = state_distance = state_share = None
    facts, search = policy.facts(carry), policy.search
    if search is not None:
        z, used = facts["embedding"], observations
        if "held" in facts:
            used = jnp.where(facts["held"][..., None], facts["believed"], observations)
        score = jax.vmap(lambda observation, z: search.score_at(observation)(z))(used, z)
        embedding_distance = jax.vmap(lambda z: nearest_distance(z, search.embeddings))(z)
    if support is not None:
        state_distance = jax.vmap(support.distance)(observations)
        state_share = support.share_nearer(jnp.asarray(state_distance))
    return Trust(score, embedding_distance, state_distance, state_share, facts.get("guarded"))

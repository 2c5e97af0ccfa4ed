"""A policy that remembers nothing and searches nothing."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from droprl.networks.actors import BehaviorPolicy
from droprl.policies.policy import Carry


class FixedPolicy(eqx.Module):
    """A policy that remembers nothing and searches nothing: one z for every state."""

    behavior_policy: BehaviorPolicy
    z: Array
    sample_actions: bool = eqx.field(static=True)

    def start(self, n: int) -> Carry:
        return ()

    def act(self, carry: Carry, observations: Array, key: Array | None) -> tuple[Carry, Array]:
        z = jnp.broadcast_to(self.z, (observations.shape[0], *self.z.shape))
        return carry, actions_of(self.behavior_policy, observations, z, key, self.draws)

    @property
    def draws(self) -> bool:
        return self.sample_actions


def actions_of(behavior_policy: BehaviorPolicy, observations: Array, z: Array, key: Array | None, draws: bool) -> Array:
    encoded = jax.vmap(behavior_policy.encode)(observations)
    if draws and key is not None:
        keys = key if key.ndim else jax.random.split(key, observations.shape[0])
        return jax.vmap(behavior_policy.sample)(encoded, z, keys)
    return jax.vmap(behavior_policy.mode)(encoded, z)

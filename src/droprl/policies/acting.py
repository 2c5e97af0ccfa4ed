"""A policy that is one actor network: it remembers nothing and searches nothing."""

from __future__ import annotations

import equinox as eqx
import jax
from jax import Array

from droprl.networks.actors import Actor
from droprl.policies.policy import Carry


class ActorPolicy(eqx.Module):
    """The actor's own action at every state, or one that is drawn from it."""

    actor: Actor
    sample_actions: bool = eqx.field(static=True)

    def start(self, n: int) -> Carry:
        return ()

    def act(self, carry: Carry, observations: Array, key: Array | None) -> tuple[Carry, Array]:
        if not self.sample_actions or key is None:
            return carry, jax.vmap(self.actor.mode)(observations)
        keys = key if key.ndim else jax.random.split(key, observations.shape[0])
        return carry, jax.vmap(self.actor.sample)(observations, keys)

    @property
    def draws(self) -> bool:
        return self.sample_actions

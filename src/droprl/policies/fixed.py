"""Policies that remember nothing and search nothing."""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from droprl.errors import DropError
from droprl.networks.actors import Actor, BehaviorPolicy
from droprl.policies.policy import Carry, Facts, Policy, Traits
from droprl.policies.program import Program


class ActorPolicy(eqx.Module):
    """One actor network. It plays the actor's mode at every state, or an action drawn from the actor."""

    actor: Actor
    sample_actions: bool = eqx.field(static=True)
    search: ClassVar[None] = None

    @property
    def traits(self) -> Traits:
        return Traits(draws=self.sample_actions)

    def start(self, n: int) -> Carry:
        return ()

    def act(self, carry: Carry, observations: Array, key: Array | None) -> tuple[Carry, Array]:
        if not self.sample_actions or key is None:
            return carry, jax.vmap(self.actor.mode)(observations)
        return carry, jax.vmap(self.actor.sample)(observations, keys_of_rows(key, len(observations)))

    def facts(self, carry: Carry) -> Facts:
        return {}

    def program(self) -> Program:
        refuse_draws(self)
        return Program(lambda observations: (self.act((), observations, None)[1],), ("actions",))


class FixedPolicy(eqx.Module):
    """A behaviour policy β with one z for every state; z may have size 0."""

    behavior_policy: BehaviorPolicy
    z: Array
    sample_actions: bool = eqx.field(static=True)
    search: ClassVar[None] = None

    @property
    def traits(self) -> Traits:
        return Traits(draws=draws_actions(self.behavior_policy, self.sample_actions))

    def start(self, n: int) -> Carry:
        return ()

    def act(self, carry: Carry, observations: Array, key: Array | None) -> tuple[Carry, Array]:
        z = self._z_of_each(observations)
        return carry, actions_of(self.behavior_policy, observations, z, key, self.traits.draws)

    def facts(self, carry: Carry) -> Facts:
        return {}

    def program(self) -> Program:
        refuse_draws(self)

        def step(observations: Array) -> tuple[Array, ...]:
            actions = self.act((), observations, None)[1]
            return (actions, self._z_of_each(observations)) if self.z.size else (actions,)

        return Program(step, ("actions", "embedding") if self.z.size else ("actions",))

    def _z_of_each(self, observations: Array) -> Array:
        return jnp.broadcast_to(self.z, (observations.shape[0], *self.z.shape))


def actions_of(behavior_policy: BehaviorPolicy, observations: Array, z: Array, key: Array | None, draws: bool) -> Array:
    """β(s, z) for each row, or a draw from it."""
    encoded = jax.vmap(behavior_policy.encode)(observations)
    if draws and key is not None:
        return jax.vmap(behavior_policy.sample)(encoded, z, keys_of_rows(key, len(observations)))
    return jax.vmap(behavior_policy.mode)(encoded, z)


def draws_actions(behavior_policy: BehaviorPolicy, sample_actions: bool) -> bool:
    """A sample from a deterministic head is the action itself."""
    return sample_actions and behavior_policy.head == "gaussian"


def keys_of_rows(key: Array, n: int) -> Array:
    """One key for each row: the keys as given, or one given key split into n."""
    return key if key.ndim else jax.random.split(key, n)


def refuse_draws(policy: Policy) -> None:
    """A file cannot draw random numbers as JAX does."""
    if policy.traits.draws:
        raise DropError(
            "the policy draws its actions at random, and an ONNX file cannot draw the same numbers as JAX: train it "
            "without sample_actions, or save it with --out"
        )

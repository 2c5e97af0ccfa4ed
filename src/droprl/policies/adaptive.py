"""The policy that searches for z at test time: π*(a|s) = β(a|s, z*(s)), by one of the rules of `Adaptation`.

An episode's memory holds the z in use. So "z fixed at s₀" and "z inferred again every m steps" are one kind of policy.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from droprl.adapt.inference import Adaptation, Inferred
from droprl.adapt.search import Search, auto, is_first
from droprl.errors import DropError
from droprl.networks.actors import BehaviorPolicy
from droprl.networks.critics import AnyScoreModel
from droprl.networks.homes import Home
from droprl.policies.fixed import actions_of, draws_actions, refuse_draws
from droprl.policies.guard import Guard, Guarded
from droprl.policies.policy import Carry, Facts, Traits
from droprl.policies.program import Program, first_row

INFERS_AGAIN = ("auto", "best-ada", "grad-ada")  # rules that infer z again as the episode goes on
ASCENDS = ("auto", "grad", "grad-ada")  # rules that climb by the gradient


class AdaptiveMemory(NamedTuple):
    """What it remembers of an episode: the clock, the embedding in use and its origin, and the guard's memory."""

    step: Array
    inferred: Inferred
    guarded: Guarded | None = None  # None without a guard


class AdaptivePolicy(eqx.Module):
    """π*(a|s) = β(a|s, z*(s)) by the rule of `adaptation` (Algorithm 2)."""

    behavior_policy: BehaviorPolicy
    score_model: AnyScoreModel
    embeddings: Array  # (N, embedding_size)
    adaptation: Adaptation = eqx.field(static=True)
    sample_actions: bool = eqx.field(static=True)
    guard: Guard | None = None
    home: Home | None = None
    choice: Array | None = None  # what the rule auto does
    fallback: BehaviorPolicy | None = None  # acts in place of β at the first z_n

    @property
    def search(self) -> Search:
        policy, score_model, z_n = self.behavior_policy, self.score_model, self.embeddings
        return Search(policy, score_model, z_n, self.adaptation, self.home, self.choice, self.fallback)

    def settled(self) -> AdaptivePolicy:
        """The same policy, with the rule that auto turned out to be."""
        if self.adaptation.rule != "auto":
            return self
        return replace(self, adaptation=auto(self.adaptation)[int(self.search.chosen)], choice=None)

    @property
    def traits(self) -> Traits:
        rule, interval = self.adaptation.rule, self.adaptation.reinference_interval
        once = rule in ("best", "grad")
        follows_from_the_state = rule == "first" or (rule in INFERS_AGAIN and interval == 1 and not self._looks_back)
        return Traits(
            draws=draws_actions(self.behavior_policy, self.sample_actions),
            remembers=self.guard is not None or not follows_from_the_state,
            interval=interval if rule in INFERS_AGAIN else 1,
            chooses_once=once and self.guard is None,
            rule=rule,
        )

    def start(self, n: int) -> AdaptiveMemory:
        z = jnp.zeros((n, self.embeddings.shape[1]), self.embeddings.dtype)
        inferred = Inferred(z, jnp.zeros(n, z.dtype), jnp.zeros(n, jnp.int32))
        return AdaptiveMemory(jnp.zeros(n, jnp.int32), inferred, None if self.guard is None else self.guard.start(n))

    def act(self, carry: AdaptiveMemory, observations: Array, key: Array | None) -> tuple[AdaptiveMemory, Array]:
        if self.guard is None:
            after = self._inferred(carry, observations)._replace(step=carry.step + 1)
        else:
            after, observations = self._guarded(self.guard, carry, observations)
        return after, self._actions(observations, after.inferred.z, key)

    def _actions(self, observations: Array, z: Array, key: Array | None) -> Array:
        draws = self.traits.draws
        if self.fallback is None:
            return actions_of(self.behavior_policy, observations, z, key, draws)
        own = actions_of(self.fallback, observations, z[:, :0], key, draws)
        if self.adaptation.rule == "first":
            return own
        first = jax.vmap(is_first, (0, None))(z, self.embeddings)
        return jnp.where(first[:, None], own, actions_of(self.behavior_policy, observations, z, key, draws))

    def facts(self, carry: AdaptiveMemory) -> Facts:
        inferred, guarded = carry.inferred, carry.guarded
        known = {"embedding": inferred.z, "score": inferred.score, "sub_task": inferred.start}
        if guarded is None:
            return known
        return known | {"held": guarded.held, "believed": guarded.believed, "guarded": guarded.stepped_in}

    def program(self) -> Program:
        """The memory of a policy that remembers holds z and the clock. With a warm start it also holds the start of z.

        The score is that of the z in use, at the present state. So a file need not remember the score of an inference.
        """
        refuse_draws(self)
        if self.adaptation.rule == "auto":
            return self.settled().program()
        self._refuse_what_no_file_holds()
        answers = ("actions", "embedding", "score")
        if not self.traits.remembers:

            def forgetful(observations: Array) -> tuple[Array, ...]:
                after, actions = self.act(self.start(observations.shape[0]), observations, None)
                return actions, after.inferred.z, after.inferred.score

            return Program(forgetful, answers)

        def step(observations: Array, z: Array, clock: Array, *start: Array) -> tuple[Array, ...]:
            before = self.start(observations.shape[0]).inferred._replace(z=z)
            before = before._replace(start=start[0]) if start else before
            after, actions = self.act(AdaptiveMemory(clock, before), observations, None)
            found = after.inferred
            score = jax.vmap(lambda observation, z: self.search.score_at(observation)(z))(observations, found.z)
            return actions, found.z, score, found.z, after.step, *([found.start] if start else [])

        first = first_row(self.start(1))
        memory = {"z": first.inferred.z, "step": first.step}
        return Program(step, answers, memory | ({"start": first.inferred.start} if self._warm else {}))

    def _refuse_what_no_file_holds(self) -> None:
        if self.guard is not None:
            raise DropError(
                "an ONNX file cannot hold the guard: export the policy with --no-guard, or save it with --out alone"
            )
        if self.adaptation.tolerance > 0 and self.adaptation.rule in ASCENDS:
            raise DropError(
                f"the ascent ends when no score rises by more than {self.adaptation.tolerance:g} (tolerance), but an "
                "ONNX file holds only loops of fixed length: export it with --tolerance 0, which takes all K steps"
            )

    @property
    def _warm(self) -> bool:
        """Whether a search uses the last z and where it started."""
        rule = self.adaptation.rule
        warm = self.adaptation.warm_start and rule in ("auto", "grad-ada")
        return warm or (self.adaptation.hysteresis > 0 and rule in INFERS_AGAIN)

    @property
    def _skips(self) -> bool:
        return self.adaptation.least_change > 0 and self.adaptation.rule in INFERS_AGAIN

    @property
    def _looks_back(self) -> bool:
        return self._warm or self._skips

    def _guarded(self, guard: Guard, carry: AdaptiveMemory, observations: Array) -> tuple[AdaptiveMemory, Array]:
        """The memory after a step, and the observations that the actions use."""
        assert carry.guarded is not None, "only start() makes the memory of a guarded policy"
        guarded = jax.vmap(guard.read)(observations, carry.guarded)
        observations = guarded.used(observations)
        finite = jnp.all(jnp.isfinite(observations), axis=-1)
        before = carry._replace(guarded=guarded)
        # At NaN nothing is inferred. The clock stands still until a state comes at which a z may stay.
        after = _where(finite, self._inferred(before, observations), before)
        waits = (carry.step == 0) & ~(finite & guard.settled(guarded))
        return after._replace(step=jnp.where(waits, 0, carry.step + 1)), observations

    def _inferred(self, carry: AdaptiveMemory, observations: Array) -> AdaptiveMemory:
        """The memory, with a new embedding in the episodes that are due for one."""
        infer_all = jax.vmap(self._infer_after)
        adapts = self.adaptation.rule in INFERS_AGAIN
        if adapts and self.adaptation.reinference_interval == 1 and not self._skips:
            return infer_all(observations, carry)
        due = carry.step % self.adaptation.reinference_interval == 0 if adapts else carry.step == 0
        if self._skips:
            due &= (carry.step == 0) | jax.vmap(self.search.may_change)(observations, carry.inferred.z)
        # The whole batch skips the search when no episode is due. This is what makes DROP(m) cheap.
        found = jax.lax.cond(jnp.any(due), lambda: infer_all(observations, carry), lambda: carry)
        return _where(due, found, carry)

    def _infer_after(self, observation: Array, memory: AdaptiveMemory) -> AdaptiveMemory:
        """One episode's memory with a new embedding."""
        began = Inferred(self.embeddings[0], jnp.zeros((), self.embeddings.dtype), jnp.zeros((), jnp.int32))
        last = jax.tree.map(lambda new, old: jnp.where(memory.step == 0, new, old), began, memory.inferred)
        found = self.search.infer(observation, last)
        if self.guard is None or memory.guarded is None:
            return memory._replace(inferred=found)
        score = self.search.score_at(observation)
        found, replaced = self.guard.checked(found, score, self.embeddings, self.adaptation.guard_fallback)
        return memory._replace(inferred=found, guarded=memory.guarded._replace(replaced=replaced))


def _where(which: Array, new: Carry, old: Carry) -> Carry:
    """Each episode's memory: the new one if the episode is marked, otherwise the old one."""
    return jax.tree.map(lambda a, b: jnp.where(which.reshape(which.shape + (1,) * (a.ndim - 1)), a, b), new, old)

"""One step of a policy as a program that is given its memory and gives it back: what a file can hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from droprl.adapt import AdaptivePolicy
from droprl.adapt.adaptive import Episode
from droprl.algorithms.dt import Context, TransformerPolicy
from droprl.data.scaling import Scaling
from droprl.errors import DropError
from droprl.loaded import LoadedPolicy, step_policy
from droprl.networks.critics import score_of_behavior
from droprl.policies import FixedPolicy, Policy

NEXT = "next_"  # what becomes of an input that is memory is the output of its name with this before it
CONTEXT = {
    "returns_to_go": "context_returns_to_go",
    "observations": "context_observations",
    "actions": "context_actions",
    "step": "step",
    "return_to_go": "return_to_go",
}  # what a Decision Transformer remembers, and the inputs' names


@dataclass(frozen=True)
class Program:
    """`step` takes arrays with a row for every episode, in the order of `inputs`, and answers in that of `outputs`."""

    step: Callable[..., tuple[Array, ...]]
    inputs: dict[str, np.ndarray]  # a row of each; of memory, that of an episode that begins
    memory: tuple[str, ...]
    answers: tuple[str, ...]

    @property
    def outputs(self) -> tuple[str, ...]:
        return (*self.answers, *(f"{NEXT}{name}" for name in self.memory))


def program_of(loaded: LoadedPolicy) -> Program:
    """Observations and actions are in the task's own units, and actions within their bounds."""
    policy, scaling = loaded.policy, loaded.scaling
    observation = np.zeros(loaded.spec.observation_size, np.float32)
    if isinstance(policy, AdaptivePolicy | FixedPolicy):
        if policy.sample_actions and policy.behavior_policy.head == "gaussian":
            raise DropError(
                "the policy draws its actions at random, which an ONNX file cannot do as JAX does: train it without "
                "sample_actions, or save it with --out"
            )
        policy = replace(policy, sample_actions=False)  # of a deterministic head a sample is the action itself
    match policy:
        case AdaptivePolicy():
            return _adaptive(policy, scaling, observation)
        case FixedPolicy():
            return _fixed(policy, scaling, observation)
        case TransformerPolicy():
            return _transformer(policy, scaling, observation)
    raise DropError(f"a {type(policy).__name__} cannot be exported as ONNX: save it with --out")


def _fixed(policy: FixedPolicy, scaling: Scaling, observation: np.ndarray) -> Program:
    has_embedding = policy.z.size > 0

    def step(observations: Array) -> tuple[Array, ...]:
        _, actions = step_policy(policy, scaling, (), observations, key=None)
        z = jnp.broadcast_to(policy.z, (observations.shape[0], *policy.z.shape))
        return (actions, z) if has_embedding else (actions,)

    return Program(step, {"observations": observation}, (), ("actions", "embedding")[: 1 + has_embedding])


def _adaptive(policy: AdaptivePolicy, scaling: Scaling, observation: np.ndarray) -> Program:
    """A rule that infers z afresh at every step remembers nothing; others keep z, and the clock that says when it is
    due. After a warm start the next ascent also asks which sub-task's embedding z came from: `start`."""
    adaptation = policy.adaptation
    if policy.guard is not None:
        raise DropError("the guard is not part of an ONNX file: export it with --no-guard, or save it with --out alone")
    anew, ascends = (adaptation.rule in rules for rules in (("best-ada", "grad-ada"), ("grad", "grad-ada")))
    if adaptation.tolerance > 0 and ascends:
        raise DropError(
            f"the ascent ends when no score rises by more than {adaptation.tolerance:g} (tolerance), and an ONNX file "
            "holds no loop of open length: export it with --tolerance 0, which takes all K steps"
        )
    warm = adaptation.warm_start and adaptation.rule == "grad-ada"
    if adaptation.rule == "first" or (anew and adaptation.reinference_interval == 1 and not warm):

        def forgetful(observations: Array) -> tuple[Array, ...]:
            new = policy.start(observations.shape[0])
            after, actions = step_policy(policy, scaling, new, observations, key=None)
            return actions, after.inferred.z, after.inferred.score

        return Program(forgetful, {"observations": observation}, (), ("actions", "embedding", "score"))

    def step(observations: Array, z: Array, clock: Array, *start: Array) -> tuple[Array, ...]:
        remembered = policy.start(observations.shape[0]).inferred._replace(z=z)
        if warm:
            remembered = remembered._replace(start=start[0])
        after, actions = step_policy(policy, scaling, Episode(clock, remembered), observations, key=None)
        normalized = jnp.asarray(scaling.observations_in(observations))
        score = jax.vmap(_score, (None, 0, 0))(policy, normalized, after.inferred.z)
        memory = (after.inferred.z, after.step, after.inferred.start)[: 2 + warm]
        return actions, after.inferred.z, score, *memory

    first = _first_row(policy)
    memory = {"z": first.inferred.z, "step": first.step} | ({"start": first.inferred.start} if warm else {})
    return Program(step, {"observations": observation, **memory}, tuple(memory), ("actions", "embedding", "score"))


def _score(policy: AdaptivePolicy, observation: Array, z: Array) -> Array:
    """Of the z in use at the state at hand, not at the one where it was inferred: a file need not remember that."""
    encoded = policy.behavior_policy.encode(observation)
    return score_of_behavior(policy.score_model, policy.behavior_policy, observation, encoded, z)


def _transformer(policy: TransformerPolicy, scaling: Scaling, observation: np.ndarray) -> Program:
    """Its memory is the context; `reward` is what the action before earned, 0 when an episode begins."""

    def step(observations: Array, reward: Array, *context: Array) -> tuple[Array, ...]:
        before = Context(**dict(zip(CONTEXT, context, strict=True)), reward=reward)
        after, actions = step_policy(policy, scaling, before, observations, key=None)
        return actions, *(getattr(after, name) for name in CONTEXT)

    first = _first_row(policy)
    memory = {name: getattr(first, field) for field, name in CONTEXT.items()}
    inputs = {"observations": observation, "reward": first.reward, **memory}
    return Program(step, inputs, tuple(memory), ("actions",))


def _first_row(policy: Policy) -> Any:
    """The memory of one episode that begins."""
    return jax.tree.map(lambda leaf: np.asarray(leaf[0]), policy.start(1))

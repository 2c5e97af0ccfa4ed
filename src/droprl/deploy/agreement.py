"""Whether a file acts as the policy that it was made from. Both play side by side, each with its own memory.

Two embeddings may have the same score up to rounding. Then either z is right. So the file may choose another z than the
policy, if the policy's score model rates both equally. The file's action and score must be the policy's at that z.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from droprl.adapt import Search
from droprl.deploy.program import NEXT, FileProgram
from droprl.loaded import LoadedPolicy
from droprl.policies import tell_rewards

TOLERANCE = 1e-4  # of an action in half-ranges, of a z, and of a score: the file adds up in another order
SAME_SCORE = 1e-5  # scores are in standard deviations of returns: two scores this close differ by rounding only
# At a kink of the networks, rounding can turn a step of ascent. Then the scores may differ by this much,
NEAR_SCORE = 1e-3
MOST_APART = 0.01  # at no more than this share of the states

Answer = dict[str, np.ndarray]
File = Callable[[Answer], Answer]  # from its inputs to its outputs, by name


class Agreement(NamedTuple):
    """The result of the comparison. `wrong` says what is wrong with the file, and is empty if the file is right."""

    wrong: str
    largest: float  # difference of an action, in half-ranges
    ties: int  # states at which file and policy chose different z with the same score
    largest_gap: float  # between the scores of two such z


def agreement(policy: LoadedPolicy, program: FileProgram, file: File, states: Iterable[np.ndarray]) -> Agreement:
    """Play both over one batch of states per step. The episodes begin with the first batch.

    At the last step z is inferred again: if m is larger than the number of batches, both clocks are set to m there.
    """
    states, interval, search = list(states), policy.traits.interval, policy.search
    own_step = jax.jit(program.step)
    rng, carry, memory = np.random.default_rng(0), None, {}
    actions, other_scores, gaps, wrong, n, comparable = [], [], [0.0], "", 0, np.ones(0, bool)
    for step, seen in enumerate(states):
        if carry is None:
            carry, comparable = policy.start(len(seen)), np.ones(len(seen), bool)
            memory = {name: np.repeat(program.inputs[name][None], len(seen), axis=0) for name in program.memory}
        if 0 < step == len(states) - 1 < interval and "step" in memory:
            carry = carry._replace(step=jnp.full(len(seen), interval, carry.step.dtype))
            memory["step"] = np.full_like(memory["step"], interval)
        rewards = rng.normal(size=len(seen)).astype(np.float32) * (step > 0)
        carry, acted = policy.step(tell_rewards(carry, rewards), seen, jax.random.key(0))
        known = {"observations": seen, "reward": rewards, **memory}
        given = {name: known[name] for name in program.inputs}
        answer = file(given)
        memory = {name: answer[f"{NEXT}{name}"] for name in program.memory}
        if search is not None:
            judged = _judged(policy, search, seen, answer["embedding"], np.asarray(policy.facts(carry)["embedding"]))
            acted = judged.actions
            off = np.abs(answer["score"] - judged.scores) / np.maximum(np.abs(judged.scores), 1)
            wrong = wrong or _beyond("scores", off[comparable])
            other_scores.append(comparable & judged.other & ~(judged.gap <= SAME_SCORE))
            gaps += [float(gap) for gap in judged.gap[comparable & judged.other]]
            comparable = comparable & ~judged.other if memory else comparable  # the others' memories differ from now on
        else:
            wanted = dict(zip(program.answers, own_step(*given.values()), strict=False))
            for name in program.answers[1:]:
                wrong = wrong or _beyond(f"{name}s", np.abs(answer[name] - np.asarray(wanted[name])))
        actions.append(_in_half_ranges(policy, answer["actions"] - acted)[comparable])
        n += len(seen)
    apart = int(sum(map(np.sum, other_scores)))
    if not wrong and (apart > MOST_APART * n or not max(gaps) <= NEAR_SCORE):
        wrong = f"embeddings with other scores at {apart} of {n} states, by up to {max(gaps):.2g}"
    largest = np.concatenate(actions) if actions else np.zeros(1)
    wrong = wrong or _beyond("actions", largest)
    return Agreement(wrong, float(np.max(largest, initial=0.0)), len(gaps) - 1 - apart, max(gaps))


class _Judged(NamedTuple):
    """What the policy itself says about the file's z."""

    actions: Any
    scores: Any
    other: Any  # bool: the file's z is not the policy's z
    gap: Any  # between the scores of these two


def _judged(policy: LoadedPolicy, search: Search, states: np.ndarray, z: np.ndarray, own: np.ndarray) -> _Judged:
    normalized = jnp.asarray(policy.scaling.observations_in(states))
    actions, scores, best = map(np.asarray, _at(search, normalized, jnp.asarray(z), jnp.asarray(own)))
    low, high = np.asarray(policy.scaling.action_low), np.asarray(policy.scaling.action_high)
    gap = np.abs(scores - best) / np.maximum(np.abs(best), 1)
    other = ~(np.max(np.abs(z - own), axis=1) <= TOLERANCE)
    return _Judged(np.clip(np.asarray(policy.scaling.actions_out(actions)), low, high), scores, other, gap)


@jax.jit
def _at(search: Search, observations: Any, z: Any, own: Any) -> tuple[Any, Any, Any]:
    """The actions and scores at `z`, and the scores at the policy's `own`."""

    def at_one(observation: Any, z: Any, own: Any) -> tuple[Any, Any, Any]:
        score = search.score_at(observation)
        return search.action(observation, z), score(z), score(own)

    return jax.vmap(at_one)(observations, z, own)


def _in_half_ranges(policy: LoadedPolicy, difference: np.ndarray) -> np.ndarray:
    """The largest difference of each action in half-ranges, without what rounding to float32 alone can cause."""
    low, high = (np.asarray(bound, np.float64) for bound in (policy.scaling.action_low, policy.scaling.action_high))
    rounding = 4 * np.finfo(np.float32).eps * np.maximum(np.abs(low), np.abs(high))
    half = np.maximum(0.5 * (high - low), np.finfo(np.float32).tiny)
    share: np.ndarray = np.max((np.abs(difference) - np.where(half < rounding / TOLERANCE, rounding, 0)) / half, axis=1)
    return np.maximum(share, 0)


def _beyond(what: str, differences: np.ndarray) -> str:
    """What is wrong, if a difference is beyond the tolerance or is NaN."""
    return "" if np.all(differences <= TOLERANCE) else f"{what} differ by up to {np.max(differences):.2g}"

"""One step of an adaptive policy, with everything that its search for z* saw.

Rule, K and m are inputs of one compiled program, so that nothing is compiled when a person switches them. A test checks
for each rule that it acts as the policy itself. The page always shows the full ascent: settings that make the ascent
shorter (`halve_every`, `tolerance`) or start it elsewhere (`warm_start`) have no effect here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from droprl.adapt import InferenceRule, Search
from droprl.adapt.inference import candidate_scores, climb
from droprl.data.scaling import Scaling
from droprl.loaded import step_policy
from droprl.policies import FixedPolicy


@dataclass(frozen=True)
class Settings:
    """The settings that a person can change while the policy acts."""

    rule: InferenceRule
    ascent_steps: int  # K
    reinference_interval: int  # m

    def due(self, since: int) -> bool:
        """Whether z is inferred at this step: `since` steps after the episode began or the settings changed."""
        return since == 0 or (self.rule in ("best-ada", "grad-ada") and since % self.reinference_interval == 0)

    @property
    def steps_uphill(self) -> int:
        return self.ascent_steps if self.rule in ("grad", "grad-ada") else 0


class Choice(NamedTuple):
    """The embedding in use, and the sub-task from which its search started."""

    z: Array
    start: Array


class Sight(NamedTuple):
    """What the search saw at one state: the score of every z_n, where the ascent leads from each, and the z* in use."""

    scores: Array  # (N,)
    ends: Array  # (N, embedding_size)
    choice: Choice
    score: Array  # () of z*, at this state


def no_choice_yet(search: Search) -> Choice:
    return Choice(search.embeddings[0], jnp.zeros((), jnp.int32))


def see(
    search: Search,
    scaling: Scaling,
    settings: Settings,
    since: int,
    choice: Choice,
    observation: Any,
    key: Array | None,
) -> tuple[np.ndarray, Sight]:
    """The action in the task's units, and what the search saw, both on the host. With a key the action is drawn."""
    n = len(search.embeddings)
    several = settings.rule == "grad-ada" and search.adaptation.candidates != "first"
    starts = min(search.adaptation.starts or n, n) if several else 1
    numbers = (jnp.int32(settings.steps_uphill), jnp.int32(starts), jnp.bool_(settings.due(since)))
    action, sight = _see(search, scaling, choice, jnp.asarray(observation, jnp.float32), *numbers, key)
    return np.array(action), jax.device_get(sight)


@jax.jit
def _see(
    search: Search,
    scaling: Scaling,
    choice: Choice,
    observation: Array,
    ascent_steps: Array,
    starts: Array,
    due: Array,
    key: Array | None,
) -> tuple[Array, Sight]:
    seen = jnp.asarray(scaling.observations_in(observation))
    score, embeddings, supported = search.score_at(seen), search.embeddings, search.supported(seen)
    scores = jax.vmap(score)(embeddings)
    offered = candidate_scores(scores, search.adaptation, supported)
    in_full = replace(search.adaptation, tolerance=0.0)
    ends, _ = climb(score, embeddings, embeddings, embeddings, in_full, ascent_steps)
    ranks = jnp.argsort(jnp.argsort(-offered))
    may_win = (ranks < starts) & ~jnp.isneginf(offered)
    best = jnp.argmax(jnp.where(may_win, jax.vmap(score)(ends), -jnp.inf)).astype(jnp.int32)
    choice = Choice(jnp.where(due, ends[best], choice.z), jnp.where(due, best, choice.start))
    fixed = FixedPolicy(search.behavior_policy, choice.z, sample_actions=key is not None)
    _, actions = step_policy(fixed, scaling, (), observation[None], key)
    return actions[0], Sight(scores, ends, choice, score(choice.z))

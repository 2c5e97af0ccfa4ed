"""One step of an adaptive policy with all that its search for z* saw, and with every setting open.

Rule, K and m are inputs of one compiled program, so that switching them while it runs compiles nothing. That it acts as
the policy itself would is tested, rule by rule. Ascent is always shown in full: what spares some of it in a policy
(`halve_every`, `tolerance`) or begins it elsewhere (`warm_start`) is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from droprl.adapt import InferenceRule, Search
from droprl.adapt.inference import climb
from droprl.data.scaling import Scaling
from droprl.loaded import step_policy
from droprl.policies import FixedPolicy


@dataclass(frozen=True)
class Settings:
    """What can be changed while it runs."""

    rule: InferenceRule
    ascent_steps: int  # K
    reinference_interval: int  # m

    def due(self, since: int) -> bool:
        """Whether z is inferred at this step, so many after the episode began or the settings changed."""
        return since == 0 or (self.rule in ("best-ada", "grad-ada") and since % self.reinference_interval == 0)

    @property
    def climb(self) -> int:
        return self.ascent_steps if self.rule in ("grad", "grad-ada") else 0


class Held(NamedTuple):
    """The embedding in use, and the sub-task that it came from."""

    z: Array
    start: Array


class Sight(NamedTuple):
    """At one state: the score of every z_n, where ascent leads from each, and the z* that acts."""

    scores: Array  # (N,)
    ends: Array  # (N, embedding_size)
    held: Held
    score: Array  # () of z*, at this state


def nothing_held(search: Search) -> Held:
    return Held(search.embeddings[0], jnp.zeros((), jnp.int32))


def see(
    search: Search, scaling: Scaling, settings: Settings, since: int, held: Held, observation: Any, key: Array | None
) -> tuple[np.ndarray, Sight]:
    """The action in the task's units, and the sight, on the host. With a key the action is drawn."""
    n = len(search.embeddings)
    starts = min(search.adaptation.starts or n, n) if settings.rule == "grad-ada" else 1
    numbers = (jnp.int32(settings.climb), jnp.int32(starts), jnp.bool_(settings.due(since)))
    action, sight = _see(search, scaling, held, jnp.asarray(observation, jnp.float32), *numbers, key)
    return np.array(action), jax.device_get(sight)


@jax.jit
def _see(
    search: Search,
    scaling: Scaling,
    held: Held,
    observation: Array,
    ascent_steps: Array,
    starts: Array,
    due: Array,
    key: Array | None,
) -> tuple[Array, Sight]:
    score, embeddings = search.score_at(jnp.asarray(scaling.observations_in(observation))), search.embeddings
    scores = jax.vmap(score)(embeddings)
    in_full = replace(search.adaptation, tolerance=0.0)
    ends = climb(score, embeddings, embeddings, embeddings, in_full, ascent_steps)
    ranks = jnp.argsort(jnp.argsort(-scores))
    chosen = jnp.argmax(jnp.where(ranks < starts, jax.vmap(score)(ends), -jnp.inf)).astype(jnp.int32)
    held = Held(jnp.where(due, ends[chosen], held.z), jnp.where(due, chosen, held.start))
    fixed = FixedPolicy(search.behavior_policy, held.z, sample_actions=key is not None)
    _, actions = step_policy(fixed, scaling, (), observation[None], key)
    return actions[0], Sight(scores, ends, held, score(held.z))

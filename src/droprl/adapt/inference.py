"""Test-time adaptation: z*(s) = argmax_z f(s, β(s, z), z), by equation 9 and the four rules of section 5.

Everything is written for one state and a score `z ↦ f(s, β(s, z), z)`; `policy` batches it over environments and
decides when an episode infers anew. No network is defined here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from droprl.errors import require

InferenceRule = Literal["first", "best", "grad", "best-ada", "grad-ada"]
RULES: tuple[InferenceRule, ...] = ("best", "grad", "best-ada", "grad-ada")  # the paper's; first is a baseline
Score = Callable[[Array], Array]


@dataclass(frozen=True)
class Adaptation:
    """How z* is found at test time."""

    rule: InferenceRule = "grad-ada"
    """best and grad infer z once, at the initial state; best-ada and grad-ada infer it again as the episode goes on.
    first asks no score model: it is the z of the sub-task with the highest return in the data."""
    ascent_steps: int = 10
    """K, the number of gradient-ascent steps of grad and grad-ada; 100 in the paper."""
    step_size: float = 0.1
    """What the gradient is multiplied by in an ascent step; with normalized steps, their length."""
    step_rule: Literal["plain", "normalized"] = "plain"
    """plain adds step_size · ∇f (equation 9); normalized makes every step exactly step_size long."""
    region: Literal["trust", "box", "none"] = "trust"
    """Where z may go: within trust_radius of the embedding it started from, inside the box of all z_n, or anywhere."""
    trust_radius: float = 0.25
    """|z − z_n| at most. Whitened embeddings have a standard deviation of 1."""
    starts: int | None = 5
    """Ascend only from this many embeddings, those with the highest score; None is all N, as in the paper."""
    reinference_interval: int = 1
    """m of DROP(m): best-ada and grad-ada infer z anew every m steps."""

    def __post_init__(self) -> None:
        require(self, "at least 0", "ascent_steps")
        require(self, "at least 1", "starts", "reinference_interval")
        require(self, "above 0", "step_size", "trust_radius")


class Inferred(NamedTuple):
    """The embedding that a rule chose, with where it came from: what a plot or a guard wants to know."""

    z: Array
    score: Array
    start: Array  # the number of the sub-task whose embedding it started from


def infer(score: Score, embeddings: Array, adaptation: Adaptation) -> Inferred:
    """z* for one state, by the rule."""
    if adaptation.rule == "first":  # sub-tasks are numbered from the highest return down
        return Inferred(embeddings[0], score(embeddings[0]), jnp.zeros((), jnp.int32))
    scores = jax.vmap(score)(embeddings)
    best = jnp.argmax(scores)
    if adaptation.rule in ("best", "best-ada"):
        return Inferred(embeddings[best], scores[best], best)
    # Grad ascends from the best embedding alone, Grad-Ada from every one (or the most promising).
    starts = best[None] if adaptation.rule == "grad" else _starts(scores, adaptation)
    low, high = embedding_box(embeddings)
    ascended = jax.vmap(lambda z: ascend(score, z, adaptation, low, high))(embeddings[starts])
    final_scores = jax.vmap(score)(ascended)
    chosen = jnp.argmax(final_scores)
    return Inferred(ascended[chosen], final_scores[chosen], starts[chosen])


def ascend(
    score: Score, start: Array, adaptation: Adaptation, low: Array, high: Array, steps: Array | None = None
) -> Array:
    """K steps of gradient ascent from one embedding, kept inside the region; `steps` is a K known only later."""
    gradient = jax.grad(lambda z: score(z))

    def step(_: int, z: Array) -> Array:
        direction = gradient(z)
        if adaptation.step_rule == "normalized":
            direction = direction / (jnp.linalg.norm(direction) + 1e-8)
        return _keep_inside(z + adaptation.step_size * direction, start, adaptation, low, high)

    return jax.lax.fori_loop(0, adaptation.ascent_steps if steps is None else steps, step, start)


def embedding_box(embeddings: Array) -> tuple[Array, Array]:
    """The smallest axis-aligned box that holds every z_n: the z-space over which μ(z) is uniform."""
    return jnp.min(embeddings, axis=0), jnp.max(embeddings, axis=0)


def _starts(scores: Array, adaptation: Adaptation) -> Array:
    if adaptation.starts is None or adaptation.starts >= scores.shape[0]:
        return jnp.arange(scores.shape[0])
    return jax.lax.top_k(scores, adaptation.starts)[1]


def _keep_inside(z: Array, start: Array, adaptation: Adaptation, low: Array, high: Array) -> Array:
    if adaptation.region == "box":
        return jnp.clip(z, low, high)
    if adaptation.region == "trust":
        offset = z - start
        length = jnp.sqrt(jnp.sum(offset**2) + 1e-12)
        return start + offset * jnp.minimum(1.0, adaptation.trust_radius / length)
    return z

"""Test-time adaptation: z*(s) = argmax_z f(s, β(s, z), z), by equation 9 and the four rules of section 5.

Everything is written for one state and a score `z ↦ f(s, β(s, z), z)`. `droprl.policies` batches it over environments
and decides when an episode infers z again. No network is defined here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from droprl.compiler import on_accelerator
from droprl.errors import require

InferenceRule = Literal["auto", "first", "best", "grad", "best-ada", "grad-ada"]
RULES: tuple[InferenceRule, ...] = ("best", "grad", "best-ada", "grad-ada")  # the paper's; `first` is a baseline
Candidates = Literal["supported", "all", "first"]
ScoreBy = Literal["embedding", "action"]
GuardFallback = Literal["start", "nearest"]
Score = Callable[[Array], Array]
# On an accelerator:
MOST_UNROLLED = 10  # up to this many ascent steps are taken without a loop
MOST_FORWARDS = 64  # up to this many derivatives are computed in forward mode


@dataclass(frozen=True)
class Adaptation:
    """How z* is found at test time."""

    rule: InferenceRule = "grad-ada"
    """best and grad infer z once, at the initial state; best-ada and grad-ada infer it again as the episode goes on.
    first asks no score model: it uses the z of the sub-task with the highest return in the data. auto takes first, and
    searches only by those steps that paid on trajectories which the score model had not seen."""
    ascent_steps: int = 5
    """K, the number of gradient-ascent steps of grad and grad-ada. The paper uses 100; this earned no more."""
    step_size: float = 0.1
    """An ascent step multiplies the gradient by this number. With normalized steps, it is the length of a step."""
    step_rule: Literal["plain", "normalized"] = "plain"
    """plain adds step_size · ∇f (equation 9); normalized makes every step exactly step_size long."""
    region: Literal["trust", "box", "none"] = "trust"
    """Where z may go: within trust_radius of the embedding it started from, inside the box of all z_n, or anywhere."""
    trust_radius: float = 0.25
    """The largest |z − z_n|. Whitened embeddings have a standard deviation of 1."""
    starts: int | None = 5
    """Ascend only from this many embeddings: those with the highest scores. None means all N, as in the paper."""
    halve_every: int | None = None
    """Successive halving: after each round of this many ascent steps, only the better half of the starts goes on. None:
    all starts go on."""
    tolerance: float = 0.0
    """Stop the ascent when no start rises by more than this in a step. 0 takes all K steps."""
    warm_start: bool = False
    """Let grad-ada also ascend from the z* that the episode inferred last."""
    reinference_interval: int = 1
    """m of DROP(m): best-ada and grad-ada infer z again every m steps."""
    guard: bool = False
    """If an observation is a fault, use the last believable one instead. If the ascent leads z away from every
    sub-task, use the z of a sub-task instead."""
    guard_margin: float = 1.5
    """An observation is a fault if its distance from the data is more than this many times the distance within which
    99.9 % of the data's own states lie."""
    guard_patience: int = 10
    """Use an earlier observation for at most this many steps in a row. If the fault lasts longer, stop waiting."""
    guard_fallback: GuardFallback = "start"
    """What replaces a z that the ascent led away from every sub-task: the z_n that it started from, or the nearest."""
    candidates: Candidates = "supported"
    """Which z_n may be chosen at a state: those whose sub-tasks have been at states like it, and the first one; all of
    them, as in the paper; or the first one alone, from which grad-ada then ascends."""
    keep: Literal["best", "last"] = "best"
    """Which point of a climb counts: the one with the highest score, its start included, or the last one, as in the
    paper. The last one can score lower than the start."""

    score_by: ScoreBy = "embedding"
    """What a z is judged by. embedding: f(s, β(s, z), z). action: the mean of f(s, β(s, z), z_n) over the sub-tasks
    that have been at states like s. So only what z does counts, and not what its sub-task happened to earn."""
    hysteresis: float = 0.0
    """Keep the z in use, unless the search finds one whose score is higher by more than this."""
    least_change: float = 0.0
    """Search only at states where one of the candidates acts differently from the z in use, by more than this in some
    dimension of the action (its range is 2). 0: search at every state that is due."""

    def __post_init__(self) -> None:
        require(self, "at least 0", "tolerance", "hysteresis", "least_change")
        require(self, "at least 1", "halve_every", "starts")
        require(self, "from 0 to 10,000", "ascent_steps")
        require(self, "from 0 to 1,000,000", "guard_patience")
        require(self, "from 1 to 1,000,000", "reinference_interval")
        require(self, "above 0", "step_size", "trust_radius", "guard_margin")


class Inferred(NamedTuple):
    """The embedding that a rule chose, its score, and where it came from. Plots and the guard use all three."""

    z: Array
    score: Array
    start: Array  # the number of the sub-task whose embedding it started from


def infer(
    score: Score,
    embeddings: Array,
    adaptation: Adaptation,
    last: Inferred | None = None,
    supported: Array | None = None,
) -> Inferred:
    """z* for one state, by the rule. `last` is what the episode inferred before, if it did.

    `supported` (N,) says which z_n may be chosen here; None: all of them. The first one always may.
    """
    if adaptation.rule == "first":  # sub-tasks are numbered from the highest return down
        return Inferred(embeddings[0], score(embeddings[0]), jnp.zeros((), jnp.int32))
    scores = candidate_scores(jax.vmap(score)(embeddings), adaptation, supported)
    found = _searched(score, scores, embeddings, adaptation, last)
    if adaptation.hysteresis == 0.0 or last is None or adaptation.rule not in ("best-ada", "grad-ada"):
        return found
    in_use = last._replace(score=score(last.z))
    stays = (found.score <= in_use.score + adaptation.hysteresis) & ~jnp.isneginf(scores[last.start])
    return jax.tree.map(lambda old, new: jnp.where(stays, old, new), in_use, found)


def _searched(
    score: Score, scores: Array, embeddings: Array, adaptation: Adaptation, last: Inferred | None
) -> Inferred:
    best = jnp.argmax(scores).astype(jnp.int32)
    if adaptation.rule in ("best", "best-ada"):
        return Inferred(embeddings[best], scores[best], best)
    # Grad ascends from the best embedding alone. Grad-Ada ascends from all of them, or from the most promising.
    starts, may_win = _starts(scores, best, adaptation)
    z = embeddings[starts]
    if adaptation.warm_start and adaptation.rule == "grad-ada" and last is not None:
        starts, z = jnp.append(starts, last.start), jnp.concatenate([z, last.z[None]])
        goes_on = jnp.any((jnp.arange(len(scores)) == last.start) & ~jnp.isneginf(scores))
        may_win = jnp.append(may_win, goes_on)
    return ascend(score, z, starts, embeddings, adaptation, may_win)


def candidate_scores(scores: Array, adaptation: Adaptation, supported: Array | None) -> Array:
    """The scores of the z_n, with −∞ for those that may not be chosen."""
    first = jnp.arange(len(scores)) == 0
    if adaptation.candidates == "first":
        return jnp.where(first, scores, -jnp.inf)
    if adaptation.candidates == "supported" and supported is not None:
        return jnp.where(first | supported, scores, -jnp.inf)
    return scores


def ascend(
    score: Score, z: Array, starts: Array, embeddings: Array, adaptation: Adaptation, may_win: Array
) -> Inferred:
    """The best z that K steps uphill from each row of `z` find. Every row stays in its embedding's region."""
    left, scores = adaptation.ascent_steps, jnp.where(may_win, jax.vmap(score)(z), -jnp.inf)
    while left > 0:
        # With halving: the number of steps until only the better half goes on. A single start takes all that are left.
        n_steps = left if adaptation.halve_every is None or len(starts) == 1 else min(adaptation.halve_every, left)
        z, scores = climb(score, z, embeddings[starts], embeddings, adaptation, n_steps)
        scores, left = jnp.where(may_win, scores, -jnp.inf), left - n_steps
        if left > 0:
            chosen = jax.lax.top_k(scores, -(-len(starts) // 2))[1]
            z, scores, starts, may_win = z[chosen], scores[chosen], starts[chosen], may_win[chosen]
    best = jnp.argmax(scores)
    # Where the score is NaN, z must be NaN too: nobody may act on a z that nothing speaks for.
    return Inferred(z[best] + 0.0 * scores[best], scores[best], starts[best])


def climb(
    score: Score, z: Array, origins: Array, embeddings: Array, adaptation: Adaptation, n_steps: int | Array
) -> tuple[Array, Array]:
    """The points that `n_steps` steps uphill from each row of `z` find, and their scores.

    `n_steps` may be an input of the compiled program.
    """
    low, high = embedding_box(embeddings)
    step = _ascent_step(jax.vmap(_with_gradient(score, *z.shape)), origins, adaptation, low, high)
    return _climbed(step, jax.vmap(score), z, n_steps, adaptation)


def _with_gradient(score: Score, n_starts: int, size: int) -> Callable[[Array], tuple[Array, Array]]:
    """z ↦ its score and its gradient.

    A GPU takes as long for a few rows as for one, and it waits for every product. So on a GPU the score and its
    derivatives along all axes of z go forward through the networks together. That is half as many products as one pass
    forward and one back.
    """
    if n_starts * size > MOST_FORWARDS or not on_accelerator():
        return jax.value_and_grad(lambda z: score(z))

    def forwards(z: Array) -> tuple[Array, Array]:
        def along(axis: Array) -> tuple[Array, Array]:
            value, slope = jax.jvp(score, (z,), (axis,))
            return value, slope

        value, gradient = jax.vmap(along, out_axes=(None, 0))(jnp.eye(size, dtype=z.dtype))
        return value, gradient.astype(z.dtype)

    return forwards


def _ascent_step(
    with_gradient: Callable[[Array], tuple[Array, Array]],
    origins: Array,
    adaptation: Adaptation,
    low: Array,
    high: Array,
) -> Callable[[Array], tuple[Array, Array]]:
    """z ↦ the z after one step, and the scores before it."""

    def step(z: Array) -> tuple[Array, Array]:
        scores, directions = with_gradient(z)
        if adaptation.step_rule == "normalized":
            directions = directions / (jnp.linalg.norm(directions, axis=1, keepdims=True) + 1e-8)
        return _keep_inside(z + adaptation.step_size * directions, origins, adaptation, low, high), scores

    return step


class _Climb(NamedTuple):
    n: Array  # steps taken
    z: Array
    best: Array  # the best points before z
    best_scores: Array
    scores: Array  # before the last step
    rising: Array

    def past(self, z: Array, scores: Array, tolerance: float) -> _Climb:
        """After a step to `z`. `scores` are those of the points before it."""
        better = scores > self.best_scores
        best = jnp.where(better[:, None], self.z, self.best)
        best_scores = jnp.where(better, scores, self.best_scores)
        return _Climb(self.n + 1, z, best, best_scores, scores, jnp.any(scores > self.scores + tolerance))


def _climbed(
    step: Callable[[Array], tuple[Array, Array]],
    score: Score,
    z: Array,
    n_steps: int | Array,
    adaptation: Adaptation,
) -> tuple[Array, Array]:
    def one_step(before: _Climb) -> _Climb:
        return before.past(*step(before.z), adaptation.tolerance)

    lowest = jnp.full(len(z), -jnp.inf, z.dtype)
    climb = _Climb(jnp.zeros((), jnp.int32), z, z, lowest, lowest, jnp.asarray(True))
    if adaptation.tolerance > 0.0:
        climb = jax.lax.while_loop(lambda before: before.rising & (before.n < n_steps), one_step, climb)
    elif isinstance(n_steps, int) and n_steps <= MOST_UNROLLED and on_accelerator():
        for _ in range(n_steps):  # one graph of kernels: what all steps need is computed once
            climb = one_step(climb)
    else:
        climb = jax.lax.fori_loop(0, n_steps, lambda _, before: one_step(before), climb)
    scores = score(climb.z)
    if adaptation.keep == "last":
        return climb.z, scores
    risen = ~(scores < climb.best_scores)  # a score that is NaN is not hidden
    return jnp.where(risen[:, None], climb.z, climb.best), jnp.where(risen, scores, climb.best_scores)


def embedding_box(embeddings: Array) -> tuple[Array, Array]:
    """The smallest axis-aligned box that holds every z_n. The paper's μ(z) is uniform over this box."""
    return jnp.min(embeddings, axis=0), jnp.max(embeddings, axis=0)


def _starts(scores: Array, best: Array, adaptation: Adaptation) -> tuple[Array, Array]:
    """The numbers of the z_n to ascend from, and whether the ascent may win: not from a z_n that may not be chosen."""
    if adaptation.rule == "grad":
        return best[None], jnp.ones(1, bool)
    if adaptation.candidates == "first":
        return jnp.zeros(1, jnp.int32), jnp.ones(1, bool)
    if adaptation.starts is None or adaptation.starts >= scores.shape[0]:
        return jnp.arange(scores.shape[0], dtype=jnp.int32), ~jnp.isneginf(scores)
    highest, starts = jax.lax.top_k(scores, adaptation.starts)
    return starts, ~jnp.isneginf(highest)


def _keep_inside(z: Array, origins: Array, adaptation: Adaptation, low: Array, high: Array) -> Array:
    if adaptation.region == "box":
        return jnp.clip(z, low, high)
    if adaptation.region == "trust":
        offset = z - origins
        length = jnp.sqrt(jnp.sum(offset**2, axis=1, keepdims=True) + 1e-12)
        return origins + offset * jnp.minimum(1.0, adaptation.trust_radius / length)
    return z

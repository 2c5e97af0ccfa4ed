"""The losses of equations 6 and 8 and their gradients, against NumPy code that follows the paper.

`reference` is the whole objective with its stop-gradients: weights that learn are in `moving`, constant ones in
`fixed`. Its finite differences must equal the gradient that training follows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.losses import SPEC, action_distribution, drawn_like, make_batch, member_of, members, mlp, scores_of_each
from helpers.plain import PLAIN
from scipy import stats

from droprl.algorithms import scoring
from droprl.algorithms.bc import BC
from droprl.algorithms.drop import DROP, DropState, Networks
from droprl.algorithms.protocol import Clock
from droprl.data.transitions import Batch
from droprl.networks.critics import AnyScoreModel, ScoreModel
from droprl.networks.embeddings import TaskEmbedding

PAPER_LIKE = DROP(
    **PLAIN,
    embedding_size=2,
    width=8,
    depths=(2, 1, 1, 1, 2),
    batch_size=5,
    discount=0.9,
    threshold=0.1,
    constraint_share=1.0,
)
CONFIGS = {
    "default": PAPER_LIKE,
    "gaussian": replace(PAPER_LIKE, head="gaussian", score_layer_norm=False),
    "to the letter": replace(PAPER_LIKE, embedding_space="tanh", td_into_embedding=True, conditioning="concatenate"),
    "hinge": replace(PAPER_LIKE, constraint="hinge", multiplier_max=3.0, threshold=0.0),
    "three score models": replace(PAPER_LIKE, score_models=3),
    "measured on two steps": replace(PAPER_LIKE, constraint_share=0.4),
    "smoothed": replace(PAPER_LIKE, policy_smoothing=0.3, score_smoothing=0.6, td_into_embedding=True),
}


@pytest.fixture(autouse=True)
def _double_precision() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


@pytest.fixture(params=CONFIGS)
def drop(request: pytest.FixtureRequest) -> DROP:
    return CONFIGS[request.param]


@cache
def make_state(drop: DROP) -> DropState:
    """Random weights, also for the target network, so that it differs from f, and a multiplier above 0."""
    state = drawn_like(lambda: drop.init(jax.random.key(0), SPEC, Clock.at(0, 1)), seed=1)
    return state._replace(multiplier=jnp.asarray(0.7))


def embeddings(phi: TaskEmbedding) -> np.ndarray:
    n, perceptron = phi.first.weight.shape[1], phi.rest
    assert perceptron is not None
    hidden = [np.asarray(phi.first.weight) @ one_hot + np.asarray(phi.first.bias) for one_hot in np.eye(n)]
    raw = np.stack([mlp(perceptron, np.maximum(h, 0)) for h in hidden])
    return np.tanh(raw) if phi.space == "tanh" else (raw - raw.mean(axis=0)) / raw.std(axis=0)


@dataclass(frozen=True)
class Losses:
    clone: float
    td: float
    gaps: np.ndarray  # one for every step on which the gap is measured
    score_mean: float

    @property
    def gap(self) -> float:
        return float(np.mean(self.gaps))

    def total(self, drop: DROP) -> float:
        """With the multiplier at 0.7."""
        if drop.constraint == "hinge":
            penalty = drop.multiplier_max * np.mean(np.maximum(self.gaps - scoring.eta(drop), 0) ** 2)
        else:
            penalty = 0.7 * (self.gap - scoring.eta(drop))
        return float(self.clone + self.td + penalty)


def reference(
    drop: DROP, moving: Networks, fixed: Networks, target: AnyScoreModel, batch: Batch, unseen: Any
) -> Losses:
    f, fixed_beta = moving.score_model, fixed.behavior_policy
    moving_table, fixed_table = embeddings(moving.embedding), embeddings(fixed.embedding)
    policy_noise, score_noise = (np.asarray(jax.random.normal(key, (5, 2))) for key in jax.random.split(KEY, 3)[:2])
    policy_noise, score_noise = drop.policy_smoothing * policy_noise, drop.score_smoothing * score_noise
    clone, errors, scores, gaps = [], [], [], []
    for i in range(len(batch.reward)):
        s, a, n, reward, discount, next_s, next_a, next_known, _ = (np.asarray(leaf)[i] for leaf in batch[:9])
        moving_z, fixed_z = moving_table[n], fixed_table[n]
        # Equation 6, in nats per action dimension and without the constant ½ log 2π.
        mean, std = action_distribution(moving.behavior_policy, s, moving_z + policy_noise[i])
        clone.append(np.mean(-stats.norm.logpdf(a, mean, std) - 0.5 * np.log(2 * np.pi)))
        # Equation 8, for each score model with its own target. The target does not depend on the learned weights.
        if not next_known:
            next_a = action_distribution(fixed_beta, next_s, fixed_z + score_noise[i])[0]
        bootstrapped = reward + discount * scores_of_each(target, next_s, next_a, fixed_z + score_noise[i])
        scores.append(scores_of_each(f, s, a, (moving_z if drop.td_into_embedding else fixed_z) + score_noise[i]))
        errors.append(bootstrapped - scores[-1])
        # Its constraint: f at the actions of β, for a z from μ and for the z of the sub-task.
        if i >= len(unseen):
            continue
        both_z = (np.asarray(unseen)[i], fixed_z)
        at = [scores_of_each(f, s, action_distribution(fixed_beta, s, z)[0], z).min() for z in both_z]
        gaps.append(at[0] - at[1])
    td = np.mean(np.sum(np.square(errors), axis=1)[np.asarray(batch.has_target) == 1])
    return Losses(float(np.mean(clone)), float(td), np.array(gaps), float(np.mean(scores)))


KEY = jax.random.key(7)
OBJECTIVES = ("clone", "td", "gap", "total")
PARTS = ("embedding", "behavior_policy", "score_model")


class Found(NamedTuple):
    """Results of the library: the objectives, their gradients (first axis), and the sum's gradient for the target."""

    values: jax.Array
    score_mean: jax.Array
    gradients: Networks
    target_gradient: AnyScoreModel
    unseen: jax.Array


@cache
def compiled(drop: DROP) -> Any:
    def everything(networks: Networks, target: AnyScoreModel, multiplier: jax.Array, batch: Batch) -> Found:
        def objectives(networks: Networks, target: AnyScoreModel) -> tuple[jax.Array, jax.Array]:
            total, metrics = drop.loss(networks, target, multiplier, batch, KEY)
            values = jnp.stack([metrics["clone_loss"], metrics["td_loss"], metrics["gap"], total])
            return values, metrics["score_mean"]

        values, score_mean = objectives(networks, target)
        gradients, target_gradients = jax.jacrev(objectives, (0, 1), has_aux=True)(networks, target)[0]
        unseen = drop._unseen_embeddings(
            networks.embedding.table(), jax.random.split(KEY, 3)[2], round(5 * drop.constraint_share)
        )
        return Found(values, score_mean, gradients, target_gradients, unseen)

    return jax.jit(everything)


def library(drop: DROP, batch: Batch | None = None, multiplier: float = 0.7, networks: Networks | None = None) -> Found:
    state = make_state(drop)
    found: Found = compiled(drop)(
        networks or state.networks, state.averaged.score_model, jnp.asarray(multiplier), batch or make_batch()
    )
    return found


def gradient_of(found: Found, objective: str) -> Networks:
    i = OBJECTIVES.index(objective)
    return jax.tree.map(lambda leaf: np.asarray(leaf)[i], found.gradients)


def test_every_loss_equals_that_of_the_paper(drop: DROP) -> None:
    state, found = make_state(drop), library(drop)
    expected = reference(drop, state.networks, state.networks, state.averaged.score_model, make_batch(), found.unseen)
    values = [expected.clone, expected.td, expected.gap, expected.total(drop)]
    np.testing.assert_allclose(found.values, values, rtol=1e-6)
    assert float(found.score_mean) == pytest.approx(expected.score_mean, rel=1e-6)


def test_if_every_next_action_is_logged_the_policy_is_not_asked(drop: DROP) -> None:
    """Data without `next_observations` has None in place of one flag for every step."""
    all_known = make_batch()._replace(next_action_known=jnp.ones(5, bool))
    said, told = library(drop, all_known), library(drop, all_known._replace(next_action_known=None))
    for one, other in zip(jax.tree.leaves(said), jax.tree.leaves(told), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-9, atol=1e-12)


def moved(networks: Networks, direction: Networks, by: float) -> Networks:
    return jax.tree.map(lambda leaf, d: np.asarray(leaf) + by * d, networks, direction)


def random_direction(networks: Networks, seed: int, part: str | None) -> Networks:
    """A random direction of all weights, or of φ, β or f alone."""
    rng = np.random.default_rng(seed)
    direction = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), networks)
    still = jax.tree.map(np.zeros_like, direction)
    parts = {name: getattr(direction if part in (None, name) else still, name) for name in PARTS}
    return Networks(**parts, home=None)


def inner(a: Networks, b: Networks) -> float:
    return float(sum(np.sum(x * y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)))


def test_gradients_are_finite_differences(drop: DROP) -> None:
    """The gradients of cloning, TD, gap and their sum, along random directions of all weights, and of φ, β, f alone."""
    state, found = make_state(drop), library(drop)
    networks, target, batch = state.networks, state.averaged.score_model, make_batch()
    h = 1e-6
    for seed, part in enumerate((None, None, *PARTS)):
        direction = random_direction(networks, seed, part)
        up, down = (
            reference(drop, moved(networks, direction, by), networks, target, batch, found.unseen) for by in (h, -h)
        )
        ends = [(losses.clone, losses.td, losses.gap, losses.total(drop)) for losses in (up, down)]
        for name, high, low in zip(OBJECTIVES, *ends, strict=True):
            slope = (high - low) / (2 * h)
            along = inner(gradient_of(found, name), direction)
            assert along == pytest.approx(slope, rel=1e-5, abs=1e-7), (part, name)


def moves(gradient: Networks) -> set[str]:
    return {part for part in PARTS if any(np.any(leaf != 0) for leaf in jax.tree.leaves(getattr(gradient, part)))}


def test_what_each_loss_moves(drop: DROP) -> None:
    found = library(drop)
    assert moves(gradient_of(found, "clone")) == {"embedding", "behavior_policy"}
    assert moves(gradient_of(found, "td")) == {"score_model"} | ({"embedding"} if drop.td_into_embedding else set())
    assert moves(gradient_of(found, "gap")) == {"score_model"}
    assert moves(gradient_of(found, "total")) == set(PARTS)


def test_the_target_network_is_never_moved_by_a_gradient(drop: DROP) -> None:
    assert all(np.all(leaf == 0) for leaf in jax.tree.leaves(library(drop).target_gradient))


def test_a_violated_constraint_pushes_unseen_scores_down() -> None:
    """A small step against λ · ∇gap lowers the gap. A step in the other direction raises it."""
    networks, found = make_state(PAPER_LIKE).networks, library(PAPER_LIKE)
    penalty = jax.tree.map(
        np.subtract, gradient_of(found, "total"), gradient_of(library(PAPER_LIKE, multiplier=0.0), "total")
    )
    lower, higher = (library(PAPER_LIKE, networks=moved(networks, penalty, by)).values[2] for by in (-1e-4, 1e-4))
    assert lower < found.values[2] < higher


@pytest.mark.parametrize("field", ["next_observation", "next_action", "reward"])
def test_what_the_td_loss_depends_on(field: str) -> None:
    before = library(PAPER_LIKE).values[1]

    def changes(row: int) -> bool:
        value = np.array(getattr(make_batch(), field))
        value[row] += 10.0
        return bool(library(PAPER_LIKE, make_batch()._replace(**{field: jnp.asarray(value)})).values[1] != before)

    assert changes(0)
    assert changes(1) is (field == "reward")  # terminal: only the reward counts
    assert changes(2) is (field != "next_action")  # a' is unknown: the entry of the table does not count
    assert not changes(4)  # no target


def test_a_batch_without_any_target_has_no_td_loss() -> None:
    found = library(PAPER_LIKE, make_batch()._replace(has_target=jnp.zeros(5)), multiplier=0.0)
    assert float(found.values[1]) == 0.0
    assert moves(gradient_of(found, "total")) == {"embedding", "behavior_policy"}


# --- other constraints, smoothing, several score models ---


def test_the_hinge_penalises_each_state_regardless_of_the_mean_and_the_multiplier() -> None:
    """The mean is below the threshold, but some steps violate it: only these are pushed."""
    drop, found = CONFIGS["hinge"], library(CONFIGS["hinge"])
    state = make_state(drop)
    gaps = reference(drop, state.networks, state.networks, state.averaged.score_model, make_batch(), found.unseen).gaps
    violated = gaps[gaps > scoring.eta(drop)] - scoring.eta(drop)
    assert 0 < len(violated) < 5
    assert np.mean(gaps) < scoring.eta(drop)
    penalty = float(found.values[3] - found.values[0] - found.values[1])
    assert penalty == pytest.approx(3.0 * np.sum(violated**2) / 5, rel=1e-6)
    assert float(library(drop, multiplier=0.0).values[3]) == float(found.values[3])


def loss_alone(drop: DROP) -> tuple[float, dict[str, float]]:
    state = make_state(drop)
    given = state.networks, state.averaged.score_model, jnp.asarray(0.7), make_batch(), KEY
    total, metrics = jax.jit(drop.loss)(*given)
    return float(total), {name: float(value) for name, value in metrics.items()}


def test_without_a_constraint_there_is_no_gap() -> None:
    total, metrics = loss_alone(replace(PAPER_LIKE, constraint="none"))
    assert set(metrics) == {"clone_loss", "td_loss", "score_mean"}
    clone, td = library(PAPER_LIKE).values[:2]
    np.testing.assert_allclose([metrics["clone_loss"], metrics["td_loss"], total], [clone, td, clone + td], rtol=1e-9)


@pytest.mark.parametrize(("setting", "loss"), [("policy_smoothing", "clone_loss"), ("score_smoothing", "td_loss")])
def test_each_smoothing_changes_only_its_own_loss(setting: str, loss: str) -> None:
    """The gap is always at the z of the sub-tasks without noise."""
    changed: dict[str, Any] = {setting: 0.4}
    plain, smoothed = (loss_alone(drop)[1] for drop in (PAPER_LIKE, replace(PAPER_LIKE, **changed)))
    for name in ("clone_loss", "td_loss", "gap"):
        assert (smoothed[name] == pytest.approx(plain[name], rel=1e-9)) is (name != loss)


def test_score_models_learn_independently() -> None:
    """The TD gradient of a member is the one that it would have alone, with its own target."""
    drop = CONFIGS["three score models"]
    state, found = make_state(drop), gradient_of(library(drop), "td")
    assert not isinstance(found.score_model, ScoreModel)
    for i, member in enumerate(members(state.networks.score_model)):
        alone = replace(state.networks, score_model=member)
        target = members(state.averaged.score_model)[i]
        expected = gradient_of(compiled(PAPER_LIKE)(alone, target, jnp.asarray(0.7), make_batch()), "td").score_model
        one = member_of(found.score_model.members, i)
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9)


# --- the z-space ---


def test_unseen_embeddings_are_uniform_over_the_box_of_the_embeddings() -> None:
    table = jnp.array([[-2.0, 0.5], [1.0, 0.0], [0.0, 3.0]])
    for drop, low, high in ((CONFIGS["default"], (-2, 0), (1, 3)), (CONFIGS["to the letter"], (-1, -1), (1, 1))):
        drawn = np.asarray(drop._unseen_embeddings(table, jax.random.key(0), 4000))
        for i in range(2):
            assert stats.kstest(drawn[:, i], "uniform", (low[i], high[i] - low[i])).pvalue > 1e-3
        assert abs(np.corrcoef(drawn.T)[0, 1]) < 0.06  # the dimensions are drawn independently: 0 ± 0.016


def test_behaviour_cloning_is_equation_4() -> None:
    bc = BC(width=8, state_depth=1, action_depth=1)
    batch, policy = (
        make_batch(),
        drawn_like(lambda: bc.init(jax.random.key(0), SPEC, Clock.at(0, 1)), seed=0).behavior_policy,
    )
    nothing = np.zeros(0)
    expected = [
        0.5 * np.mean((a - action_distribution(policy, s, nothing)[0]) ** 2)
        for s, a in zip(np.asarray(batch.observation), np.asarray(batch.action), strict=True)
    ]
    assert float(jax.jit(bc._loss)(policy, batch)) == pytest.approx(np.mean(expected), rel=1e-6)

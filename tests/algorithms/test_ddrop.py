"""D-DROP: its φ, β and f are those of DROP, and its student acts as adaptation would, without a search."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.stitching import LENGTH, OPTIMUM, corridor_dataset, reward_of
from helpers.training import learnable_dataset, refusal, tiny

from droprl.adapt import Adaptation
from droprl.algorithms.ddrop import DDROP, Distillation
from droprl.algorithms.drop import DROP
from droprl.algorithms.protocol import Clock
from droprl.data.transitions import Batch, Prepared
from droprl.networks.critics import score_of_behavior
from droprl.policies import FixedPolicy
from droprl.train.loop import Loop

KEY = jax.random.key(3)
STUDENT: Any = tiny(
    "ddrop", decomposition="rank", n_sub_tasks=4, trajectories_per_sub_task=3, embedding_size=2, discount=0.9
)


def as_drop(algorithm: DDROP, **changes: Any) -> DROP:
    """DROP with the same settings."""
    shared = {f.name for f in fields(DROP)} & {f.name for f in fields(algorithm)}
    settings = {name: getattr(algorithm, name) for name in shared} | {"adaptation": algorithm.outer}
    return DROP(**settings | changes)


def trained(algorithm: DROP, prepared: Prepared, updates: int, seed: int = 0) -> Any:
    loop = Loop(algorithm, prepared, [seed], updates)
    return jax.tree.map(lambda leaf: leaf[0], loop.run(loop.init(), 0, updates)[0])


@cache
def prepared() -> Prepared:
    found: Prepared = STUDENT.prepare(learnable_dataset())
    return found


@cache
def state() -> Distillation:
    """After some updates: the averages lag behind."""
    found: Distillation = trained(STUDENT, prepared(), 25, seed=5)
    return found


@cache
def make_batch() -> Batch:
    return prepared().transitions.sample(KEY, STUDENT.batch_size)


def same(a: Any, b: Any) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


# --- what it shares with DROP ---


def test_the_teacher_is_drop_itself() -> None:
    """The student affects neither φ, β, f and λ nor their Adam: a run of DROP ends with the same state."""
    drop = trained(as_drop(STUDENT), prepared(), 25, seed=5)
    for mine, its in zip(jax.tree.leaves(state().teacher), jax.tree.leaves(drop), strict=True):
        np.testing.assert_allclose(mine, its, rtol=1e-5, atol=1e-6)
    assert not same(drop.networks, drop.averaged)  # it has moved


def test_the_teacher_acts_as_drop_does_at_test_time() -> None:
    drop = as_drop(STUDENT, adaptation=STUDENT.outer)
    policy, observations = drop.policy(state().teacher), make_batch().observation
    expected = jax.jit(lambda: policy.act(policy.start(len(observations)), observations, KEY)[1])()
    found = jax.jit(STUDENT.teacher_actions)(state().teacher, observations)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_the_outer_optimisation_by_brute_force() -> None:
    """With best-ada it takes, for each state, the highest of N scores by the averaged networks."""
    averaged, observations = state().teacher.averaged, make_batch().observation[:8]
    beta, f, table = averaged.behavior_policy, averaged.score_model, averaged.embedding.table()

    def at(s: jax.Array, z: jax.Array) -> tuple[jax.Array, jax.Array]:
        encoded = beta.encode(s)
        return score_of_behavior(f, beta, s, encoded, z), beta.mode(encoded, z)

    scores, actions = jax.jit(jax.vmap(jax.vmap(at, (None, 0)), (0, None)))(observations, table)
    best = np.argmax(np.asarray(scores), axis=1)
    by_rule = replace(STUDENT, outer=Adaptation(rule="best-ada"))
    found = jax.jit(by_rule.teacher_actions)(state().teacher, observations)
    np.testing.assert_allclose(found, np.asarray(actions)[np.arange(8), best], rtol=1e-5, atol=1e-6)


# --- the student ---


def test_the_student_regresses_on_the_teacher_at_the_first_states_of_a_batch() -> None:
    """Adam's first step moves every weight by the learning rate, against the sign of its gradient."""
    batch, n = make_batch(), 4  # an eighth of 32
    before = STUDENT.init(KEY, prepared().spec, Clock.at(0, 1))
    after, metrics = jax.jit(STUDENT.update)(before, batch, KEY, Clock.at(0, 1))
    drop = as_drop(STUDENT, adaptation=STUDENT.outer)
    observations = batch.observation[:n]

    @jax.jit
    def by_definition() -> Any:
        teacher = drop.policy(after.teacher)
        target = teacher.act(teacher.start(n), observations, KEY)[1]

        def half_squared_error(student: Any) -> jax.Array:
            acted = FixedPolicy(student, jnp.zeros(0), False).act((), observations, KEY)[1]
            return jnp.mean((acted - target) ** 2) / 2

        return jax.value_and_grad(half_squared_error)(before.student)

    loss, gradient = by_definition()
    assert float(metrics["distillation_loss"]) == pytest.approx(float(loss), rel=1e-4)
    leaves = (jax.tree.leaves(tree) for tree in (before.student, after.student, gradient))
    for old, new, g in zip(*leaves, strict=True):
        clear = np.abs(np.asarray(g)) > 1e-5  # far above Adam's ε and rounding
        step = np.asarray(new) - np.asarray(old)
        np.testing.assert_allclose(step[clear], -STUDENT.learning_rate * np.sign(g)[clear], rtol=5e-3)
    assert not same(before.student, after.student)


def test_the_averaged_student_acts_without_the_teacher() -> None:
    def acted(at: Distillation) -> np.ndarray:
        policy = STUDENT.policy(at)
        assert isinstance(policy, FixedPolicy)
        return np.asarray(jax.jit(lambda: policy.act(policy.start(32), make_batch().observation, KEY)[1])())

    def shifted(tree: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf + 1, tree)

    before = acted(state())
    for part in ("teacher", "student"):
        np.testing.assert_array_equal(acted(state()._replace(**{part: shifted(getattr(state(), part))})), before)
    assert np.abs(acted(state()._replace(averaged=shifted(state().averaged))) - before).max() > 1e-2


def test_there_is_no_adaptation_to_set() -> None:
    assert STUDENT.adaptation is None
    names = {f.name for f in fields(DDROP)}
    assert "outer" in names
    assert not {"adaptation", "sample_actions"} & names
    assert refusal(DDROP, distilled_share=0.0).startswith("distilled_share is 0.0")


def test_the_diagnosis_of_distillation() -> None:
    found = jax.jit(STUDENT.diagnose)(state(), prepared().probe)
    observations = prepared().probe.batch.observation
    wanted = np.asarray(jax.jit(STUDENT.teacher_actions)(state().teacher, observations))
    acted = np.asarray(jax.jit(lambda: STUDENT.policy(state()).act((), observations, KEY)[1])())
    assert float(found["probe_distillation_loss"]) == pytest.approx(np.mean((wanted - acted) ** 2) / 2, rel=1e-4)
    explained = 1 - np.sum((wanted - acted) ** 2) / np.sum((wanted - wanted.mean(axis=0)) ** 2)
    assert float(found["distillation_r2"]) == pytest.approx(explained, rel=1e-3, abs=1e-4)
    assert {"probe_clone_loss", "score_r2", "score_rank_correlation"} <= set(found)  # the measures of DROP too
    for value, healthy in ((0.95, True), (0.3, False)):
        (check,) = STUDENT.checks({"distillation_r2": value})
        assert check.healthy is healthy
        assert check.meaning.startswith("the student" if healthy else "undistilled")


# --- where the optimum is known ---


def test_the_student_stitches_as_adaptation_does() -> None:
    """The way through the corridor does not depend on actions, so a return is a sum over its states."""
    algorithm = DDROP(
        decomposition="rank",
        n_sub_tasks=9, trajectories_per_sub_task=10, embedding_size=2, discount=0.8,
        depths=(1, 1, 1, 1, 1), width=32, batch_size=128,
    )  # fmt: skip
    data = algorithm.prepare(corridor_dataset()[0])
    found: Distillation = trained(algorithm, data, 1500)
    places = np.add.outer([0.1, 0.5, 0.9], np.arange(LENGTH)).ravel()
    observations = jnp.asarray(data.scaling.observations_in(places[:, None].astype(np.float32)))

    def earned(actions: Any) -> float:
        rewards = [reward_of(x, float(a)) for x, a in zip(places, np.asarray(actions)[:, 0], strict=True)]
        return sum(rewards) / 3

    adapted = earned(jax.jit(algorithm.teacher_actions)(found.teacher, observations))
    distilled = earned(jax.jit(lambda: algorithm.policy(found).act((), observations, KEY)[1])())
    assert adapted > 0.9 * OPTIMUM
    assert distilled > 0.95 * adapted

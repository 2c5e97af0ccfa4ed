"""First is F-BC: the fallback learns from the steps that F-BC would learn from, by F-BC's update, and acts at z_0."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.training import learnable_dataset, tiny

from droprl.adapt import Adaptation, InferenceRule
from droprl.algorithms import DROP, FBC
from droprl.algorithms.bc import BCState
from droprl.algorithms.protocol import Clock
from droprl.data.best import best_episodes, best_fraction
from droprl.data.transitions import Batch

CLOCK = Clock.at(0, 1)


def made(**changes: Any) -> tuple[DROP, Any, Any]:
    settings: dict[str, Any] = {"n_sub_tasks": 4, "learning_rate": 1e-3, "rank_by": "return"}
    algorithm: Any = tiny("drop", **settings | changes).resolve(learnable_dataset())
    prepared = algorithm.prepare(learnable_dataset())
    return algorithm, prepared, algorithm.init(jax.random.key(0), prepared.spec, CLOCK)


def test_the_first_sub_task_holds_what_f_bc_clones_and_the_others_hold_all() -> None:
    """Twelve episodes whose returns rise: the cut has four threes, the best first. Six are nearer to the best return
    than to the median."""
    data, (algorithm, prepared, _) = learnable_dataset(), made()
    parts = algorithm.sub_tasks(data)
    best = FBC().resolve(data).top_fraction
    assert best == best_fraction(data)
    assert set(parts[0].tolist()) == set(best_episodes(data, best).tolist())
    assert [sorted(part.tolist()) for part in parts[1:]] == [[9, 10, 11], [6, 7, 8], [3, 4, 5], [0, 1, 2]]
    assert prepared.spec.n_sub_tasks == 5
    assert len(made(fallback="top")[0].sub_tasks(data)) == 4


@pytest.mark.parametrize("changes", [{"n_sub_tasks": 1}, {"decomposition": "random"}, {"fallback": "top"}])
def test_where_nothing_stands_out_there_is_no_fallback(changes: Any) -> None:
    algorithm, _, state = made(**changes)
    assert state.networks.fallback is None
    assert algorithm.policy(state).fallback is None


def test_its_update_is_that_of_f_bc_on_the_steps_of_the_first_sub_task() -> None:
    """F-BC sees these steps alone, in the same order. Adam knows nothing of the other networks."""
    algorithm, prepared, state = made()
    batch: Batch = prepared.transitions.sample(jax.random.key(1), 64)
    first = np.flatnonzero(np.asarray(batch.sub_task) == 0)
    assert 0 < len(first) < 64
    after = algorithm.update(state, batch, jax.random.key(2), CLOCK)[0].networks.fallback
    alone: Any = FBC(width=8, state_depth=1, action_depth=1, learning_rate=1e-3)
    network = state.networks.fallback
    began = BCState(network, network, alone._optimizer().init(network))
    of_first = jax.tree.map(lambda column: column[first], batch._replace(fold=None))
    expected = alone.update(began, of_first, jax.random.key(2), CLOCK)[0].behavior_policy
    for ours, theirs, before in zip(*map(jax.tree.leaves, (after, expected, network)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
        assert not np.array_equal(ours, before)


def test_it_acts_at_the_first_z_alone() -> None:
    algorithm, _, state = made()
    observations = jax.random.normal(jax.random.key(3), (40, 3))
    own = jax.vmap(lambda s: state.averaged.fallback.mode(state.averaged.fallback.encode(s), jnp.zeros(0)))(
        observations
    )
    policy = algorithm.policy(state)
    rules: tuple[InferenceRule, ...] = ("first", "best-ada")
    for rule in rules:
        acting = replace(policy, adaptation=Adaptation(rule=rule, candidates="all"))
        carry, actions = acting.act(acting.start(40), observations, None)
        chosen = np.asarray(carry.inferred.start)
        beta = jax.vmap(lambda s, z: policy.behavior_policy.mode(policy.behavior_policy.encode(s), z))(
            observations, carry.inferred.z
        )
        expected = np.where((chosen == 0)[:, None], own, beta)
        np.testing.assert_allclose(actions, expected, rtol=1e-5, atol=1e-6)
        assert rule != "first" or not chosen.any()
        assert rule == "first" or chosen.any()
        searched = jax.vmap(acting.search.action)(observations, carry.inferred.z)
        np.testing.assert_allclose(searched, expected, rtol=1e-5, atol=1e-6)

"""Searching less and judging by the action alone: hysteresis, skipped searches and `score_by`, on problems by hand."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from droprl.adapt import Adaptation, Inferred, Search, infer
from droprl.networks.actors import BehaviorPolicy
from droprl.networks.critics import ScoreModel
from droprl.networks.homes import Home
from droprl.policies import AdaptivePolicy

LINE = jnp.array([[0.0], [1.0], [2.0]])


def rising(z: jax.Array) -> jax.Array:
    return z[0]


def in_use(n: int) -> Inferred:
    return Inferred(LINE[n], jnp.zeros(()), jnp.asarray(n, jnp.int32))


@pytest.mark.parametrize(("hysteresis", "expected"), [(0.0, 2), (0.9, 2), (1.1, 1)])
def test_the_z_in_use_stays_if_too_little_is_gained(hysteresis: float, expected: int) -> None:
    """The third z_n scores 1 more than the second, which is in use."""
    found = infer(rising, LINE, Adaptation(rule="best-ada", hysteresis=hysteresis), in_use(1))
    assert int(found.start) == expected
    assert float(found.z[0]) == float(found.score) == expected


def test_a_z_whose_sub_task_is_not_at_home_does_not_stay() -> None:
    adaptation = Adaptation(rule="best-ada", hysteresis=9.0)
    assert int(infer(rising, LINE, adaptation, in_use(1), jnp.array([True, False, True])).start) == 2


def test_rules_that_choose_once_know_no_hysteresis() -> None:
    assert int(infer(rising, LINE, Adaptation(rule="best", hysteresis=9.0), in_use(0)).start) == 2


# --- β(s, z) = s · z: at s = 0 all z act alike. f(s, a, z) = −(a − 1)² + 10 z ---


class Product(eqx.Module):
    def encode(self, observation: jax.Array) -> jax.Array:
        return observation

    def mode(self, encoded: jax.Array, z: jax.Array) -> jax.Array:
        return encoded * z


class Near1(eqx.Module):
    def shared(self, observation: jax.Array, action: jax.Array, z: jax.Array) -> jax.Array:
        return -jnp.sum((action - 1.0) ** 2) + 10.0 * z[0]

    def each(self, observation: jax.Array, action: jax.Array, z: jax.Array) -> jax.Array:
        return self.shared(observation, action, z)[None]


def policy(**settings: Any) -> AdaptivePolicy:
    adaptation = Adaptation(rule="best-ada", **settings)
    return AdaptivePolicy(Product(), Near1(), LINE, adaptation, sample_actions=False)  # type: ignore[arg-type]


def starts(acting: AdaptivePolicy, states: list[float]) -> list[int]:
    """The number of the z in use after each state."""
    carry, found = acting.start(1), []
    for s in states:
        carry, _ = acting.act(carry, jnp.array([[s]]), None)
        found.append(int(carry.inferred.start[0]))
    return found


def test_a_search_is_skipped_where_all_candidates_act_alike() -> None:
    """By the action alone, 1 / s is best: the second z_n at 1, the third at 0.5, the first at −1."""
    by_action = policy(score_by="action")
    assert starts(by_action, [1.0, 0.5, -1.0, 0.0]) == [1, 2, 0, 0]
    assert starts(policy(score_by="action", least_change=0.1), [1.0, 0.0, 0.04, 0.5, 0.0]) == [1, 1, 1, 2, 2]
    # At 0.04 the actions are 0, 0.04 and 0.08: at most 0.08 apart.
    assert starts(policy(score_by="action", least_change=0.01), [1.0, 0.0, 0.04]) == [1, 1, 2]


def test_the_first_state_is_always_searched() -> None:
    assert starts(policy(least_change=0.1), [0.0]) == [2]  # by the embedding, f prefers the largest z


def test_a_policy_that_may_skip_remembers() -> None:
    assert not policy().traits.remembers
    assert policy(least_change=0.1).traits.remembers
    assert policy(hysteresis=0.1).traits.remembers


@pytest.mark.parametrize("known", [True, False])
def test_by_the_action_the_score_is_the_mean_over_the_sub_tasks_at_home(known: bool) -> None:
    keys = jax.random.split(jax.random.key(3), 3)
    home = Home(2, 3, 8, keys[2])
    output = home.network.layers[-1]
    home = eqx.tree_at(lambda made: made.network.layers[-1].weight, home, 40.0 * output.weight)  # it tells states apart
    policy = BehaviorPolicy(2, 1, 1, 8, (1, 1), "deterministic", keys[0])
    score_model = ScoreModel(2, 1, 1, 8, (1, 1), False, keys[1])
    adaptation = Adaptation(rule="best-ada", score_by="action")
    search, masks = Search(policy, score_model, LINE, adaptation, home if known else None), set()
    for s in 3.0 * jax.random.normal(jax.random.key(4), (12, 2)):
        mask = home.supported(s).tolist() if known else [True] * 3
        masks.add(tuple(mask))
        for z in LINE:
            action = policy.mode(policy.encode(s), z)
            scores = [float(score_model.shared(s, action, LINE[n])) for n in range(3) if mask[n]]
            assert float(search.score_at(s)(z)) == pytest.approx(np.mean(scores), rel=1e-4, abs=1e-5)
    assert len(masks) > 1 or not known

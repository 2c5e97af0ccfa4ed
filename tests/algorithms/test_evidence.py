"""Does the search pay? The evidence against products computed by hand, and on data whose answer is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.training import learnable_dataset

from droprl.adapt import Adaptation, Search
from droprl.adapt.inference import infer
from droprl.algorithms.drop import DROP
from droprl.algorithms.evidence import Evidence, measure
from droprl.algorithms.protocol import Clock
from droprl.data.transitions import Batch, Spec
from droprl.errors import DropError

DROP_OF_THREE = DROP(
    n_sub_tasks=3,
    trajectories_per_sub_task=2,
    embedding_size=2,
    width=8,
    depths=(1, 1, 1, 1, 1),
    discount=0.9,
    windows=99,
)
SPEC = Spec(3, 2, 3)
PRIOR = jnp.log(jnp.array([0.5, 0.25, 0.25]))


@pytest.fixture(scope="module")
def state() -> Any:
    return replace(DROP_OF_THREE, decomposition="rank").init(jax.random.key(2), SPEC, Clock.at(0, 1))


def make_batch(n: int, seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    s, a, next_s, next_a = (jnp.asarray(rng.uniform(-1, 1, (n, size)), jnp.float32) for size in (3, 2, 3, 2))
    reward, discount = jnp.asarray(rng.normal(size=n), jnp.float32), jnp.full(n, 0.9)
    known = jnp.asarray(rng.random(n) < 0.8, jnp.float32)
    fold = jnp.asarray(rng.integers(0, 2, n), jnp.int32)
    return Batch(s, a, jnp.zeros(n, jnp.int32), reward, discount, next_s, next_a, None, known, fold)


def test_the_products_by_hand(state: Any) -> None:
    networks = state.networks
    table = networks.embedding.table()
    search = Search(networks.behavior_policy, networks.score_model, table, Adaptation(), networks.home)
    batch = make_batch(40)
    found = measure(search, PRIOR, batch)
    assert found.shape == (5, 3)  # an eighth of the batch
    policy = networks.behavior_policy
    for i in range(5):
        unseen = 1 - int(batch.fold[i])

        def score(s: jax.Array, z: jax.Array, unseen: int = unseen) -> jax.Array:
            return networks.score_model.each(s, policy.mode(policy.encode(s), z), z)[unseen]

        def mean(s: jax.Array, of: Any) -> Any:
            """Over the sub-tasks that the state may come from."""
            shares = np.exp(np.asarray(networks.home.log_shares(s) + PRIOR))
            return sum(p * np.asarray(of(s, z)) for p, z in zip(shares / shares.sum(), table, strict=True))

        s, a = batch.observation[i], np.asarray(batch.action[i])
        advantage = float(batch.reward[i]) + 0.9 * mean(batch.next_observation[i], score) - mean(s, score)
        supported = networks.home.supported(s)

        def at(z: jax.Array, s: jax.Array = s) -> np.ndarray:
            return np.asarray(policy.mode(policy.encode(s), z))

        def by(rule: Any, candidates: Any, s: jax.Array = s, score: Any = score, supported: Any = supported) -> Any:
            how = Adaptation(rule=rule, candidates=candidates, starts=1)
            return infer(lambda z: score(s, z), table, how, supported=supported).z

        first, chosen = at(table[0]), at(by("best-ada", "supported"))
        from_first, climbed = at(by("grad-ada", "first")), at(by("grad-ada", "supported"))
        moves = [(first, chosen), (first, from_first), (chosen, climbed)]
        unusual = a - mean(s, lambda s, z: policy.mode(policy.encode(s), z))
        counts = float(batch.has_target[i]) * bool(supported[0])
        expected = [counts * advantage * float(unusual @ (c - b)) for b, c in moves]
        np.testing.assert_allclose(found[i], expected, rtol=2e-4, atol=1e-6)


def test_t_values_are_those_of_independent_products() -> None:
    """The first measurements are averaged evenly. More products than the data has pieces say nothing new."""
    rng = np.random.default_rng(1)
    products = rng.normal(0.3, 1.0, (20, 16, 3))
    evidence = Evidence.none()
    for part in products:
        evidence = evidence.after(jnp.asarray(part))
    flat = products.reshape(-1, 3)
    standard_error = np.sqrt((flat**2).mean(axis=0) / len(flat))
    np.testing.assert_allclose(evidence.t_values(10_000), flat.mean(axis=0) / standard_error, rtol=1e-4)
    np.testing.assert_allclose(evidence.t_values(80), evidence.t_values(10_000) / 2, rtol=1e-4)  # 320 products


@pytest.mark.parametrize(
    ("t_values", "choice"), [((9, 9, 1), 2), ((9, 0, 9), 3), ((1, 9, 9), 1), ((1, 1, 9), 0), ((-9, -9, -9), 0)]
)
def test_only_moves_with_evidence_are_made(t_values: tuple[int, ...], choice: int) -> None:
    t = jnp.asarray(t_values, float)
    evidence = Evidence(t / 10, jnp.ones(3), jnp.asarray(5.0), jnp.asarray(100.0))
    np.testing.assert_allclose(evidence.t_values(10_000), t, rtol=1e-5)
    assert int(evidence.choice(10_000)) == choice


def test_luck_is_no_evidence_and_skill_is(state: Any) -> None:
    """Rewards that follow the move towards the chosen action are evidence. Rewards drawn at random are none."""
    networks = state.networks
    table = networks.embedding.table()
    search = Search(networks.behavior_policy, networks.score_model, table, Adaptation(), networks.home)
    batch = make_batch(8 * 4000, seed=3)
    few = batch.observation[:4000]

    def moved(s: jax.Array) -> jax.Array:
        best = search.infer(s)
        return search.action(s, best.z) - search.action(s, table[0])

    direction = jax.vmap(moved)(few)
    skill = jnp.sum(direction * batch.action[:4000], axis=1)
    paid = batch.reward.at[:4000].set(20 * skill)
    lucky = Evidence.none().after(measure(search, PRIOR, batch)).t_values(10_000)
    skilled = Evidence.none().after(measure(search, PRIOR, batch._replace(reward=paid))).t_values(10_000)
    assert np.abs(np.asarray(lucky)).max() < 4
    assert float(skilled[0]) > 10


def test_a_wrong_value_of_the_state_is_no_evidence(state: Any) -> None:
    """V is 5 too low everywhere, and the actions scatter about the data's mean: nothing speaks for any move."""
    networks, batch = state.networks, make_batch(8 * 4000, seed=4)
    table, policy = networks.embedding.table(), networks.behavior_policy
    search = Search(policy, networks.score_model, table, Adaptation(), networks.home)

    def usual(s: jax.Array) -> jax.Array:
        encoded = policy.encode(s)
        return jax.nn.softmax(networks.home.log_shares(s) + PRIOR) @ jax.vmap(lambda z: policy.mode(encoded, z))(table)

    actions = jax.vmap(usual)(batch.observation) + 0.3 * batch.action
    biased = batch._replace(action=actions, reward=batch.reward + 5.0, discount=jnp.zeros_like(batch.discount))
    t_values = Evidence.none().after(measure(search, PRIOR, biased)).t_values(10_000)
    assert np.abs(np.asarray(t_values)).max() < 4


def test_settings_that_cannot_give_evidence_are_refused() -> None:
    with pytest.raises(DropError, match="give score_models 2 and learn_home"):
        DROP(score_models=3).resolve(learnable_dataset())
    with pytest.raises(DropError, match="rule auto needs cross_fit"):
        DROP(cross_fit=False).resolve(learnable_dataset())

"""IQL against NumPy, SciPy's expectile, and a bandit whose answer is known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.losses import SPEC, drawn_like, make_batch, member_of, mlp
from scipy.stats import expectile, norm

from droprl.algorithms import IQL
from droprl.algorithms.gradient_steps import Learner, cosine
from droprl.algorithms.iql import IQLState
from droprl.algorithms.protocol import Clock
from droprl.data.transitions import Batch
from droprl.errors import SettingError

SETTINGS = replace(IQL.tiny(), expectile=0.8, inverse_temperature=2.0)
START = Clock.at(0, 100)


@pytest.fixture(autouse=True)
def _double_precision() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def drawn_state(settings: IQL = SETTINGS) -> IQLState:
    drawn = drawn_like(lambda: settings.init(jax.random.key(0), SPEC, START), 1)
    return IQLState(  # Adam begins at rest
        value=Learner.of(drawn.value.network),
        actor=Learner.of(drawn.actor.network),
        critics=Learner.of(drawn.critics.network),
        targets=drawn.targets,
    )


def row(batch: Batch, i: int) -> Any:
    return jax.tree.map(lambda leaf: np.asarray(leaf[i]), batch)


def v(value: Any, s: np.ndarray) -> float:
    return float(mlp(value.network, s)[0])


def q(critics: Any, s: np.ndarray, a: np.ndarray) -> np.ndarray:
    each = [mlp(member_of(critics.members.network, i), np.concatenate([s, a]))[0] for i in range(2)]
    return np.array(each)


def test_the_value_loss_by_hand() -> None:
    state, batch = drawn_state(), make_batch()
    for i in range(5):
        step = row(batch, i)
        u = q(state.targets, step.observation, step.action).min() - v(state.value.network, step.observation)
        expected = (0.8 if u >= 0 else 0.2) * u**2
        found = SETTINGS.value_loss(state.value.network, state.targets, step)
        assert float(found) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("level", [0.5, 0.7, 0.9])
def test_the_value_that_minimises_the_loss_is_the_expectile(level: float) -> None:
    samples = np.random.default_rng(0).normal(size=50)
    settings: Any = replace(IQL(), expectile=level)
    step = row(make_batch(), 0)

    def loss(value: float) -> float:
        """The lower of the two critics is what counts."""
        losses = [settings.value_loss(lambda _: value, lambda *_, q=q: jnp.array([q + 1, q]), step) for q in samples]
        return float(np.mean(losses))

    at = expectile(samples, alpha=level)
    assert loss(at) < min(loss(at - 1e-3), loss(at + 1e-3))


def test_the_actor_loss_by_hand() -> None:
    state, batch = drawn_state(), make_batch()
    for i in range(5):
        step = row(batch, i)
        advantage = q(state.targets, step.observation, step.action).min() - v(state.value.network, step.observation)
        actor = state.actor.network
        std = np.exp(np.clip(np.asarray(actor.log_std), -5, 2))
        log_density = norm.logpdf(step.action, np.tanh(mlp(actor.network, step.observation)), std).sum()
        expected = -np.exp(2.0 * advantage) * log_density
        found = SETTINGS.actor_loss(actor, state.value.network, state.targets, step)
        assert float(found) == pytest.approx(expected, rel=1e-8)


def test_a_weight_is_capped_and_never_overflows() -> None:
    state, step = drawn_state(), row(make_batch(), 0)
    hot = replace(SETTINGS, inverse_temperature=1e9, weight_max=7.0)
    weights = [
        float(jnp.exp(hot.log_weight(state.value.network, state.targets, row(make_batch(), i)))) for i in range(5)
    ]
    assert set(np.round(weights, 6)) <= {0.0, 7.0}
    assert 7.0 in np.round(weights, 6)
    assert np.isfinite(float(hot.actor_loss(state.actor.network, state.value.network, state.targets, step)))


def test_the_critic_loss_by_hand() -> None:
    """Both critics learn one target. After a terminal (discount 0) the value of the next state counts for nothing."""
    state, batch = drawn_state(), make_batch()
    for i in range(5):
        step = row(batch, i)
        target = step.reward + step.discount * v(state.value.network, step.next_observation)
        expected = np.sum((target - q(state.critics.network, step.observation, step.action)) ** 2)
        found = SETTINGS.critic_loss(state.critics.network, state.value.network, step)
        assert float(found) == pytest.approx(expected, rel=1e-10)


def test_one_update_goes_value_actor_critics_targets() -> None:
    """π and Q see the new V and the old targets; the targets follow the new Q."""
    state, batch = drawn_state(), make_batch()
    clock = Clock.at(50, 100)
    after, logged = SETTINGS.update(state, batch, jax.random.key(0), clock)

    def mean(losses: list[Any], weights: Any = None) -> float:
        return float(np.average([float(loss) for loss in losses], weights=weights))

    rows = [row(batch, i) for i in range(5)]
    new_value, targets = after.value.network, state.targets
    assert float(logged["value_loss"]) == pytest.approx(
        mean([SETTINGS.value_loss(state.value.network, targets, r) for r in rows])
    )
    assert float(logged["actor_loss"]) == pytest.approx(
        mean([SETTINGS.actor_loss(state.actor.network, new_value, targets, r) for r in rows])
    )
    assert float(logged["critic_loss"]) == pytest.approx(
        mean([SETTINGS.critic_loss(state.critics.network, new_value, r) for r in rows], batch.has_target)
    )
    for old, new, target in zip(*map(jax.tree.leaves, (targets, after.critics.network, after.targets)), strict=True):
        np.testing.assert_allclose(target, 0.995 * old + 0.005 * new, rtol=1e-10)


def test_a_step_of_adam_by_hand() -> None:
    """The first step is the rate in every direction; the second weighs both gradients."""
    start = np.array([1.0, -2.0])
    one, value = Learner.of(jnp.asarray(start)).step(lambda x: jnp.sum(x**2), 0.1)
    assert float(value) == pytest.approx(5.0)
    np.testing.assert_allclose(one.network, start - 0.1 * np.sign(start), rtol=1e-6)
    two, _ = one.step(lambda x: jnp.sum(x**2), 0.05)
    g1, g2 = 2 * start, 2 * np.asarray(one.network)
    mean = (0.9 * 0.1 * g1 + 0.1 * g2) / (1 - 0.9**2)
    square = (0.999 * 0.001 * g1**2 + 0.001 * g2**2) / (1 - 0.999**2)
    np.testing.assert_allclose(two.network, one.network - 0.05 * mean / (np.sqrt(square) + 1e-8), rtol=1e-6)


def test_the_cosine_ends_with_the_run_and_fine_tuning_has_the_full_rate() -> None:
    assert [float(cosine(Clock.at(n, 100))) for n in (0, 50)] == pytest.approx([1.0, 0.5])
    assert float(cosine(Clock.at(99, 100))) < 1e-3
    assert [float(cosine(Clock.at(n, 100))) for n in (100, 5000)] == [1.0, 1.0]


def test_only_the_actor_slows_down() -> None:
    state, batch = drawn_state(), make_batch()
    early, late = (SETTINGS.update(state, batch, jax.random.key(0), Clock.at(n, 100))[0] for n in (0, 99))
    moved = [
        max(float(jnp.max(jnp.abs(a - b))) for a, b in zip(jax.tree.leaves(x), jax.tree.leaves(y), strict=True))
        for x, y in (
            (early.actor.network, state.actor.network),
            (late.actor.network, state.actor.network),
            (early.value.network, late.value.network),
            (early.critics.network, late.critics.network),
        )
    ]
    assert moved[0] == pytest.approx(SETTINGS.learning_rate, rel=1e-3)
    assert moved[1] < 1e-3 * moved[0]
    assert moved[2:] == [0.0, 0.0]
    constant = replace(SETTINGS, actor_decay="none").update(state, batch, jax.random.key(0), Clock.at(99, 100))[0]
    np.testing.assert_allclose(constant.actor.network.log_std, early.actor.network.log_std, rtol=1e-8)


def test_a_bandit_learns_the_better_action() -> None:
    """One state, two actions equally often, rewards 1 and 0: cloning plays the mean, IQL the better action."""
    rng = np.random.default_rng(0)
    settings = replace(IQL.tiny(), learning_rate=1e-2, inverse_temperature=10.0, actor_decay="none")
    update = jax.jit(settings.update)
    state = settings.init(jax.random.key(0), replace(SPEC, action_size=1), START)
    for i in range(600):
        actions = rng.choice([-0.5, 0.5], 64)
        zeros = np.zeros(64)
        batch = Batch(
            observation=jnp.ones((64, 3)),
            action=jnp.asarray(actions[:, None]),
            sub_task=jnp.zeros(64, int),
            reward=jnp.asarray(actions > 0, float),
            discount=jnp.asarray(zeros),
            next_observation=jnp.ones((64, 3)),
            next_action=jnp.asarray(actions[:, None]),
            next_action_known=None,
            has_target=jnp.ones(64),
        )
        state, _ = update(state, batch, jax.random.key(i), START)
    assert float(state.actor.network.mode(jnp.ones(3))[0]) == pytest.approx(0.5, abs=0.1)
    values = jax.vmap(lambda a: jnp.min(state.targets(jnp.ones(3), a)))(jnp.array([[-0.5], [0.5]]))
    np.testing.assert_allclose(values, [0.0, 1.0], atol=0.1)
    low, high = sorted([0.0, 1.0])
    assert float(state.value.network(jnp.ones(3))) == pytest.approx(expectile([low, high], alpha=0.7), abs=0.1)


@pytest.mark.parametrize(
    "wrong", [{"expectile": 0.0}, {"expectile": 1.5}, {"inverse_temperature": -1.0}, {"weight_max": 0.0}, {"depth": 0}]
)
def test_settings_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=next(iter(wrong))):
        replace(IQL(), **wrong)

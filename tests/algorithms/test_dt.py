"""Decision Transformer: windows stay inside their episode, and a causal network learns from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.sequences import (
    LAYOUT,
    LONGEST,
    OPEN,
    SPEC,
    K,
    by_hand,
    dataset,
    drawn,
    dt,
    loss_and_gradient,
    one,
    predicted,
    table,
    windows_at,
)
from helpers.training import learnable_dataset, refusal, tiny

from droprl.algorithms.dt import DT, DTState
from droprl.algorithms.protocol import Clock
from droprl.data.windows import Windows
from droprl.networks.transformer import dropped
from droprl.train import fit

# --- windows ---


def test_windows_are_right_at_every_row() -> None:
    """By the definition: walk back from the row to the first step of the episode, but at most K steps."""
    data, windows = dataset(), windows_at()
    scaling, scale = dt().prepare(data).scaling, dt().return_scale
    row = 0
    for length, _ in LAYOUT:
        for last in range(length):
            steps = list(range(max(0, last - K + 1), last + 1))
            found = one(windows, row + last)
            np.testing.assert_array_equal(found.valid, [False] * (K - len(steps)) + [True] * len(steps))
            inside = np.asarray(found.valid)
            rows = [row + step for step in steps]
            np.testing.assert_array_equal(np.asarray(found.steps)[inside], steps)
            np.testing.assert_allclose(
                np.asarray(found.observations)[inside], scaling.observations_in(data.observations[rows]), rtol=1e-6
            )
            np.testing.assert_allclose(
                np.asarray(found.actions)[inside], scaling.actions_in(data.actions[rows]), rtol=1e-5, atol=1e-6
            )
            to_go = [data.rewards[r : row + length].astype(float).sum() / scale for r in rows]
            np.testing.assert_allclose(np.asarray(found.returns_to_go)[inside], to_go, rtol=1e-5)
        row += length


def test_even_padding_holds_nothing_of_another_episode() -> None:
    """In this data the first number of an observation is the number of its episode."""
    data, prepared = dataset(), dt().prepare(dataset())
    windows = windows_at()
    shown = np.asarray(windows.observations) * prepared.scaling.observation_std + prepared.scaling.observation_mean
    np.testing.assert_allclose(shown[:, :, 0], np.repeat(data.observations[:, :1], K, axis=1), atol=1e-5)


def test_every_row_is_drawn_as_the_end_of_a_window() -> None:
    windows = jax.jit(Windows.sample, static_argnums=2)(table(), jax.random.key(0), 600)
    places = np.round(np.asarray(windows.observations[:, -1]), 3)
    assert len(np.unique(places, axis=0)) == dataset().n_steps
    assert windows.valid.shape == (600, K)
    assert np.asarray(windows.valid[:, -1]).all()


# --- the network ---


def test_a_later_token_changes_no_earlier_prediction() -> None:
    """The order of tokens is R̂, s, a. A change may affect predictions at or after the changed token, none before."""
    transformer, window = drawn(), one(windows_at(8))
    assert np.asarray(window.valid).all()
    before = np.asarray(predicted(transformer, window))
    for step in range(K):
        for name, first_affected in (("returns_to_go", step), ("observations", step), ("actions", step + 1)):
            values = getattr(window, name)
            after = np.asarray(predicted(transformer, window._replace(**{name: values.at[step].add(1.0)})))
            np.testing.assert_array_equal(after[:first_affected], before[:first_affected])
            assert (np.abs(after - before)[first_affected:].max(axis=1) > 1e-4).all(), (name, step)


def test_the_number_of_the_step_matters_up_to_the_longest_episode() -> None:
    transformer, window = drawn(), one(windows_at(8))
    acted = [np.asarray(predicted(transformer, window._replace(steps=window.steps + n))) for n in (0, 1, 100, 101)]
    assert np.abs(acted[0] - acted[1]).max() > 1e-4
    np.testing.assert_array_equal(acted[2], acted[3])


def test_padding_contributes_nothing_to_loss_or_gradient() -> None:
    transformer, batch = drawn(), windows_at(0, 1, 4, 9, 10)
    padding = ~np.asarray(batch.valid)
    assert 0 < padding.sum() < padding.size
    rng = np.random.default_rng(1)

    def spoilt(values: Any) -> Any:
        other = 50 * rng.normal(size=values.shape)
        mask = padding.reshape(padding.shape + (1,) * (values.ndim - 2))
        return jnp.where(mask, other.astype(np.asarray(values).dtype), values)

    other = batch._replace(**{n: spoilt(getattr(batch, n)) for n in batch._fields if n != "valid"})
    (loss, gradient), (loss_again, gradient_again) = (loss_and_gradient(dt())(transformer, b) for b in (batch, other))
    assert float(loss) == float(loss_again)
    for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(gradient_again), strict=True):
        np.testing.assert_array_equal(a, b)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


@pytest.fixture
def _double_precision() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


@pytest.mark.usefixtures("_double_precision")
def test_the_loss_follows_its_definition_in_numpy() -> None:
    """The mean over the 2 + 4 + 3 valid steps of three windows, and over the two dimensions of the action."""
    transformer = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), drawn())
    batch = windows_at(1, 8, 2)
    errors = []
    for i, (n, first_clock) in enumerate([(2, 0), (4, 2), (3, 0)]):
        window = jax.tree.map(lambda leaf, i=i, n=n: np.asarray(leaf[i])[K - n :], batch)
        expected = by_hand(transformer, window.returns_to_go, window.observations, window.actions, first_clock)
        np.testing.assert_allclose(predicted(transformer, one(batch, i))[K - n :], expected, rtol=1e-9, atol=1e-12)
        errors += list(((expected - window.actions) ** 2).ravel())
    assert len(errors) == 9 * 2
    assert float(jax.jit(dt().loss)(transformer, batch)) == pytest.approx(np.mean(errors), rel=1e-9)


def test_dropout_acts_only_in_training() -> None:
    transformer, batch = drawn(), windows_at(8, 8)
    train = jax.jit(dt().loss)
    plain = float(train(transformer, batch))
    first, again, other = (float(train(transformer, batch, jax.random.key(i))) for i in (0, 0, 1))
    assert first == again
    assert len({plain, first, other}) == 3


def test_kept_activations_are_scaled_up_for_the_dropped_ones() -> None:
    keep = drawn()._keep(12, 0.25, jax.random.key(0))
    assert keep.shape == (
        1 + 3 * 2,
        12 * 24,
    )  # two blocks; the largest mask is that of attention: two heads among twelve tokens
    assert np.mean(keep) == pytest.approx(0.75, abs=0.03)
    assert len({row.tobytes() for row in np.asarray(keep)}) == len(keep)
    np.testing.assert_array_equal(
        dropped(jnp.array([[3.0, 6.0], [9.0, 12.0]]), 0.25, jnp.array([True, False, True, True, False])),
        [[4.0, 0.0], [12.0, 16.0]],
    )


# --- an update ---


def test_the_optimiser_by_hand() -> None:
    """Clipping to the norm 0.25, the two means of Adam, decay of every weight, a rate that rises over four updates."""
    algorithm = replace(dt(), weight_decay=0.5)
    theta, optimizer = jnp.array([1.0, -2.0, 0.5]), algorithm._optimizer(Clock.at(0, 1))
    state, m, v = optimizer.init(theta), np.zeros(3), np.zeros(3)
    expected = np.array(theta, float)
    for t in range(1, 7):
        gradient = np.array([3.0, 0.02 * t, -1.0]) / (1.0 if t % 2 else 100.0)  # clipped in odd updates only
        step, state = optimizer.update(jnp.asarray(gradient), state, theta)
        theta = theta + step
        clipped = gradient * min(1.0, 0.25 / float(np.linalg.norm(gradient)))
        m, v = 0.9 * m + 0.1 * clipped, 0.999 * v + 0.001 * clipped**2
        adam = (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        expected = expected - 0.1 * min(t / 4, 1.0) * (adam + 0.5 * expected)
        np.testing.assert_allclose(theta, expected, rtol=1e-4)


@pytest.mark.parametrize(
    ("total", "warmup"), [(1, 1), (15, 1), (12_000, 1_200), (100_000, 10_000), (1_000_000, 10_000)]
)
def test_the_warm_up_is_a_tenth_of_the_run_and_at_most_the_authors(total: int, warmup: int) -> None:
    """Adam's first step is as long as the rate, so after one step the weight tells the rate of the first update."""
    algorithm = replace(dt(), warmup_steps=None, weight_decay=0.0, learning_rate=1.0)
    optimizer, theta = algorithm._optimizer(Clock.at(0, total)), jnp.array([0.0])
    step, _ = optimizer.update(jnp.array([0.2]), optimizer.init(theta), theta)
    assert float(-step[0]) == pytest.approx(1.0 / warmup, rel=1e-4)


# --- settings and diagnostics ---


def test_open_settings_are_filled_from_the_data() -> None:
    data, resolved = dataset(), OPEN.resolve(dataset())
    episodes = list(zip(data.bounds[:-1], data.bounds[1:], strict=True))
    assert resolved.target_return == pytest.approx(max(data.rewards[a:b].sum() for a, b in episodes))
    assert resolved.longest_episode == LONGEST
    to_go = [data.rewards[r:b].sum() for a, b in episodes for r in range(a, b)]
    assert resolved.return_scale == pytest.approx(np.std(to_go), rel=1e-5)
    assert resolved.resolve(learnable_dataset()) == resolved


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("context", 0),
        ("heads", 0),
        ("dropout", 1.0),
        ("dropout", -0.1),
        ("return_scale", 0.0),
        ("target_return", float("nan")),
        ("gradient_clip", 0.0),
        ("warmup_steps", 0),
        ("weight_decay", -1.0),
        ("longest_episode", 0),
    ],
)
def test_a_senseless_setting_is_refused_by_name(name: str, value: Any) -> None:
    assert refusal(DT, **{name: value}).startswith(f"{name} is {value}")


def test_heads_that_do_not_divide_the_width_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    message = refusal(fit, learnable_dataset(), tiny("dt", heads=3), out=tmp_path / "run", steps=2)
    assert "width is 8: it must be a multiple of heads, 3" in message
    assert not (tmp_path / "run").exists()


def test_unresolved_settings_are_named() -> None:
    assert "return_scale is open" in refusal(OPEN.prepare, dataset())
    assert "longest_episode is open" in refusal(OPEN.init, jax.random.key(0), SPEC, Clock.at(0, 1))
    assert "return_scale is open" in refusal(OPEN.policy, DTState(drawn(), ()))


def test_the_diagnosis_finds_a_transformer_that_ignores_the_return() -> None:
    probe = dt().prepare(dataset()).probe
    listening = drawn()
    silent = jax.tree.map(jnp.zeros_like, listening.embed_return)
    deaf = eqx.tree_at(lambda network: network.embed_return, listening, silent)
    diagnose = jax.jit(dt().diagnose)
    assert float(diagnose(DTState(listening, ()), probe)["return_reaction"]) > 1e-3
    metrics = {name: float(value) for name, value in diagnose(DTState(deaf, ()), probe).items()}
    assert metrics["return_reaction"] == 0
    assert metrics["probe_clone_loss"] == metrics["probe_clone_loss_other_return"]
    (check,) = DT().checks(metrics)
    assert not check.healthy
    assert "deaf" in check.meaning
    (check,) = DT().checks({"probe_clone_loss": 0.1, "probe_clone_loss_other_return": 0.2})
    assert check.healthy


def test_seeds_side_by_side_do_not_affect_each_other() -> None:
    """On an accelerator seeds run under vmap, each with its own weights, windows and dropout."""
    windows, keys = table(), jax.random.split(jax.random.key(0), 2)
    states = [DTState(weights, dt()._optimizer(Clock.at(0, 1)).init(weights)) for weights in (drawn(0), drawn(1))]

    @jax.jit
    @jax.vmap
    def train(state: DTState, key: jax.Array) -> tuple[Any, Any]:
        state, metrics = dt().update(state, windows.sample(key, 5), key, Clock.at(0, 1))
        policy = dt().policy(state)
        return metrics, policy.act(policy.start(2), jnp.ones((2, 2)), key)[1]

    def of(order: list[int]) -> list[np.ndarray]:
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(states[i] for i in order))
        return jax.tree.leaves(train(stacked, keys[jnp.array(order)]))

    for both, swapped, twice in zip(of([0, 1]), of([1, 0]), of([0, 0]), strict=True):
        np.testing.assert_allclose(both, swapped[::-1], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(np.stack([both[0]] * 2), twice, rtol=1e-4, atol=1e-4)
        assert np.abs(both[0] - both[1]).max() > 1e-3

"""Layers in the form for a GPU: values and gradients are those of plain layers; some numbers must not be rounded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.builders import Layout, make_dataset
from helpers.plain import PLAIN

from droprl.algorithms import DROP
from droprl.algorithms.protocol import Clock
from droprl.compiler import TRAINING, InTurns, on_gpu
from droprl.data.transitions import Spec
from droprl.networks.critics import ScoreModel
from droprl.networks.layers import EPS, RowNorm, SplitLinear, activated, for_training, look_up, product, times_few

WIDTH = 64
rng = np.random.default_rng(0)


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs are written as for a GPU, but they run here."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")


def some(*shape: int) -> jax.Array:
    return jnp.asarray(rng.normal(size=shape), jnp.float32)


def whole(*shape: int) -> jax.Array:
    """Small whole numbers: bfloat16 holds the sums of their products exactly."""
    return jnp.asarray(rng.integers(-2, 3, size=shape), jnp.float32)


def learning(**settings: Any) -> tuple[DROP, tuple[Any, ...]]:
    """DROP on a few episodes, and the arguments of its loss: networks, f̄, λ, a batch and a key."""
    layout: Layout = [(12, "timeout"), (9, "terminal"), (15, "timeout"), (10, "terminal")]
    dataset = make_dataset(layout, next_observations=True, observation_size=4)
    drop = DROP(**PLAIN | {"width": WIDTH, "batch_size": 32, "n_sub_tasks": 4, "discount": 0.9, **settings}).resolve(
        dataset
    )
    prepared = drop.prepare(dataset)
    state = drop.init(jax.random.key(0), prepared.spec, Clock.at(0, 1))
    batch = prepared.transitions.sample(jax.random.key(1), drop.batch_size)
    return drop, (state.networks, state.averaged.score_model, jnp.asarray(0.7), batch, jax.random.key(2))


def gradient(drop: DROP, given: tuple[Any, ...]) -> Any:
    return jax.jit(jax.grad(lambda *g: drop.loss(*g), has_aux=True))(*given)  # a new function, so JAX traces it again


# --- bfloat16 ---


def test_layers_with_few_inputs_or_few_outputs_lose_no_digits(on_a_gpu: None) -> None:
    """1 + 2⁻¹⁰ is 1 in bfloat16. If it were rounded, 1 + 2⁻¹⁰ − 1 would be 0 here."""
    near_one = jnp.asarray([1 + 2**-10, -1.0])
    few_inputs = SplitLinear(jnp.ones((WIDTH, 2)), jnp.zeros(WIDTH))
    assert few_inputs.product(near_one).tolist() == [2**-10] * WIDTH
    weight = jnp.zeros((3, WIDTH)).at[1, :2].set(near_one)
    few_outputs = SplitLinear(weight, jnp.zeros(3))
    assert few_outputs.product(jnp.ones(WIDTH)).tolist() == [0.0, 2**-10, 0.0]
    assert times_few(near_one, jnp.ones((WIDTH, 2), jnp.bfloat16)).tolist() == [2**-10] * WIDTH


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (lambda x, w: SplitLinear(w, jnp.zeros(len(w))).product(x), (WIDTH, 5)),
        (lambda x, w: SplitLinear(w, jnp.zeros(len(w))).product(x), (6, WIDTH)),
        (lambda x, w: SplitLinear(w, jnp.zeros(len(w))).product(x), (1, WIDTH)),
        (lambda x, w: times_few(x, w.astype(jnp.bfloat16)), (WIDTH, 3)),
    ],
    ids=["few inputs", "few outputs", "one output", "a sum"],
)
def test_narrow_products_and_their_gradients_are_those_of_a_linear_layer(
    layer: Callable[[Any, Any], Any], shape: tuple[int, int], on_a_gpu: None
) -> None:
    x, weight, g = whole(4, shape[1]), whole(*shape), whole(4, shape[0])

    def value(x: jax.Array, weight: jax.Array) -> jax.Array:
        return jnp.sum(g * jax.vmap(layer, (0, None))(x, weight))

    np.testing.assert_array_equal(jax.vmap(layer, (0, None))(x, weight), x @ weight.T)
    of_x, of_weight = jax.grad(value, (0, 1))(x, weight)
    np.testing.assert_array_equal(of_x, g @ weight)
    np.testing.assert_array_equal(of_weight, g.T @ x)


def test_which_layers_training_replaces(monkeypatch: pytest.MonkeyPatch) -> None:
    networks = (
        DROP(**PLAIN, width=WIDTH, embedding_size=2).init(jax.random.key(0), Spec(3, 2, 4), Clock.at(0, 1)).networks
    )
    assert for_training(networks, "float32") == networks
    low = for_training(networks, "bfloat16").score_model  # on a CPU, only wide layers change
    assert isinstance(low, ScoreModel)
    assert [layer.weight.dtype for layer in low.state_action_encoder.layers] == [jnp.float32, jnp.bfloat16]
    assert low.score_decoder.norms == networks.score_model.score_decoder.norms  # type: ignore[union-attr]
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    low = for_training(networks, "bfloat16").score_model
    assert isinstance(low, ScoreModel)
    assert isinstance(low.state_action_encoder.layers[0], SplitLinear)
    assert low.state_action_encoder.layers[1].weight.dtype == jnp.bfloat16
    assert all(isinstance(norm, RowNorm) for norm in low.score_decoder.norms)


def test_bfloat16_rounds_losses_a_little_and_gradients_stay_float32() -> None:
    exact, given = learning()
    (full, values), (rounded, near) = gradient(exact, given), gradient(replace(exact, precision="bfloat16"), given)
    for name in ("clone_loss", "td_loss"):
        assert float(near[name]) != float(values[name])
        assert float(near[name]) == pytest.approx(float(values[name]), rel=0.03)
    flat = [np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(g)]) for g in (full, rounded)]
    assert flat[1].dtype == np.float32
    assert np.linalg.norm(flat[1] - flat[0]) < 0.05 * np.linalg.norm(flat[0])


@pytest.mark.parametrize("depths", [(2, 2, 3, 2, 3), (1, 1, 1, 1, 1)])
def test_bfloat16_trains_networks_of_any_size_on_a_cpu(depths: tuple[int, ...]) -> None:
    """For some shapes, XLA on a CPU has no product of bfloat16 that gives float32."""
    found, _ = gradient(*learning(width=32, depths=depths, precision="bfloat16"))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found))


# --- LayerNorm and ReLU ---


def plain(x: jax.Array, shift: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
    norm = eqx.tree_at(lambda n: (n.weight, n.bias), eqx.nn.LayerNorm(x.size, eps=EPS), (weight, bias))
    return activated(norm, x, shift)


def by_rows(x: jax.Array, shift: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
    return activated(RowNorm(weight, bias, low=x.dtype == jnp.bfloat16), x, shift)


@pytest.mark.parametrize("rows", [1, 5, 64])
def test_row_norm_has_the_values_and_gradients_of_layer_norm_and_relu(rows: int) -> None:
    given, g = (3 * some(rows, WIDTH) + 1, some(WIDTH), some(WIDTH), some(WIDTH)), some(rows, WIDTH)

    def over_rows(layer: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        return jax.vmap(layer, (0, None, None, None))

    np.testing.assert_allclose(over_rows(by_rows)(*given), over_rows(plain)(*given), atol=1e-5)
    found, expected = (
        jax.jit(jax.grad(lambda *p, f=f: jnp.sum(g * over_rows(f)(*p)), (0, 1, 2, 3)))(*given) for f in (by_rows, plain)
    )
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * float(jnp.max(jnp.abs(b))) + 1e-6)


def test_the_gradient_of_row_norm_is_the_slope_of_its_values() -> None:
    x, rest, g = some(8, WIDTH), (some(WIDTH), some(WIDTH), some(WIDTH)), some(8, WIDTH)

    def value(x: jax.Array) -> jax.Array:
        return jnp.sum(g * jax.vmap(by_rows, (0, None, None, None))(x, *rest))

    along, step = some(8, WIDTH), 1e-3
    slope = (value(x + step * along) - value(x - step * along)) / (2 * step)
    assert float(jnp.vdot(jax.grad(value)(x), along)) == pytest.approx(float(slope), rel=0.02)


def test_row_norm_is_the_same_for_seeds_for_an_ensemble_and_for_one() -> None:
    x, *rest = some(3, 8, WIDTH), some(3, WIDTH), some(3, WIDTH), some(3, WIDTH)
    for layer in (by_rows, plain):
        seeds = jax.vmap(jax.vmap(layer, (0, None, None, None)))(x, *rest)
        members = jax.vmap(jax.vmap(layer), (1, None, None, None), 1)(x, *rest)
        np.testing.assert_allclose(seeds, members, atol=1e-5)
    np.testing.assert_allclose(
        by_rows(x[0, 0], *(r[0] for r in rest)), plain(x[0, 0], *(r[0] for r in rest)), atol=1e-5
    )


def test_row_norm_keeps_the_precision_of_its_input() -> None:
    low = some(4, WIDTH).astype(jnp.bfloat16)
    out = jax.vmap(by_rows, (0, None, None, None))(low, some(WIDTH), some(WIDTH), some(WIDTH))
    assert out.dtype == jnp.bfloat16


# --- look-ups ---


def test_a_look_up_on_a_gpu_adds_up_the_gradients_of_a_row(on_a_gpu: None) -> None:
    table, rows, g = some(4, 2), jnp.asarray([2, 0, 2, 2]), whole(4, 2)
    np.testing.assert_array_equal(look_up(table, rows), table[rows])
    found = jax.grad(lambda t: jnp.sum(g * look_up(t, rows)))(table)
    np.testing.assert_array_equal(found, [g[1], jnp.zeros(2), g[0] + g[2] + g[3], jnp.zeros(2)])


# --- all together ---


@pytest.mark.parametrize(
    "settings", [{}, {"score_models": 2}, {"conditioning": "concatenate", "td_into_embedding": True}]
)
def test_an_update_for_a_gpu_has_the_gradient_of_an_update_for_a_cpu(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    drop, given = learning(**settings)
    of_cpu, metrics = gradient(drop, given)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    of_gpu, same = gradient(drop, given)
    for name, value in metrics.items():
        assert float(same[name]) == pytest.approx(float(value), rel=1e-4, abs=1e-6), name
    for a, b in zip(jax.tree.leaves(of_gpu), jax.tree.leaves(of_cpu), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4 * float(jnp.max(jnp.abs(b))) + 1e-6)


# --- the compiler ---


def test_options_that_this_compiler_does_not_know_are_left_out(on_a_gpu: None) -> None:
    known = {"xla_gpu_enable_triton_gemm": False}
    assert on_gpu({"xla_gpu_no_such_option": True, **known}) == known
    assert on_gpu({"xla_gpu_command_buffer_scheduling_mode": "NO_SUCH_MODE", **known}) == known


def test_without_a_gpu_there_are_no_options() -> None:
    assert on_gpu(TRAINING) == {}


def test_programs_take_turns_and_are_all_compiled_at_the_first_call() -> None:
    called: list[str] = []

    def program(name: str) -> Callable[..., str]:
        def run(*given: Any) -> str:
            called.append(name)
            return name

        return run

    in_turns = InTurns([program("a"), program("b")])
    assert in_turns("weights", np.zeros(2)) == "b"
    assert called == ["a", "b", "b"]
    assert [in_turns("weights", np.ones(2)) for _ in range(3)] == ["a", "b", "a"]
    assert len(called) == 6
    in_turns("weights", np.zeros(3))
    assert called[6:] == ["a", "b", "b"]


def test_the_product_of_a_plain_layer_is_its_weights_times_x() -> None:
    layer, x = eqx.nn.Linear(3, 2, key=jax.random.key(0)), some(3)
    np.testing.assert_allclose(product(layer, x), layer.weight @ x, rtol=1e-6)

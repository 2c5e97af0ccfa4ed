"""JAX programs as ONNX: a runtime that reads the file must compute what JAX computes, for any number of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import onnxruntime
import pytest
from helpers.training import refusal
from jax import Array

from droprl.deploy.onnx_file import to_onnx
from droprl.deploy.program import FileProgram

WEIGHTS = np.random.default_rng(1).normal(size=(4, 5)).astype(np.float32)
TABLE = np.random.default_rng(2).normal(size=(6, 4)).astype(np.float32)
SQUARE = np.random.default_rng(4).normal(size=(4, 4)).astype(np.float32)
ROW = {"x": np.zeros(4, np.float32)}
STACKED = np.random.default_rng(3).normal(size=(3, 5, 4)).astype(np.float32)


def exported(step: Callable[..., Any], rows: dict[str, np.ndarray], n_outputs: int = 1) -> bytes:
    def answer(*inputs: Array) -> tuple[Array, ...]:
        made = step(*inputs)
        return made if isinstance(made, tuple) else (made,)

    return to_onnx(FileProgram(answer, rows, (), tuple(f"y{i}" for i in range(n_outputs))), {})


def operators(graph: onnx.GraphProto) -> list[str]:
    """The operators of the graph and of its branches."""
    found = []
    for node in graph.node:
        inner = [attribute.g for attribute in node.attribute if attribute.type == onnx.AttributeProto.GRAPH]
        found += [node.op_type, *(name for branch in inner for name in operators(branch))]
    return found


# --- programs of one row of four numbers ---


def softmax(x: Array) -> Array:
    return jax.nn.softmax(jnp.where(x > 0, x, -jnp.inf).at[0].set(0.0))


def layer_norm(x: Array) -> Array:
    centred = x - jnp.mean(x)
    return centred * jax.lax.rsqrt(jnp.var(x) + 1e-5)


def hills(x: Array) -> Array:
    """A function with the parts of a score: products, ReLU, a layer norm, tanh, a concatenation."""
    hidden = jax.nn.relu(layer_norm(x @ WEIGHTS) + 0.3)
    return jnp.sum(jnp.tanh(jnp.concatenate([x, hidden])[1:] * 1.5)) - 0.1 * jnp.linalg.norm(x)


def climbed(x: Array) -> Array:
    uphill = jax.grad(hills)
    return jax.lax.fori_loop(0, 7, lambda i, x: x + 0.01 * (i + 1) * uphill(x), x)


def best_rows(x: Array) -> tuple[Array, Array]:
    """Look-ups of all kinds: the rows of a table with the best scores, and among them one by its first number."""
    scores = TABLE @ x
    found = jax.lax.top_k(scores, 3)[1]
    rows = jnp.asarray(TABLE)[found] * x
    return rows[jnp.argmax(rows[:, 0])], scores[jnp.argmax(scores)]


def several(x: Array) -> Array:
    """An ensemble: its weights have one more axis, in the forward pass and in the gradient."""

    def lowest(x: Array) -> Array:
        return jnp.min(jax.vmap(lambda weights: jnp.sum(jax.nn.relu(weights @ x) ** 2))(STACKED))

    gradient: Array = jax.grad(lowest)(x)
    return gradient + lowest(x)


def shapes(x: Array) -> Array:
    square = jnp.stack([x, 2 * x, x**3], axis=1)
    return (square.T.reshape(2, 6)[:, 1:4].at[1].add(x[0]) @ TABLE[:3, :2]).ravel() + jnp.split(x, 2)[1].sum()


ROWS: dict[str, Callable[..., Any]] = {
    "softmax": softmax,
    "layer norm": layer_norm,
    "gradient": jax.grad(hills),
    "ascent": climbed,
    "rows": best_rows,
    "ensemble": several,
    "shapes": shapes,
    "clip": lambda x: jnp.clip(x, -0.5, jnp.asarray([0.1, 0.2, 0.3, 0.4])) ** 2 / 3,
    "constant": lambda x: jnp.asarray(TABLE[0]) * 2 + 0 * x,
    "integers": lambda x: (jnp.floor_divide(jnp.asarray([7, -7, 5, 0]), 2) % 3 + jnp.argmax(x)).astype(jnp.int32) % 2,
}


@pytest.mark.parametrize("name", ROWS)
def test_a_program_computes_the_same_for_any_number_of_rows(name: str) -> None:
    program = jax.jit(jax.vmap(ROWS[name]))
    n_outputs = len(jax.tree.leaves(jax.eval_shape(program, jnp.ones((1, 4)))))
    session = onnxruntime.InferenceSession(exported(program, ROW, n_outputs))
    for n in (1, 33):
        x = np.random.default_rng(n).normal(size=(n, 4)).astype(np.float32)
        expected = program(x)
        found = session.run(None, {"x": x})
        for one, other in zip(expected if isinstance(expected, tuple) else (expected,), found, strict=True):
            assert (one.shape, one.dtype) == (other.shape, other.dtype)
            np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5)


def test_the_first_of_equal_scores_wins_as_in_jax() -> None:
    def best(x: Array) -> tuple[Array, Array]:
        return jax.lax.top_k(x, 3)[1], jnp.argmax(x, axis=1)

    x = np.array([[1, 2, 2, 2], [0, 0, 0, 0], [3, 1, 3, 1]], np.float32)
    session = onnxruntime.InferenceSession(exported(best, ROW, 2))
    for expected, found in zip(best(jnp.asarray(x)), session.run(None, {"x": x}), strict=True):
        np.testing.assert_array_equal(found, expected)


# --- loops, choices, and sharing ---


def test_a_loop_is_unrolled_and_shares_its_constants() -> None:
    def graph_of(turns: int) -> onnx.GraphProto:
        program = jax.vmap(lambda x: jax.lax.fori_loop(0, turns, lambda _, x: jnp.tanh(x @ SQUARE), x))
        return onnx.load_from_string(exported(program, ROW)).graph

    once, often = graph_of(1), graph_of(20)
    assert [operators(graph).count("MatMul") for graph in (once, often)] == [1, 20]
    assert "Loop" not in operators(often)
    assert len(once.initializer) == len(often.initializer)


def test_a_choice_costs_only_the_branch_that_is_taken() -> None:
    """The product is inside a branch of `If`: the runtime does not compute both sides and then select."""

    def step(x: Array, due: Array) -> Array:
        found = jax.lax.cond(jnp.any(due), lambda: jnp.tanh(x @ SQUARE), lambda: x)
        return jnp.where(due[:, None], found, x)

    content = exported(step, {"x": ROW["x"], "due": np.zeros((), bool)})
    graph = onnx.load_from_string(content).graph
    assert "MatMul" not in [node.op_type for node in graph.node]
    assert operators(graph).count("MatMul") == 1
    session = onnxruntime.InferenceSession(content)
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    for due in ([False] * 3, [True, False, True]):
        given = np.array(due)
        np.testing.assert_allclose(
            session.run(None, {"x": x, "due": given})[0], step(jnp.asarray(x), jnp.asarray(given)), rtol=1e-5
        )


def test_known_values_are_computed_at_export() -> None:
    """Products of weights with weights, and choices whose outcome is known, leave no node in the graph."""

    def step(x: Array) -> Array:
        clock = jnp.zeros(x.shape[0], jnp.int32)
        return jax.lax.cond(jnp.any(clock % 3 == 0), lambda: x + SQUARE @ SQUARE[0], lambda: jnp.exp(x))

    graph = onnx.load_from_string(exported(step, ROW)).graph
    assert sorted(operators(graph)) == ["Add", "Identity"]


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (lambda x: jax.lax.while_loop(lambda x: x[0] < 1, lambda x: x + 1, x), "`while`"),
        (lambda x: jnp.sort(x), "`sort`"),
        (lambda x: jax.lax.scan(lambda total, row: (total + row, total), 0.0, x)[1], "loops over the rows"),
    ],
)
def test_a_program_that_cannot_be_written_is_refused_by_name(program: Callable[..., Any], said: str) -> None:
    message = refusal(exported, jax.vmap(program), ROW)
    assert said in message
    assert "cannot be exported" in message


def test_the_product_of_a_transpose_with_a_vector() -> None:
    """This happens in β if all rows share one z. Written directly, onnxruntime optimises it to a wrong result."""
    rows, vector = np.random.default_rng(5).normal(size=(7, 4)).astype(np.float32), STACKED[0, :, 0]
    table = np.random.default_rng(6).normal(size=(4, 40)).astype(np.float32)

    def step(x: Array) -> Array:
        return jax.vmap(lambda row: vector @ (row @ table).reshape(5, 8))(x)

    (found,) = onnxruntime.InferenceSession(exported(step, ROW)).run(None, {"x": rows})
    np.testing.assert_allclose(found, step(jnp.asarray(rows)), atol=1e-5)


def test_a_part_of_the_batch_is_refused() -> None:
    """The result would depend on the number of rows."""
    said = refusal(exported, lambda x: jax.lax.slice_in_dim(x, 1, x.shape[0]), ROW)
    assert "takes a part of its batch" in said

"""What the tests of Decision Transformer share: its data and weights, and its forward pass in NumPy."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from droprl.algorithms.dt import DT, DTState, Transformer, TransformerPolicy
from droprl.algorithms.protocol import Clock
from droprl.data import Dataset
from droprl.data.transitions import Places, Spec
from droprl.data.windows import Window, Windows
from helpers.builders import make_dataset

K = 4
SPEC = Spec(observation_size=2, action_size=2)
# Episodes of 3, 6, 1 and 5 steps: shorter than K, longer than K, a single step, and cut short by the end of the file.
LAYOUT: Any = [(3, "terminal"), (6, "timeout"), (1, "terminal"), (5, "cut")]
LONGEST = 6
OPEN = DT(context=K, width=8, depth=2, heads=2, dropout=0.3, learning_rate=0.1, warmup_steps=4, batch_size=5)


@cache
def dataset() -> Dataset:
    return make_dataset(LAYOUT)


@cache
def dt() -> DT:
    return OPEN.resolve(dataset())


@cache
def table() -> Windows:
    return dt().prepare(dataset()).transitions


def windows_at(*rows: int) -> Window:
    """The windows that end at these rows; of all rows where none is named."""
    return table().gather(Places(jnp.array(rows or range(dataset().n_steps), jnp.int32)))


def drawn(seed: int = 0) -> Transformer:
    """Every weight is drawn at random, and large enough for every token to matter."""
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(lambda: dt().init(jax.random.key(0), SPEC, Clock.at(0, 1)).transformer)
    return jax.tree.map(lambda leaf: jnp.asarray(0.5 * rng.normal(size=leaf.shape), leaf.dtype), shapes)


@jax.jit
def predicted(transformer: Transformer, window: Window) -> jax.Array:
    return transformer(window)


@cache
def loss_and_gradient(algorithm: DT) -> Any:
    return jax.jit(jax.value_and_grad(algorithm.loss))


def one(windows: Window, i: int = 0) -> Window:
    return jax.tree.map(lambda leaf: leaf[i], windows)


def norm(x: np.ndarray, layer: Any) -> np.ndarray:
    scaled = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return scaled * np.asarray(layer.weight) + np.asarray(layer.bias)


def linear(x: np.ndarray, layer: Any) -> np.ndarray:
    return x @ np.asarray(layer.weight).T + np.asarray(layer.bias)


def by_hand(transformer: Transformer, to_go: Any, observations: Any, actions: Any, first_clock: int = 0) -> np.ndarray:
    """The forward pass in NumPy, token by token, over steps without padding."""
    x = []
    for i in range(len(observations)):
        clock = np.asarray(transformer.embed_clock.weight)[min(first_clock + i, LONGEST - 1)]
        for value, layer in (
            (np.atleast_1d(to_go[i]), transformer.embed_return),
            (observations[i], transformer.embed_state),
            (actions[i], transformer.embed_action),
        ):
            x.append(norm(linear(np.asarray(value), layer) + clock, transformer.embedding_norm))
    for block in transformer.blocks:
        new = []
        normed = [norm(token, block.attention_norm) for token in x]
        parts = [linear(token, block.query_key_value).reshape(3, block.heads, -1) for token in normed]
        for i, token in enumerate(x):
            heads = []
            for h in range(block.heads):
                scores = np.array([parts[i][0, h] @ parts[j][1, h] for j in range(i + 1)]) / np.sqrt(
                    len(parts[i][0, h])
                )
                weights = np.exp(scores - scores.max())
                heads.append(sum(w * parts[j][2, h] for j, w in enumerate(weights / weights.sum())))
            token = token + linear(np.concatenate(heads), block.attention_out)
            hidden = np.maximum(linear(norm(token, block.mlp_norm), block.mlp_in), 0)
            new.append(token + linear(hidden, block.mlp_out))
        x = new
    return np.stack([np.tanh(linear(norm(t, transformer.final_norm), transformer.predict_action)) for t in x[1::3]])


def policy_of(transformer: Transformer) -> TransformerPolicy:
    return dt().policy(DTState(transformer, ()))

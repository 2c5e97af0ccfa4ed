"""A causal transformer over the returns-to-go, states and actions of an episode's last steps."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from droprl.data.windows import Window

WEIGHT_STD = 0.02  # of the first weights inside the blocks, as in GPT-2


class Block(eqx.Module):
    """Attention, then an MLP of four times the width with ReLU. Each reads through a LayerNorm and adds its result."""

    attention_norm: eqx.nn.LayerNorm
    query_key_value: eqx.nn.Linear
    attention_out: eqx.nn.Linear
    mlp_norm: eqx.nn.LayerNorm
    mlp_in: eqx.nn.Linear
    mlp_out: eqx.nn.Linear
    heads: int = eqx.field(static=True)

    def __init__(self, width: int, heads: int, key: Array) -> None:
        keys = jax.random.split(key, 4)
        self.attention_norm, self.mlp_norm = eqx.nn.LayerNorm(width), eqx.nn.LayerNorm(width)
        self.query_key_value = _gpt_linear(width, 3 * width, keys[0])
        self.attention_out = _gpt_linear(width, width, keys[1])
        self.mlp_in, self.mlp_out = _gpt_linear(width, 4 * width, keys[2]), _gpt_linear(4 * width, width, keys[3])
        self.heads = heads

    def __call__(self, x: Array, seen: Array, dropout: float, keep: Array | None) -> Array:
        """`seen[i, j]`: token i may look at token j. `keep` has three masks: one for each dropout of the block."""
        masks = (None,) * 3 if keep is None else keep
        tokens, width = x.shape
        projected = jax.vmap(self.query_key_value)(jax.vmap(self.attention_norm)(x))
        query, key, value = projected.reshape(tokens, 3, self.heads, width // self.heads).transpose(1, 2, 0, 3)
        scores = query @ key.transpose(0, 2, 1) / np.sqrt(width // self.heads)
        weights = dropped(jax.nn.softmax(jnp.where(seen, scores, -jnp.inf)), dropout, masks[0])
        attended = (weights @ value).transpose(1, 0, 2).reshape(tokens, width)
        x = x + dropped(jax.vmap(self.attention_out)(attended), dropout, masks[1])
        hidden = jax.nn.relu(jax.vmap(self.mlp_in)(jax.vmap(self.mlp_norm)(x)))
        return x + dropped(jax.vmap(self.mlp_out)(hidden), dropout, masks[2])


class Transformer(eqx.Module):
    """π(aₜ | R̂ and s up to t, a before t), for all steps t of one window at once."""

    embed_clock: eqx.nn.Embedding  # of the step's number in its episode: tokens know no other position
    embed_return: eqx.nn.Linear
    embed_state: eqx.nn.Linear
    embed_action: eqx.nn.Linear
    embedding_norm: eqx.nn.LayerNorm
    blocks: tuple[Block, ...]
    final_norm: eqx.nn.LayerNorm
    predict_action: eqx.nn.Linear

    def __init__(
        self, observation_size: int, action_size: int, steps: int, width: int, depth: int, heads: int, key: Array
    ) -> None:
        """`steps` have an embedding of their own; later steps of an episode share the last one."""
        keys = jax.random.split(key, 5 + depth)
        self.embed_clock = eqx.nn.Embedding(steps, width, key=keys[0])
        self.embed_return = eqx.nn.Linear(1, width, key=keys[1])
        self.embed_state = eqx.nn.Linear(observation_size, width, key=keys[2])
        self.embed_action = eqx.nn.Linear(action_size, width, key=keys[3])
        self.predict_action = eqx.nn.Linear(width, action_size, key=keys[4])
        self.embedding_norm, self.final_norm = eqx.nn.LayerNorm(width), eqx.nn.LayerNorm(width)
        self.blocks = tuple(Block(width, heads, k) for k in keys[5:])

    def __call__(self, window: Window, dropout: float = 0.0, key: Array | None = None) -> Array:
        """(K, action_size) in [-1, 1]. Rows at padding mean nothing. Without a key nothing is dropped."""
        step = self.embed_clock.weight[jnp.clip(window.steps, 0, len(self.embed_clock.weight) - 1)]
        kinds = (
            jax.vmap(self.embed_return)(window.returns_to_go[:, None]),
            jax.vmap(self.embed_state)(window.observations),
            jax.vmap(self.embed_action)(window.actions),
        )
        tokens = jnp.stack([kind + step for kind in kinds], axis=1).reshape(3 * len(step), -1)
        keep = None if key is None or dropout == 0 else self._keep(len(tokens), dropout, key)
        x = dropped(jax.vmap(self.embedding_norm)(tokens), dropout, None if keep is None else keep[0])
        number = jnp.arange(len(x))
        before = number[None, :] <= number[:, None]
        # A token always sees itself: padding then has something to average, and nothing turns into NaN.
        seen = before & jnp.repeat(window.valid, 3)[None, :] | jnp.eye(len(x), dtype=bool)
        for i, block in enumerate(self.blocks):
            x = block(x, seen, dropout, None if keep is None else keep[1 + 3 * i : 4 + 3 * i])
        at_states = jax.vmap(self.final_norm)(x).reshape(len(step), 3, -1)[:, 1]
        return jnp.tanh(jax.vmap(self.predict_action)(at_states))

    def _keep(self, tokens: int, dropout: float, key: Array) -> Array:
        """The masks of every dropout, one row for each. They are drawn together, which compiles much faster."""
        largest = tokens * max(self.embed_clock.weight.shape[1], self.blocks[0].heads * tokens)
        return jax.random.bernoulli(key, 1.0 - dropout, (1 + 3 * len(self.blocks), largest))


def _gpt_linear(in_size: int, out_size: int, key: Array) -> eqx.nn.Linear:
    layer = eqx.nn.Linear(in_size, out_size, key=key)
    weight = WEIGHT_STD * jax.random.normal(key, layer.weight.shape)
    return eqx.tree_at(lambda made: (made.weight, made.bias), layer, (weight, jnp.zeros(out_size)))


def dropped(x: Array, rate: float, keep: Array | None) -> Array:
    """Dropout by a mask that is at least as long as `x`; None drops nothing."""
    return x if keep is None else jnp.where(keep[: x.size].reshape(x.shape), x / (1.0 - rate), 0.0)

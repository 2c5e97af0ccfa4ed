"""Perceptrons: linear layers with ReLU between them. Every module is a PyTree of arrays only and takes one sample."""

from __future__ import annotations

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from droprl.networks.layers import EPS, activated, bias, product

LOG_STD_RANGE = (-5.0, 2.0)  # of every Gaussian that a network describes


class MLP(eqx.Module):
    """Linear layers with ReLU between them, and optionally LayerNorm before each ReLU."""

    layers: tuple[eqx.nn.Linear, ...]
    norms: tuple[eqx.nn.LayerNorm, ...]
    final_activation: bool = eqx.field(static=True)

    def __init__(
        self,
        in_size: int,
        hidden: tuple[int, ...],
        out_size: int | None,
        key: Array,
        layer_norm: bool = False,
        orthogonal: bool = False,
    ) -> None:
        """`out_size=None` makes an encoder: its last hidden layer is its output. Initial weights are uniform in
        ±1/√inputs as in PyTorch, or orthogonal times √2 with zero biases as in jaxrl."""
        sizes = (in_size, *hidden, *(() if out_size is None else (out_size,)))
        keys = jax.random.split(key, len(sizes) - 1)
        make = _orthogonal if orthogonal else _uniform
        self.layers = tuple(make(a, b, k) for a, b, k in zip(sizes[:-1], sizes[1:], keys, strict=True))
        self.norms = tuple(eqx.nn.LayerNorm(size, eps=EPS) for size in hidden) if layer_norm else ()
        self.final_activation = out_size is None

    def __call__(self, x: Array) -> Array:
        return self._finish(product(self.layers[0], x), bias(self.layers[0]))

    def finish(self, x: Array) -> Array:
        """The output of the network. `x` is the product of the first layer, plus its bias."""
        return self._finish(x, None)

    def _finish(self, x: Array, shift: Array | None) -> Array:
        n_active = len(self.layers) - (0 if self.final_activation else 1)
        for i, layer in enumerate(self.layers):
            if i:
                x, shift = product(layer, x), bias(layer)
            if i < n_active:
                x = activated(self.norms[i] if self.norms else None, x, shift)
            elif shift is not None:
                x = x + shift
        return x


def _uniform(in_size: int, out_size: int, key: Array) -> eqx.nn.Linear:
    return eqx.nn.Linear(in_size, out_size, key=key)


def _orthogonal(in_size: int, out_size: int, key: Array) -> eqx.nn.Linear:
    layer = eqx.nn.Linear(in_size, out_size, key=key)
    weight = jax.nn.initializers.orthogonal(math.sqrt(2))(key, (out_size, in_size))
    return eqx.tree_at(lambda made: (made.weight, made.bias), layer, (weight, jnp.zeros(out_size)))

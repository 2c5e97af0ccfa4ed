"""The layers of every network (linear maps, LayerNorm, table look-ups), and how a GPU computes them fast in training.

All functions but `look_up` take one sample. `for_training` replaces layers by others that learn the same with faster
kernels. A GPU waits for memory more than for arithmetic, so these kernels write and read activations less often.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from droprl.compiler import on_accelerator

Precision = Literal["float32", "bfloat16"]
Tree = TypeVar("Tree")
EPS = 1e-5  # of every LayerNorm
WIDE = 64  # a layer with at least this many inputs and this many outputs is worth a cheaper product
ALIGNED = 8  # a tensor core reads rows of bfloat16 whose length is a multiple of this
PART = 32  # a sum over rows first adds up groups of at most this many rows, and then adds up the groups


def product(layer: Any, x: Array) -> Array:
    """The layer's weights times x. The bias comes later."""
    return layer.product(x) if isinstance(layer, SplitLinear) else times(x, layer.weight)


def bias(layer: Any) -> Array:
    return jnp.asarray(layer.bias)  # every layer here has one


def times(x: Array, weight: Array) -> Array:
    """weight · x, written so that batches of x, and batches of seeds around them, need no transposition. `weight @ x`
    would give the product's columns. Turning them into rows took a GPU a quarter of an update of twenty seeds."""
    return x.astype(weight.dtype) @ weight.T


def activated(norm: Any, x: Array, shift: Array | None) -> Array:
    """What a hidden layer does after its product: add the bias, LayerNorm if there is one, ReLU."""
    if isinstance(norm, RowNorm):
        return norm(x, shift)
    x = x if shift is None else x + shift
    return jax.nn.relu(x if norm is None else normalized(x, jnp.asarray(norm.weight), jnp.asarray(norm.bias)))


def normalized(x: Array, weight: Array, bias: Array) -> Array:
    """LayerNorm along the last axis."""
    x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    return _unit(x, *_moments(x)) * weight + bias


def _moments(x: Array) -> tuple[Array, Array]:
    """The mean, and one over the standard deviation by E[x²] − E[x]². Both need one pass over x: a GPU gains 10 %."""
    mean = jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.maximum(jnp.mean(x**2, axis=-1, keepdims=True) - mean**2, 0.0)
    return mean, jax.lax.rsqrt(variance + EPS)


def _unit(x: Array, mean: Array, scale: Array) -> Array:
    return (x - mean) * scale


def look_up(table: Array, rows: Array) -> Array:
    """table[rows]. The gradient adds up all entries that read the same row of the table. On a GPU we add in a fixed
    order: a scatter would give different bits every time or, if XLA forbids that, would sort first."""
    return _look_up(table, rows) if on_accelerator() else table[rows]


@jax.custom_vjp
def _look_up(table: Array, rows: Array) -> Array:
    return table[rows]


def _look_up_backward(residuals: tuple[Array, Array], g: Array) -> tuple[Array, None]:
    table, rows = residuals
    hits = jnp.arange(len(table))[:, None, None] == rows
    return jnp.sum(jnp.where(hits, g.T, 0.0), axis=-1), None


_look_up.defvjp(lambda table, rows: (table[rows], (table, rows)), _look_up_backward)


# --- while training ---


def for_training(networks: Tree, precision: Precision) -> Tree:
    """The same networks in the form that the device trains fastest.

    With bfloat16, wide layers are stored in bfloat16: a GPU multiplies it several times faster than float32. On a GPU,
    a layer with either few inputs or few outputs (fewer than 64) is multiplied in bfloat16 too, but loses no digits: it
    splits numbers into two parts, and the second part holds what the first one rounds away. A layer with few inputs
    splits its inputs, a layer with few outputs splits its weights. Gradients are not split.
    """
    low = precision == "bfloat16"

    def lowered(module: Any) -> Any:
        if isinstance(module, eqx.nn.LayerNorm) and on_accelerator():
            return RowNorm(jnp.asarray(module.weight), jnp.asarray(module.bias), low)
        if not low or not isinstance(module, eqx.nn.Linear):
            return module
        narrow, wide = sorted(module.weight.shape[-2:])
        if narrow >= WIDE:
            return jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), module)
        return SplitLinear(module.weight, bias(module)) if wide >= WIDE and on_accelerator() else module

    return jax.tree.map(lowered, networks, is_leaf=lambda node: isinstance(node, eqx.nn.Linear | eqx.nn.LayerNorm))


class SplitLinear(eqx.Module):
    """A linear layer with few inputs or few outputs. It multiplies in bfloat16, with two parts for each of the few."""

    weight: Array
    bias: Array

    def product(self, x: Array) -> Array:
        out_size, in_size = self.weight.shape
        return (_times_few_inputs if in_size < out_size else _times_few_outputs)(x, self.weight)


def _with_low_gradient(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """The product, with its gradient in bfloat16. We define the gradient by its tangent: JAX transposes the tangent of
    a whole batch into one product. A gradient for each sample would become a sum of many products."""
    with_gradient = jax.custom_jvp(function)

    def rule(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
        out = with_gradient(*primals)
        (x, weight), (dx, dweight) = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), (primals, tangents))
        return out, (dx @ weight.T + x @ dweight.T).astype(out.dtype)

    with_gradient.defjvp(rule)
    return with_gradient


@_with_low_gradient
def _times_few_inputs(x: Array, weight: Array) -> Array:
    return _aligned(_split(x)) @ _aligned(jnp.concatenate([weight.astype(jnp.bfloat16)] * 2, axis=1)).T


@_with_low_gradient
def _times_few_outputs(x: Array, weight: Array) -> Array:
    if len(weight) == 1:  # a tensor core does not help here
        return times(x, weight)
    parts = _aligned(_split(weight.T))
    both = jnp.matmul(x.astype(jnp.bfloat16), parts, preferred_element_type=jnp.float32)
    return both[: len(weight)] + both[len(weight) : 2 * len(weight)]


def times_few(x: Array, weight: Array) -> Array:
    """weight · x for an x with a handful of numbers. x is not rounded."""
    low = weight.dtype == jnp.bfloat16 and on_accelerator()
    return _times_few(x, weight) if low else times(x, weight.astype(x.dtype))


@_with_low_gradient
def _times_few(x: Array, weight: Array) -> Array:
    """Written as a sum: XLA puts a sum into the kernel of the next operation."""
    terms = [x[i] * weight[:, i].astype(x.dtype) for i in range(x.size)]
    return sum(terms[1:], terms[0])


def _split(x: Array) -> Array:
    """Along the last axis: x in bfloat16, and behind it what bfloat16 rounds away."""
    high = jax.lax.reduce_precision(x, 8, 7)  # a compiler may remove a conversion to bfloat16 and back, but not this
    return jnp.concatenate([high, x - high], axis=-1).astype(jnp.bfloat16)


def _aligned(x: Array) -> Array:
    """x with zeros at the end of the last axis, so that its length is a multiple of ALIGNED."""
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % ALIGNED)])


class RowNorm(eqx.Module):
    """LayerNorm and ReLU. Its gradient reads the input again: to store the float32 results of the forward pass would
    mean more writing and reading. It has a gradient for batches only (`grad` around `vmap`)."""

    weight: Array
    bias: Array
    low: bool = eqx.field(static=True)  # input and output are bfloat16

    def __call__(self, x: Array, shift: Array | None) -> Array:
        shift = jnp.zeros_like(self.bias) if shift is None else shift
        return _norm_of_one(x.astype(jnp.bfloat16) if self.low else x, shift, self.weight, self.bias)


@jax.custom_batching.custom_vmap
def _norm_of_one(x: Array, shift: Array, weight: Array, bias: Array) -> Array:
    return jax.nn.relu(normalized(x.astype(weight.dtype) + shift, weight, bias)).astype(x.dtype)


@_norm_of_one.def_vmap
def _norm_of_many(
    _: int, batched: list[bool], x: Array, shift: Array, weight: Array, bias: Array
) -> tuple[Array, bool]:
    if batched == [True, False, False, False]:
        return _norm_of_rows(x, shift, weight, bias), True
    plain = _norm_of_one.fun  # an ensemble: every row has its own weights
    return jax.vmap(plain, [0 if b else None for b in batched])(x, shift, weight, bias), True


@jax.custom_vjp
def _norm_of_rows(x: Array, shift: Array, weight: Array, bias: Array) -> Array:
    return _norm_forward(x, shift, weight, bias)[0]


def _norm_forward(x: Array, shift: Array, weight: Array, bias: Array) -> tuple[Array, Any]:
    shifted = x.astype(weight.dtype) + shift
    moments = _moments(shifted)
    out = jax.nn.relu(_unit(shifted, *moments) * weight + bias)
    return out.astype(x.dtype), (x, shift, weight, bias, moments)


def _norm_backward(residuals: Any, g: Array) -> tuple[Array, Array, Array, Array]:
    x, shift, weight, bias, moments = residuals

    def read(*more: Any) -> tuple[Any, ...]:
        """LayerNorm without its weights, and the gradient that passes the ReLU. The barrier makes each of the three
        passes below compute them again, so that they are never written to memory."""
        x_, g_, moments_, *more_ = jax.lax.optimization_barrier((x, g, moments, *more))
        unit = _unit(x_.astype(weight.dtype) + shift, *moments_)
        return unit, jnp.where(unit * weight + bias > 0, g_.astype(unit.dtype), 0.0), *more_

    unit, through = read()
    sums = [jnp.sum(term * weight, axis=1, keepdims=True) for term in (through, through * unit)]
    unit, through, scale, (sum_of_gradients, sum_with_unit) = read(moments[1], sums)
    dx = (scale * (through * weight - (sum_of_gradients + unit * sum_with_unit) / x.shape[1])).astype(x.dtype)
    unit, through, dx_ = read(dx)
    dshift, dweight, dbias = (_sum_of_rows(term) for term in (dx_.astype(unit.dtype), through * unit, through))
    return dx, dshift.astype(shift.dtype), dweight, dbias


def _sum_of_rows(x: Array) -> Array:
    """First the sums of groups of rows, which XLA puts into the kernel that makes the rows. Then the sum of those."""
    parts = jnp.sum(x.reshape(-1, math.gcd(len(x), PART), x.shape[1]), axis=1)
    return jnp.sum(jax.lax.optimization_barrier(parts), axis=0)


_norm_of_rows.defvjp(_norm_forward, _norm_backward)

"""JAX's primitives as ONNX operators, with one rule for each primitive: shapes, reductions, products, look-ups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from droprl.deploy.elementwise import shared_compact
from droprl.deploy.graph import Graph, Shape, Tensor, is_number
from droprl.errors import DropError

Rule = Callable[..., "Tensor | list[Tensor]"]

# --- shapes ---


def _broadcast(graph: Graph, equation: Any, x: Tensor, *_: Tensor) -> Tensor:
    """Nothing is repeated here. Only the axes get their new places."""
    shape = equation.outvars[0].aval.shape
    compact: list[Any] = [1] * len(shape)
    for axis, place in enumerate(equation.params["broadcast_dimensions"]):
        compact[place] = x.compact[axis]
    return graph.reshaped(x, shape, tuple(compact))


def _reshape(graph: Graph, equation: Any, x: Tensor, *_: Tensor) -> Tensor:
    return graph.reshaped(x, equation.outvars[0].aval.shape)


def _squeeze(graph: Graph, equation: Any, x: Tensor) -> Tensor:
    return _without(graph, x, equation.params["dimensions"], equation.outvars[0].aval.shape)


def _transpose(graph: Graph, equation: Any, x: Tensor) -> Tensor:
    return graph.transposed(x, equation.params["permutation"])


def _slice(graph: Graph, equation: Any, x: Tensor) -> Tensor:
    parameters = equation.params
    steps = parameters["strides"] or (1,) * len(x.shape)
    if any(step != 1 for step in steps):
        raise DropError("the policy takes every n-th row of an array: it cannot be exported")
    for axis, (start, stop) in enumerate(zip(parameters["start_indices"], parameters["limit_indices"], strict=True)):
        x = _cut(graph, x, axis, start, stop)
    return x


def _cut(graph: Graph, x: Tensor, axis: int, start: int, stop: Any) -> Tensor:
    if start == 0 and (stop == x.shape[axis] if is_number(stop) else not is_number(x.shape[axis])):
        return x
    if not is_number(stop):
        raise DropError("the policy takes a part of its batch: it cannot be exported")
    shape = (*x.shape[:axis], stop - start, *x.shape[axis + 1 :])
    if x.compact[axis] != x.shape[axis]:
        return x.repeated_to(shape)  # a part of a repetition is a shorter repetition
    compact = (*x.compact[:axis], stop - start, *x.compact[axis + 1 :])
    if x.constant is not None:
        return graph.constant(x.constant[(slice(None),) * axis + (slice(start, stop),)], shape)
    numbers = [graph.constant(np.array([number], np.int64)) for number in (start, stop, axis)]
    return graph.one("Slice", [x, *numbers], shape, x.dtype, compact)


def _split(graph: Graph, equation: Any, x: Tensor) -> list[Tensor]:
    ends = np.cumsum([0, *equation.params["sizes"]]).tolist()
    axis = equation.params["axis"]
    return [_cut(graph, x, axis, start, stop) for start, stop in pairwise(ends)]


def _concatenate(graph: Graph, equation: Any, *parts: Tensor) -> Tensor:
    """If all parts repeat along one of the other axes, so does the result."""
    axis, aval = equation.params["dimension"], equation.outvars[0].aval
    return _joined(graph, list(parts), axis, aval.shape)


def _stack(graph: Graph, equation: Any, *parts: Tensor) -> Tensor:
    axis, shape = equation.params["axis"], equation.outvars[0].aval.shape
    row = (*shape[:axis], 1, *shape[axis + 1 :])
    rows = [graph.reshaped(part, row, (*part.compact[:axis], 1, *part.compact[axis:])) for part in parts]
    return _joined(graph, rows, axis, shape)


def _joined(graph: Graph, parts: list[Tensor], axis: int, shape: Shape) -> Tensor:
    together = shared_compact(parts, len(shape))
    axes = {axis} | {i for i, dim in enumerate(together) if dim == shape[i]}
    whole = [graph.expanded(part, axes) for part in parts]
    compact = tuple(shape[i] if i in axes else dim for i, dim in enumerate(together))
    constants = [part.constant for part in whole if part.constant is not None]
    if len(constants) == len(whole):
        return graph.constant(np.concatenate(constants, axis), shape)
    return graph.one("Concat", whole, shape, whole[0].dtype, compact, axis=int(axis))


def _pad(graph: Graph, equation: Any, x: Tensor, filler: Tensor) -> Tensor:
    """A derivative of slices and concatenations pads before the rows and behind them, never between."""
    config = equation.params["padding_config"]
    if any(between or min(before, behind) < 0 for before, behind, between in config):
        raise DropError("the policy pads an array between its rows: it cannot be exported")
    shape = x.shape
    for axis, (before, behind, _) in enumerate(config):
        sizes = [(*shape[:axis], size, *shape[axis + 1 :]) for size in (before, behind)]
        ends = [graph.reshaped(filler, size, (1,) * len(size)) for size in sizes]
        parts = [part for part in (ends[0], x, ends[1]) if part.shape[axis] != 0]
        shape = (*shape[:axis], shape[axis] + before + behind, *shape[axis + 1 :])
        x = _joined(graph, parts, axis, shape) if len(parts) > 1 else x
    return x


# --- over an axis ---


def _reduction(operator: str) -> Rule:
    def rule(graph: Graph, equation: Any, x: Tensor) -> Tensor:
        axes, shape = [int(axis) for axis in equation.params["axes"]], equation.outvars[0].aval.shape
        x = graph.expanded(x, axes)
        if any(x.shape[axis] != 1 for axis in axes):  # the reduced axes stay, with size 1: often they are needed again
            ones = (tuple(1 if i in axes else dim for i, dim in enumerate(dims)) for dims in (x.shape, x.compact))
            x = graph.one(operator, [x, _indices(graph, axes)], next(ones), x.dtype, next(ones), keepdims=1)
        return _without(graph, x, axes, shape)

    return rule


def _any(graph: Graph, equation: Any, x: Tensor) -> Tensor:
    """A repetition need not be written out for this: it holds a true value if the repeated part does."""
    axes, shape = [int(axis) for axis in equation.params["axes"]], equation.outvars[0].aval.shape
    compact = tuple(dim for axis, dim in enumerate(x.compact) if axis not in axes)
    if x.constant is not None:
        return graph.constant(x.constant.any(axis=tuple(axes)), shape)
    numbers = graph.cast(x, np.int32)
    most = graph.one("ReduceMax", [numbers, _indices(graph, axes)], shape, np.int32, compact, keepdims=0)
    return graph.cast(most, bool)


def _argmax(graph: Graph, equation: Any, x: Tensor) -> Tensor:
    aval, (axis,) = equation.outvars[0].aval, equation.params["axes"]
    found = graph.one("ArgMax", [graph.expanded(x)], aval.shape, np.int64, axis=int(axis), keepdims=0)
    return graph.cast(found, aval.dtype)


def _top_k(graph: Graph, equation: Any, x: Tensor) -> list[Tensor]:
    values, indices = (variable.aval for variable in equation.outvars)
    axis = int(equation.params.get("axis", len(x.shape) - 1))
    like = [Tensor(values.shape, values.dtype, values.shape), Tensor(values.shape, np.dtype(np.int64), values.shape)]
    best, found = graph.emit("TopK", [graph.expanded(x), _indices(graph, [equation.params["k"]])], like, axis=axis)
    return [best, graph.cast(found, indices.dtype)]


def _indices(graph: Graph, numbers: Sequence[int]) -> Tensor:
    return graph.constant(np.array(numbers, np.int64))


# --- products ---


def _dot(graph: Graph, equation: Any, a: Tensor, b: Tensor) -> Tensor:
    (a_summed, b_summed), (a_batch, b_batch) = equation.params["dimension_numbers"]
    aval = equation.outvars[0].aval
    a_free, b_free = (
        [axis for axis in range(len(x.shape)) if axis not in (*summed, *batch)]
        for x, summed, batch in ((a, a_summed, a_batch), (b, b_summed, b_batch))
    )
    plain = not a_batch and len(a_summed) == 1
    if plain and len(b_free) <= 1:
        return _matrix_product(graph, a, a_free, a_summed, b, b_free, b_summed)
    if plain and len(a_free) <= 1:
        product = _matrix_product(graph, b, b_free, b_summed, a, a_free, a_summed)
        last = len(b_free)
        return graph.transposed(product, [*([last] if a_free else []), *range(last)])
    a = graph.transposed(graph.expanded(a), (*a_batch, *a_free, *a_summed))
    b = graph.transposed(graph.expanded(b), (*b_batch, *b_summed, *b_free))
    first, n_summed = len(a_batch), len(a_summed)
    shared, summed = a.shape[:first], _product(a.shape[len(a.shape) - n_summed :])
    rows, columns = _product(a.shape[first : len(a.shape) - n_summed]), _product(b.shape[first + n_summed :])
    a, b = graph.reshaped(a, (*shared, rows, summed)), graph.reshaped(b, (*shared, summed, columns))
    return graph.reshaped(graph.one("MatMul", [a, b], (*shared, rows, columns), aval.dtype), aval.shape)


def _matrix_product(
    graph: Graph,
    x: Tensor,
    x_free: Sequence[int],
    x_summed: Sequence[int],
    weights: Tensor,
    free: Sequence[int],
    summed: Sequence[int],
) -> Tensor:
    """The product of any number of rows with one matrix. The result has the axes (x_free, free)."""
    x = graph.transposed(graph.expanded(x, x_summed), (*x_free, *x_summed))
    weights = graph.transposed(graph.expanded(weights), (*summed, *free))
    if not free:  # onnxruntime 1.31 fuses a transpose and a product with a vector, and the result is wrong
        column = graph.reshaped(weights, (*weights.shape, 1))
        product = _matrix_product(graph, x, range(len(x_free)), [len(x_free)], column, [1], [0])
        return _without(graph, product, [len(x_free)], x.shape[:-1])
    shape, compact = ((*dims[:-1], *weights.shape[1:]) for dims in (x.shape, x.compact))
    if x.constant is not None and weights.constant is not None:
        return graph.constant(x.constant @ weights.constant, shape)
    return graph.one("MatMul", [x, weights], shape, x.dtype, compact)


def _product(dims: Sequence[Any]) -> Any:
    """The product of sizes. One may be the symbol of the batch, which NumPy cannot multiply."""
    total: Any = 1
    for dim in dims:
        total = total * dim
    return total


# --- look-ups ---


def _gather(graph: Graph, equation: Any, x: Tensor, indices: Tensor) -> Tensor:
    """A part at known places; or whole rows along one axis; or one row for each batch entry, from its own array."""
    numbers, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
    searched, batch = numbers.start_index_map, numbers.operand_batching_dims
    if indices.constant is not None and indices.constant.size == len(searched) and not batch:
        for axis, start in zip(searched, indices.constant.ravel(), strict=True):
            x = _cut(graph, x, axis, int(start), int(start) + sizes[axis])
        return _without(graph, x, numbers.collapsed_slice_dims, equation.outvars[0].aval.shape)
    single = [axis for axis in searched if sizes[axis] == 1]
    axis = int(next((axis for axis in single if x.shape[axis] != 1), single[0] if single else -1))
    others = [i for i in range(len(x.shape)) if i != axis and i not in batch]
    leading = tuple(range(len(batch)))
    if axis < 0 or any(is_number(x.shape[i]) and sizes[i] != x.shape[i] for i in others):
        raise DropError("the policy looks up parts of several rows at once: it cannot be exported")
    if batch and (
        tuple(batch) != leading or tuple(numbers.start_indices_batching_dims) != leading or axis != len(batch)
    ):
        raise DropError("the policy looks up rows of a batch along a later axis: it cannot be exported")
    column = list(searched).index(axis)
    places = _cut(graph, graph.expanded(indices), len(indices.shape) - 1, column, column + 1)
    return _rows(graph, equation, graph.expanded(x), graph.cast(places, np.int64), axis)


def _rows(graph: Graph, equation: Any, x: Tensor, places: Tensor, axis: int) -> Tensor:
    numbers, aval = equation.params["dimension_numbers"], equation.outvars[0].aval
    of_indices = places.shape[:-1]
    before = () if numbers.operand_batching_dims else x.shape[:axis]  # the axes of a batch belong to the places
    shape = (*before, *of_indices, *x.shape[axis + 1 :])
    if numbers.operand_batching_dims:
        found = graph.one("GatherND", [x, places], shape, x.dtype, batch_dims=axis)
    else:
        found = graph.one("Gather", [x, graph.reshaped(places, of_indices)], shape, x.dtype, axis=axis)
    row_axes = iter([*range(len(before)), *range(len(before) + len(of_indices), len(shape))])
    place_axes = iter(range(len(before), len(before) + len(of_indices)))
    remaining = [i for i in range(len(x.shape)) if i not in numbers.operand_batching_dims]
    remaining = [i for i in remaining if i not in numbers.collapsed_slice_dims]
    order = []  # if the row's own axis is not collapsed, it has size 1, and the reshape adds it
    for place in range(len(aval.shape)):
        if place not in numbers.offset_dims:
            order.append(next(place_axes))
        elif remaining.pop(0) != axis:
            order.append(next(row_axes))
    return graph.reshaped(graph.transposed(found, order), aval.shape)


def _without(graph: Graph, x: Tensor, axes: Sequence[int], shape: Shape) -> Tensor:
    return graph.reshaped(x, shape, tuple(dim for axis, dim in enumerate(x.compact) if axis not in axes))


def _scatter(graph: Graph, equation: Any, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """One row along one axis, at a known place, gets other values, or other values are added to it."""
    numbers = equation.params["dimension_numbers"]
    axes = tuple(numbers.scatter_dims_to_operand_dims)
    if len(axes) != 1 or tuple(numbers.inserted_window_dims) != axes or indices.constant is None:
        raise DropError("the policy writes into several places of an array: it cannot be exported")
    axis, at = int(axes[0]), int(indices.constant.item())
    shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    row = graph.reshaped(updates, shape, (*updates.compact[:axis], 1, *updates.compact[axis:]))
    if equation.primitive.name == "scatter-add":
        row = graph.one("Add", [graph.expanded(_cut(graph, x, axis, at, at + 1)), row], shape, x.dtype)
    ends = [_cut(graph, x, axis, 0, at), row, _cut(graph, x, axis, at + 1, x.shape[axis])]
    return _joined(graph, [part for part in ends if part.shape[axis] != 0], axis, x.shape)


RULES: dict[str, Rule] = {
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "squeeze": _squeeze,
    "transpose": _transpose,
    "slice": _slice,
    "split": _split,
    "concatenate": _concatenate,
    "stack": _stack,
    "pad": _pad,
    "reduce_sum": _reduction("ReduceSum"),
    "reduce_max": _reduction("ReduceMax"),
    "reduce_min": _reduction("ReduceMin"),
    "reduce_or": _any,
    "argmax": _argmax,
    "top_k": _top_k,
    "dot_general": _dot,
    "gather": _gather,
    "scatter": _scatter,
    "scatter-add": _scatter,
}
STRUCTURAL = ("broadcast_in_dim", "transpose")  # done by the graph for constants too: the result is not stored

"""JAX's elementwise primitives as ONNX operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from droprl.deploy.graph import Graph, Shape, Tensor, is_number
from droprl.errors import DropError

SAME_OPERATOR = {
    "add": "Add",
    "add_any": "Add",
    "sub": "Sub",
    "mul": "Mul",
    "div": "Div",
    "max": "Max",
    "min": "Min",
    "pow": "Pow",
    "neg": "Neg",
    "abs": "Abs",
    "sign": "Sign",
    "sqrt": "Sqrt",
    "exp": "Exp",
    "log": "Log",
    "tanh": "Tanh",
    "logistic": "Sigmoid",
    "eq": "Equal",
    "lt": "Less",
    "le": "LessOrEqual",
    "gt": "Greater",
    "ge": "GreaterOrEqual",
    "copy": "Identity",
    "stop_gradient": "Identity",
}
LOGICAL = {"and": "And", "or": "Or", "not": "Not"}
COMPOSED = ("square", "integer_pow", "rsqrt", "ne", "rem", "clamp", "select_n", "convert_element_type")


def is_elementwise(equation: Any, inputs: Sequence[Tensor]) -> bool:
    name = equation.primitive.name
    return name in SAME_OPERATOR or name in COMPOSED or (name in LOGICAL and inputs[0].dtype == bool)


def translate_elementwise(graph: Graph, equation: Any, inputs: Sequence[Tensor]) -> Tensor:
    """If all inputs repeat along an axis, so does the result: it is computed once."""
    name, parameters, aval = equation.primitive.name, equation.params, equation.outvars[0].aval
    compact = shared_compact([tensor for tensor in inputs if tensor.shape], len(aval.shape))
    constants = [tensor.constant for tensor in inputs if tensor.constant is not None]
    if len(constants) == len(inputs):
        content = equation.primitive.bind(*np.broadcast_arrays(*constants), **parameters)
        return graph.constant(np.asarray(content).reshape(compact), aval.shape)

    def node(operator: str, *tensors: Tensor, dtype: Any = aval.dtype, **attributes: Any) -> Tensor:
        return graph.one(operator, tensors, aval.shape, dtype, compact, **attributes)

    x = inputs[0]
    match name:
        case "square":
            return node("Mul", x, x)
        case "integer_pow" if parameters["y"] == 2:
            return node("Mul", x, x)
        case "integer_pow":
            return node("Pow", x, graph.constant(np.asarray(parameters["y"], aval.dtype)))
        case "rsqrt":
            return node("Reciprocal", node("Sqrt", x))
        case "ne":
            return node("Not", node("Equal", *inputs))
        case "rem":
            return node("Mod", *inputs, fmod=1)  # as in C and in lax: the sign is that of the dividend
        case "clamp":
            return node("Min", node("Max", inputs[1], x), inputs[2])
        case "convert_element_type":
            return graph.cast(x, aval.dtype)
        case "select_n":
            return _selected(aval.shape, compact, inputs, node)
        case _:
            return node(SAME_OPERATOR.get(name) or LOGICAL[name], *inputs)


def shared_compact(tensors: Sequence[Tensor], rank: int) -> Shape:
    """The compact shape of a result of these tensors: an axis is 1 if they all repeat along it."""
    found = []
    for axis in range(rank):
        sizes = [tensor.compact[axis] for tensor in tensors]
        found.append(next((size for size in sizes if not (is_number(size) and size == 1)), 1))
    return tuple(found)


def _selected(shape: Shape, compact: Shape, inputs: Sequence[Tensor], node: Callable[..., Tensor]) -> Tensor:
    which, *cases = inputs
    if len(cases) != 2 or which.dtype != bool:
        raise DropError("the policy selects among more than two arrays: it cannot be exported")
    if which.constant is not None and which.constant.all() == which.constant.any():
        chosen = cases[int(which.constant.all())]
        if chosen.compact == compact:
            return chosen.repeated_to(shape)
    return node("Where", which, cases[1], cases[0])

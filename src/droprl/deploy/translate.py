"""A JAX program as ONNX: each primitive becomes operators that compute the same (`elementwise`, `operators`).

Loops of a fixed length are unrolled, a choice becomes `If`, and values that depend on no input are computed here. We
translate the program as JAX traced it, gradients included. So a policy needs no second definition for export.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from droprl.deploy.elementwise import is_elementwise, translate_elementwise
from droprl.deploy.graph import Graph, Tensor, is_number
from droprl.deploy.operators import RULES, STRUCTURAL
from droprl.errors import DropError

CALLED = ("jaxpr", "call_jaxpr")  # the parameters of a primitive that only calls another program


def translate(graph: Graph, jaxpr: Any, constants: Sequence[Any], inputs: Sequence[Tensor]) -> list[Tensor]:
    """The outputs of a program at these inputs. Every node that they need is added to the graph."""
    known: dict[Any, Tensor] = dict(zip(jaxpr.invars, inputs, strict=True))
    fixed = dict(zip(jaxpr.constvars, constants, strict=True))

    def read(atom: Any) -> Tensor:
        if hasattr(atom, "val"):
            return graph.constant(np.asarray(atom.val, atom.aval.dtype))
        if atom not in known:  # made only if it is read: a random key cannot become an array
            known[atom] = graph.constant(np.asarray(fixed[atom]))
        return known[atom]

    for equation in _needed(jaxpr):
        made = _translated(graph, equation, [read(atom) for atom in equation.invars])
        known.update(zip(equation.outvars, made, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _needed(jaxpr: Any) -> list[Any]:
    """The equations that the outputs depend on."""
    wanted, needed = {id(atom) for atom in jaxpr.outvars}, []
    for equation in reversed(jaxpr.eqns):
        if any(id(variable) in wanted for variable in equation.outvars):
            wanted |= {id(atom) for atom in equation.invars}
            needed.append(equation)
    return needed[::-1]


def _translated(graph: Graph, equation: Any, inputs: list[Tensor]) -> list[Tensor]:
    name = equation.primitive.name
    if name == "cond":
        return _choice(graph, equation, *inputs)
    if name == "scan":
        return _unrolled(graph, equation, inputs)
    if is_elementwise(equation, inputs):
        return [translate_elementwise(graph, equation, inputs)]
    if name not in STRUCTURAL and _is_known(equation, inputs):
        made = equation.primitive.bind(*(tensor.constant for tensor in inputs), **equation.params)
        return [graph.constant(content) for content in (made if equation.primitive.multiple_results else [made])]
    if name in RULES:
        outcome = RULES[name](graph, equation, *inputs)
        return outcome if isinstance(outcome, list) else [outcome]
    called = next((equation.params[key] for key in CALLED if key in equation.params), None)
    if called is None:
        raise DropError(f"the policy computes `{name}`, and we know no ONNX operator for it: it cannot be exported")
    return _call(graph, called, inputs)


def _is_known(equation: Any, inputs: Sequence[Tensor]) -> bool:
    """Whether this can be computed now. Not for calls: they are translated, because a part of them may be known."""
    if any(key in equation.params for key in CALLED):
        return False
    sizes = [dim for variable in equation.outvars for dim in variable.aval.shape]
    whole = all(tensor.constant is not None and tensor.compact == tensor.shape for tensor in inputs)
    return whole and all(is_number(dim) for dim in sizes)


def _call(graph: Graph, program: Any, inputs: Sequence[Tensor]) -> list[Tensor]:
    return translate(graph, getattr(program, "jaxpr", program), getattr(program, "consts", ()), inputs)


def _choice(graph: Graph, equation: Any, which: Tensor, *inputs: Tensor) -> list[Tensor]:
    """Becomes `If`: only the chosen branch costs time, as in JAX."""
    branches = equation.params["branches"]
    if which.constant is not None:
        return _call(graph, branches[int(which.constant)], inputs)
    if len(branches) != 2:
        raise DropError(f"the policy chooses among {len(branches)} branches, not two: it cannot be exported")
    made = {}
    for name, program in zip(("else_branch", "then_branch"), branches, strict=True):
        with graph.branch() as scope:
            graph.outputs_of(scope, _call(graph, program, inputs))
        made[name] = scope
    return graph.emit("If", [graph.cast(which, bool)], made["then_branch"].outputs, made)


def _unrolled(graph: Graph, equation: Any, inputs: list[Tensor]) -> list[Tensor]:
    """A loop that only carries values from one turn to the next. The graph holds all turns, one after another."""
    loop = equation.params
    first = loop["num_consts"]
    if len(inputs) != first + loop["num_carry"] or len(equation.outvars) != loop["num_carry"]:
        raise DropError("the policy loops over the rows of an array: it cannot be exported")
    carried = inputs[first:]
    for _ in range(loop["length"]):
        carried = _call(graph, loop["jaxpr"], [*inputs[:first], *carried])
    return carried

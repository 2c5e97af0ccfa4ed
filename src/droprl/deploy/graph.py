"""An ONNX graph in the making: tensors, constants, nodes and branches. Nothing here knows of policies or JAX programs.

Two habits keep the graph small. A tensor that only repeats itself is not written out: `held` is the shape it really
has, with a 1 where `shape` has more, and ONNX repeats it where it meets another. And a node that was made before is not
made again, so that what all steps of an ascent read is there once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from droprl.errors import DropError
from droprl.files.seals import digest

OPSET, IR_VERSION = 18, 9
WORTH_A_NODE = 1024  # numbers in a constant: from here on its transpose is left to the runtime, not stored beside it
Shape = tuple[Any, ...]  # numbers, and the symbol of the batch


@dataclass(frozen=True)
class Tensor:
    shape: Shape
    dtype: np.dtype
    held: Shape
    name: str = ""
    constant: np.ndarray | None = None  # what it holds, where that is known
    turned: tuple[Tensor, tuple[int, ...]] | None = None  # the tensor that it is a transpose of, and its axes' order
    flat: Tensor | None = None  # the tensor that it is a reshape of

    def repeated_to(self, shape: Shape) -> Tensor:
        return self if shape == self.shape else replace(self, shape=shape, turned=None)


@dataclass
class Node:
    operator: str
    inputs: tuple[str, ...]
    outputs: list[Tensor]
    attributes: dict[str, Any]
    branches: dict[str, Scope] = field(default_factory=dict)


@dataclass
class Scope:
    """Nodes of the whole graph, or of a branch: those of a branch also see what stands around it."""

    nodes: list[Node] = field(default_factory=list)
    made: dict[Any, list[Tensor]] = field(default_factory=dict)
    outputs: list[Tensor] = field(default_factory=list)


def is_number(dim: Any) -> bool:
    return isinstance(dim, (int, np.integer))


class Graph:
    def __init__(self, batch: Any) -> None:
        """`batch` is the symbol for a number of rows that is not known yet; the first input has it as first axis."""
        self._batch = batch
        self._inputs: list[Tensor] = []
        self._constants: dict[str, np.ndarray] = {}
        self._constant_names: dict[Any, str] = {}
        self._seen: dict[int, tuple[np.ndarray, str]] = {}
        self._fixed = Scope()  # nodes that read constants alone: a runtime computes them once, when it loads the file
        self._fixed_names: set[str] = set()
        self._scopes = [Scope()]
        self._count = 0

    # --- tensors and nodes ---

    def input(self, name: str, shape: Shape, dtype: Any) -> Tensor:
        made = Tensor(shape, np.dtype(dtype), shape, name)
        self._inputs.append(made)
        return made

    def constant(self, content: Any, shape: Shape | None = None) -> Tensor:
        """`shape`: what it is repeated to, if it is."""
        array = np.asarray(content)
        return Tensor(array.shape if shape is None else shape, array.dtype, array.shape, constant=array)

    def emit(
        self,
        operator: str,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        branches: dict[str, Scope] | None = None,
        **attributes: Any,
    ) -> list[Tensor]:
        """One node. Its outputs are given as tensors without a name, and come back with one."""
        names = tuple(self._name_of(tensor) for tensor in inputs)
        key = operator, names, repr(sorted(attributes.items()))
        made = None if branches else next((s.made[key] for s in (self._fixed, *self._scopes) if key in s.made), None)
        if made is None:
            fixed = all(name in self._constants or name in self._fixed_names for name in names) and not branches
            scope = self._fixed if fixed else self._scopes[-1]
            made = [replace(tensor, name=self._fresh(operator)) for tensor in outputs]
            scope.nodes.append(Node(operator, names, made, attributes, branches or {}))
            scope.made[key] = made
            self._fixed_names |= {tensor.name for tensor in made} if fixed else set()
        return [replace(tensor, name=twin.name) for tensor, twin in zip(outputs, made, strict=True)]

    def one(
        self,
        operator: str,
        inputs: Sequence[Tensor],
        shape: Shape,
        dtype: Any,
        held: Shape | None = None,
        **attributes: Any,
    ) -> Tensor:
        like = Tensor(shape, np.dtype(dtype), shape if held is None else held)
        return self.emit(operator, inputs, [like], **attributes)[0]

    @contextmanager
    def branch(self) -> Iterator[Scope]:
        """What is emitted inside belongs to the branch; its outputs are to be set with `outputs_of`."""
        self._scopes.append(Scope())
        try:
            yield self._scopes[-1]
        finally:
            self._scopes.pop()

    def outputs_of(self, scope: Scope, tensors: Sequence[Tensor]) -> None:
        """A graph gives out what its own nodes made, and nothing twice: so each gets a node of its own."""
        whole = [self.expanded(tensor) for tensor in tensors]
        scope.outputs = [replace(tensor, name=self._fresh("output"), constant=None) for tensor in whole]
        for tensor, output in zip(whole, scope.outputs, strict=True):
            scope.nodes.append(Node("Identity", (self._name_of(tensor),), [output], {}))

    def _name_of(self, tensor: Tensor) -> str:
        if tensor.constant is None:
            return tensor.name
        array = tensor.constant
        if id(array) not in self._seen:  # arrays are kept, so that no other one gets their place in memory
            key = array.dtype.str, array.shape, digest(array.tobytes())
            name = self._constant_names.setdefault(key, f"constant_{len(self._constants)}")
            self._constants.setdefault(name, array)
            self._seen[id(array)] = array, name
        return self._seen[id(array)][1]

    def _fresh(self, operator: str) -> str:
        self._count += 1
        return f"{operator.lower()}_{self._count}"

    # --- types and shapes ---

    def cast(self, tensor: Tensor, dtype: Any) -> Tensor:
        wanted = np.dtype(dtype)
        if tensor.dtype == wanted:
            return tensor
        if tensor.constant is not None:
            return self.constant(tensor.constant.astype(wanted), tensor.shape)
        return self.one("Cast", [tensor], tensor.shape, wanted, tensor.held, to=_onnx_type(wanted))

    def transposed(self, tensor: Tensor, order: Sequence[int]) -> Tensor:
        if tensor.turned is not None:
            tensor, inner = tensor.turned
            order = [inner[axis] for axis in order]
        order = tuple(int(axis) for axis in order)
        if order == tuple(range(len(order))):
            return tensor
        shape, held = (tuple(dims[axis] for axis in order) for dims in (tensor.shape, tensor.held))
        if tensor.constant is not None and tensor.constant.size < WORTH_A_NODE:
            return self.constant(tensor.constant.transpose(order), shape)
        made = self.one("Transpose", [tensor], shape, tensor.dtype, held, perm=list(order))
        return replace(made, turned=(tensor, order))

    def reshaped(self, tensor: Tensor, shape: Shape, held: Shape | None = None) -> Tensor:
        """`held` is given where the tensor goes on repeating itself; else it is written out first."""
        if held is None:
            tensor, held = self.expanded(tensor), shape
        tensor = tensor.flat or tensor
        if tensor.held == held:
            return tensor.repeated_to(shape)
        if tensor.constant is not None:
            return self.constant(tensor.constant.reshape(held), shape)
        if sum(not is_number(dim) for dim in held) > 1:
            raise DropError(f"a shape of {held} cannot be exported: more than one of its sizes is open")
        sizes = self.constant(np.array([dim if is_number(dim) else -1 for dim in held], np.int64))
        return replace(self.one("Reshape", [tensor, sizes], shape, tensor.dtype, held), flat=tensor)

    def expanded(self, tensor: Tensor, axes: Collection[int] | None = None) -> Tensor:
        """With its repetitions written out, those along some axes or all."""
        wanted = range(len(tensor.shape)) if axes is None else axes
        held = tuple(tensor.shape[i] if i in wanted else dim for i, dim in enumerate(tensor.held))
        if held == tensor.held:
            return tensor
        if tensor.constant is not None and all(is_number(dim) for dim in held):
            return self.constant(np.broadcast_to(tensor.constant, held), tensor.shape)
        return self.one("Expand", [tensor, self._sizes(held)], tensor.shape, tensor.dtype, held)

    def _sizes(self, shape: Shape) -> Tensor:
        """The shape as a tensor, for a batch that is not known yet."""
        if all(is_number(dim) for dim in shape):
            return self.constant(np.array(shape, np.int64))
        parts = []
        for dim in shape:
            if not is_number(dim) and dim != self._batch:
                raise DropError(f"a shape of {shape} cannot be exported: {dim} is not the batch itself")
            parts.append(self.constant(np.array([dim], np.int64)) if is_number(dim) else self._batch_size())
        return self.one("Concat", parts, (len(parts),), np.int64, axis=0)

    def _batch_size(self) -> Tensor:
        return self.one("Shape", [self._inputs[0]], (1,), np.int64, start=0, end=1)

    # --- the file ---

    def model(self, outputs: dict[str, Tensor], metadata: dict[str, str], name: str) -> onnx.ModelProto:
        body = self._scopes[0]
        self.outputs_of(body, list(outputs.values()))
        whole = Scope([*self._fixed.nodes, *body.nodes], outputs=body.outputs)
        nodes, read = _needed(whole)
        renamed = {tensor.name: name for tensor, name in zip(body.outputs, outputs, strict=True)}
        graph = helper.make_graph(
            [_to_onnx(node, renamed) for node in nodes],
            name,
            [_described(tensor) for tensor in self._inputs],
            [_described(replace(tensor, name=name)) for name, tensor in outputs.items()],
            [numpy_helper.from_array(content, name) for name, content in self._constants.items() if name in read],
            value_info=_insides(nodes, renamed),
        )
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="droprl"
        )
        helper.set_model_props(model, metadata)
        onnx.checker.check_model(model, full_check=True)
        return model


def _needed(scope: Scope) -> tuple[list[Node], set[str]]:
    """The nodes that its outputs come from, and every name that they read."""
    read, kept = {tensor.name for tensor in scope.outputs}, []
    for node in reversed(scope.nodes):
        if read.isdisjoint(tensor.name for tensor in node.outputs):
            continue
        for branch in node.branches.values():
            branch.nodes, inside = _needed(branch)
            read |= inside
        read |= set(node.inputs)
        kept.append(node)
    return kept[::-1], read


def _to_onnx(node: Node, renamed: dict[str, str]) -> onnx.NodeProto:
    branches = {
        name: helper.make_graph(
            [_to_onnx(inner, {}) for inner in scope.nodes],
            name,
            [],
            [_described(tensor) for tensor in scope.outputs],
            value_info=_insides(scope.nodes, {tensor.name for tensor in scope.outputs}),
        )
        for name, scope in node.branches.items()
    }
    outputs = [renamed.get(tensor.name, tensor.name) for tensor in node.outputs]
    return helper.make_node(node.operator, node.inputs, outputs, **node.attributes, **branches)


def _insides(nodes: Sequence[Node], outputs: Collection[str]) -> list[onnx.ValueInfoProto]:
    """Shapes of what lies between: onnxruntime plans its memory by them, and without them for minutes."""
    tensors = [tensor for node in nodes for tensor in node.outputs]
    return [_described(replace(tensor, shape=tensor.held)) for tensor in tensors if tensor.name not in outputs]


def _described(tensor: Tensor) -> onnx.ValueInfoProto:
    dims = [int(dim) if is_number(dim) else str(dim) for dim in tensor.shape]
    return helper.make_tensor_value_info(tensor.name, _onnx_type(tensor.dtype), dims)


def _onnx_type(dtype: np.dtype) -> int:
    return int(helper.np_dtype_to_tensor_dtype(dtype))

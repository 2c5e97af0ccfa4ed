"""An ONNX graph under construction: tensors, constants, nodes and branches. It knows nothing of policies or JAX.

Two habits keep the graph small. A tensor that repeats along an axis is not written out: `compact` is the shape it
really has, with a 1 where `shape` has more. ONNX repeats it when it meets another tensor. And no node is made twice,
so what all steps of an ascent read exists once.
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
WORTH_A_NODE = 1024  # a constant with at least this many numbers is transposed by a node, not stored a second time
Shape = tuple[Any, ...]  # numbers, and the symbol of the batch


@dataclass(frozen=True)
class Tensor:
    shape: Shape
    dtype: np.dtype
    compact: Shape
    name: str = ""
    constant: np.ndarray | None = None  # its content, if that is known
    transpose_of: tuple[Tensor, tuple[int, ...]] | None = None  # another tensor, and the order of its axes here
    reshape_of: Tensor | None = None  # another tensor

    def repeated_to(self, shape: Shape) -> Tensor:
        return self if shape == self.shape else replace(self, shape=shape, transpose_of=None)


@dataclass
class Node:
    operator: str
    inputs: tuple[str, ...]
    outputs: list[Tensor]
    attributes: dict[str, Any]
    branches: dict[str, Scope] = field(default_factory=dict)


@dataclass
class Scope:
    """The nodes of the whole graph or of a branch. Nodes of a branch also see the tensors of the scopes around it."""

    nodes: list[Node] = field(default_factory=list)
    made: dict[Any, list[Tensor]] = field(default_factory=dict)
    outputs: list[Tensor] = field(default_factory=list)


def is_number(dim: Any) -> bool:
    return isinstance(dim, (int, np.integer))


class Graph:
    def __init__(self, batch: Any) -> None:
        """`batch` is the symbol for a number of rows that is not known yet. It is the first axis of the first input."""
        self._batch = batch
        self._inputs: list[Tensor] = []
        self._constants: dict[str, np.ndarray] = {}
        self._constant_names: dict[Any, str] = {}
        self._seen: dict[int, tuple[np.ndarray, str]] = {}
        self._fixed = Scope()  # nodes that read only constants: a runtime computes them once, when it loads the file
        self._fixed_names: set[str] = set()
        self._scopes = [Scope()]
        self._count = 0

    # --- tensors and nodes ---

    def input(self, name: str, shape: Shape, dtype: Any) -> Tensor:
        made = Tensor(shape, np.dtype(dtype), shape, name)
        self._inputs.append(made)
        return made

    def constant(self, content: Any, shape: Shape | None = None) -> Tensor:
        """`shape` is given if the content is repeated."""
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
        """One node. Its outputs are passed as tensors without names, and come back with names."""
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
        compact: Shape | None = None,
        **attributes: Any,
    ) -> Tensor:
        like = Tensor(shape, np.dtype(dtype), shape if compact is None else compact)
        return self.emit(operator, inputs, [like], **attributes)[0]

    @contextmanager
    def branch(self) -> Iterator[Scope]:
        """Nodes that are emitted inside belong to the branch. Set its outputs with `outputs_of`."""
        self._scopes.append(Scope())
        try:
            yield self._scopes[-1]
        finally:
            self._scopes.pop()

    def outputs_of(self, scope: Scope, tensors: Sequence[Tensor]) -> None:
        """ONNX wants every output of a graph to come from a node in it, and no output twice. So each gets a node."""
        whole = [self.expanded(tensor) for tensor in tensors]
        scope.outputs = [replace(tensor, name=self._fresh("output"), constant=None) for tensor in whole]
        for tensor, output in zip(whole, scope.outputs, strict=True):
            scope.nodes.append(Node("Identity", (self._name_of(tensor),), [output], {}))

    def _name_of(self, tensor: Tensor) -> str:
        if tensor.constant is None:
            return tensor.name
        array = tensor.constant
        if id(array) not in self._seen:  # `_seen` holds the array, so that no other array can get the same id
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
        return self.one("Cast", [tensor], tensor.shape, wanted, tensor.compact, to=_onnx_type(wanted))

    def transposed(self, tensor: Tensor, order: Sequence[int]) -> Tensor:
        if tensor.transpose_of is not None:
            tensor, inner = tensor.transpose_of
            order = [inner[axis] for axis in order]
        order = tuple(int(axis) for axis in order)
        if order == tuple(range(len(order))):
            return tensor
        shape, compact = (tuple(dims[axis] for axis in order) for dims in (tensor.shape, tensor.compact))
        if tensor.constant is not None and tensor.constant.size < WORTH_A_NODE:
            return self.constant(tensor.constant.transpose(order), shape)
        made = self.one("Transpose", [tensor], shape, tensor.dtype, compact, perm=list(order))
        return replace(made, transpose_of=(tensor, order))

    def reshaped(self, tensor: Tensor, shape: Shape, compact: Shape | None = None) -> Tensor:
        """`compact` is given if the result repeats too. Otherwise the tensor is written out first."""
        if compact is None:
            tensor, compact = self.expanded(tensor), shape
        tensor = tensor.reshape_of or tensor
        if tensor.compact == compact:
            return tensor.repeated_to(shape)
        if tensor.constant is not None:
            return self.constant(tensor.constant.reshape(compact), shape)
        if sum(not is_number(dim) for dim in compact) > 1:
            raise DropError(f"a shape of {compact} cannot be exported: more than one of its sizes is not known yet")
        sizes = self.constant(np.array([dim if is_number(dim) else -1 for dim in compact], np.int64))
        return replace(self.one("Reshape", [tensor, sizes], shape, tensor.dtype, compact), reshape_of=tensor)

    def expanded(self, tensor: Tensor, axes: Collection[int] | None = None) -> Tensor:
        """The tensor with its repetitions written out, along the given axes or along all."""
        wanted = range(len(tensor.shape)) if axes is None else axes
        compact = tuple(tensor.shape[i] if i in wanted else dim for i, dim in enumerate(tensor.compact))
        if compact == tensor.compact:
            return tensor
        if tensor.constant is not None and all(is_number(dim) for dim in compact):
            return self.constant(np.broadcast_to(tensor.constant, compact), tensor.shape)
        return self.one("Expand", [tensor, self._sizes(compact)], tensor.shape, tensor.dtype, compact)

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
    """The nodes that the scope's outputs depend on, and every name that these nodes read."""
    read, needed = {tensor.name for tensor in scope.outputs}, []
    for node in reversed(scope.nodes):
        if read.isdisjoint(tensor.name for tensor in node.outputs):
            continue
        for branch in node.branches.values():
            branch.nodes, inside = _needed(branch)
            read |= inside
        read |= set(node.inputs)
        needed.append(node)
    return needed[::-1], read


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
    """The shapes of tensors inside the graph. onnxruntime plans its memory with them; without them it takes minutes."""
    tensors = [tensor for node in nodes for tensor in node.outputs]
    return [_described(replace(tensor, shape=tensor.compact)) for tensor in tensors if tensor.name not in outputs]


def _described(tensor: Tensor) -> onnx.ValueInfoProto:
    dims = [int(dim) if is_number(dim) else str(dim) for dim in tensor.shape]
    return helper.make_tensor_value_info(tensor.name, _onnx_type(tensor.dtype), dims)


def _onnx_type(dtype: np.dtype) -> int:
    return int(helper.np_dtype_to_tensor_dtype(dtype))

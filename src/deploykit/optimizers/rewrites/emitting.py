"""Writes the nodes that take the place of one node: in the operator revisions of its model, named after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from deploykit import graph
from deploykit.graph.signature import constant_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

STANDARD = ("", "ai.onnx")


class Names:
    """The names of nodes and values that a model has, and new ones beside them."""

    def __init__(self, model: ir.Model) -> None:
        """Reads the names of the model, bodies and functions included."""
        self.nodes = {node.name for node in graph.all_nodes(model) if node.name}
        self.values: set[str] = set()
        for part in model.graphs():
            given = [*part.inputs, *part.initializers.values(), *(value for node in part for value in node.outputs)]
            self.values.update(value.name for value in given if value.name)

    def node(self, wanted: str) -> str:
        """`wanted` itself, or with the first number that is free: norm/Mul, norm/Mul_2, ..."""
        return _free(wanted, self.nodes)

    def value(self, wanted: str) -> str:
        """The same for values."""
        return _free(wanted, self.values)


def _free(wanted: str, taken: set[str]) -> str:
    name, count = wanted, 1
    while name in taken:
        count += 1
        name = f"{wanted}_{count}"
    taken.add(name)
    return name


class Emitter:
    """Collects new nodes; nothing of the model changes until `commit`, and `discard` forgets them.

    opset: version of the standard operators that the nodes are written in.
    """

    def __init__(self, node: ir.Node, model: ir.Model) -> None:
        """Starts with no nodes, for the place of `node`."""
        self.place = node
        self.model = model
        self.opset = graph.opset(model)
        self.nodes: list[ir.Node] = []
        self.constants: list[ir.Value] = []

    def op(self, op_type: str, *inputs: ir.Value | None, domain: str = "", **attributes: Any) -> ir.Value:
        """The one output of a new node."""
        return self.ops(op_type, *inputs, outputs=1, domain=domain, **attributes)[0]

    def ops(
        self, op_type: str, *inputs: ir.Value | None, outputs: int, domain: str = "", **attributes: Any
    ) -> Sequence[ir.Value]:
        """The outputs of a new node. Attributes that are None are left out."""
        given = {name: value for name, value in attributes.items() if value is not None}
        made = ir.node(op_type, list(inputs), attributes=given, domain=domain, num_outputs=outputs)
        self.nodes.append(made)
        if outputs and inputs and inputs[0] is not None and op_type in _SAME_TYPE:
            made.outputs[0].type = inputs[0].type
        return made.outputs

    def const(self, array: Any, dtype: ir.DataType | None = None) -> ir.Value:
        """A new constant: an initializer of the graph. dtype: as numpy has it unless given."""
        values = np.asarray(array)
        if dtype is not None:
            values = values.astype(dtype.numpy())
        return self.tensor(ir.tensor(values, dtype=dtype))

    def tensor(self, tensor: ir.TensorProtocol) -> ir.Value:
        """A new constant that holds this tensor."""
        value = ir.Value(
            name=None, const_value=tensor, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy())
        )
        self.constants.append(value)
        return value

    def like(self, number: float, value: ir.Value | None) -> ir.Value:
        """A scalar constant of the type of `value`, whose type is known."""
        if value is None or value.dtype is None:
            raise ValueError("the type is not known")
        return self.const(number, value.dtype)

    def ints(self, values: Iterable[int]) -> ir.Value:
        """An int64 vector."""
        return self.const(np.array(list(values), np.int64))

    # Operators whose form differs between opsets.

    def reduce(self, op_type: str, value: ir.Value, axes: Sequence[int] | None, keepdims: int = 1) -> ir.Value:
        """ReduceX: axes are an input from opset 13 (ReduceSum) or 18 (the others) on. None reduces all."""
        as_input = self.opset >= (13 if op_type == "ReduceSum" else 18)
        if axes is None or not as_input:
            return self.op(op_type, value, axes=None if axes is None else list(axes), keepdims=keepdims)
        return self.op(op_type, value, self.ints(axes), keepdims=keepdims)

    def squeeze(self, value: ir.Value, axes: Sequence[int]) -> ir.Value:
        """Without these dimensions of size 1."""
        return self._with_axes("Squeeze", value, axes)

    def unsqueeze(self, value: ir.Value, axes: Sequence[int]) -> ir.Value:
        """With dimensions of size 1 at these positions of the result."""
        return self._with_axes("Unsqueeze", value, axes)

    def _with_axes(self, op_type: str, value: ir.Value, axes: Sequence[int]) -> ir.Value:
        if not axes:
            return value
        if self.opset >= 13:
            return self.op(op_type, value, self.ints(axes))
        return self.op(op_type, value, axes=list(axes))

    def split(self, value: ir.Value, axis: int, sizes: Sequence[int]) -> Sequence[ir.Value]:
        """Parts of these sizes along one axis."""
        if self.opset >= 13:
            return self.ops("Split", value, self.ints(sizes), outputs=len(sizes), axis=axis)
        return self.ops("Split", value, outputs=len(sizes), axis=axis, split=list(sizes))

    def slice(self, value: ir.Value, axis: int, start: int, end: int) -> ir.Value:
        """Elements start to end along one axis; from opset 10 on."""
        return self.op("Slice", value, self.ints([start]), self.ints([end]), self.ints([axis]))

    def reshape(self, value: ir.Value, shape: Sequence[int]) -> ir.Value:
        """To this shape; 0 keeps the dimension at that place, -1 takes what is left."""
        return self.op("Reshape", value, self.ints(shape))

    def transpose(self, value: ir.Value, order: Sequence[int]) -> ir.Value:
        """With the dimensions in this order; the value itself when that is theirs."""
        return value if list(order) == sorted(order) else self.op("Transpose", value, perm=list(order))

    # The end of it.

    def discard(self) -> None:
        """Takes the new nodes off the values that they read."""
        for node in self.nodes:
            _detach(node)
        self.nodes, self.constants = [], []

    def commit(self, outputs: Sequence[ir.Value], names: Names) -> tuple[str, ...]:
        """Puts the new nodes in the place of the old one; returns their names.

        outputs: for each output of the old node what takes its place, and its name.
        """
        place, owner = self.place, self.place.graph
        if owner is None:
            raise ValueError(f"{place.name} is in no graph")
        old, ends = self._distinct(outputs)
        self._drop_unused(ends)
        self._name(names, ends)
        ir.convenience.replace_nodes_and_values(owner, place, [place], self.nodes, old, ends)
        return tuple(node.name or "" for node in self.nodes)

    def insert(self, names: Names) -> tuple[str, ...]:
        """Puts the new nodes before the old one, which stays; returns their names."""
        self._name(names, ())
        if self.place.graph is not None:
            self.place.graph.insert_before(self.place, self.nodes)
        return tuple(node.name or "" for node in self.nodes)

    def _name(self, names: Names, ends: Sequence[ir.Value]) -> None:
        place, owner = self.place, self.place.graph
        stem = place.name or place.op_type
        for node in self.nodes:
            node.name = names.node(f"{stem}/{node.op_type}")
            node.metadata_props.update(place.metadata_props)
            name_inside(node, stem, names, place.metadata_props)
            for output in node.outputs:
                if not any(output is end for end in ends):
                    output.name = names.value(f"{node.name}/value")
        for constant in self.constants:
            constant.name = names.value(f"{stem}/constant")
            if owner is not None:
                owner.register_initializer(constant)

    def _distinct(self, outputs: Sequence[ir.Value]) -> tuple[list[ir.Value], list[ir.Value]]:
        """Outputs of the old node, and for each the output of a new node of its own, which gets the old one's name.

        Other outputs are left out: who reads them reads what stands for them, unless the graph itself gives them.
        """
        own = {id(value) for node in self.nodes for value in node.outputs}
        olds: list[ir.Value] = []
        ends: list[ir.Value] = []
        for old, value in zip(self.place.outputs, outputs, strict=False):
            if not old.name:
                continue
            free = id(value) in own and not any(value is other for other in ends)
            if not free and not old.is_graph_output():
                old.replace_all_uses_with(value)
                continue
            olds.append(old)
            ends.append(value if free else self.op("Identity", value))
        return olds, ends

    def _drop_unused(self, ends: Sequence[ir.Value]) -> None:
        kept = {id(value) for value in ends}
        for node in reversed(list(self.nodes)):
            if not any(value.uses() or id(value) in kept for value in node.outputs):
                _detach(node)
                self.nodes = [other for other in self.nodes if other is not node]
        self.constants = [value for value in self.constants if value.uses()]


def _detach(node: ir.Node) -> None:
    for at in range(len(node.inputs)):
        node.replace_input_with(at, None)
    for body in bodies_of(node):
        for inner in body:
            _detach(inner)


def bodies_of(node: ir.Node) -> list[ir.Graph]:
    """The bodies of If, Loop, Scan and the like."""
    found: list[ir.Graph] = []
    for attribute in node.attributes.values():
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.GRAPH:
            found.append(attribute.as_graph())
        elif attribute.type == ir.AttributeType.GRAPHS:
            found.extend(attribute.as_graphs())
    return found


def name_inside(node: ir.Node, stem: str, names: Names, metadata: dict[str, str]) -> None:
    """Gives everything in the bodies of a new node a name that nothing else in the model has."""
    for body in bodies_of(node):
        # Out of the table of initializers first: it is keyed by name.
        constants = list(body.initializers.values())
        body.initializers.clear()
        for value in body.inputs:
            value.name = names.value(f"{stem}/{value.name or 'input'}")
        for value in constants:
            if not value.is_graph_input():
                value.name = names.value(f"{stem}/{value.name or 'constant'}")
            body.register_initializer(value)
        for inner in body:
            inner.name = names.node(f"{stem}/{inner.op_type}")
            inner.metadata_props.update(metadata)
            name_inside(inner, stem, names, metadata)
            for value in inner.outputs:
                if value.name:
                    value.name = names.value(f"{stem}/{value.name}")


# Nodes whose first output has the type of their first input, so that later steps can ask for it.
_SAME_TYPE = frozenset(
    {
        "Abs", "Add", "Concat", "Div", "Exp", "Expand", "Gather", "Identity", "Log", "MatMul", "Max", "Min", "Mul",
        "Neg", "Pad", "Pow", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "Reshape", "Sigmoid", "Slice",
        "Split", "Sqrt", "Squeeze", "Sub", "Tanh", "Transpose", "Unsqueeze",
    }
)  # fmt: skip


def known_array(value: ir.Value | None) -> np.ndarray[Any, Any] | None:
    """The array of a constant; None for anything computed."""
    tensor = constant_of(value)
    return None if tensor is None else tensor.numpy()


def size_of(value: ir.Value, axis: int) -> int | None:
    """The size of one dimension when it is known."""
    size = None if value.shape is None or not -len(value.shape) <= axis < len(value.shape) else value.shape[axis]
    return size if isinstance(size, int) else None

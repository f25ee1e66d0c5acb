"""One ONNX node written with others, in its place and under the names that it had."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

if TYPE_CHECKING:
    from collections.abc import Sequence


class Steps:
    """The nodes that take the place of one: `steps("Mul", x, x)` adds one and gives its result."""

    def __init__(self, model: ir.Model, part: ir.Graph, node: ir.Node) -> None:
        """part: the graph of the model that has the node. Nothing changes before `replace`."""
        self._model = model
        self._part = part
        self._node = node
        self._made: list[ir.Node] = []

    def __call__(self, op: str, *inputs: ir.Value, **attributes: Any) -> ir.Value:
        """Adds a node with one output."""
        node = ir.node(op, list(inputs), attributes=attributes)
        node.outputs[0].name = f"{self._node.outputs[0].name}_step{len(self._made)}"
        self._made.append(node)
        return node.outputs[0]

    def constant(self, values: float | Sequence[int], dtype: ir.DataType = ir.DataType.INT64) -> ir.Value:
        """A constant of the model, written once."""
        array = np.array(values, dtype.numpy())
        name = f"deploykit_{dtype.name.lower()}_{'_'.join(map(repr, array.reshape(-1).tolist()))}_{array.ndim}"
        known = self._model.graph.initializers.get(name)
        if known is not None:
            return known
        value = ir.Value(
            name=name,
            type=ir.TensorType(dtype),
            shape=ir.Shape(array.shape),
            const_value=ir.tensor(array, dtype=dtype, name=name),
        )
        self._model.graph.register_initializer(value)
        return value

    def replace(self, made: ir.Value) -> None:
        """Puts the nodes where the one was, and `made` for its result."""
        result = self._node.outputs[0]
        name = result.name
        self._part.insert_before(self._node, self._made)
        made.type, made.shape = result.type, result.shape
        if result.is_graph_output():
            for place, output in enumerate(self._part.outputs):
                if output is result:
                    self._part.outputs[place] = made
        result.replace_all_uses_with(made)
        self._part.remove(self._node, safe=True)
        made.name = name

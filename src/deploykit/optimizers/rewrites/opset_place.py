"""Where the nodes of an opset conversion go: beside the node that they complete."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deploykit.optimizers.rewrites.emitting import Names


@dataclasses.dataclass
class Place:
    """Where new nodes and constants go: beside one node.

    functions: ids of the graphs of functions, which hold no initializers. added: names of nodes that came.
    unread: inputs that a node has lost.
    """

    names: Names
    functions: frozenset[int]
    added: list[str] = dataclasses.field(default_factory=list)
    unread: list[ir.Value] = dataclasses.field(default_factory=list)

    def constant(self, node: ir.Node, array: Any, what: str) -> ir.Value:
        """A constant named after a node."""
        values = np.asarray(array)
        tensor = ir.tensor(values)
        name = self.names.value(f"{node.name}/{what}")
        assert node.graph is not None  # nodes of a model have one
        if id(node.graph) in self.functions:
            made = self.before(node, "Constant", [], what=what, value=tensor)
            made.name, made.type, made.shape = name, ir.TensorType(tensor.dtype), ir.Shape(values.shape)
            return made
        kind, shape = ir.TensorType(tensor.dtype), ir.Shape(values.shape)
        value = ir.Value(name=name, const_value=tensor, type=kind, shape=shape)
        node.graph.register_initializer(value)
        return value

    def before(self, node: ir.Node, op: str, inputs: Sequence[ir.Value | None], what: str, **given: Any) -> ir.Value:
        """The output of a new node in front of one."""
        made = self._node(node, op, inputs, what, given)
        assert node.graph is not None  # nodes of a model have one
        node.graph.insert_before(node, made)
        if op in ("Flatten", "Transpose") and inputs[0] is not None:
            made.outputs[0].type = inputs[0].type  # which the revision of the node that reads it may have to take
        return made.outputs[0]

    def behind(self, node: ir.Node, op: str, more: Sequence[ir.Value], what: str, **given: Any) -> None:
        """A new node that takes over the first output of one, its name and its readers."""
        inner, owner = node.outputs[0], node.graph
        assert owner is not None  # nodes of a model have one
        readers, name = list(inner.uses()), inner.name
        made = self._node(node, op, [inner, *more], what, given)
        outer = made.outputs[0]
        inner.name = self.names.value(f"{name}/inner")
        outer.name, outer.type, outer.shape, inner.shape = name, inner.type, inner.shape, None
        for reader, at in readers:
            reader.replace_input_with(at, outer)
        for at, output in enumerate(owner.outputs):
            if output is inner:
                owner.outputs[at] = outer
        owner.insert_after(node, made)

    def _node(
        self, node: ir.Node, op: str, inputs: Sequence[ir.Value | None], what: str, given: dict[str, Any]
    ) -> ir.Node:
        made = ir.node(op, list(inputs), attributes=given, name=self.names.node(f"{node.name}/{what}"))
        made.metadata_props.update(node.metadata_props)
        made.outputs[0].name = self.names.value(f"{made.name}/value")
        self.added.append(made.name or "")
        return made

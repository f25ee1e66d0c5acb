"""Removes nodes whose result is their input."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deploykit import graph
from deploykit.graph.signature import constant_of
from deploykit.optimizers.manager import INFERRED_SHAPES, Pass

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnx_ir as ir


class RemoveNops(Pass):
    """Removes Identity, Dropout at inference, and Cast, Reshape, Transpose and Concat that change nothing.

    Names of graph outputs stay: a node that makes one is removed only when its input can take over the name.
    """

    requires = (INFERRED_SHAPES,)

    def run(self, model: ir.Model) -> bool:
        """Whether anything was removed."""
        changed = False
        for node in list(graph.all_nodes(model)):
            test = _NOPS.get(node.op_type)
            if test is not None and node.domain in ("", "ai.onnx") and node.inputs and test(node):
                changed = _bypass(node) or changed
        return changed


def _bypass(node: ir.Node) -> bool:
    """Puts the node's first input in the place of its first output; False where that would change an interface."""
    source, output, owner = node.inputs[0], node.outputs[0], node.graph
    if source is None or owner is None:
        return False
    if output.is_graph_output():
        producer = source.producer()
        # Only a value that is computed in the same graph, and is no output itself, can be renamed.
        if producer is None or producer.graph is not owner or source.is_graph_output():
            return False
        name, dims, kind = output.name, output.shape, output.type
        output.replace_all_uses_with(source, replace_graph_outputs=True)
        owner.remove(node, safe=True)
        source.name, source.shape, source.type = name, dims or source.shape, kind or source.type
        return True
    output.replace_all_uses_with(source)
    owner.remove(node, safe=True)
    return True


def _dropout(node: ir.Node) -> bool:
    """At inference, and nobody reads the mask."""
    if len(node.outputs) > 1 and (node.outputs[1].uses() or node.outputs[1].is_graph_output()):
        return False
    training = node.inputs[2] if len(node.inputs) > 2 else None
    if training is None:
        return True
    known = constant_of(training)
    return known is not None and not bool(known.numpy())


def _cast(node: ir.Node) -> bool:
    source = node.inputs[0]
    to = node.attributes.get("to")
    return source is not None and to is not None and source.dtype is not None and to.as_int() == int(source.dtype)


def _reshape(node: ir.Node) -> bool:
    """From one fully known shape to the same one."""
    source, output = node.inputs[0], node.outputs[0]
    if source is None or source.shape is None or output.shape is None:
        return False
    return source.shape.is_static() and output.shape.is_static() and source.shape == output.shape


def _transpose(node: ir.Node) -> bool:
    order = node.attributes.get("perm")
    return order is not None and list(order.as_ints()) == list(range(len(order.as_ints())))


def _concat(node: ir.Node) -> bool:
    return len(node.inputs) == 1


_NOPS: dict[str, Callable[[ir.Node], bool]] = {
    "Identity": lambda node: len(node.inputs) == 1,
    "Dropout": _dropout,
    "Cast": _cast,
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Concat": _concat,
}

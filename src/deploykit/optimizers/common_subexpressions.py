"""Computes equal expressions once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from deploykit import graph
from deploykit.equivalence import random_nodes, unknown_nodes
from deploykit.optimizers.manager import Pass

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

# Engines fuse each Q/DQ pair with its own consumer: sharing one breaks the pattern.
_KEPT = {"QuantizeLinear", "DequantizeLinear", "Constant", "Dropout"}
_MAX_TENSOR = 64


class ShareCommonSubexpressions(Pass):
    """Uses one node for several with the same operator, attributes and inputs, within one graph.

    Kept: nodes that make a graph output (each output keeps its own), random and custom operators, functions (which may
    be random inside), nodes with subgraphs, and quantization.
    """

    def run(self, model: ir.Model) -> bool:
        """Whether a node was replaced by an equal one."""
        functions = {(function.domain, function.name) for function in model.functions.values()}
        called = (node for node in graph.all_nodes(model) if (node.domain, node.op_type) in functions)
        kept = {id(node) for node in (*random_nodes(model), *unknown_nodes(model), *called)}
        changed = False
        for scope in model.graphs():
            changed = self._share(scope, kept) or changed
        return changed

    def _share(self, scope: Iterable[ir.Node], kept: set[int]) -> bool:
        changed = False
        seen: dict[Hashable, ir.Node] = {}
        for node in list(scope):
            key = None if id(node) in kept else _key(node)
            if key is None:
                continue
            first = seen.setdefault(key, node)
            if first is node or any(output.is_graph_output() for output in node.outputs):
                continue
            for old, new in zip(node.outputs, first.outputs, strict=True):
                if old.uses() and not new.name:  # an output that the first one left out
                    new.name, old.name = old.name, None
                old.replace_all_uses_with(new)
            if node.graph is not None:
                node.graph.remove(node, safe=True)
                changed = True
        return changed


def _key(node: ir.Node) -> Hashable | None:
    """What makes two nodes equal; None when the node is never shared."""
    if node.op_type in _KEPT:
        return None
    attributes = []
    for name, attribute in sorted(node.attributes.items()):
        value = _attribute(attribute)
        if value is None:
            return None
        attributes.append((name, value))
    inputs = tuple(None if value is None else id(value) for value in node.inputs)
    return (node.domain, node.op_type, node.overload, inputs, tuple(attributes), len(node.outputs))


def _attribute(attribute: ir.Attr) -> Any:
    kinds = ir.AttributeType
    if attribute.is_ref() or attribute.type in (kinds.GRAPH, kinds.GRAPHS, kinds.TENSORS, kinds.SPARSE_TENSOR):
        return None
    if attribute.type == kinds.TENSOR:
        tensor = attribute.as_tensor()
        if tensor.dtype == ir.DataType.STRING:
            return None
        return (str(tensor.dtype), str(tensor.shape), tensor.tobytes()) if tensor.size <= _MAX_TENSOR else None
    return (int(attribute.type), str(attribute.value))

"""Inputs that follow from constants alone, computed once: targets want weights, axes and shapes as initializers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from deploykit import graph
from deploykit.graph.signature import constant_of
from deploykit.optimizers.rewriting import Change, Rewrite

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir as ir

# Elements that an input may have once it is computed, unless it replaces as many: the file must not grow by it.
_LARGEST = 65_536


class ConstantInputs(Rewrite):
    """A Conv whose weight is `Transpose(initializer)` gets the transposed initializer; so with axes, sizes and shapes.

    Random nodes, quantization and bodies are never computed.
    """

    name: ClassVar[str] = "constant-inputs"
    title: ClassVar[str] = "computes inputs that depend on constants only"

    def applies(self, node: ir.Node, model: ir.Model) -> bool:
        """Whether an input is computed from constants."""
        del model
        return bool(_behind(node))

    def apply(self, model: ir.Model, nodes: Sequence[ir.Node]) -> list[Change]:
        """Folds what stands before these nodes; what nobody reads any more goes, too."""
        from onnxscript.optimizer import fold_constants

        wanted = {id(before) for node in nodes for before in _behind(node)}
        names = {before.name for node in nodes for before in _behind(node)}
        if not wanted:
            return []
        fold_constants(
            model,
            onnx_shape_inference=False,
            input_size_limit=2**62,
            output_size_limit=2**62,
            should_fold=lambda node: id(node) in wanted,
        )
        left = {node.name for node in graph.all_nodes(model)}
        gone = tuple(sorted(name for name in names if name and name not in left))
        if not gone:
            return []
        return [Change(gone, (), f"computed the constant results of {', '.join(gone)}")]


def _behind(node: ir.Node) -> list[ir.Node]:
    """The nodes that compute the node's inputs from constants; none for an input that would grow too large."""
    from deploykit.opsupport.facts import tensor_facts

    found: dict[int, ir.Node] = {}
    seen: dict[int, bool] = {}
    for value in node.inputs:
        if value is None or constant_of(value) is not None or not tensor_facts(value, seen).foldable:
            continue
        if value.shape is None or not value.shape.is_static():
            continue
        behind = _ancestors(value)
        if math.prod(value.shape.numpy()) <= max(_LARGEST, _elements(behind)):
            found |= {id(before): before for before in behind}
    return list(found.values())


def _ancestors(value: ir.Value) -> list[ir.Node]:
    pending, found = [value], {}
    while pending:
        producer = pending.pop().producer()
        if producer is None or id(producer) in found or producer.op_type == "Constant":
            continue
        found[id(producer)] = producer
        pending += [given for given in producer.inputs if given is not None]
    return list(found.values())


def _elements(nodes: Sequence[ir.Node]) -> int:
    """Of all constants that these nodes read."""
    known = {id(value): constant_of(value) for node in nodes for value in node.inputs if value is not None}
    return sum(tensor.size for tensor in known.values() if tensor is not None)

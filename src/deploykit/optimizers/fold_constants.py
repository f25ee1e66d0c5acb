"""Computes what does not depend on the inputs, within a size budget."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from onnxscript.optimizer import fold_constants

from deploykit.graph.signature import constant_of
from deploykit.optimizers.manager import INFERRED_SHAPES, Pass

if TYPE_CHECKING:
    import onnx_ir as ir

# Folding these would turn small integers back into large floats, or take the scales out of a quantized graph.
_KEPT = {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"}


class FoldConstants(Pass):
    """Replaces nodes with constant inputs by their result, and computes known shapes.

    largest: elements that a result may have when it replaces less than that. Results are sized before they are
    computed: a ConstantOfShape can ask for any amount of memory. Random nodes are never constant.
    """

    requires = (INFERRED_SHAPES,)

    def __init__(self, largest: int = 4096) -> None:
        self.largest = largest

    def run(self, model: ir.Model) -> bool:
        """Whether anything was folded."""
        result = fold_constants(
            model,
            onnx_shape_inference=False,
            input_size_limit=max(self.largest, 8192),
            output_size_limit=self.largest,
            should_fold=self._decide,
        )
        return bool(result.modified)

    def _decide(self, node: ir.Node) -> bool | None:
        if node.domain not in ("", "ai.onnx") or node.op_type in _KEPT:
            return False
        size = result_size(node)
        if size is None:
            return None
        return size <= self.largest


def result_size(node: ir.Node) -> int | None:
    """Elements of the result of a node that makes much out of little; None for other nodes or unknown sizes."""
    known = [constant_of(value) for value in node.inputs]
    if not known or any(tensor is None for tensor in known):
        return None
    arrays = [tensor.numpy() for tensor in known if tensor is not None]
    if node.op_type == "ConstantOfShape":
        return math.prod(int(size) for size in arrays[0].ravel())
    if node.op_type == "Expand":
        return arrays[0].size * max(1, math.prod(int(size) for size in arrays[1].ravel()))
    if node.op_type == "Tile":
        return arrays[0].size * math.prod(int(count) for count in arrays[1].ravel())
    if node.op_type == "Range":
        start, limit, delta = (float(array.item()) for array in arrays[:3])
        return max(0, math.ceil((limit - start) / delta)) if delta else 0
    return None

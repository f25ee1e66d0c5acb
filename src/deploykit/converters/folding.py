"""Sizes that follow from fixed inputs, as constants: vendors take many operators with known sizes only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from deploykit import graph

if TYPE_CHECKING:
    from collections.abc import Sequence

# Arithmetic on sizes; what is larger is data.
_MOST = 256
_OPERATORS = {
    *("Add", "Sub", "Mul", "Div", "Mod", "Neg", "Abs", "Min", "Max", "Floor", "Ceil", "Sqrt", "Reciprocal", "Pow"),
    *("Cast", "Concat", "Constant", "Equal", "Expand", "Gather", "Greater", "GreaterOrEqual", "Identity", "Less"),
    *("LessOrEqual", "And", "Or", "Not", "Range", "ReduceProd", "ReduceMax", "ReduceMin", "ReduceSum", "Reshape"),
    *("Size", "Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze", "Where", "ConstantOfShape", "ScatterND"),
}


def fold_sizes(model: ir.Model) -> int:
    """Replaces Shape of known shapes, and small computations on constants, by what they give; how many went.

    Values are those of onnx's reference implementation.
    """
    count = 0
    while True:
        # With the values of shapes propagated.
        graph.infer_shapes(model)
        folded = sum(_fold(model, node) for node in list(graph.all_nodes(model)))
        if not folded:
            return count
        count += folded


def _fold(model: ir.Model, node: ir.Node) -> bool:
    if node.domain not in ("", "ai.onnx") or any(value.is_graph_output() for value in node.outputs):
        return False
    if node.op_type == "Shape":
        arrays = _shape_of(node)
    elif node.op_type in _OPERATORS and not any(a.type == ir.AttributeType.GRAPH for a in node.attributes.values()):
        arrays = _computed(model, node)
    else:
        return False
    if arrays is None or any(array.size > _MOST for array in arrays):
        return False
    for output, array in zip(node.outputs, arrays, strict=True):
        constant = ir.Value(
            name=f"{output.name}_known",
            shape=ir.Shape(array.shape),
            type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
            const_value=ir.tensor(array, name=f"{output.name}_known"),
        )
        # Branches see the initializers of the graph around them.
        model.graph.register_initializer(constant)
        ir.convenience.replace_all_uses_with(output, constant)
    if node.graph is not None:
        node.graph.remove(node, safe=True)
    return True


def _shape_of(node: ir.Node) -> Sequence[np.ndarray[Any, Any]] | None:
    source = node.inputs[0]
    if source is None or source.shape is None:
        return None
    end = node.attributes.get_int("end", len(source.shape))
    rank, start = len(source.shape), node.attributes.get_int("start", 0)
    sizes = list(source.shape)[slice(*_within(start, end, rank))]
    if not all(isinstance(size, int) for size in sizes):
        return None
    return [np.array([int(size) for size in sizes if isinstance(size, int)], np.int64)]


def _within(start: int, end: int, rank: int) -> tuple[int, int]:
    low, high = (min(max(place + rank if place < 0 else place, 0), rank) for place in (start, end))
    return low, high


def _computed(model: ir.Model, node: ir.Node) -> Sequence[np.ndarray[Any, Any]] | None:
    feeds: dict[str, Any] = {}
    for value in node.inputs:
        if value is None:
            continue
        if value.const_value is None or value.const_value.size > _MOST or value.is_graph_input():
            return None
        feeds[value.name or ""] = value.const_value.numpy()
    if any(kind == ir.DataType.STRING for kind in (v.dtype for v in node.inputs if v is not None)):
        return None
    proto = ir.to_proto(node)
    made = onnx.helper.make_graph(
        [proto],
        "sizes",
        [onnx.helper.make_tensor_value_info(name, _kind(array), array.shape) for name, array in feeds.items()],
        [onnx.helper.make_empty_tensor_value_info(name) for name in proto.output],
    )
    opsets = [onnx.helper.make_opsetid("", model.opset_imports.get("", 18))]
    try:
        found = ReferenceEvaluator(onnx.helper.make_model(made, opset_imports=opsets)).run(None, feeds)
    except Exception:  # the reference raises anything for what it lacks: the node stays as it is
        return None
    return [np.asarray(array) for array in found]


def _kind(array: np.ndarray[Any, Any]) -> int:
    return int(onnx.helper.np_dtype_to_tensor_dtype(array.dtype))

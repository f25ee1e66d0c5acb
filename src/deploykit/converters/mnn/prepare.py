"""The ONNX graph as MNN's converter takes it right: each change is one that it (3.6.1) gets wrong otherwise.

What is made of the changed graph is compared with the unchanged one, as everything is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common as passes

from deploykit import graph
from deploykit.converters.mnn.formulas import rewrite

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deploykit.artifact import TensorSpec

_BROADCASTING = frozenset(
    {"Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Mod", "Greater", "GreaterOrEqual", "Less", "LessOrEqual",
     "Equal", "And", "Or", "Xor"}
)  # fmt: skip


def prepare(model: ir.Model, inputs: Sequence[TensorSpec]) -> None:
    """Changes the graph in place. inputs: the interface, with a number for each dimension that has one size only."""
    _fix_sizes(model, inputs)
    if model.functions:
        passes.InlinePass()(model)
    graph.infer_shapes(model)
    for part in model.graphs():
        for node in list(part):
            if rewrite(model, part, node):
                continue
            _fold_dequantized(model, node)
            _make_scalars(model, node)


def _fix_sizes(model: ir.Model, inputs: Sequence[TensorSpec]) -> None:
    shapes = {spec.name: spec.shape for spec in inputs}
    for value in model.graph.inputs:
        shape = shapes.get(value.name or "")
        if shape is not None:
            value.shape = ir.Shape(list(shape))


def _fold_dequantized(model: ir.Model, node: ir.Node) -> None:
    """Weights in integers become float again, which the converter stores in integers by itself.

    It takes DequantizeLinear of a constant and computes infinities from it.
    """
    if node.op_type != "DequantizeLinear" or any(value is not None and _array(value) is None for value in node.inputs):
        return
    output = node.outputs[0]
    folded = _constant(f"{output.name}_folded", _evaluated(model, node))
    model.graph.register_initializer(folded)
    output.replace_all_uses_with(folded)


def _make_scalars(model: ir.Model, node: ir.Node) -> None:
    """A constant of one element has no axes: one of shape [1, 1, 1] before the result of a Conv gives other values.

    The converter lays the result out as the first factor is, which has no channels.
    """
    if node.domain not in ("", "ai.onnx") or node.op_type not in _BROADCASTING or len(node.inputs) != 2:
        return
    for place, value in enumerate(node.inputs):
        other = node.inputs[1 - place]
        if value is None or other is None or other.shape is None:
            continue
        array = _array(value)
        if array is None or array.size != 1 or not 0 < array.ndim <= len(other.shape) or _array(other) is not None:
            continue
        name = f"{value.name}_scalar"
        scalar = model.graph.initializers.get(name)
        if scalar is None:
            scalar = _constant(name, array.reshape(()))
            model.graph.register_initializer(scalar)
        node.replace_input_with(place, scalar)


def _array(value: ir.Value) -> Any:
    """The constant's value; None for what is computed or fed."""
    if value.is_graph_input():
        return None
    if value.const_value is not None:
        return value.const_value.numpy()
    producer = value.producer()
    if producer is not None and producer.op_type == "Constant" and "value" in producer.attributes:
        return producer.attributes["value"].as_tensor().numpy()
    return None


def _constant(name: str, array: np.ndarray[Any, Any]) -> ir.Value:
    tensor = ir.tensor(array)
    return ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor)


def _evaluated(model: ir.Model, node: ir.Node) -> np.ndarray[Any, Any]:
    """The node's result by the onnx package's definitions."""
    from onnx.reference import ReferenceEvaluator

    feeds = {value.name or "": _array(value) for value in node.inputs if value is not None}
    found = ReferenceEvaluator(ir.serde.serialize_node(node), opsets=dict(model.opset_imports)).run(None, feeds)
    return np.asarray(found[0])

"""The ONNX graph as pnnx takes it: operators that it leaves untranslated, written with others.

What is made of the changed graph is compared with the unchanged one, as everything is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common as passes

from deploykit import graph
from deploykit.converters.steps import Steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deploykit.artifact import TensorSpec


_UNBOUNDED = {"Max": -np.inf, "Min": np.inf}


def prepare(model: ir.Model, inputs: Sequence[TensorSpec]) -> None:
    """Changes the graph in place. inputs: the interface, with a number for each dimension that has one size only."""
    shapes = {spec.name: spec.shape for spec in inputs}
    for value in model.graph.inputs:
        shape = shapes.get(value.name or "")
        if shape is not None:
            value.shape = ir.Shape(list(shape))
    if model.functions:
        passes.InlinePass()(model)
    _widen(model)
    graph.infer_shapes(model)
    for node in list(model.graph):
        if node.op_type in ("ReduceMax", "ReduceMin") and node.domain in ("", "ai.onnx"):
            _pool(model, node)
        elif node.op_type in _UNBOUNDED and node.domain in ("", "ai.onnx"):
            _drop_bound(model, node)


def _drop_bound(model: ir.Model, node: ir.Node) -> None:
    """The larger of minus infinity and x is x: pnnx (20261020) crashes on such a constant."""
    if len(node.inputs) != 2:
        return
    for place, value in enumerate(node.inputs):
        tensor = value.const_value if value is not None and not value.is_graph_input() else None
        other = node.inputs[1 - place]
        if tensor is None or other is None or other.shape is None or len(tensor.shape) > len(other.shape):
            continue
        if tensor.size == 1 and tensor.numpy().reshape(-1)[0] == _UNBOUNDED[node.op_type]:
            step = Steps(model, model.graph, node)
            step.replace(step("Identity", other))
            return


def _widen(model: ir.Model) -> None:
    """Half precision becomes single: pnnx reads no operator in half, and stores weights in half by itself."""
    for part in model.graphs():
        values = [*part.inputs, *part.initializers.values(), *(value for node in part for value in node.outputs)]
        for value in values:
            if value.dtype == ir.DataType.FLOAT16:
                value.type = ir.TensorType(ir.DataType.FLOAT)
            if value.const_value is not None and value.const_value.dtype == ir.DataType.FLOAT16:
                value.const_value = _single(value.const_value)
        for node in part:
            for name, attribute in node.attributes.items():
                if attribute.type == ir.AttributeType.TENSOR and attribute.as_tensor().dtype == ir.DataType.FLOAT16:
                    node.attributes[name] = ir.AttrTensor(name, _single(attribute.as_tensor()))
                elif name in ("to", "dtype") and attribute.value == ir.DataType.FLOAT16:
                    node.attributes[name] = ir.AttrInt64(name, int(ir.DataType.FLOAT))


def _single(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    return ir.tensor(tensor.numpy().astype(np.float32), name=tensor.name)


def _pool(model: ir.Model, node: ir.Node) -> None:
    """A maximum over axes is a global pool over them, behind a Transpose; ncnn has no layer for the operator itself."""
    source = node.inputs[0]
    axes = _axes(node)
    if source is None or source.shape is None or source.dtype != ir.DataType.FLOAT or axes is None:
        return
    rank = len(source.shape)
    over = sorted(axis % rank for axis in axes)
    kept = [axis for axis in range(rank) if axis not in over]
    length = source.shape[over[0]] if over else None
    wide = len(kept) == 3 and len(over) == 1 and isinstance(length, int)
    if not over or not kept or kept[0] != 0 or not (wide or (len(over) <= 2 and len(kept) <= 2)):
        return
    step = Steps(model, model.graph, node)
    lowest = node.op_type == "ReduceMin"
    order = [*kept, *over]
    value = step("Neg", source) if lowest else source
    value = value if order == list(range(rank)) else step("Transpose", value, perm=order)
    if len(kept) == 1:  # a pool has a channel axis
        value = _with_axes(step, model, "Unsqueeze", value, [1])
    value = step("MaxPool", value, kernel_shape=[1, length]) if wide else step("GlobalMaxPool", value)
    keep = node.attributes.get("keepdims")
    if keep is not None and keep.as_int() == 0:
        gone = list(range(max(2, len(kept)), max(2, len(kept)) + len(over)))
        value = _with_axes(step, model, "Squeeze", value, [1, *gone] if len(kept) == 1 else gone)
    else:
        value = _with_axes(step, model, "Squeeze", value, [1]) if len(kept) == 1 else value
        if order != list(range(rank)):
            value = step("Transpose", value, perm=[order.index(axis) for axis in range(rank)])
    step.replace(step("Neg", value) if lowest else value)


def _with_axes(step: Steps, model: ir.Model, op: str, value: ir.Value, axes: list[int]) -> ir.Value:
    """Squeeze or Unsqueeze, whose axes became an input in opset 13."""
    if model.opset_imports.get("", 1) < 13:
        return step(op, value, axes=axes)
    return step(op, value, step.constant(axes))


def _axes(node: ir.Node) -> list[int] | None:
    """None where they are computed, or all axes are meant."""
    if "axes" in node.attributes:
        return list(node.attributes["axes"].as_ints())
    given = node.inputs[1] if len(node.inputs) > 1 else None
    if given is None or given.const_value is None:
        return None
    return [int(axis) for axis in given.const_value.numpy().reshape(-1)]

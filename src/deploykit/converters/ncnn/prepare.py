"""The ONNX graph as pnnx takes it: operators that it leaves untranslated, written with others.

What is made of the changed graph is compared with the unchanged one, as everything is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from deploykit import graph

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deploykit.artifact import TensorSpec


def prepare(model: ir.Model, inputs: Sequence[TensorSpec]) -> None:
    """Changes the graph in place. inputs: the interface, with a number for each dimension that has one size only."""
    shapes = {spec.name: spec.shape for spec in inputs}
    for value in model.graph.inputs:
        shape = shapes.get(value.name or "")
        if shape is not None:
            value.shape = ir.Shape(list(shape))
    if model.functions:
        ir.passes.common.InlinePass()(model)
    graph.infer_shapes(model)
    for node in list(model.graph):
        if node.op_type in ("ReduceMax", "ReduceMin") and node.domain in ("", "ai.onnx"):
            _pool(model, node)


def _pool(model: ir.Model, node: ir.Node) -> None:
    """A maximum over axes is a global pool over them, behind a Transpose; ncnn has no layer for the operator itself."""
    source, result = node.inputs[0], node.outputs[0]
    axes = _axes(node)
    if source is None or source.shape is None or source.dtype != ir.DataType.FLOAT or axes is None:
        return
    rank = len(source.shape)
    over = sorted(axis % rank for axis in axes)
    kept = [axis for axis in range(rank) if axis not in over]
    if not 1 <= len(over) <= 2 or not kept or kept[0] != 0 or len(kept) > 2:
        return
    made: list[ir.Node] = []

    def add(op: str, *given: ir.Value, **attributes: Any) -> ir.Value:
        made.append(ir.node(op, list(given), attributes=attributes))
        made[-1].outputs[0].name = f"{result.name}_pool{len(made)}"
        return made[-1].outputs[0]

    def constant(what: str, values: list[int]) -> ir.Value:
        tensor = ir.tensor(np.array(values, np.int64))
        value = ir.Value(name=f"{result.name}_{what}", type=ir.TensorType(tensor.dtype), const_value=tensor)
        value.shape = ir.Shape([len(values)])
        model.graph.register_initializer(value)
        return value

    version = model.opset_imports.get("", 1)
    lowest = node.op_type == "ReduceMin"
    order = [*kept, *over]
    value = add("Neg", source) if lowest else source
    value = value if order == list(range(rank)) else add("Transpose", value, perm=order)
    if len(kept) == 1:  # a pool has a channel axis
        value = _with_axis(add, constant, version, value, "Unsqueeze", [1])
    value = add("GlobalMaxPool", value)
    keep = node.attributes.get("keepdims")
    if keep is not None and keep.as_int() == 0:
        gone = list(range(2, 2 + len(over)))
        value = _with_axis(add, constant, version, value, "Squeeze", [1, *gone] if len(kept) == 1 else gone)
    else:
        value = _with_axis(add, constant, version, value, "Squeeze", [1]) if len(kept) == 1 else value
        if order != list(range(rank)):
            value = add("Transpose", value, perm=[order.index(axis) for axis in range(rank)])
    value = add("Neg", value) if lowest else value
    model.graph.insert_before(node, made)
    name = result.name
    if result.is_graph_output():
        place = [id(output) for output in model.graph.outputs].index(id(result))
        value.type, value.shape = result.type, result.shape
        model.graph.outputs[place] = value
    result.replace_all_uses_with(value)
    model.graph.remove(node, safe=True)
    value.name = name


def _with_axis(add: Any, constant: Any, version: int, value: ir.Value, op: str, axes: list[int]) -> ir.Value:
    """Squeeze or Unsqueeze, whose axes became an input in opset 13."""
    found: ir.Value = (
        add(op, value, axes=axes) if version < 13 else add(op, value, constant(f"{op.lower()}_axes", axes))
    )
    return found


def _axes(node: ir.Node) -> list[int] | None:
    """None where they are computed, or all axes are meant."""
    if "axes" in node.attributes:
        return list(node.attributes["axes"].as_ints())
    given = node.inputs[1] if len(node.inputs) > 1 else None
    if given is None or given.const_value is None:
        return None
    return [int(axis) for axis in given.const_value.numpy().reshape(-1)]

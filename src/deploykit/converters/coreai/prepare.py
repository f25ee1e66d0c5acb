"""What is done to an ONNX model before coreai-onnx gets it: forms that it or the runtime does not take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from deploykit import graph
from deploykit.converters.bounds import bounds_of_input, fixed_by
from deploykit.converters.folding import fold_sizes
from deploykit.converters.recurrent import with_axes_as_inputs, write_out

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


def prepared(path: Path, dims: Mapping[str, Sequence[int | None]], profiles: Mapping[str, Any]) -> tuple[ir.Model, int]:
    """The model as the vendor is to get it, its nodes named, and how many biases became float.

    Dimensions that have one size are fixed.
    """
    model = with_axes_as_inputs(graph.load(path), {"GRU"})
    graph.name_nodes(model)
    _fix(model, dims, profiles)
    folded = _fold_biases(model)
    fold_sizes(model)
    write_out(model)
    return model, folded


def _fix(model: ir.Model, dims: Mapping[str, Sequence[int | None]], profiles: Mapping[str, Any]) -> None:
    inputs, _ = graph.interface(model)
    fixed = {spec.name: fixed_by(spec, bounds_of_input(spec, dims, profiles.get(spec.name))) for spec in inputs}
    sizes = {
        before: after
        for spec in inputs
        for before, after in zip(spec.shape or (), fixed[spec.name] or (), strict=True)
        if isinstance(before, str) and isinstance(after, int)
    }
    if not sizes:
        return
    for value in model.graph.inputs:
        shape = fixed.get(value.name or "")
        if shape is not None:
            value.shape = ir.Shape(shape)
    # Shapes inside follow from the inputs. Those of outputs, of branches too, keep what is still unknown.
    ends = [*model.graph.outputs, *(value for part in model.graphs() for value in part.outputs)]
    for value in ends:
        if value.shape is not None:
            value.shape = ir.Shape([sizes.get(str(size), size) for size in _sizes(value.shape)])
    kept = {id(value) for value in ends}
    for node in graph.all_nodes(model):
        for value in node.outputs:
            if id(value) not in kept:
                value.shape = None


def _sizes(shape: ir.Shape) -> list[int | str | None]:
    return [size if isinstance(size, int) else size.value for size in shape]


def _fold_biases(model: ir.Model) -> int:
    """Replaces DequantizeLinear of int32 constants, which a bias is, by the float constants that they give."""
    count = 0
    for node in list(model.graph):
        if node.op_type != "DequantizeLinear" or node.domain not in ("", "ai.onnx"):
            continue
        source = node.inputs[0]
        parts = [value.const_value if value is not None else None for value in node.inputs]
        if source is None or source.dtype != ir.DataType.INT32 or any(part is None for part in parts[:2]):
            continue
        integers, scale = (np.asarray(part.numpy()) for part in parts[:2])  # type: ignore[union-attr]
        axis = node.attributes.get_int("axis", 1)
        zero = parts[2].numpy() if len(parts) > 2 and parts[2] is not None else np.zeros((), np.int32)
        made = ((integers - _along(zero, integers, axis)).astype(scale.dtype) * _along(scale, integers, axis)).astype(
            scale.dtype
        )
        output = node.outputs[0]
        constant = ir.Value(
            name=f"{output.name}_float",
            shape=ir.Shape(made.shape),
            type=ir.TensorType(ir.DataType.from_numpy(made.dtype)),
            const_value=ir.tensor(made, name=f"{output.name}_float"),
        )
        if output.is_graph_output():
            continue
        model.graph.register_initializer(constant)
        ir.convenience.replace_all_uses_with(output, constant)
        model.graph.remove(node, safe=True)
        count += 1
    return count


def _along(numbers: Any, like: Any, axis: int) -> Any:
    """A scale or zero point of one axis, in a shape that it broadcasts from."""
    array = np.asarray(numbers)
    if array.ndim != 1 or array.size == 1 or like.ndim == 0:
        return array.reshape(()) if array.size == 1 else array
    place = axis % like.ndim if like.ndim > 1 else 0
    return array.reshape([-1 if at == place else 1 for at in range(like.ndim)])

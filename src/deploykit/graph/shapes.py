"""Shape inference that never fails and never needs the weights."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Tensors up to this size may hold shapes, axes and pads, which inference reads; larger ones are weights.
_MAY_BE_READ = 1024
# Before this version of the file format every initializer had to be an input, too.
_INPUTS_ARE_DEFAULTS = 4


def infer_shapes(model: ir.Model) -> ir.Model:
    """Adds the dtypes and shapes that follow from inputs and operators; returns the same model.

    Not strict: what cannot be told (operators without a schema, sizes that depend on data) stays unknown, and what the
    model declares itself stays as declared. Works on models of any size: weights are left out of the call.
    """
    with _without_weights(model):
        content = ir.to_proto(model).SerializeToString()
    try:
        inferred = onnx.shape_inference.infer_shapes(content, check_type=False, strict_mode=False, data_prop=True)
        found = ir.from_proto(onnx.ModelProto.FromString(inferred) if isinstance(inferred, bytes) else inferred)
    except Exception:  # the library raises RuntimeError, ValueError and its own classes on odd models: nothing is lost
        return model
    for ours, theirs in zip(model.graphs(), found.graphs(), strict=True):
        known = _values(theirs)
        for name, value in _values(ours).items():
            if name in known:
                _merge(value, known[name])
    return model


def set_dims(model: ir.Model, dims: Mapping[str, int], default: int = 1) -> ir.Model:
    """Fixes the symbolic dimensions of all inputs: to `dims` by name, to `default` otherwise; returns the same model.

    Shapes that inference can work out anew are forgotten; what custom operators declare gets the same sizes.
    """
    for graph in model.graphs():
        for node in graph:
            inferable = onnx.defs.has(node.op_type, node.domain)
            for value in node.outputs:
                value.shape = None if inferable else _fixed_shape(value.shape, dims, default)
    for value in model.graph.inputs:
        value.shape = _fixed_shape(value.shape, dims, default)
    return model


def _fixed_shape(shape: ir.Shape | None, dims: Mapping[str, int], default: int) -> ir.Shape | None:
    return None if shape is None else ir.Shape([_fixed(dim, dims, default) for dim in shape])


def _fixed(dim: int | ir.SymbolicDim, dims: Mapping[str, int], default: int) -> int:
    if isinstance(dim, int):
        return dim if dim >= 0 else default
    return dims.get(str(dim.value), default)


def _values(graph: ir.Graph) -> dict[str, ir.Value]:
    values = [*graph.inputs, *graph.initializers.values(), *(value for node in graph for value in node.outputs)]
    return {value.name: value for value in values if value.name}


def _merge(value: ir.Value, inferred: ir.Value) -> None:
    if value.type is None and inferred.type is not None:
        value.type = inferred.type
    if inferred.shape is None:
        return
    if value.shape is None:
        value.shape = ir.Shape(list(inferred.shape))
        return
    if len(value.shape) != len(inferred.shape):
        return
    value.shape = ir.Shape(
        [
            theirs if not isinstance(ours, int) and (ours.value is None or isinstance(theirs, int)) else ours
            for ours, theirs in zip(value.shape, inferred.shape, strict=True)
        ]
    )


@contextlib.contextmanager
def _without_weights(model: ir.Model) -> Iterator[None]:
    """Large initializers stand outside for a moment: inference asks for their dtype and shape only.

    So do the defaults of inputs: a caller may give another value, and another shape follows.
    """
    swapped = []
    try:
        for graph in model.graphs():
            for value in graph.initializers.values():
                tensor = value.const_value
                default = value.is_graph_input() and model.ir_version >= _INPUTS_ARE_DEFAULTS
                if tensor is None or tensor.dtype == ir.DataType.STRING:
                    continue
                if tensor.nbytes <= _MAY_BE_READ and not default:
                    continue
                swapped.append((value, tensor))
                value.const_value = ir.ExternalTensor(
                    "weights",
                    offset=0,
                    length=tensor.nbytes,
                    dtype=tensor.dtype,
                    shape=ir.Shape(tensor.shape.numpy()),
                    name=tensor.name or value.name or "",
                )
        yield
    finally:
        for value, tensor in swapped:
            value.const_value = tensor

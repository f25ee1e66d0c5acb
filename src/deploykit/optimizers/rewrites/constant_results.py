"""Nodes whose result is known before the run, as that result."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import onnx_ir as ir

from deploykit import graph
from deploykit.graph.signature import constant_of
from deploykit.optimizers.editing import static_shape
from deploykit.optimizers.rewrites.decomposition import Decomposition
from deploykit.optimizers.rewrites.emitting import bodies_of, known_array

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deploykit.optimizers.rewrites.decomposition import Builder
    from deploykit.optimizers.rewrites.emitting import Emitter

# Elements that a result may have: it is written into the file.
_LARGEST = 65_536
_RANDOM = frozenset(
    {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli", "Dropout"}
)
# What these give has to stay what it is: the scales of a quantized model, or a constant already.
_KEPT = frozenset({"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "Constant", "Identity"})
_PLAIN = frozenset({"FLOAT", "FLOAT16", "DOUBLE", "INT8", "INT16", "INT32", "INT64", "UINT8", "BOOL"})


def known_result(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """The result of a node that depends on constants only, or on shapes that are known."""
    if node.domain not in ("", "ai.onnx") or node.op_type in _RANDOM | _KEPT or bodies_of(node):
        return None
    if node.op_type in ("Shape", "Size", "EyeLike"):
        array = _of_shape(node)
        return None if array is None else [op.const(array)]
    tensors = [constant_of(value) for value in node.inputs if value is not None]
    output = node.outputs[0]
    if not tensors or len(node.outputs) != 1 or any(tensor is None for tensor in tensors):
        return None
    known = [tensor for tensor in tensors if tensor is not None]
    sizes = [tensor.size for tensor in known]
    if any(tensor.dtype.name not in _PLAIN for tensor in known) or max(sizes) > _LARGEST:
        return None
    if output.shape is None or not output.shape.is_static() or math.prod(output.shape.numpy()) > _LARGEST:
        return None
    array = _evaluated(node, graph.opset(op.model))
    if array is None or array.shape != static_shape(output) or array.dtype.name not in _NUMBERS:
        return None
    return [op.const(array)]


_NUMBERS = frozenset({"float32", "float16", "float64", "int8", "int16", "int32", "int64", "uint8", "bool"})


def _of_shape(node: ir.Node) -> np.ndarray[Any, Any] | None:
    shape = static_shape(node.inputs[0])
    value = node.inputs[0]
    if shape is None or value is None:
        return None
    if node.op_type == "Shape":
        start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", len(shape))
        return np.array(shape[start:end], np.int64)
    if node.op_type == "Size":
        return np.array(math.prod(shape), np.int64)
    dtype = ir.DataType(node.attributes.get_int("dtype", int(value.dtype or 0)))
    if len(shape) != 2 or math.prod(shape) > _LARGEST or dtype.name not in _PLAIN:
        return None
    return np.eye(*shape, k=node.attributes.get_int("k", 0), dtype=dtype.numpy())


def _evaluated(node: ir.Node, opset: int) -> np.ndarray[Any, Any] | None:
    import onnx
    from onnx.reference import ReferenceEvaluator

    proto = ir.serde.serialize_node(node)
    names = [name if name else "" for name in proto.input]
    feeds = {
        name: known_array(value) for name, value in zip(names, node.inputs, strict=True) if name and value is not None
    }
    body = onnx.helper.make_graph(
        [proto],
        "constant",
        [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in feeds],
        [onnx.helper.make_value_info(proto.output[0], onnx.TypeProto())],
    )
    model = onnx.helper.make_model(body, opset_imports=[onnx.helper.make_opsetid("", opset)])
    try:
        result = ReferenceEvaluator(model).run(None, feeds)[0]
    except Exception:  # the evaluator's own classes and numpy's: what it cannot compute stays a node
        return None
    return np.asarray(result)


class ConstantResults(Decomposition):
    """ConstantOfShape, Range, EyeLike, windows and anything else that reads constants only."""

    name: ClassVar[str] = "constant-results"
    title: ClassVar[str] = "puts the result of a node that depends on constants only in its place"

    def builder(self, node: ir.Node) -> Builder | None:
        """The same for all operators."""
        return known_result if node.domain in ("", "ai.onnx") else None

    def sentence(self, node: ir.Node, made: Sequence[ir.Node]) -> str:
        """What became of the node."""
        del made
        return f"{node.op_type} as the constant that it gives"

"""Q/DQ: constants stay stored as integers, activations are quantized and dequantized where the model says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Var

from deploykit.converters.coreml.lowering.context import OpContext, constant, lowers, positive_axis
from deploykit.converters.coreml.lowering.deployment import since
from deploykit.converters.coreml.lowering.node import Node
from deploykit.converters.coreml.lowering.stored import Stored, by_channel, in_blocks, store, stored_in
from deploykit.graph.signature import constant_of
from deploykit.opsupport.verdict import Verdict, supported, unknown, unsupported

if TYPE_CHECKING:
    import onnx_ir as ir

_EIGHT_BITS = ("int8", "uint8")
FOUR_BITS = ("int4", "uint4")
_REMEDY = "deploykit quantize --precision int8-weights (or int8) --target coreml"


def _quantizes(node: Node) -> Verdict:
    if node.integer("block_size"):
        return unsupported("Core ML quantizes activations by tensor or channel, not in blocks", remedy=_REMEDY)
    kind = node.out_dtype()
    if kind is not None and kind not in _EIGHT_BITS:
        return unsupported(f"Core ML quantizes to int8 and uint8, this one is {kind}", remedy=_REMEDY)
    return _fixed(node) or since("iOS17", "quantized activations")


def _dequantizes(node: Node) -> Verdict:
    kind, stored = node.dtype(0), node.constant(0) is not None
    if not stored:
        if kind is not None and kind not in _EIGHT_BITS:
            return unsupported(f"Core ML dequantizes int8 and uint8, this one is {kind}", remedy=_REMEDY)
        if node.integer("block_size"):
            return unsupported("Core ML dequantizes activations by tensor or channel, not in blocks", remedy=_REMEDY)
        return _fixed(node) or since("iOS17", "quantized activations")
    if kind is not None and kind not in (*_EIGHT_BITS, *FOUR_BITS, "int32"):
        return unsupported(f"Core ML stores weights of 8 and 4 bits, this one is {kind}", remedy=_REMEDY)
    found = _fixed(node)
    if found is None and kind in FOUR_BITS:
        return since("iOS18", "weights of 4 bits")
    if found is None and node.integer("block_size") and kind != "int32":
        return since("iOS18", "weights with a scale for each block")
    return found or supported()


def _fixed(node: Node) -> Verdict | None:
    if node.constant(1) is None or (node.has(2) and node.constant(2) is None):
        return unknown("its scale or zero point is computed while the model runs", remedy="quantize statically")
    return None


def _parameters(op: Node) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any] | None, int]:
    """Scale, zero point (None when all zeros) and channel axis. Scalars and one-element vectors become rank 0."""
    scale = op.constant(1)
    assert scale is not None  # the predicates have seen to it
    zero = op.constant(2) if op.has(2) else None
    if zero is not None and zero.dtype.name in FOUR_BITS:
        zero = zero.astype(np.int8 if zero.dtype.name == "int4" else np.uint8)
    if scale.size == 1 and not op.integer("block_size"):
        scale = scale.reshape(())
        zero = None if zero is None else zero.reshape(())
    rank = op.rank(0)
    axis = op.integer("axis", 1)
    return scale, zero, positive_axis(axis, rank) if rank else 0


@lowers("QuantizeLinear", since=(10, 13, 19, 21, 23, 24, 25), when=_quantizes)
def quantize_linear(op: OpContext) -> Var:
    """saturate(round(x / scale) + zero point), rounding ties to even."""
    x = op.input()
    scale, zero, axis = _parameters(op)
    kind = op.out_dtype() or ("uint8" if zero is None else str(zero.dtype))
    return mb.quantize(input=x, scale=scale, output_dtype=kind, **_arguments(scale, zero, axis))


@lowers("DequantizeLinear", since=(10, 13, 19, 21, 23, 24, 25), when=_dequantizes)
def dequantize_linear(op: OpContext) -> Var:
    """(x - zero point) * scale. A constant of 8 or 4 bits stays so in the package; an int32 bias becomes float."""
    scale, zero, axis = _parameters(op)
    values = op.constant(0)
    if values is None:
        return mb.dequantize(input=op.input(), scale=scale, **_arguments(scale, zero, axis))
    made = _stored_by(op)
    return constant(made.floats) if values.dtype == np.int32 else store(made)


def _stored_by(node: Node) -> Stored:
    """What a DequantizeLinear of a constant says."""
    values = node.constant(0)
    assert values is not None
    scale, zero, axis = _parameters(node)
    block, bits = node.integer("block_size"), 8
    if values.dtype.name in FOUR_BITS:
        values, bits = values.astype(np.int8 if values.dtype.name == "int4" else np.uint8), 4
    parts = (values, scale, zero, axis)
    return in_blocks(*parts, block, bits) if block else by_channel(*parts, bits)


def _arguments(scale: np.ndarray[Any, Any], zero: np.ndarray[Any, Any] | None, axis: int) -> dict[str, Any]:
    found: dict[str, Any] = {"axis": np.int32(axis)} if scale.ndim else {}
    return found | ({"zero_point": zero} if zero is not None and zero.any() else {})


def fixed_array(node: Node, position: int) -> np.ndarray[Any, Any] | None:
    """The floats of an input that is a constant, or a stored one: for operators that take floats only.

    None for one that is computed or not given.
    """
    known = node.constant(position)
    return _floats_of(node.raw.inputs[position], node.opset) if known is None and node.has(position) else known


def _floats_of(value: ir.Value | None, opset: int) -> np.ndarray[Any, Any] | None:
    known = constant_of(value)
    if known is not None:
        return np.asarray(known.numpy())
    producer = value.producer() if value is not None else None
    if producer is None or producer.domain:
        return None
    node = Node(producer, opset)
    if producer.op_type == "Reshape":
        inner, shape = _floats_of(producer.inputs[0], opset), node.constant(1)
        plain = inner is not None and shape is not None and bool((shape != 0).all())
        return inner.reshape(shape) if inner is not None and shape is not None and plain else None
    if producer.op_type != "DequantizeLinear" or node.constant(0) is None or _fixed(node) is not None:
        return None
    return _stored_by(node).floats


def transposed_weight(op: OpContext, position: int, *, already: bool) -> Any:
    """The constant matrix of an input as `linear` takes it, [out, in]; None when it is computed.

    already: it is [out, in] in the model. Stored integers are transposed as integers.
    """
    variable = op.input(position)
    found = stored_in(variable)
    if found is not None:
        return variable if already else store(found.transposed)
    known = op.constant(position)
    if known is None:
        return None
    return known if already else np.ascontiguousarray(known.T)

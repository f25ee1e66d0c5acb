"""Q/DQ: constants stay stored as integers, activations are quantized and dequantized where the model says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Var

from deploykit.converters.coreml.lowering.context import OpContext, Refused, constant, lowers, positive_axis
from deploykit.opsupport.verdict import Verdict, supported, unknown, unsupported

if TYPE_CHECKING:
    from deploykit.converters.coreml.lowering.node import Node

_EIGHT_BITS = ("int8", "uint8")
_REMEDY = "deploykit quantize --precision int8-weights (or int8) --target coreml"


def _eight_bits(node: Node) -> Verdict:
    if node.integer("block_size"):
        return unsupported("blockwise scales are not lowered", remedy=_REMEDY)
    kind = node.out_dtype() if node.op == "QuantizeLinear" else node.dtype(0)
    folded = node.op == "DequantizeLinear" and node.constant(0) is not None and kind == "int32"
    if kind is not None and kind not in _EIGHT_BITS and not folded:
        return unsupported(f"Core ML quantizes to int8 and uint8, this one is {kind}", remedy=_REMEDY)
    if node.constant(1) is None or (node.has(2) and node.constant(2) is None):
        return unknown("its scale or zero point is computed while the model runs", remedy="quantize statically")
    return supported()


def _parameters(op: OpContext) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any] | None, int]:
    """Scale, zero point (None when all zeros) and channel axis. Scalars and one-element vectors become rank 0."""
    scale = op.required_array(1, "scale")
    zero = op.constant(2) if op.has(2) else None
    if scale.size == 1:
        scale = scale.reshape(())
        zero = None if zero is None else zero.reshape(())
    rank = op.rank(0)
    axis = op.integer("axis", 1)
    return scale, zero, positive_axis(axis, rank) if rank else 0


@lowers("QuantizeLinear", since=(10, 13, 19, 21, 23, 24, 25), when=_eight_bits)
def quantize_linear(op: OpContext) -> Var:
    """saturate(round(x / scale) + zero point), rounding ties to even."""
    x = op.input()
    scale, zero, axis = _parameters(op)
    kind = op.out_dtype() or ("uint8" if zero is None else str(zero.dtype))
    arguments: dict[str, Any] = {"axis": np.int32(axis)} if scale.ndim else {}
    if zero is not None and zero.any():
        arguments["zero_point"] = zero
    return mb.quantize(input=x, scale=scale, output_dtype=kind, **arguments)


@lowers("DequantizeLinear", since=(10, 13, 19, 21, 23, 24, 25), when=_eight_bits)
def dequantize_linear(op: OpContext) -> Var:
    """(x - zero point) * scale. An 8-bit constant stays 8-bit in the package; an int32 bias becomes float."""
    scale, zero, axis = _parameters(op)
    stored = op.constant(0)
    if stored is None:
        arguments: dict[str, Any] = {"axis": np.int32(axis)} if scale.ndim else {}
        if zero is not None and zero.any():
            arguments["zero_point"] = zero
        return mb.dequantize(input=op.input(), scale=scale, **arguments)
    if stored.dtype == np.int32:
        shape = [1] * stored.ndim
        if scale.ndim:
            shape[axis] = -1
        offset = 0 if zero is None else zero.reshape(shape if scale.ndim else ())
        return constant(((stored - offset) * scale.reshape(shape if scale.ndim else ())).astype(scale.dtype))
    return stored_weight(stored, scale, zero, axis)


def stored_weight(
    values: np.ndarray[Any, Any], scale: np.ndarray[Any, Any], zero: np.ndarray[Any, Any] | None, axis: int
) -> Var:
    """A constant that the package stores in 8 bits and Core ML dequantizes when it loads."""
    if not values.ndim:
        raise Refused("a quantized scalar has no axis in Core ML", "leave scalars in float")
    return mb.constexpr_affine_dequantize(
        quantized_data=values,
        scale=scale,
        zero_point=np.zeros(scale.shape, values.dtype) if zero is None else zero,
        axis=np.int32(axis),
    )


def transposed_weight(op: OpContext, position: int, *, already: bool) -> Any:
    """The constant matrix of an input as `linear` takes it, [out, in]; None when it is computed.

    already: it is [out, in] in the model. Stored integers are transposed as integers.
    """
    variable = op.input(position)
    producer = variable.op
    if producer is not None and producer.op_type == "constexpr_affine_dequantize":
        if already:
            return variable
        return stored_weight(
            np.ascontiguousarray(producer.quantized_data.val.T),
            producer.scale.val,
            producer.zero_point.val,
            1 - positive_axis(int(producer.axis.val), 2),
        )
    known = op.constant(position)
    if known is None:
        return None
    return known if already else np.ascontiguousarray(known.T)

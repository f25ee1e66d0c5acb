"""QuantizeLinear and DequantizeLinear as the arithmetic that they are, for targets that have no integers there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import onnx_ir as ir

from deploykit.optimizers.editing import rank_of
from deploykit.optimizers.rewrites.decomposition import Builder, Decomposition
from deploykit.optimizers.rewrites.emitting import known_array
from deploykit.optimizers.rewrites.qlinear_to_qdq import attributes_of, given

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploykit.optimizers.rewrites.emitting import Emitter

_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_INTEGERS = (ir.DataType.UINT8, ir.DataType.INT8, ir.DataType.UINT16, ir.DataType.INT16)
# Below it, Clip has its bounds in attributes.
_OLDEST = 11


def _parameter(emitter: Emitter, value: ir.Value | None, node: ir.Node) -> ir.Value | None:
    """A scale or zero point in float32, in the shape that broadcasts along the node's axis."""
    rank, own = rank_of(node.inputs[0]), rank_of(value)
    if value is None or value.dtype is None or own is None or own > 1:
        return None
    shape: list[int] = []
    if own == 1 and value.shape is not None and value.shape[0] != 1:
        if rank is None or not isinstance(value.shape[0], int):
            return None
        axis = attributes_of(node).get("axis", 1) % rank if rank > 1 else 0
        shape = [1] * rank
        shape[axis] = value.shape[0]
    array = known_array(value)
    if array is not None:
        return emitter.const(array.astype(np.float32).reshape(shape))
    if value.dtype != ir.DataType.FLOAT:
        value = emitter.op("Cast", value, to=ir.DataType.FLOAT)
    return emitter.reshape(value, shape) if own == 1 else value


def _is_blocked(node: ir.Node) -> bool:
    return bool(attributes_of(node).get("block_size"))


def _dequantize(emitter: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """(x - zero_point) * scale."""
    x, scale_type = node.inputs[0], node.inputs[1].dtype if node.inputs[1] is not None else None
    wanted = ir.DataType(attributes_of(node).get("output_dtype", 0) or scale_type or 0)
    if x is None or x.dtype not in (*_INTEGERS, ir.DataType.INT32) or wanted not in _FLOATS or _is_blocked(node):
        return None
    scale, zero = _parameter(emitter, node.inputs[1], node), given(node, 2)
    if scale is None:
        return None
    value = emitter.op("Cast", x, to=ir.DataType.FLOAT)
    if zero is not None and not _is_zero(zero):
        offset = _parameter(emitter, zero, node)
        if offset is None or x.dtype == ir.DataType.INT32:
            return None
        value = emitter.op("Sub", value, offset)
    value = emitter.op("Mul", value, scale)
    return [value if wanted == ir.DataType.FLOAT else emitter.op("Cast", value, to=wanted)]


def _is_zero(zero: ir.Value) -> bool:
    array: np.ndarray[Any, Any] | None = known_array(zero)
    return array is not None and not array.any()


def _quantize(emitter: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """round(x / scale) + zero_point, halves to even, cut off at the limits of the type."""
    x, zero = node.inputs[0], given(node, 2)
    kind = zero.dtype if zero is not None else ir.DataType(attributes_of(node).get("output_dtype", 0) or 2)
    if x is None or x.dtype not in _FLOATS or kind not in _INTEGERS or _is_blocked(node) or emitter.opset < _OLDEST:
        return None
    scale = _parameter(emitter, node.inputs[1], node)
    if scale is None:
        return None
    value = x if x.dtype == ir.DataType.FLOAT else emitter.op("Cast", x, to=ir.DataType.FLOAT)
    value = emitter.op("Round", emitter.op("Div", value, scale))
    if zero is not None and not _is_zero(zero):
        offset = _parameter(emitter, zero, node)
        if offset is None:
            return None
        value = emitter.op("Add", value, offset)
    limits = np.iinfo(kind.numpy())
    low, high = (emitter.const(np.array(limit, np.float32)) for limit in (limits.min, limits.max))
    return [emitter.op("Cast", emitter.op("Clip", value, low, high), to=kind)]


class QuantizationArithmetic(Decomposition):
    """The last resort for Q/DQ: the values stay, and the target sees no quantization any more.

    It is what integers at the interface of a model want, where a target takes them in a Cast only.
    """

    name: ClassVar[str] = "quantization-arithmetic"
    title: ClassVar[str] = "computes QuantizeLinear and DequantizeLinear with ordinary arithmetic"
    builders: ClassVar[Mapping[tuple[str, str], Builder]] = {
        ("", "DequantizeLinear"): _dequantize,
        ("", "QuantizeLinear"): _quantize,
    }

"""Constants that the package stores in 8 or 4 bits, and Core ML makes floats of when it loads."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Var, types

from deploykit.converters.coreml.lowering.context import Refused
from deploykit.converters.coreml.lowering.deployment import reaches

Array = np.ndarray[Any, Any]
# Below so many values a block saves little more than its scale takes.
SMALLEST_BLOCK = 8


@dataclasses.dataclass(frozen=True, slots=True)
class Stored:
    """Integers, and one scale and zero point a block: `scale` has the rank of `values` and divides its sizes.

    zero: None where all are 0. bits: 4 or 8. Both arrays hold 8 bits a value here, whatever is stored.
    """

    values: Array
    scale: Array
    zero: Array | None
    bits: int = 8

    @property
    def transposed(self) -> Stored:
        """The transpose of a matrix."""
        turned = [None if array is None else np.ascontiguousarray(array.T) for array in (self.scale, self.zero)]
        assert turned[0] is not None
        return Stored(np.ascontiguousarray(self.values.T), turned[0], turned[1], self.bits)

    @property
    def floats(self) -> Array:
        """(values - zero) * scale, as `DequantizeLinear` computes it."""
        made = self.values.astype(np.int32) - (
            0 if self.zero is None else _spread(self.zero, self.values).astype(np.int32)
        )
        found: Array = (made * _spread(self.scale, self.values)).astype(self.scale.dtype)
        return found

    @property
    def _axis(self) -> int | None:
        """The one axis along which scales vary, each for one index; None where they are blocks."""
        varying = [axis for axis, count in enumerate(self.scale.shape) if count > 1]
        if not varying:
            return 0
        axis = varying[0]
        return axis if len(varying) == 1 and self.scale.shape[axis] == self.values.shape[axis] else None


def _spread(parameter: Array, values: Array) -> Array:
    for axis, (size, count) in enumerate(zip(values.shape, parameter.shape, strict=True)):
        parameter = np.repeat(parameter, size // count, axis=axis)
    return parameter


def by_channel(values: Array, scale: Array, zero: Array | None, axis: int, bits: int = 8) -> Stored:
    """Integers with a scale for each index of an axis, or one for all (rank 0)."""
    shape = [-1 if scale.ndim and place == axis else 1 for place in range(values.ndim)]
    return Stored(values, scale.reshape(shape), _zeros(zero, shape), bits)


def in_blocks(values: Array, scale: Array, zero: Array | None, axis: int, block: int, bits: int) -> Stored:
    """Integers with a scale for each `block` of them along an axis; the last block may be shorter.

    Core ML wants blocks of one size: they are cut into the largest that fits. Refused: when that is a few values only.
    """
    size = values.shape[axis]
    part = math.gcd(block, size) if size > block else size
    if part < min(SMALLEST_BLOCK, block):
        raise Refused(
            f"blocks of {block} along a dimension of {size} do not come out even, and Core ML has blocks of one size",
            f"deploykit quantize --block-size with a divisor of {size}",
        )
    blocks = [start // block for start in range(0, size, part)]
    scales = np.take(scale, blocks, axis=axis)
    zeros = None if zero is None else np.take(zero, blocks, axis=axis)
    return Stored(values, scales, _zeros(zeros, list(scales.shape)), bits)


def _zeros(zero: Array | None, shape: list[int]) -> Array | None:
    return zero.reshape(shape) if zero is not None and zero.any() else None


def store(made: Stored) -> Var:
    """The constant of the program. From iOS18 on all forms are one operator; iOS16 and 17 have 8 bits by channel."""
    if not made.values.ndim:
        return mb.const(val=made.floats)
    if reaches("iOS18"):
        arguments = {} if made.zero is None else {"offset": _typed(made.zero, made)}
        return mb.constexpr_blockwise_shift_scale(data=_typed(made.values, made), scale=made.scale, **arguments)
    axis = made._axis
    if axis is None or made.bits != 8:
        raise Refused(
            "Core ML has weights in blocks and of 4 bits from iOS18 on", "--option minimum_deployment_target=iOS18"
        )
    scale = made.scale.reshape(-1) if made.scale.size > 1 else made.scale.reshape(())
    zero = np.zeros(scale.shape, made.values.dtype) if made.zero is None else made.zero.reshape(scale.shape)
    return mb.constexpr_affine_dequantize(quantized_data=made.values, scale=scale, zero_point=zero, axis=np.int32(axis))


def _typed(array: Array, made: Stored) -> Array:
    """The array in the type that coremltools takes for what is stored."""
    if made.bits == 8:
        return array
    return array.astype(types.np_int4_dtype if made.values.dtype == np.int8 else types.np_uint4_dtype)


def stored_in(variable: Var) -> Stored | None:
    """What the constant behind a variable stores; None for any other variable."""
    producer = variable.op
    if producer is None or not producer.op_type.startswith("constexpr_"):
        return None
    if producer.op_type == "constexpr_affine_dequantize":
        values = producer.quantized_data.val
        axis = int(producer.axis.val) % values.ndim
        return by_channel(values, np.asarray(producer.scale.val), np.asarray(producer.zero_point.val), axis)
    if producer.op_type == "constexpr_blockwise_shift_scale":
        zero = None if producer.offset is None else np.asarray(producer.offset.val)
        bits = 4 if producer.data.dtype in (types.int4, types.uint4) else 8
        return Stored(np.asarray(producer.data.val), np.asarray(producer.scale.val), zero, bits)
    return None

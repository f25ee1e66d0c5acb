"""Quantize, dequantize, and constants that are stored compressed."""

from __future__ import annotations

from typing import Any

import numpy as np

from deploykit.converters.coreml.simulator.table import Array, evaluates, text


def _along(parameter: Any, x: Array, axis: Any) -> Any:
    if parameter is None:
        return 0
    parameter = np.asarray(parameter)
    if not parameter.ndim or parameter.size == 1:
        return parameter.reshape(())
    return parameter.reshape([-1 if place == int(axis) % x.ndim else 1 for place in range(x.ndim)])


@evaluates("quantize")
def quantize(input: Array, scale: Array, output_dtype: Any, zero_point: Any = None, axis: Any = 0) -> Any:
    """clip(round(x / scale) + zero point), ties to even."""
    kind = np.dtype(text(output_dtype))
    limits = np.iinfo(kind)
    offset = np.asarray(_along(zero_point, input, axis)).astype(np.int32)
    levels = np.rint(input.astype(np.float32) / _along(scale, input, axis)) + offset
    return np.clip(levels, limits.min, limits.max).astype(kind)


@evaluates("dequantize")
def dequantize(input: Array, scale: Array, zero_point: Any = None, axis: Any = 0) -> Any:
    """scale * (x - zero point)."""
    offset = np.asarray(_along(zero_point, input, axis)).astype(np.int32)
    return (input.astype(np.int32) - offset) * _along(scale, input, axis)


@evaluates("constexpr_affine_dequantize")
def constexpr_affine_dequantize(quantized_data: Array, zero_point: Any, scale: Any, axis: Any) -> Any:
    """scale * (data - zero point) along the axis."""
    return dequantize(quantized_data, np.asarray(scale), zero_point, axis)


@evaluates("constexpr_blockwise_shift_scale")
def constexpr_blockwise_shift_scale(data: Array, scale: Array, offset: Array | None = None) -> Any:
    """scale * (data - offset), with one scale and offset for a block."""

    def spread(parameter: Array) -> Any:
        for axis, (size, count) in enumerate(zip(data.shape, parameter.shape, strict=True)):
            parameter = np.repeat(parameter, size // count, axis=axis)
        return parameter

    shift = 0 if offset is None else spread(offset).astype(np.float32)
    return spread(scale) * (data.astype(np.float32) - shift)


@evaluates("constexpr_cast")
def constexpr_cast(source_val: Array, output_dtype: Any) -> Any:
    """The stored values in another type."""
    return source_val.astype({"fp32": np.float32, "fp16": np.float16}[text(output_dtype)])

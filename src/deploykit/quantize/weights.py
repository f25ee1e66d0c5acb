"""Integer weights: symmetric, one scale a channel along the axis that the operator calls its outputs."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import onnx_ir as ir

Array = np.ndarray[Any, Any]
# int32 with room for the sum of products that is added to the bias.
BIAS_LIMIT = float(2**30)
SMALLEST_SCALE = float(np.finfo(np.float32).tiny)


@dataclasses.dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """Integers, their scale (rank 0, or one a channel along `axis`), and the axis; zero points are 0."""

    values: Array
    scale: Array
    axis: int | None

    def dequantized(self) -> Array:
        """What a DequantizeLinear gives: values * scale, float32."""
        scale = self.scale
        if self.axis is not None:
            scale = scale.reshape([-1 if i == self.axis else 1 for i in range(self.values.ndim)])
        found: Array = self.values.astype(np.float32) * scale.astype(np.float32)
        return found


def channel_axis(node: ir.Node, index: int, rank: int) -> int | None:
    """The axis of output channels of constant operand `index` of a multiply-accumulate node; None: none (per tensor).

    Conv: W [M, C/group, k...] -> 0. ConvTranspose: W [C, M/group, k...] -> 1, whose scales all groups share.
    Gemm: B is [K, N], or [N, K] with transB -> the axis of N; A likewise the axis of M.
    MatMul: B [..., K, N] -> the last; A [..., M, K] -> the last but one (operator specifications, ONNX).
    """
    if node.op_type == "Conv":
        return 0
    if node.op_type == "ConvTranspose":
        return 1
    if node.op_type == "Gemm":
        transposed = bool(node.attributes.get_int("transA" if index == 0 else "transB", 0))
        return (1 if transposed else 0) if index == 0 else (0 if transposed else 1)
    if rank < 2:
        return None
    return rank - 2 if index == 0 else rank - 1


def weight_scale(weight: Array, axis: int | None, *, bits: int = 8) -> Array:
    """Scale that maps the largest magnitude of each channel (or of the tensor) to the largest integer of `bits` bits.

    Channels of zeros get scale 1. weight must be finite; float32 scale of shape [channels] or [].
    """
    top = 2 ** (bits - 1) - 1
    others = tuple(i for i in range(weight.ndim) if i != axis) if axis is not None else None
    if weight.size == 0:
        return np.ones(() if axis is None else (weight.shape[axis],), np.float32)
    largest = np.abs(weight).max(axis=others).astype(np.float64)
    scale = np.where(largest > 0, np.maximum(largest / top, SMALLEST_SCALE), 1.0)
    return np.asarray(scale, dtype=np.float32)


def quantize_weight(weight: Array, scale: Array, axis: int | None, *, bits: int = 8) -> QuantizedWeight:
    """Rounds a weight to int8 with the given scale; the most negative integer is not used: -w is as good as w."""
    top = 2 ** (bits - 1) - 1
    along = scale if axis is None else scale.reshape([-1 if i == axis else 1 for i in range(weight.ndim)])
    levels = np.rint(weight / along)
    return QuantizedWeight(np.clip(levels, -top, top).astype(np.int8), scale, axis)


def fit_scale_to_bias(weight_scale: Array, input_scale: float, bias: Array) -> Array:
    """The weight scale, raised where the int32 bias at scale input*weight would overflow.

    bias: [channels], a whole multiple of the scales when groups share them (ConvTranspose). A channel that needs this
    has weights far below the resolution of its bias, so nothing is lost; clipping the bias would lose all.
    """
    magnitude = np.abs(np.asarray(bias, np.float64).reshape(-1))
    if weight_scale.ndim:
        magnitude = magnitude.reshape(-1, weight_scale.size).max(axis=0)
    else:
        magnitude = np.asarray(magnitude.max(initial=0.0))
    needed = magnitude / (input_scale * BIAS_LIMIT)
    return np.asarray(np.maximum(weight_scale.astype(np.float64), needed), dtype=np.float32)


def quantize_bias(bias: Array, scale: Array) -> Array:
    """The bias as int32 at `scale` (same shape, or rank 0)."""
    limits = np.iinfo(np.int32)
    levels = np.rint(bias.astype(np.float64) / scale.astype(np.float64))
    return np.asarray(np.clip(levels, limits.min, limits.max), dtype=np.int32)


def saturating_share(weight: Array, axis: int | None, activation: int) -> float:
    """Share of neighbouring weight pairs whose products with `activation` overflow int16 when summed.

    That is what CPUs without VNNI do with unsigned activations and signed weights (pmaddubsw adds two products in
    int16). weight: int8 values; pairs are neighbours along the dimension that is summed over.
    """
    rows = weight if axis is None else np.moveaxis(weight, axis, 0)
    flat = rows.reshape(rows.shape[0] if rows.ndim else 1, -1).astype(np.int32)
    if flat.shape[1] < 2:
        return 0.0
    even = flat.shape[1] // 2 * 2
    pairs = np.abs(flat[:, 0:even:2] + flat[:, 1:even:2])
    return float(np.mean(pairs * activation > np.iinfo(np.int16).max))

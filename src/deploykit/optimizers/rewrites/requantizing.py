"""The arithmetic of moving integers with any zero point to int8 with the zero point 0."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Grid:
    """Scale and zero point of a quantized tensor: of all of it, or vectors with one entry per channel.

    real = (integer - zero_point) * scale (QuantizeLinear, ONNX specification). zero_point: in the integers' type.
    """

    scale: Array
    zero_point: Array

    @property
    def limits(self) -> tuple[Array, Array]:
        """Lowest and highest real value, per channel, as float64."""
        info = np.iinfo(self.zero_point.dtype)
        zero = self.zero_point.astype(np.float64)
        scale = self.scale.astype(np.float64)
        return (info.min - zero) * scale, (info.max - zero) * scale

    @property
    def is_symmetric(self) -> bool:
        """int8 with the zero point 0."""
        return self.zero_point.dtype == np.int8 and not self.zero_point.any()

    def same(self, other: Grid) -> bool:
        """Whether both mean the same reals."""
        return (
            self.zero_point.dtype == other.zero_point.dtype
            and self.scale.dtype == other.scale.dtype
            and np.array_equal(self.scale.ravel(), other.scale.ravel())
            and np.array_equal(self.zero_point.ravel(), other.zero_point.ravel())
        )


def symmetric(grid: Grid) -> Grid:
    """The finest int8 grid with zero point 0 that reaches as far: scale = max(high / 127, -low / 128).

    The scale stays the same, and so does every value, where the distance to the zero point fits in int8 already
    (uint8 with zero point 128); it is 255/127 times as coarse for uint8 with zero point 0.
    """
    low, high = grid.limits
    scale = np.maximum(high / 127, -low / 128).astype(grid.scale.dtype)
    # Where nothing is rounded, the scale has to be the same to the bit.
    distance = grid.zero_point.astype(np.int64) - np.iinfo(grid.zero_point.dtype).min
    scale = np.where(distance == 128, grid.scale, scale)
    return Grid(scale.astype(grid.scale.dtype), np.zeros(grid.zero_point.shape, np.int8))


def is_exact(old: Grid, new: Grid) -> bool:
    """Whether every value of the old grid is one of the new."""
    return np.array_equal(old.scale, new.scale)


def recentre(integers: Array, grid: Grid, axis: int | None) -> tuple[Array, Array, bool]:
    """Constant integers on an int8 grid of zero point 0: integers, scale, and whether every value is the same.

    axis: of the channels when scale and zero point are vectors. A channel whose distances to the zero point fit in int8
    keeps its scale and is exact; the scale of any other is the smallest that holds its largest value, and each value
    moves by half a step of it at most.
    """
    shape = [1] * integers.ndim
    if axis is not None:
        shape[axis] = -1
    zero, scale = (part.astype(np.float64).reshape(shape) for part in (grid.zero_point, grid.scale))
    offset = integers.astype(np.float64) - zero
    others = tuple(at for at in range(integers.ndim) if axis is None or at != axis % integers.ndim)
    if offset.size:
        low, high = offset.min(axis=others, keepdims=True), offset.max(axis=others, keepdims=True)
    else:
        low = high = np.zeros(np.broadcast_shapes(zero.shape))
    factor = np.where((low >= -128) & (high <= 127), 1.0, np.maximum(high / 127, -low / 128))
    new_scale = (scale * factor).astype(grid.scale.dtype)
    exact = bool(np.all(factor == 1))
    moved = offset if exact else np.rint(offset * scale / new_scale.astype(np.float64))
    return np.clip(moved, -128, 127).astype(np.int8), new_scale.reshape(grid.scale.shape), exact

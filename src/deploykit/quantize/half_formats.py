"""The two half precisions as data: what converts to them, and what they cannot hold."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

if TYPE_CHECKING:
    from collections.abc import Iterator

Array = np.ndarray[Any, Any]
# Weights are looked at and converted in pieces of so many elements: no copy of a large one in float32 is made.
PIECE = 1 << 22


@dataclasses.dataclass(frozen=True, slots=True)
class HalfFormat:
    """A 16-bit floating-point format.

    name: in the vocabulary of precisions. title: in messages. array: the numpy dtype.
    limit: largest finite value. normal: smallest value with all its digits. least: smallest value that is not 0.
    integers: all integers up to it are exact.
    """

    name: str
    title: str
    dtype: ir.DataType
    array: np.dtype[Any]
    limit: float
    normal: float
    least: float
    integers: int

    @property
    def schema_type(self) -> str:
        """How operator schemas write it."""
        return f"tensor({'float16' if self.dtype == ir.DataType.FLOAT16 else 'bfloat16'})"

    def rounded(self, array: Array) -> Array:
        """The array in this format, piece by piece; beyond the limit is infinite, below `least` is 0."""
        out = np.empty(array.shape, self.array)
        source, target = array.reshape(-1), out.reshape(-1)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            for part in pieces(source.size):
                target[part] = source[part].astype(self.array)
        return out


def _format(name: str, title: str, dtype: ir.DataType, array: Any, integers: int) -> HalfFormat:
    info = ml_dtypes.finfo(array)  # type: ignore[no-untyped-call]
    return HalfFormat(
        name,
        title,
        dtype,
        np.dtype(array),
        float(info.max),
        float(info.smallest_normal),
        float(info.smallest_subnormal),
        integers,
    )


FLOAT16 = _format("fp16", "half precision", ir.DataType.FLOAT16, np.float16, 2048)
BFLOAT16 = _format("bf16", "bfloat16", ir.DataType.BFLOAT16, ml_dtypes.bfloat16, 256)


@dataclasses.dataclass(frozen=True, slots=True)
class Magnitudes:
    """Of a weight: its largest finite magnitude, its smallest that is not 0, and the share of values that become 0."""

    largest: float
    smallest: float
    lost: float


def magnitudes(array: Array, form: HalfFormat) -> Magnitudes:
    """What the format makes of the values, in one pass; NaN and infinities are left out.

    A value becomes 0 when it is at most half the smallest one (rounding to even).
    """
    largest, smallest, lost = 0.0, float("inf"), 0
    flat = array.reshape(-1)
    for part in pieces(flat.size):
        size = np.abs(flat[part])
        finite = np.isfinite(size)
        if not finite.all():
            size = size[finite]
        if not size.size:
            continue
        largest = max(largest, float(size.max()))
        positive = size[size > 0]
        if positive.size:
            smallest = min(smallest, float(positive.min()))
            lost += int(np.count_nonzero(positive <= form.least / 2))
    return Magnitudes(largest, smallest, lost / array.size if array.size else 0.0)


def pieces(size: int) -> Iterator[slice]:
    """Slices that cover `size` elements."""
    for start in range(0, size, PIECE):
        yield slice(start, start + PIECE)

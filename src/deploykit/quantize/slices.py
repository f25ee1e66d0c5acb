"""Large weights to integers slice by slice: never more than the weight, its integers and one slice in memory."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from deploykit.quantize.weights import SMALLEST_SCALE, QuantizedWeight

if TYPE_CHECKING:
    from collections.abc import Iterator

Array = np.ndarray[Any, Any]
# Elements worked on at once: 16 MiB of float32.
SLICE = 1 << 22
# The room that a scale, a zero point, their names and a node take beside the integers, in bytes.
OVERHEAD = 250
_REASON = "deploykit.why_not_integers"


@contextlib.contextmanager
def reading(value: ir.Value) -> Iterator[Array]:
    """The data of an initializer; what is mapped from a file is given back to the system afterwards."""
    tensor = value.const_value
    assert tensor is not None
    if isinstance(tensor, ir.ExternalTensor):
        # A mapping of its own, which ends with the last array that looks into it; the tensor would keep its for ever.
        tensor = ir.ExternalTensor(
            tensor.location,
            tensor.offset,
            tensor.length,
            tensor.dtype,
            shape=ir.Shape(tensor.shape.numpy()),
            name=tensor.name or "",
            base_dir=tensor.base_dir,
        )
    yield tensor.numpy()


def shrinks(size: int, bits: int, scales: int, bits_per_scale: int = 40) -> bool:
    """Whether `size` float32 weights take less room as integers with that many scales (and zero points)."""
    return (size * bits + scales * bits_per_scale) / 8 + OVERHEAD < 4 * size


def rows_of(array: Array) -> Iterator[slice]:
    """Ranges of the first axis that hold about `SLICE` elements each."""
    if array.ndim == 0 or array.size == 0:
        yield slice(None)
        return
    step = max(1, SLICE * array.shape[0] // array.size)
    for start in range(0, array.shape[0], step):
        yield slice(start, start + step)


def why_not_integers(value: ir.Value) -> str:
    """Why no integers stand for a float32 weight; "" when some do. The data is read once, whoever asks again."""
    tensor = value.const_value
    assert tensor is not None
    if _REASON not in tensor.meta:
        low = high = 0.0
        with reading(value) as weight:
            for rows in rows_of(weight):
                part = weight[rows]
                if part.size:  # NaN stays NaN in both
                    low, high = float(np.minimum(low, part.min())), float(np.maximum(high, part.max()))
        reason = ""
        if not np.isfinite(high - low):
            reason = f"its weight {value.name!r} has NaN or infinite values"
        elif 0.0 < max(high, -low) < SMALLEST_SCALE * 127:
            reason = (
                f"its weight {value.name!r} is below {max(high, -low):.1g} everywhere: no float32 scale is so small"
            )
        tensor.meta[_REASON] = reason
    return str(tensor.meta[_REASON])


def to_int8(weight: Array, axis: int | None, *, summed: int | None = None) -> QuantizedWeight:
    """A float32 weight as int8, symmetric, with one scale an index of `axis` (None: one for all); zero points 0.

    summed: the axis that an integer kernel sums over. With it scales are wide enough that no pair of neighbours there
    overflows: CPUs without VNNI add two u8*s8 products in a saturating int16 (pmaddubsw), and
    255 * (w0 + w1) stays inside it when the positive and the negative parts of w0 + w1 are at most 128.
    """
    if weight.ndim == 0:
        axis = None
    others = None if axis is None else tuple(i for i in range(weight.ndim) if i != axis)
    shape = () if axis is None else (weight.shape[axis],)
    needed = np.zeros(shape)
    for rows in rows_of(weight):
        part = weight[rows]
        if part.size == 0:
            continue
        found = np.abs(part).max(axis=others) / 127.0
        target = rows if axis == 0 else slice(None)
        _raise(needed, target, found)
    if summed is not None and weight.size:
        moved, channels = np.moveaxis(weight, summed, -1), _moved(axis, summed)
        for rows in rows_of(moved):
            pairs = _largest_pair(moved[rows], channels)
            _raise(needed, rows if channels == 0 else slice(None), pairs / 128.0)
    scale = np.where(needed > 0, np.maximum(needed, SMALLEST_SCALE), 1.0).astype(np.float32)
    values = np.empty(weight.shape, np.int8)
    along = scale if axis is None else scale.reshape([-1 if i == axis else 1 for i in range(weight.ndim)])
    for rows in rows_of(weight):
        step = along[rows] if axis == 0 else along
        levels = np.divide(weight[rows], step)
        np.rint(levels, out=levels)
        values[rows] = np.clip(levels, -127, 127, out=levels)
    if summed is not None and weight.size:
        _settle_pairs(values, summed)
    return QuantizedWeight(values, scale, axis)


def _raise(needed: Array, target: slice, found: Array) -> None:
    if needed.ndim:
        needed[target] = np.maximum(needed[target], found)
    else:
        np.maximum(needed, found, out=needed)


def _moved(axis: int | None, summed: int) -> int | None:
    """Where `axis` is after `summed` was moved to the end."""
    return axis if axis is None or axis < summed else axis - 1


def _largest_pair(part: Array, axis: int | None) -> Array:
    """The largest sum of the positive, or of the negative, parts of neighbours along the last axis, by channel."""
    even = part.shape[-1] // 2 * 2
    first, second = part[..., 0:even:2], part[..., 1:even:2]
    if first.size == 0:
        return np.zeros(() if axis is None else (part.shape[axis],))
    up = np.maximum(first, 0) + np.maximum(second, 0)
    down = np.minimum(first, 0) + np.minimum(second, 0)
    both = np.maximum(up, -down)
    return np.asarray(both.max(axis=None if axis is None else tuple(i for i in range(both.ndim) if i != axis)))


def _settle_pairs(values: Array, summed: int) -> None:
    """Rounding may lift a pair to 129: the first of the two goes back one level, half a step at most being lost."""
    moved = np.moveaxis(values, summed, -1)
    even = moved.shape[-1] // 2 * 2
    for rows in rows_of(moved):
        part = moved[rows]
        first, second = part[..., 0:even:2], part[..., 1:even:2]
        total = first.astype(np.int16) + second
        first[(total > 128) & (first > 0)] -= 1
        first[(total < -128) & (first < 0)] += 1

"""Convolutions and pooling."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from deploykit.converters.coreml.simulator.table import Array, Undocumented, evaluates, flag, integers, text

_MOST_PRODUCTS = 64  # places of a kernel; a larger one (a filter bank over a waveform) is one product over all


def _ones(value: Any, count: int) -> list[int]:
    return [1] * count if value is None else integers(value)


def _pads(pad_type: Any, pad: Any, sizes: list[int], reach: list[int], strides: list[int]) -> list[tuple[int, int]]:
    """(before, after) by spatial dimension. same: ceil(size / stride) results, an odd rest at the end."""
    kind = "valid" if pad_type is None else text(pad_type)
    if kind == "valid":
        return [(0, 0)] * len(sizes)
    if kind == "custom":
        given = integers(pad) if pad is not None else [0] * 2 * len(sizes)
        return [(given[2 * axis], given[2 * axis + 1]) for axis in range(len(sizes))]
    if kind not in ("same", "same_lower"):
        raise Undocumented(f"pad_type {kind!r}")
    pairs = []
    for size, extent, stride in zip(sizes, reach, strides, strict=True):
        total = max((-(-size // stride) - 1) * stride + extent - size, 0)
        small, large = total // 2, total - total // 2
        pairs.append((small, large) if kind == "same" else (large, small))
    return pairs


def _padded(x: Array, pairs: list[tuple[int, int]], value: float) -> Any:
    return np.pad(x, [(0, 0), (0, 0), *pairs], constant_values=x.dtype.type(value))


def _windows(x: Array, reach: list[int], strides: list[int], dilations: list[int]) -> Any:
    """[N, C, *positions, *kernel]."""
    count = len(reach)
    view = np.lib.stride_tricks.sliding_window_view(x, reach, axis=tuple(range(2, 2 + count)))
    steps = [slice(None, None, step) for step in strides] + [slice(None, None, step) for step in dilations]
    return view[(slice(None), slice(None), *steps)]


def _with_bias(y: Array, bias: Array | None) -> Any:
    return y if bias is None else y + bias.reshape([1, -1] + [1] * (y.ndim - 2))


@evaluates("conv")
def conv(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    strides: Any = None,
    pad_type: Any = None,
    pad: Any = None,
    dilations: Any = None,
    groups: Any = 1,
) -> Any:
    """Cross-correlation of x [N, C, *spatial] with weight [M, C / groups, *kernel]."""
    count, parts = x.ndim - 2, int(groups)
    steps, spread = _ones(strides, count), _ones(dilations, count)
    reach = [(size - 1) * d + 1 for size, d in zip(weight.shape[2:], spread, strict=True)]
    padded = _padded(x, _pads(pad_type, pad, list(x.shape[2:]), reach, steps), 0.0)
    kernel = weight.shape[2:]
    sizes = [(size - extent) // step + 1 for size, extent, step in zip(padded.shape[2:], reach, steps, strict=True)]
    inner, outer, places = weight.shape[1], weight.shape[0] // parts, math.prod(sizes)
    grouped = weight.reshape(parts, outer, inner, -1)
    if grouped.shape[-1] > _MOST_PRODUCTS:
        order = [0, 1, *range(2 + count, 2 + 2 * count), *range(2, 2 + count)]
        columns = np.transpose(_windows(padded, reach, steps, spread), order).reshape(x.shape[0], parts, -1, places)
        made = grouped.reshape(parts, outer, -1) @ columns
    else:  # one product for each place of the kernel: no copy of x as large as the kernel times x
        made = np.zeros((x.shape[0], parts, outer, places), np.result_type(x, weight))
        by_place = np.ascontiguousarray(np.moveaxis(grouped, -1, 0))  # a product of what lies apart takes no BLAS
        for part, place in zip(by_place, itertools.product(*(range(size) for size in kernel)), strict=True):
            where = [
                slice(at * d, at * d + (size - 1) * step + 1, step)
                for at, d, size, step in zip(place, spread, sizes, steps, strict=True)
            ]
            made += part @ padded[(slice(None), slice(None), *where)].reshape(x.shape[0], parts, inner, places)
    return _with_bias(made.reshape(x.shape[0], weight.shape[0], *sizes), bias)


@evaluates("conv_transpose")
def conv_transpose(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    pad: Any = None,
    output_shape: Any = None,
    pad_type: Any = None,
    strides: Any = None,
    dilations: Any = None,
    groups: Any = 1,
) -> Any:
    """The transpose of a convolution: x [N, C, *spatial] spread with weight [C, M / groups, *kernel], pads cut off."""
    count, parts = x.ndim - 2, int(groups)
    kind = "valid" if pad_type is None else text(pad_type)
    if kind not in ("valid", "custom"):
        raise Undocumented(f"conv_transpose with pad_type {kind!r}")
    steps, spread = _ones(strides, count), _ones(dilations, count)
    kernel = weight.shape[2:]
    sizes = [
        (size - 1) * step + (k - 1) * d + 1 for size, step, k, d in zip(x.shape[2:], steps, kernel, spread, strict=True)
    ]
    inner, outer = weight.shape[0] // parts, weight.shape[1]
    made = np.zeros((x.shape[0], parts * outer, *sizes), np.result_type(x, weight))
    for g in range(parts):
        source, part = x[:, g * inner : (g + 1) * inner], weight[g * inner : (g + 1) * inner]
        for place in itertools.product(*(range(k) for k in kernel)):
            spread_to = tuple(
                slice(at * d, at * d + (size - 1) * step + 1, step)
                for at, d, size, step in zip(place, spread, x.shape[2:], steps, strict=True)
            )
            index: Any = (slice(None), slice(None), *place)
            product = np.tensordot(source, part[index], axes=([1], [0]))
            made[(slice(None), slice(g * outer, (g + 1) * outer), *spread_to)] += np.moveaxis(product, -1, 1)
    pairs = _pads(pad_type, pad, list(x.shape[2:]), list(kernel), steps)
    cut: Any = tuple(slice(before, size - after) for (before, after), size in zip(pairs, sizes, strict=True))
    result = made[(slice(None), slice(None), *cut)]
    if output_shape is not None and list(result.shape) != integers(output_shape):
        raise Undocumented(f"conv_transpose to {integers(output_shape)}, its padding gives {list(result.shape)}")
    return _with_bias(result, bias)


def _pooled(
    x: Array, kernel_sizes: Any, strides: Any, pad_type: Any, pad: Any, ceil_mode: Any, value: float
) -> tuple[Array, tuple[int, ...], list[tuple[int, int]], list[int], list[int]]:
    """The windows, their axes, and the padding: also what ceil_mode adds at the end."""
    kernel = integers(kernel_sizes)
    steps = _ones(strides, len(kernel))
    pairs = _pads(pad_type, pad, list(x.shape[2:]), kernel, steps)
    if flag(ceil_mode):
        for axis, (before, after) in enumerate(pairs):
            size = x.shape[2 + axis]
            results = math.ceil((size + before + after - kernel[axis]) / steps[axis]) + 1
            if (results - 1) * steps[axis] >= size + before and before + after > 0:
                results -= 1
            more = (results - 1) * steps[axis] + kernel[axis] - (size + before + after)
            pairs[axis] = (before, after + max(more, 0))
    windows = _windows(_padded(x, pairs, value), kernel, steps, [1] * len(kernel))
    return windows, tuple(range(x.ndim, windows.ndim)), pairs, kernel, steps


@evaluates("max_pool")
def max_pool(
    x: Array, kernel_sizes: Any, pad_type: Any, strides: Any = None, pad: Any = None, ceil_mode: Any = False
) -> Any:
    """The maximum of each window; padding never wins."""
    windows, axes, *_ = _pooled(x, kernel_sizes, strides, pad_type, pad, ceil_mode, -math.inf)
    return windows.max(axis=axes)


@evaluates("avg_pool")
def avg_pool(
    x: Array,
    kernel_sizes: Any,
    pad_type: Any,
    strides: Any = None,
    pad: Any = None,
    exclude_padding_from_average: Any = False,
    ceil_mode: Any = False,
) -> Any:
    """The mean of each window; padding counts as 0 unless excluded."""
    windows, axes, pairs, kernel, steps = _pooled(x, kernel_sizes, strides, pad_type, pad, ceil_mode, 0.0)
    if not flag(exclude_padding_from_average):
        if flag(ceil_mode):
            raise Undocumented("avg_pool counting its padding with ceil_mode")
        return windows.mean(axis=axes, dtype=np.float64)
    ones = _windows(_padded(np.ones_like(x), pairs, 0.0), kernel, steps, [1] * len(kernel))
    return windows.sum(axis=axes, dtype=np.float64) / ones.sum(axis=axes, dtype=np.float64)


@evaluates("l2_pool")
def l2_pool(x: Array, kernel_sizes: Any, pad_type: Any, strides: Any = None, pad: Any = None) -> Any:
    """The root of the sum of squares of each window."""
    windows, axes, *_ = _pooled(x, kernel_sizes, strides, pad_type, pad, False, 0.0)
    return np.sqrt(np.square(windows.astype(np.float64)).sum(axis=axes))

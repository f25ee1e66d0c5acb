"""Pooling over windows and over whole planes."""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Var

from deploykit.converters.coreml.lowering.context import OpContext, Refused, like, lowers
from deploykit.converters.coreml.lowering.window import ceil_extension, explicit_pads
from deploykit.opsupport.verdict import Verdict, supported, unknown, unsupported

if TYPE_CHECKING:
    from deploykit.converters.coreml.lowering.node import Node


_MOST_SLICES = 64


def _pool_limits(node: Node) -> Verdict:
    rank = node.rank(0)
    if rank is None:
        return unknown("the rank of its input is unknown", remedy="export with a known rank")
    if not 3 <= rank <= 5:
        return unsupported(
            f"Core ML pools over 1 to 3 spatial dimensions, this one has {rank - 2}",
            remedy="merge leading dimensions with a Reshape before the pool",
        )
    if any(dilation != 1 for dilation in node.ints("dilations")) and node.op == "LpPool":
        return unsupported("Core ML has no dilated pooling", remedy="use dilations of 1")
    if node.op == "MaxPool" and node.used_outputs > 1:
        return unsupported("Core ML's pool gives no indices", remedy="remove the second output and what uses it")
    if node.is_integer(0):
        return unsupported("Core ML pools floats only", remedy="cast to float32 before the pool")
    return supported()


def _window(op: OpContext, x: Var) -> dict[str, Any]:
    kernel = op.ints("kernel_shape")
    ones = [1] * len(kernel)
    strides = op.ints("strides", ones)
    pads = explicit_pads(op.text("auto_pad", "NOTSET"), op.ints("pads"), x.shape[2:], kernel, strides, ones)
    if op.flag("ceil_mode"):
        extra = ceil_extension(x.shape[2:], kernel, strides, ones, pads)
        if any(extra) and op.op == "AveragePool" and op.flag("count_include_pad"):
            raise Refused(
                "ceil_mode with count_include_pad counts the padding of the last window, but not what ceil_mode adds",
                "use ceil_mode=0 with explicit pads",
            )
        pads = [pad + (extra[index // 2] if index % 2 else 0) for index, pad in enumerate(pads)]
    return {"kernel_sizes": kernel, "strides": strides, "pad_type": "custom", "pad": pads, "ceil_mode": False}


@lowers("MaxPool", since=(1, 8, 10, 11, 12, 22), when=_pool_limits)
def max_pool(op: OpContext) -> Var:
    """MaxPool of x [N, C, *spatial]; ceil_mode as additional padding at the end, which a maximum never sees."""
    x = op.input()
    if any(dilation != 1 for dilation in op.ints("dilations")):
        return dilated_pool(op, x)
    return mb.max_pool(x=x, **_window(op, x))


@lowers("AveragePool", since=(1, 7, 10, 11, 19, 22), when=_pool_limits)
def average_pool(op: OpContext) -> Var:
    """AveragePool of x [N, C, *spatial]; padding counts only when count_include_pad is 1 (spec, AveragePool-22)."""
    x = op.input()
    if any(dilation != 1 for dilation in op.ints("dilations")):
        return dilated_pool(op, x)
    exclude = not op.flag("count_include_pad")
    return mb.avg_pool(x=x, exclude_padding_from_average=exclude, **_window(op, x))


def dilated_pool(op: OpContext, x: Var) -> Var:
    """Pooling with gaps, which Core ML has not: a slice for each element of the window, their maximum or mean."""
    kernel = op.ints("kernel_shape")
    strides, dilations = op.ints("strides", [1] * len(kernel)), op.ints("dilations")
    places = list(itertools.product(*(range(size) for size in kernel)))
    if not all(isinstance(size, (int, np.integer)) for size in x.shape[2:]) or len(places) > _MOST_SLICES:
        raise Refused(
            "its window is dilated, and large or over sizes that vary", "fix the sizes, or use dilations of 1"
        )
    sizes = [int(size) for size in x.shape[2:]]
    pads = explicit_pads(op.text("auto_pad", "NOTSET"), op.ints("pads"), sizes, kernel, strides, dilations)
    extra = [0] * len(kernel)
    if op.flag("ceil_mode"):
        extra = ceil_extension(sizes, kernel, strides, dilations, pads)
    mean, counts_pads = op.op == "AveragePool", op.flag("count_include_pad")
    whole = [pad + (extra[index // 2] if index % 2 else 0) for index, pad in enumerate(pads)]
    pairs = [(whole[2 * axis], whole[2 * axis + 1]) for axis in range(len(kernel))]
    inside = [(pads[2 * axis], pads[2 * axis + 1]) for axis in range(len(kernel))]
    # What counts in a mean: the elements, and the padding that the model asked for, never what ceil_mode adds.
    real = np.pad(np.ones(sizes), inside, constant_values=float(counts_pads))
    real = np.pad(real, [(0, size) for size in extra])
    if any(whole):
        x = mb.pad(x=x, pad=[0, 0, 0, 0, *whole], mode="constant", constant_val=like(x, 0.0 if mean else -np.inf))
    counts = [
        (before + size + after - (extent - 1) * dilation - 1) // stride + 1
        for (before, after), size, extent, dilation, stride in zip(
            pairs, sizes, kernel, dilations, strides, strict=True
        )
    ]
    parts, share = [], np.zeros(counts)
    for place in places:
        first = [at * dilation for at, dilation in zip(place, dilations, strict=True)]
        last = [at + (count - 1) * stride + 1 for at, count, stride in zip(first, counts, strides, strict=True)]
        parts.append(
            mb.slice_by_index(
                x=x,
                begin=[0, 0, *first],
                end=[0, 0, *last],
                stride=[1, 1, *strides],
                begin_mask=[True, True] + [False] * len(kernel),
                end_mask=[True, True] + [False] * len(kernel),
            )
        )
        share += real[tuple(slice(a, b, s) for a, b, s in zip(first, last, strides, strict=True))]
    if not mean:
        return functools.reduce(lambda a, b: mb.maximum(x=a, y=b), parts)
    total = functools.reduce(lambda a, b: mb.add(x=a, y=b), parts)
    return mb.mul(x=total, y=(1 / share).astype(like(x, 0).dtype))


@lowers("LpPool", since=(2, 11, 18, 22), when=_pool_limits)
def lp_pool(op: OpContext) -> Var:
    """(sum of |x|^p over the window)^(1/p): the mean of |x|^p, padding counted as 0, times the window's size."""
    x, order = op.input(), op.integer("p", 2)
    power = mb.mul(x=x, y=x) if order == 2 else mb.abs(x=x)
    if order > 2:
        power = mb.pow(x=power, y=like(x, order))
    window = _window(op, x)
    mean = mb.avg_pool(x=power, exclude_padding_from_average=False, **window)
    total = mb.mul(x=mean, y=like(x, int(np.prod(window["kernel_sizes"]))))
    if order == 1:
        return total
    return mb.sqrt(x=total) if order == 2 else mb.pow(x=total, y=like(x, 1 / order))


def _planes(node: Node) -> Verdict:
    rank = node.rank(0)
    if rank is None or rank < 3:
        return unknown("its input has no known spatial dimensions", remedy="export with a known rank of 3 or more")
    return supported()


@lowers("GlobalAveragePool", since=(1, 22), when=_planes)
def global_average_pool(op: OpContext) -> Var:
    """Mean over all spatial dimensions, kept as size 1."""
    x = op.input()
    return mb.reduce_mean(x=x, axes=list(range(2, x.rank)), keep_dims=True)


@lowers("GlobalMaxPool", since=(1, 22), when=_planes)
def global_max_pool(op: OpContext) -> Var:
    """Maximum over all spatial dimensions, kept as size 1."""
    x = op.input()
    return mb.reduce_max(x=x, axes=list(range(2, x.rank)), keep_dims=True)

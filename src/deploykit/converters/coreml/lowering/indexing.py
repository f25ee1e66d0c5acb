"""Slices, gathers, and what picks elements by position."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Var

from deploykit.converters.coreml.lowering.context import (
    OpContext,
    Refused,
    constant,
    is_fixed,
    lowers,
    positive_axis,
    size_of,
)
from deploykit.opsupport.verdict import Verdict, conditional, supported, unknown, unsupported

if TYPE_CHECKING:
    from deploykit.converters.coreml.lowering.node import Node


def _bounds_known(node: Node) -> Verdict:
    if node.rank(0) is None:
        return unknown("the rank of its input is unknown", remedy="export with a known rank")
    names = {3: "axes", 4: "steps"}
    for position, name in names.items():
        if node.has(position) and node.constant(position) is None:
            return unknown(f"its {name} are computed while the model runs", remedy="deploykit simplify MODEL")
    return supported()


@lowers("Slice", since=(1, 10, 11, 13), when=_bounds_known)
def slice_(op: OpContext) -> Var:
    """Numpy's x[start:end:step] by axis; bounds outside the axis mean its ends, as int64 limits do."""
    x = op.input()
    if op.opset < 10:
        starts, ends = np.array(op.ints("starts")), np.array(op.ints("ends"))
    else:
        starts, ends = op.required_array(1, "start"), op.required_array(2, "end")
    given_axes = op.integers("axes", 3)
    axes = [positive_axis(a, x.rank) for a in (given_axes if given_axes is not None else range(len(starts)))]
    steps = op.integers("steps", 4) if op.has(4) else [1] * len(axes)
    begin, end, stride = [0] * x.rank, [0] * x.rank, [1] * x.rank
    open_begin, open_end = [True] * x.rank, [True] * x.rank
    backwards = []
    for axis, first, last, step in zip(axes, starts.tolist(), ends.tolist(), steps or [], strict=True):
        size = int(x.shape[axis]) if isinstance(x.shape[axis], (int, np.integer)) else None
        if step < 0:
            if size is None:
                raise Refused("it walks backwards over an axis whose size varies", "fix the size, or slice forwards")
            backwards.append(axis)
            first, last = _mirrored(int(first), int(last), size)
        stride[axis] = abs(step)
        begin[axis], open_begin[axis] = _begin(int(first), size)
        end[axis], open_end[axis] = _end(int(last), size)
    if backwards:
        x = mb.reverse(x=x, axes=backwards)
    return mb.slice_by_index(x=x, begin=begin, end=end, stride=stride, begin_mask=open_begin, end_mask=open_end)


def _mirrored(first: int, last: int, size: int) -> tuple[int, int]:
    """Bounds of a backward slice, as those of a forward slice over the reversed axis."""
    first = min(first + size if first < 0 else first, size - 1)
    last = last + size if last < 0 else last
    return max(size - 1 - first, 0), size - 1 - max(last, -1)


def _begin(first: int, size: int | None) -> tuple[int, bool]:
    """Start index for MIL, and whether it is the axis's own start."""
    if size is not None:
        first = min(max(first + size if first < 0 else first, 0), size)
        return first, first == 0
    if first < np.iinfo(np.int32).min:
        return 0, True
    return min(first, int(np.iinfo(np.int32).max)), first == 0


def _end(last: int, size: int | None) -> tuple[int, bool]:
    """End index for MIL, and whether it is the axis's own end."""
    if size is not None:
        last = min(max(last + size if last < 0 else last, 0), size)
        return last, last == size
    return (0, True) if last >= np.iinfo(np.int32).max else (last, False)


def _number_data(node: Node) -> Verdict:
    if node.dtype(0) in ("bool", "string"):
        return unsupported(f"Core ML gathers numbers only, these are {node.dtype(0)}", remedy="cast to int32 before it")
    if node.rank(0) is None:
        return unknown("the rank of its input is unknown", remedy="export with a known rank")
    return supported()


def indices_of(op: OpContext, position: int, x: Var, axis: int) -> Any:
    """Indices without negative ones, which Core ML takes as out of range since iOS17."""
    known = op.constant(position)
    size = x.shape[axis]
    if known is not None and isinstance(size, (int, np.integer)):
        wrapped = np.where(known < 0, known + int(size), known).astype(np.int32)
        if wrapped.size and (wrapped.min() < 0 or wrapped.max() >= size):
            raise Refused(f"an index lies outside its axis of size {size}", "correct the constant in the model")
        return constant(wrapped)
    if known is not None and (known >= 0).all():
        return constant(known.astype(np.int32))
    indices = op.input(position)
    wrapped_indices = mb.add(x=indices, y=size_of(x, axis))
    return mb.select(cond=mb.greater_equal(x=indices, y=np.int32(0)), a=indices, b=wrapped_indices)


@lowers("Gather", since=(1, 11, 13), when=_number_data)
def gather(op: OpContext) -> Var:
    """Numpy's take along an axis."""
    x = op.input(0)
    axis = positive_axis(op.integer("axis", 0), x.rank)
    return mb.gather(x=x, indices=indices_of(op, 1, x, axis), axis=axis)


@lowers("GatherElements", since=(11, 13), when=_number_data)
def gather_elements(op: OpContext) -> Var:
    """Numpy's take_along_axis."""
    x = op.input(0)
    axis = positive_axis(op.integer("axis", 0), x.rank)
    if not is_fixed(x):
        raise Refused("sizes of its data vary, and Core ML wants those of data and indices equal", "fix the sizes")
    return mb.gather_along_axis(x=x, indices=indices_of(op, 1, x, axis), axis=axis)


def _top_form(node: Node) -> Verdict:
    if node.opset >= 10 and node.constant(1) is None:
        return unknown("its k is computed while the model runs", remedy="make k a constant")
    if not node.flag("sorted", default=True):
        return conditional(
            "Core ML returns the values sorted, ONNX leaves the order open here", remedy="nothing: sorted is allowed"
        )
    return conditional(
        "among equal values ONNX takes the lower index first, Core ML does not say which",
        remedy="harmless unless values can be exactly equal",
    )


@lowers("TopK", since=(10, 11, 24), when=_top_form)
def top_k(op: OpContext) -> tuple[Var, ...]:
    """The k largest (or smallest) values along an axis, and their indices."""
    x = op.input()
    count = int(op.required_array(1, "k").reshape(-1)[0])
    axis = positive_axis(op.integer("axis", -1), x.rank)
    values, indices = mb.topk(x=x, k=count, axis=axis, ascending=not op.flag("largest", default=True))
    return values, indices


@lowers("CumSum", since=(11, 14))
def cumulative_sum(op: OpContext) -> Var:
    """Running sum along an axis."""
    x = op.input()
    axis = positive_axis(int(op.required_array(1, "axis").reshape(-1)[0]), x.rank)
    return mb.cumsum(x=x, axis=axis, exclusive=op.flag("exclusive"), reverse=op.flag("reverse"))

"""Slices, gathers, and what picks elements by position."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Var, types

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
    from collections.abc import Callable

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
        known_starts, known_ends = op.constant(1), op.constant(2)
        if known_starts is None or known_ends is None:
            return _running_slice(op, x)
        starts, ends = known_starts, known_ends
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


def _running_slice(op: OpContext, x: Var) -> Var:
    """A slice whose bounds are computed while the model runs: negative ones count from the end, all are cut off."""
    count = int(op.input(1).shape[0])
    axes = [positive_axis(axis, x.rank) for axis in op.integers("axes", 3) or range(count)]
    steps = op.integers("steps", 4) if op.has(4) else [1] * count
    if any(step < 0 for step in steps or []):
        raise Refused("it walks backwards from a place that is computed while the model runs", "slice forwards")
    bounds = [[0] * x.rank, [0] * x.rank]
    opens = [[True] * x.rank, [True] * x.rank]
    stride = [1] * x.rank
    for place, (axis, step) in enumerate(zip(axes, steps or [], strict=True)):
        stride[axis] = step
        size = x.shape[axis]
        for side, (bound, open_) in enumerate(zip(bounds, opens, strict=True)):
            known = op.constant(1 + side)
            if known is not None:
                rule = _end if side else _begin
                fixed = int(size) if isinstance(size, (int, np.integer)) else None
                bound[axis], open_[axis] = rule(int(known.reshape(-1)[place]), fixed)
                continue
            folded = op.input(1 + side).sym_val
            if side and folded is not None and np.asarray(folded).reshape(-1)[place] == size:
                continue  # to the end of the axis, as the sizes themselves say
            open_[axis] = False
            bound[axis] = _bound(element_of(op.input(1 + side), place), size_of(x, axis))
    return mb.slice_by_index(
        x=x, begin=as_vector(bounds[0]), end=as_vector(bounds[1]), stride=stride, begin_mask=opens[0], end_mask=opens[1]
    )


def _bound(place: Var, size: Any) -> Var:
    """A place on an axis, from its end where it is negative, within the axis."""
    wrapped = mb.select(cond=mb.less(x=place, y=np.int32(0)), a=mb.add(x=place, y=_int(size)), b=place)
    return mb.maximum(x=mb.minimum(x=wrapped, y=_int(size)), y=np.int32(0))


def _int(size: Any) -> Any:
    return size if isinstance(size, Var) else np.int32(size)


def element_of(vector: Var, place: int) -> Var:
    """One element as a scalar."""
    return mb.gather(x=vector, indices=np.int32(place), axis=0)


def as_vector(items: list[Any]) -> Any:
    """Numbers and scalar variables as MIL takes a vector: a list when all are numbers."""
    if not any(isinstance(item, Var) for item in items):
        return items
    parts = [item if isinstance(item, Var) else constant(np.array(int(item), np.int32)) for item in items]
    return mb.concat(values=[mb.expand_dims(x=part, axes=[0]) for part in parts], axis=0)


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
    if node.dtype(0) == "string":
        return unsupported("Core ML has no strings", remedy="keep strings out of the model")
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
    indices = indices_of(op, 1, x, axis)
    return as_numbers(x, lambda numbers: mb.gather(x=numbers, indices=indices, axis=axis))


@lowers("GatherElements", since=(11, 13), when=_number_data)
def gather_elements(op: OpContext) -> Var:
    """Numpy's take_along_axis."""
    x = op.input(0)
    axis = positive_axis(op.integer("axis", 0), x.rank)
    indices = indices_of(op, 1, x, axis)
    others = [place for place in range(x.rank) if place != axis and x.shape[place] != indices.shape[place]]
    if others:  # Core ML wants sizes that are equal but on the axis; ONNX reads a block as large as the indices
        if not (is_fixed(x) and is_fixed(indices)):
            places = _places_along(indices, axis)
            return as_numbers(x, lambda numbers: mb.gather_nd(x=numbers, indices=places))
        ends = [int((indices if place in others else x).shape[place]) for place in range(x.rank)]
        x = mb.slice_by_index(x=x, begin=[0] * x.rank, end=ends)
    return as_numbers(x, lambda numbers: mb.gather_along_axis(x=numbers, indices=indices, axis=axis))


def _places_along(indices: Var, axis: int) -> Var:
    """Of every element of the indices its whole place in the data, whatever the sizes."""
    if indices.rank > 4:
        raise Refused("its indices would have rank 6, and a size varies", "fix the sizes")
    none = mb.mul(x=indices, y=np.int32(0))
    parts = []
    for place in range(indices.rank):
        if place == axis:
            parts.append(indices)
            continue
        numbers = mb.range_1d(start=np.int32(0), end=_int(size_of(indices, place)), step=np.int32(1))
        lying = [other for other in range(indices.rank) if other != place]
        parts.append(mb.add(x=mb.expand_dims(x=numbers, axes=lying) if lying else numbers, y=none))
    return mb.stack(values=parts, axis=indices.rank)


def as_numbers(x: Var, build: Callable[[Var], Var]) -> Var:
    """What is built of x; of booleans, which Core ML neither gathers nor scatters, by way of 0 and 1."""
    if x.dtype != types.bool:
        return build(x)
    return mb.not_equal(x=build(mb.cast(x=x, dtype="int32")), y=np.int32(0))


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

"""Writing into a tensor by position, and reading from it by several indices at once."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Var

from deploykit.converters.coreml.lowering.context import (
    OpContext,
    Refused,
    constant,
    is_fixed,
    like,
    lowers,
    positive_axis,
    size_of,
)
from deploykit.converters.coreml.lowering.indexing import as_numbers, indices_of
from deploykit.converters.coreml.lowering.shape import as_shape
from deploykit.opsupport.verdict import Verdict, conditional, supported, unknown, unsupported

if TYPE_CHECKING:
    from deploykit.converters.coreml.lowering.node import Node

_MODES = {"none": "update", "add": "add", "mul": "mul", "max": "max", "min": "min"}
_ONCE = "ONNX leaves open what is written where an index stands twice, and so does Core ML"


def _numbers(node: Node) -> Verdict:
    if node.dtype(0) in ("bool", "string"):
        return unsupported(f"Core ML writes into numbers only, these are {node.dtype(0)}", remedy="cast to int32")
    if node.rank(0) is None or node.rank(1) is None:
        return unknown("the rank of an input is unknown", remedy="export with a known rank")
    if node.text("reduction", "none") not in _MODES:
        return unsupported(f"reduction {node.text('reduction')!r} is not lowered", remedy="use add, mul, max or min")
    if node.text("reduction", "none") == "none" and node.constant(1) is None:
        return conditional(_ONCE, remedy="harmless when the indices of a call are different")
    return supported()


@lowers("ScatterElements", since=(11, 13, 16, 18), when=_numbers)
@lowers("Scatter", since=9, when=_numbers)
def scatter_elements(op: OpContext) -> Var:
    """Writes updates at data[indices along the axis], or adds, multiplies, takes the larger or smaller.

    MIL wants data, indices and updates of the same sizes but on the axis; a smaller block is written by scatter_nd.
    """
    data, updates = op.input(0), op.input(2)
    axis = positive_axis(op.integer("axis", 0), data.rank)
    mode = _MODES[op.text("reduction", "none")]
    known = op.constant(1)
    if known is not None and mode == "update":
        _refuse_twice(np.where(known < 0, known + int(data.shape[axis]), known), axis)
    if not (is_fixed(data) and is_fixed(updates)):
        raise Refused("sizes of its data or updates vary", "fix the sizes")
    same = all(
        int(a) == int(b) for place, (a, b) in enumerate(zip(data.shape, updates.shape, strict=True)) if place != axis
    )
    indices = indices_of(op, 1, data, axis)
    if same:
        return mb.scatter_along_axis(data=data, indices=indices, updates=updates, axis=axis, mode=mode)
    sizes = [int(size) for size in updates.shape]
    grids = np.meshgrid(*[np.arange(size, dtype=np.int32) for size in sizes], indexing="ij")
    parts: list[Any] = [constant(grid[..., None].copy()) for grid in grids]
    parts[axis] = mb.expand_dims(x=indices, axes=[data.rank]) if isinstance(indices, Var) else indices
    if data.rank == 5:
        raise Refused("its indices would have rank 6", "write a block as large as the data, or of fewer dimensions")
    places = mb.concat(values=parts, axis=data.rank)
    return mb.scatter_nd(data=data, indices=places, updates=updates, mode=mode)


def _refuse_twice(indices: np.ndarray[Any, Any], axis: int) -> None:
    """Writing twice to one place has no fixed result."""
    rows = np.moveaxis(indices, axis, -1).reshape(-1, indices.shape[axis])
    if any(len(set(row.tolist())) != len(row) for row in rows):
        raise Refused(_ONCE, "use a reduction, or different indices")


def _nd_form(node: Node) -> Verdict:
    return _numbers(node)


@lowers("ScatterND", since=(11, 13, 16, 18), when=_nd_form)
def scatter_nd(op: OpContext) -> Var:
    """Writes updates at the positions that the last axis of the indices holds, or adds, multiplies, and so on."""
    data = op.input(0)
    mode = _MODES[op.text("reduction", "none")]
    known = op.constant(1)
    if known is not None and mode == "update":
        places = _wrapped(known, data).reshape(-1, known.shape[-1])
        if len({tuple(place) for place in places.tolist()}) != len(places):
            raise Refused(_ONCE, "use a reduction, or different indices")
    return mb.scatter_nd(data=data, indices=_places(op, 1, data, 0), updates=op.input(2), mode=mode)


def _wrapped(known: np.ndarray[Any, Any], x: Var, batch: int = 0) -> np.ndarray[Any, Any]:
    sizes = x.shape[batch : batch + known.shape[-1]]
    if not all(isinstance(size, (int, np.integer)) for size in sizes):
        if (known < 0).any():
            raise Refused("a negative index counts from the end of an axis whose size varies", "use indices from 0")
        return known
    limits = np.array([int(size) for size in sizes])
    wrapped = np.where(known < 0, known + limits, known)
    if (wrapped < 0).any() or (wrapped >= limits).any():
        raise Refused("an index lies outside its axis", "correct the constant in the model")
    return wrapped


def _places(op: OpContext, position: int, x: Var, batch: int) -> Any:
    """Indices without negative ones."""
    known = op.constant(position)
    if known is not None:
        return constant(_wrapped(known, x, batch).astype(np.int32))
    indices = op.input(position)
    depth = indices.shape[-1]
    if not isinstance(depth, (int, np.integer)):
        raise Refused("how many axes its indices address varies", "fix the last axis of the indices")
    sizes = x.shape[batch : batch + int(depth)]
    if not all(isinstance(size, (int, np.integer)) for size in sizes):
        limits: Any = mb.slice_by_index(x=mb.shape(x=x), begin=[batch], end=[batch + int(depth)])
    else:
        limits = np.array([int(size) for size in sizes], np.int32)
    return mb.select(cond=mb.greater_equal(x=indices, y=np.int32(0)), a=indices, b=mb.add(x=indices, y=limits))


def _gathers(node: Node) -> Verdict:
    if node.dtype(0) == "string":
        return unsupported("Core ML has no strings", remedy="keep strings out of the model")
    if node.rank(0) is None or node.rank(1) is None:
        return unknown("the rank of an input is unknown", remedy="export with a known rank")
    return supported()


@lowers("GatherND", since=(11, 12, 13), when=_gathers)
def gather_nd(op: OpContext) -> Var:
    """Slices at the positions that the last axis of the indices holds; leading axes may be shared."""
    x, batch = op.input(0), op.integer("batch_dims", 0)
    places = _places(op, 1, x, batch)
    return as_numbers(x, lambda numbers: mb.gather_nd(x=numbers, indices=places, batch_dims=batch))


@lowers("Compress", since=(9, 11, 28), when=_gathers)
def compress(op: OpContext) -> Var:
    """The slices whose condition is true; of all elements in one row when no axis is given."""
    x, known = op.input(0), op.constant(1)
    if known is not None:
        picks: Any = np.flatnonzero(known).astype(np.int32)
        if not picks.size:
            raise Refused("it keeps nothing, and Core ML has no empty tensors", "remove what uses it")
    else:  # as many as are true while the model runs, as non-maximum suppression has them
        picks = mb.squeeze(x=mb.non_zero(x=mb.cast(x=op.input(1), dtype="int32")), axes=[1])
    if "axis" not in op.raw.attributes:
        return as_numbers(mb.reshape(x=x, shape=[-1]), lambda row: mb.gather(x=row, indices=picks, axis=0))
    axis = positive_axis(op.integer("axis"), x.rank)
    return as_numbers(x, lambda numbers: mb.gather(x=numbers, indices=picks, axis=axis))


def _cache_form(node: Node) -> Verdict:
    if node.dtype(0) in ("bool", "string"):
        return unsupported(f"Core ML writes into numbers only, these are {node.dtype(0)}", remedy="cast to int32")
    if node.rank(0) is None:
        return unknown("the rank of its cache is unknown", remedy="export with a known rank")
    return supported()


@lowers("TensorScatter", since=24, when=_cache_form)
def tensor_scatter(op: OpContext) -> Var:
    """The cache with the update from a place of each batch on along the axis, beyond its end from the start again."""
    cache, update = op.input(0), op.input(1)
    axis = positive_axis(op.integer("axis", -2), cache.rank)
    size, count = cache.shape[axis], update.shape[axis]
    if axis == 0 or not all(isinstance(number, (int, np.integer)) for number in (size, count)):
        raise Refused("the length of its cache or of its update varies", "fix the lengths")
    places: Any = np.arange(int(size), dtype=np.int32)[None]
    if op.has(2):
        start = mb.expand_dims(x=op.input(2), axes=[1])
    else:
        start = mb.fill(shape=as_shape([size_of(cache, 0), 1]), value=np.int32(0))
    turn = mb.sub(x=places, y=start)
    if op.text("mode", "linear") == "circular":
        turn = mb.mod(x=turn, y=np.int32(size))
    low, high = np.int32(0), np.int32(int(count) - 1)
    inside = mb.logical_and(x=mb.greater_equal(x=turn, y=low), y=mb.less_equal(x=turn, y=high))
    moved = mb.maximum(x=mb.minimum(x=turn, y=high), y=low)
    written = mb.gather(x=update, indices=moved, axis=axis, batch_dims=1)
    lying = [place for place in range(1, cache.rank) if place != axis]
    return mb.select(cond=mb.expand_dims(x=inside, axes=lying) if lying else inside, a=written, b=cache)


def _image_known(node: Node) -> Verdict:
    if node.constant(1) is None or node.constant(2) is None:
        return unknown("its shapes are computed while the model runs", remedy="make them constants")
    if node.rank(0) != 3 or node.is_integer(0):
        return unsupported("its input is not [N, C * block, L] of floats", remedy="export with a known rank of 3")
    return supported()


@lowers("Col2Im", since=18, when=_image_known)
def col_to_image(op: OpContext) -> Var:
    """Adds blocks [N, C * block, L] to the places of the image that they came from."""
    x = op.input(0)
    image = [int(size) for size in op.required_array(1, "image shape").reshape(-1)]
    block = [int(size) for size in op.required_array(2, "block shape").reshape(-1)]
    count = len(image)
    if not all(isinstance(size, (int, np.integer)) for size in x.shape[:2]):
        raise Refused("its batch varies", "fix the batch")
    dilations, strides = op.ints("dilations", [1] * count), op.ints("strides", [1] * count)
    pads = op.ints("pads", [0] * 2 * count)
    padded = [size + pads[axis] + pads[axis + count] for axis, size in enumerate(image)]
    steps = [range(0, padded[axis] - (block[axis] - 1) * dilations[axis], strides[axis]) for axis in range(count)]
    offsets = list(itertools.product(*(range(size) for size in block)))
    starts = list(itertools.product(*steps))
    flat = [
        int(np.ravel_multi_index([s + o * d for s, o, d in zip(start, offset, dilations, strict=True)], padded))
        for offset in offsets
        for start in starts
    ]
    batch, channels = int(x.shape[0]), int(x.shape[1]) // len(offsets)
    values = mb.reshape(x=x, shape=[batch * channels, len(offsets) * len(starts)])
    zeros = np.zeros((batch * channels, int(np.prod(padded))), like(x, 0).dtype)
    made = mb.scatter(data=zeros, indices=np.array(flat, np.int32), updates=values, axis=1, mode="add")
    whole = mb.reshape(x=made, shape=[batch, channels, *padded])
    if not any(pads):
        return whole
    return mb.slice_by_index(
        x=whole,
        begin=[0, 0, *pads[:count]],
        end=[batch, channels, *(size + pads[axis] for axis, size in enumerate(image))],
    )

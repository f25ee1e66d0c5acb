"""Operators that move elements in another form: constant shapes, and constant indices where sizes are known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from deploykit.optimizers.editing import input_at, rank_of
from deploykit.optimizers.rewrites.decomposition import Decomposition
from deploykit.optimizers.rewrites.emitting import known_array, size_of
from deploykit.optimizers.rewrites.normalizations import integer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx_ir as ir

    from deploykit.optimizers.rewrites.decomposition import Builder
    from deploykit.optimizers.rewrites.emitting import Emitter

_LONGEST = 65_536  # indices along one axis that are written down


def constant_reshape(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """A shape without 0, and not computed, where at most one size of the result is unknown."""
    output, wanted = node.outputs[0], known_array(input_at(node, 1))
    if output.shape is None:
        return None
    sizes = [size_of(output, at) for at in range(len(output.shape))]
    shape = [-1 if size is None else size for size in sizes]
    if shape.count(-1) > 1 or 0 in shape or (wanted is not None and (0 not in wanted or list(wanted) == shape)):
        return None
    return [op.reshape(_input(node), shape)]


def expand_as_tile(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """Repeats of the dimensions of size 1 that grow; others have to be known not to."""
    x, output, wanted = _input(node), node.outputs[0], known_array(input_at(node, 1))
    rank = rank_of(x)
    if rank is None or output.shape is None or wanted is None:
        return None
    more = len(output.shape) - rank
    repeats = []
    for at in range(len(output.shape)):
        own = 1 if at < more else size_of(x, at - more)
        asked = int(wanted[at - len(output.shape) + len(wanted)]) if at >= len(output.shape) - len(wanted) else 1
        if own is None and asked != 1:  # whether it grows shows at run time
            return None
        repeats.append(asked if own == 1 else 1)
    return [op.op("Tile", op.unsqueeze(x, list(range(more))), op.ints(repeats))]


def pad(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """Pads for all dimensions instead of axes; cut off before what is added; edges and mirrors by their indices.

    spec, Pad-18 and -19: negative pads remove elements.
    """
    x, amounts, mode = _input(node), known_array(input_at(node, 1)), node.attributes.get_string("mode", "constant")
    rank = rank_of(x)
    if op.opset < 11 or rank is None or amounts is None:
        return None
    axes = known_array(input_at(node, 3)) if input_at(node, 3) is not None else np.arange(rank)
    if axes is None or len(amounts) != 2 * len(axes):
        return None
    begins, ends = [0] * rank, [0] * rank
    for at, axis in enumerate(axes):
        begins[int(axis)], ends[int(axis)] = int(amounts[at]), int(amounts[at + len(axes)])
    negative = min(begins + ends) < 0
    if mode == "constant":
        if input_at(node, 3) is None and not negative:
            return None
        value = _cut(op, x, begins, ends)
        added = [max(0, amount) for amount in begins + ends]
        if not any(added):
            return [value]
        return [op.op("Pad", value, op.ints(added), *([] if input_at(node, 2) is None else [input_at(node, 2)]))]
    if negative:
        return None
    value = x
    for axis in range(rank):
        if not begins[axis] and not ends[axis]:
            continue
        indices = _mirrored(size_of(x, axis), begins[axis], ends[axis], mode)
        if indices is None:
            return None
        value = op.op("Gather", value, op.ints(indices), axis=axis)
    return [value]


def _cut(op: Emitter, x: ir.Value, begins: Sequence[int], ends: Sequence[int]) -> ir.Value:
    for axis, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        if begin < 0 or end < 0:
            x = op.slice(x, axis, max(0, -begin), end if end < 0 else np.iinfo(np.int64).max)
    return x


def _mirrored(size: int | None, begin: int, end: int, mode: str) -> list[int] | None:
    if size is None or mode not in ("reflect", "edge", "wrap") or size + begin + end > _LONGEST:
        return None
    if size == 0 or (mode == "reflect" and max(begin, end) >= size) or (mode == "wrap" and max(begin, end) > size):
        return None
    arguments: Any = {"mode": mode}
    return [int(index) for index in np.pad(np.arange(size), (begin, end), **arguments)]


def slice_by_indices(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """Slices with a step below 0 as Gather, along axes of known size; the others stay one Slice."""
    x, starts, ends = _input(node), known_array(input_at(node, 1)), known_array(input_at(node, 2))
    rank = rank_of(x)
    if op.opset < 10 or rank is None or starts is None or ends is None:
        return None
    axes = known_array(input_at(node, 3)) if input_at(node, 3) is not None else np.arange(len(starts))
    steps = known_array(input_at(node, 4)) if input_at(node, 4) is not None else np.ones(len(starts), np.int64)
    if axes is None or steps is None or not (steps < 0).any():
        return None
    forward = [at for at in range(len(starts)) if steps[at] > 0]
    value = x
    if forward:
        value = op.op("Slice", x, *[op.ints([int(part[at]) for at in forward]) for part in (starts, ends, axes, steps)])
    for at in range(len(starts)):
        if steps[at] > 0:
            continue
        axis = int(axes[at]) % rank
        size = size_of(x, axis)
        if size is None or size > _LONGEST:
            return None
        indices = _slice_indices(size, int(starts[at]), int(ends[at]), int(steps[at]))
        value = op.op("Gather", value, op.ints(indices), axis=axis)
    return [value]


def _slice_indices(size: int, start: int, end: int, step: int) -> list[int]:
    """Indices for a step below 0, with ONNX's clamping (spec, Slice-13)."""
    start = min(max(start + size if start < 0 else start, 0), size - 1)
    end = min(max(end + size if end < 0 else end, -1), size)
    return list(range(start, end, step))


def arg_of_last(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """The last of equal extremes is the first of the mirrored axis, counted from its end."""
    x, axis = _input(node), integer(node, "axis", 0)
    rank = rank_of(x)
    if not integer(node, "select_last_index", 0) or rank is None:
        return None
    size = size_of(x, axis)
    if size is None or not 0 < size <= _LONGEST:
        return None
    turned = op.op("Gather", x, op.ints(reversed(range(size))), axis=axis)
    found = op.op(node.op_type, turned, axis=axis, keepdims=integer(node, "keepdims", 1))
    return [op.op("Sub", op.const(np.array(size - 1, np.int64)), found)]


def split_sizes(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """The sizes of the parts written down, where the size of the axis is known."""
    x, axis, count = _input(node), integer(node, "axis", 0), len(node.outputs)
    size = size_of(x, axis) if rank_of(x) is not None else None
    if input_at(node, 1) is not None or "split" in node.attributes or size is None or count == 0:
        return None
    part = -(-size // count)  # the last one is smaller (spec, Split-18)
    sizes = [part] * (size // part if part else 0) + ([size % part] if part and size % part else [])
    return list(op.split(x, axis, sizes)) if len(sizes) == count else None


def one_hot(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """Where an index equals its position; negative indices count from the end (spec, OneHot-11)."""
    indices, depth, values = _input(node), known_array(input_at(node, 1)), input_at(node, 2)
    rank = rank_of(indices)
    if rank is None or depth is None or values is None or indices.dtype is None or values.dtype is None:
        return None
    if indices.dtype.name not in ("INT32", "INT64") or values.dtype.name == "STRING" or op.opset < 11:
        return None
    size = int(depth.ravel()[0])
    axis = integer(node, "axis", -1) % (rank + 1)
    positions = np.arange(size).reshape([-1 if at == axis else 1 for at in range(rank + 1)])
    wrapped = op.op("Add", indices, op.like(size, indices))
    index = op.op("Where", op.op("Less", indices, op.like(0, indices)), wrapped, indices)
    hit = op.op("Equal", op.unsqueeze(index, [axis]), op.const(positions, indices.dtype))
    on = op.op("Gather", values, op.const(np.array(1)), axis=0)
    return [op.op("Where", hit, on, op.op("Gather", values, op.const(np.array(0)), axis=0))]


def _input(node: ir.Node) -> ir.Value:
    value = node.inputs[0]
    if value is None:
        raise ValueError(f"{node.op_type} has no first input")
    return value


class ConstantIndices(Decomposition):
    """Reshape, Expand, Pad, Slice, Split, OneHot, ArgMax and ArgMin with everything known written down."""

    name: ClassVar[str] = "constant-indices"
    title: ClassVar[str] = "writes shapes, pads, parts and positions that are known as constants"
    builders: ClassVar[Mapping[tuple[str, str], Builder]] = {
        ("", "Reshape"): constant_reshape,
        ("", "Expand"): expand_as_tile,
        ("", "Pad"): pad,
        ("", "Slice"): slice_by_indices,
        ("", "Split"): split_sizes,
        ("", "OneHot"): one_hot,
        ("", "ArgMax"): arg_of_last,
        ("", "ArgMin"): arg_of_last,
    }

"""Shapes of tensors of more than five dimensions: reshaping, permuting, cutting, joining, picking."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Var

from deploykit.converters.coreml.lowering.context import OpContext, Refused, constant, positive_axis
from deploykit.converters.coreml.lowering.shape import as_shape
from deploykit.converters.coreml.ranks import Size, Varying, Wide, same
from deploykit.converters.coreml.ranks_values import (
    around,
    broadcast,
    declared_size,
    expanded,
    permuted,
    product,
    size_from,
    view,
)
from deploykit.converters.coreml.ranks_views import axis_of, first, handles, on_views, tensor_of, wide_sizes

if TYPE_CHECKING:
    from collections.abc import Sequence


@handles("Reshape")
def reshape(op: OpContext) -> tuple[Wide, ...]:
    """Another shape of the same elements: nothing happens to them."""
    x = tensor_of(op)
    return (Wide(x.variable, _target(op, x)),)


def _target(op: OpContext, x: Wide) -> tuple[Size, ...]:
    """The sizes that a Reshape asks for: 0 copies the size at its place, -1 is what is left."""
    wanted = op.constant(1)
    shape = None if wanted is not None else op.input(1)
    known = wanted.reshape(-1).tolist() if wanted is not None else _known(shape)
    sizes: list[Size | None] = []
    for axis, size in enumerate(known):
        declared = declared_size(op.raw.outputs[0], axis)
        if isinstance(declared, int):
            sizes.append(declared)
        elif size is None:
            picked = mb.gather(x=shape, indices=np.int32(axis), axis=0)
            sizes.append(size_from(picked, declared))
        elif size == 0 and op.flag("allowzero"):
            raise Refused("allowzero=1 makes an empty tensor, which Core ML does not have", "remove the empty tensor")
        elif size == 0:
            sizes.append(x.sizes[axis])
        else:
            sizes.append(None if size == -1 else int(size))
    if None not in sizes:
        return tuple(size for size in sizes if size is not None)
    place = sizes.index(None)
    rest = _rest(x.sizes, [size for size in sizes if size is not None], declared_size(op.raw.outputs[0], place))
    return tuple(rest if size is None else size for size in sizes)


def _known(shape: Var) -> list[int | None]:
    """The numbers of a shape that is computed while the model runs; None where it varies."""
    values = shape.sym_val if shape.sym_val is not None else [None] * int(shape.shape[0])
    return [int(value) if isinstance(value, (int, np.integer)) else None for value in values]


def _rest(have: Sequence[Size], others: Sequence[Size], declared: int | str | None) -> Size:
    """The number of elements divided by the other sizes'."""
    left, divisors = list(have), []
    for size in others:
        match = next((place for place, own in enumerate(left) if not isinstance(own, int) and same(own, size)), None)
        if match is None:
            divisors.append(size)
        else:
            del left[match]
    total, divisor = product(left), product(divisors)
    if isinstance(total, int) and isinstance(divisor, int):
        if total % divisor:
            raise Refused("the sizes that it asks for do not have as many elements", "correct its shape")
        return total // divisor
    if isinstance(divisor, int) and divisor == 1:
        return next((s for s in left if len(left) == 1 and isinstance(s, Varying)), size_from(total, declared))
    if isinstance(total, int):
        total = constant(np.array(total, np.int32))
    return size_from(mb.floor_div(x=total, y=np.int32(divisor) if isinstance(divisor, int) else divisor), declared)


@handles("Flatten")
def flatten(op: OpContext) -> tuple[Wide, ...]:
    """Two dimensions: the sizes before the axis multiplied, and the rest."""
    x = tensor_of(op)
    axis = positive_axis(op.integer("axis", 1), x.rank)
    made = view(x, [list(range(axis)), list(range(axis, x.rank))])
    return (Wide(made, wide_sizes(made)),)


@handles("Transpose")
def transpose(op: OpContext) -> tuple[Wide, ...]:
    """Permutes axes; reversed when no permutation is given."""
    x = tensor_of(op)
    return (permuted(x, op.ints("perm", list(reversed(range(x.rank))))),)


@handles("Squeeze")
def squeeze(op: OpContext) -> tuple[Wide, ...]:
    """Removes axes of size 1."""
    x, axes = tensor_of(op), op.integers("axes", 1)
    if axes is None:
        if any(isinstance(size, Varying) for size in x.sizes):
            raise Refused("without axes, what it removes depends on sizes that vary", "give the axes")
        axes = [axis for axis, size in enumerate(x.sizes) if size == 1]
    gone = {positive_axis(axis, x.rank) for axis in axes}
    return (Wide(x.variable, tuple(size for axis, size in enumerate(x.sizes) if axis not in gone)),)


@handles("Unsqueeze")
def unsqueeze(op: OpContext) -> tuple[Wide, ...]:
    """Adds axes of size 1; positions count in the result."""
    x, axes = tensor_of(op), op.integers("axes", 1) or []
    rank = x.rank + len(axes)
    new = {positive_axis(axis, rank) for axis in axes}
    old = iter(x.sizes)
    return (Wide(x.variable, tuple(1 if axis in new else next(old) for axis in range(rank))),)


@handles("Expand")
def expand(op: OpContext) -> tuple[Wide, ...]:
    """Broadcasts x and the shape to each other."""
    x, wanted = tensor_of(op), op.constant(1)
    known = wanted.reshape(-1).tolist() if wanted is not None else _known(op.input(1))
    rank = max(len(known), x.rank)
    target: list[Size] = []
    for axis, size in enumerate(known):
        declared = declared_size(op.raw.outputs[0], axis + rank - len(known))
        own_axis = axis + x.rank - len(known)
        own = x.sizes[own_axis] if own_axis >= 0 else 1
        if size is not None:
            target.append(int(size))
        elif isinstance(declared, int):
            target.append(declared)
        elif own != 1:
            target.append(own)  # it can only be that size, or 1, which leaves it
        else:
            target.append(size_from(mb.gather(x=op.input(1), indices=np.int32(axis), axis=0), declared))
    return (expanded(x, broadcast([x.sizes, target])),)


@handles("Tile")
def tile(op: OpContext) -> tuple[Wide, ...]:
    """Repeats along one axis after the other."""
    x = tensor_of(op)
    sizes = list(x.sizes)
    for axis, times in enumerate(int(size) for size in op.required_array(1, "list of repeats").reshape(-1)):
        if times != 1:
            made = mb.tile(x=around(Wide(x.variable, tuple(sizes)), axis), reps=[1, times, 1])
            size = sizes[axis]
            sizes[axis] = size * times if isinstance(size, int) else size_from(product([size, times]), None)
            x = Wide(made, tuple(sizes))
    return (Wide(x.variable, tuple(sizes)),)


@handles("Shape")
def shape(op: OpContext) -> tuple[Wide, ...]:
    """The sizes as a vector, from `start` to `end`."""
    x = tensor_of(op)
    start, end = positive_axis(op.integer("start", 0), x.rank), positive_axis(op.integer("end", x.rank), x.rank)
    sizes = x.sizes[min(max(start, 0), x.rank) : min(max(end, 0), x.rank)]
    made = as_shape([size if isinstance(size, int) else size.variable for size in sizes])
    return (Wide(constant(np.array(made, np.int32)) if isinstance(made, list) else made, (len(sizes),)),)


@handles("Slice")
def slice_(op: OpContext) -> tuple[Wide, ...]:
    """One axis after the other."""
    x = tensor_of(op)
    if op.opset < 10:
        starts, ends = np.array(op.ints("starts")), np.array(op.ints("ends"))
    else:
        starts, ends = op.required_array(1, "start"), op.required_array(2, "end")
    axes = op.integers("axes", 3)
    axes = list(range(len(starts))) if axes is None else [positive_axis(axis, x.rank) for axis in axes]
    steps = op.integers("steps", 4) if op.has(4) else [1] * len(axes)
    for axis, start, end, step in zip(axes, starts.tolist(), ends.tolist(), steps or [], strict=True):
        one = [np.array([number], np.int64) for number in (start, end, 1, step)]
        if op.opset < 10:
            made = first(op, [around(x, axis)], starts=[start], ends=[end], axes=[1])
        else:
            made = first(op, [around(x, axis), *one])
        x = Wide(made, (*x.sizes[:axis], wide_sizes(made)[1], *x.sizes[axis + 1 :]))
    return (x,)


@handles("Pad")
def pad(op: OpContext) -> tuple[Wide, ...]:
    """One axis after the other."""
    x, given = tensor_of(op), op.integers("pads", 1)
    if given is None or op.opset < 11:
        raise Refused("its pads are computed while the model runs, or of opset 10 and before", "make them constant")
    axes = op.integers("axes", 3) if op.has(3) else list(range(x.rank))
    for place, axis in enumerate(positive_axis(axis, x.rank) for axis in axes or ()):
        before, after = given[place], given[place + len(axes or ())]
        if before or after:
            pads = np.array([0, before, 0, 0, after, 0], np.int64)
            made = first(op, [around(x, axis), pads, 2 if op.has(2) else None])
            x = Wide(made, (*x.sizes[:axis], wide_sizes(made)[1], *x.sizes[axis + 1 :]))
    return (x,)


@handles("Split")
def split(op: OpContext) -> tuple[Wide, ...]:
    """Cuts along an axis."""
    x = tensor_of(op)
    axis = axis_of(op, x.rank, 0)
    inputs: list[Any] = [around(x, axis), *([1] if op.has(1) else [])]
    made = [part for part in on_views(op, inputs, axis=1) if part is not None]
    return tuple(Wide(part, (*x.sizes[:axis], wide_sizes(part)[1], *x.sizes[axis + 1 :])) for part in made)


@handles("Concat")
def concat(op: OpContext) -> tuple[Wide, ...]:
    """Joins along an axis."""
    tensors = [tensor_of(op, position) for position in range(op.input_count)]
    axis = axis_of(op, tensors[0].rank, 0)
    # What the tensors have in common may be a number in one and vary in another.
    sizes = list(broadcast([[*t.sizes[:axis], 1, *t.sizes[axis + 1 :]] for t in tensors]))
    made = first(op, [around(tensor, axis) for tensor in tensors], axis=1)
    sizes[axis] = wide_sizes(made)[1]
    return (Wide(made, tuple(sizes)),)


@handles("Gather")
def gather(op: OpContext) -> tuple[Wide, ...]:
    """Numpy's take along an axis; indices of several dimensions as one."""
    x, indices = tensor_of(op, 0), tensor_of(op, 1)
    axis = axis_of(op, x.rank, 0)
    sizes = (*x.sizes[:axis], *indices.sizes, *x.sizes[axis + 1 :])
    if indices.rank <= 1:
        return (Wide(first(op, [around(x, axis), 1], axis=1), sizes),)
    known = op.constant(1)
    flat = view(indices, [list(range(indices.rank))]) if known is None else known.reshape(-1)
    return (Wide(first(op, [around(x, axis), flat], axis=1), sizes),)

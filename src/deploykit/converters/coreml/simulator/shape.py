"""Shapes: reshaping, joining, cutting, padding."""

from __future__ import annotations

from typing import Any

import numpy as np

from deploykit.converters.coreml.simulator.table import Array, Undocumented, evaluates, flag, integers, text


@evaluates("reshape")
def reshape(x: Array, shape: Any) -> Any:
    """Another shape; 0 copies the size at the same position from the right (iOS17; equal ranks before)."""
    sizes = integers(shape) if np.asarray(shape).size else []
    for place, size in enumerate(sizes):
        if size == 0:
            source = x.ndim - (len(sizes) - place)
            sizes[place] = x.shape[source] if source >= 0 else 1
    return x.reshape(sizes)


@evaluates("reshape_like")
def reshape_like(x: Array, ref_tensors: list[Array], begins: Any, ends: Any, end_masks: Any) -> Any:
    """The shape joined from parts of other tensors' shapes."""
    sizes: list[int] = []
    for tensor, begin, end, mask in zip(ref_tensors, begins, ends, end_masks, strict=True):
        sizes += tensor.shape[int(begin) : None if bool(mask) else int(end)]
    return x.reshape(sizes)


@evaluates("flatten2d")
def flatten2d(x: Array, axis: Any = 1) -> Any:
    """2-D: the sizes before the axis multiplied, and the rest."""
    return x.reshape(int(np.prod(x.shape[: int(axis)])), -1)


@evaluates("shape")
def shape_of(x: Array) -> Any:
    """The sizes."""
    return np.array(x.shape, np.int32)


@evaluates("expand_dims")
def expand_dims(x: Array, axes: Any) -> Any:
    """New axes of size 1; positions in the result."""
    return np.expand_dims(x, tuple(integers(axes)))


@evaluates("squeeze")
def squeeze(x: Array, axes: Any = None) -> Any:
    """Without the axes of size 1."""
    return np.squeeze(x, None if axes is None else tuple(integers(axes)))


@evaluates("transpose")
def transpose(x: Array, perm: Any) -> Any:
    """Permuted axes."""
    return np.transpose(x, integers(perm))


@evaluates("tile")
def tile(x: Array, reps: Any) -> Any:
    """Repeated along every axis."""
    return np.tile(x, integers(reps))


@evaluates("concat")
def concat(values: list[Array], axis: Any, interleave: Any = False) -> Any:
    """Joined along an axis, scalars to a vector; interleave takes one slice of each in turn."""
    values = [np.atleast_1d(value) for value in values]
    if not flag(interleave):
        return np.concatenate(values, axis=int(axis))
    at = int(axis) % values[0].ndim
    stacked = np.stack(values, axis=at + 1)
    return stacked.reshape(*stacked.shape[:at], -1, *stacked.shape[at + 2 :])


@evaluates("stack")
def stack(values: list[Array], axis: Any) -> Any:
    """Joined along a new axis."""
    return np.stack(values, axis=int(axis))


@evaluates("split")
def split(x: Array, num_splits: Any = None, split_sizes: Any = None, axis: Any = 0) -> list[Array]:
    """Cut along an axis, into equal parts or given sizes."""
    if split_sizes is None:
        return np.split(x, int(num_splits), int(axis))
    return np.split(x, np.cumsum(integers(split_sizes))[:-1], int(axis))


@evaluates("reverse")
def reverse(x: Array, axes: Any = None) -> Any:
    """Backwards along the axes, along all when none are given."""
    return np.flip(x, None if axes is None else tuple(integers(axes)))


@evaluates("reverse_sequence")
def reverse_sequence(x: Array, lengths: Any, seq_axis: Any = 0, batch_axis: Any = 0) -> Any:
    """The first `lengths[i]` elements of each sequence backwards."""
    made = np.moveaxis(x.copy(), (int(batch_axis), int(seq_axis)), (0, 1))
    for row, length in enumerate(integers(lengths)):
        made[row, :length] = made[row, :length][::-1].copy()
    return np.moveaxis(made, (0, 1), (int(batch_axis), int(seq_axis)))


def slices_of(
    x: Array, begin: Any, end: Any, stride: Any, begin_mask: Any, end_mask: Any, squeeze_mask: Any
) -> tuple[slice | int, ...]:
    """The index of `slice_by_index`: masks open an end, a squeeze mask picks one element."""
    rank = x.ndim
    first, last = integers(begin), integers(end)
    steps = [1] * rank if stride is None else integers(stride)
    open_begin = [flag(m) for m in begin_mask] if begin_mask is not None else [False] * rank
    open_end = [flag(m) for m in end_mask] if end_mask is not None else [False] * rank
    single = [flag(m) for m in squeeze_mask] if squeeze_mask is not None else [False] * rank
    return tuple(
        first[axis]
        if single[axis]
        else slice(
            None if open_begin[axis] else first[axis],
            None if open_end[axis] else last[axis],
            steps[axis],
        )
        for axis in range(rank)
    )


@evaluates("slice_by_index")
def slice_by_index(
    x: Array,
    begin: Any,
    end: Any,
    stride: Any = None,
    begin_mask: Any = None,
    end_mask: Any = None,
    squeeze_mask: Any = None,
) -> Any:
    """As numpy slices."""
    return np.asarray(x[slices_of(x, begin, end, stride, begin_mask, end_mask, squeeze_mask)])


@evaluates("slice_update")
def slice_update(
    x: Array,
    update: Array,
    begin: Any,
    end: Any,
    stride: Any = None,
    begin_mask: Any = None,
    end_mask: Any = None,
    squeeze_mask: Any = None,
) -> Any:
    """x with a slice replaced."""
    made = x.copy()
    made[slices_of(x, begin, end, stride, begin_mask, end_mask, squeeze_mask)] = update
    return made


@evaluates("slice_by_size")
def slice_by_size(x: Array, begin: Any, size: Any) -> Any:
    """`size` elements from `begin` on; -1: all that follow."""
    pairs = zip(integers(begin), integers(size), strict=True)
    return x[tuple(slice(first, None if count == -1 else first + count) for first, count in pairs)]


@evaluates("sliding_windows")
def sliding_windows(x: Array, axis: Any, size: Any, stride: Any = 1) -> Any:
    """All windows along an axis, as a new axis after it."""
    at = int(axis) % x.ndim
    view = np.lib.stride_tricks.sliding_window_view(x, int(size), axis=at)
    return np.moveaxis(view, -1, at + 1)[(slice(None),) * at + (slice(None, None, int(stride)),)]


@evaluates("pad")
def pad(x: Array, pad: Any, mode: Any = "constant", constant_val: Any = 0.0) -> Any:
    """Pads the last axes: [before, after] each."""
    pairs = [(before, after) for before, after in np.asarray(pad, np.int64).reshape(-1, 2).tolist()]
    pairs = [(0, 0)] * (x.ndim - len(pairs)) + pairs
    kind = text(mode)
    if kind == "constant":
        return np.pad(x, pairs, constant_values=x.dtype.type(constant_val))
    if kind not in ("reflect", "replicate"):
        raise Undocumented(f"padding mode {kind!r}")
    return np.pad(x, pairs, mode="reflect" if kind == "reflect" else "edge")


@evaluates("fill")
def fill(shape: Any, value: Any = 0.0) -> Any:
    """One value everywhere."""
    return np.full(integers(shape), value)


@evaluates("fill_like")
def fill_like(ref_tensor: Array, value: Any = 0.0) -> Any:
    """One value everywhere, in another tensor's shape."""
    return np.full(ref_tensor.shape, value)


@evaluates("range_1d")
def range_1d(end: Any, start: Any, step: Any) -> Any:
    """From start to end (not reached) by step."""
    return np.arange(np.asarray(start).item(), np.asarray(end).item(), np.asarray(step).item())


@evaluates("band_part")
def band_part(x: Array, lower: Any = -1, upper: Any = -1) -> Any:
    """Zero outside a band around the diagonal; -1 keeps that side."""
    row, column = np.arange(x.shape[-2])[:, None], np.arange(x.shape[-1])[None]
    below, above = int(lower), int(upper)
    keeps = ((below < 0) | (row - column <= below)) & ((above < 0) | (column - row <= above))
    return np.where(keeps, x, np.zeros((), x.dtype))


@evaluates("depth_to_space")
def depth_to_space(x: Array, block_size: Any) -> Any:
    """Channels to blocks of the plane, the block before the channel."""
    n, c, h, w = x.shape
    b = int(block_size)
    return x.reshape(n, b, b, c // b**2, h, w).transpose(0, 3, 4, 1, 5, 2).reshape(n, c // b**2, h * b, w * b)


@evaluates("space_to_depth")
def space_to_depth(x: Array, block_size: Any) -> Any:
    """Blocks of the plane to channels, the block before the channel."""
    n, c, h, w = x.shape
    b = int(block_size)
    return x.reshape(n, c, h // b, b, w // b, b).transpose(0, 3, 5, 1, 2, 4).reshape(n, c * b * b, h // b, w // b)


@evaluates("pixel_shuffle")
def pixel_shuffle(x: Array, upscale_factor: Any) -> Any:
    """Channels to blocks of the plane, the channel before the block."""
    n, c, h, w = x.shape
    b = int(upscale_factor)
    return x.reshape(n, c // b**2, b, b, h, w).transpose(0, 1, 4, 2, 5, 3).reshape(n, c // b**2, h * b, w * b)


@evaluates("pixel_unshuffle")
def pixel_unshuffle(x: Array, downscale_factor: Any) -> Any:
    """Blocks of the plane to channels, the channel before the block."""
    n, c, h, w = x.shape
    b = int(downscale_factor)
    return x.reshape(n, c, h // b, b, w // b, b).transpose(0, 1, 3, 5, 2, 4).reshape(n, c * b * b, h // b, w // b)

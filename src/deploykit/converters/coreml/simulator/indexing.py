"""Gathers, scatters, and what is picked by position."""

from __future__ import annotations

from typing import Any

import numpy as np

from deploykit.converters.coreml.simulator.table import Array, Undocumented, evaluates, flag, text

_MODES: dict[str, Any] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "max": np.maximum,
    "min": np.minimum,
}


def _inside(indices: Array, size: int) -> Any:
    """The indices, refused where they lie outside: negative ones count as outside since iOS17."""
    if indices.size and (indices.min() < 0 or indices.max() >= size):
        raise Undocumented(f"an index {int(indices.min())}..{int(indices.max())} outside 0..{size - 1}")
    return indices.astype(np.int64)


@evaluates("gather")
def gather(x: Array, indices: Any, axis: Any = 0, batch_dims: Any = 0, validate_indices: Any = False) -> Any:
    """Slices along an axis; batch_dims leading axes are shared by x and indices."""
    at, batch = int(axis) % x.ndim, int(batch_dims)
    picks = _inside(np.asarray(indices), x.shape[at])
    if not batch:
        return np.take(x, picks, axis=at)
    lead = x.shape[:batch]
    rows = [
        np.take(one, pick, axis=at - batch)
        for one, pick in zip(x.reshape(-1, *x.shape[batch:]), picks.reshape(-1, *picks.shape[batch:]), strict=True)
    ]
    made = np.stack(rows)
    return made.reshape(*lead, *made.shape[1:])


@evaluates("gather_along_axis")
def gather_along_axis(x: Array, indices: Array, axis: Any = 0, validate_indices: Any = False) -> Any:
    """Elements along an axis, one for each index."""
    return np.take_along_axis(x, _inside(indices, x.shape[int(axis)]), axis=int(axis))


@evaluates("gather_nd")
def gather_nd(x: Array, indices: Array, batch_dims: Any = 0, validate_indices: Any = False) -> Any:
    """Slices at positions that the last axis of the indices holds."""
    batch = int(batch_dims)
    if not batch:
        return np.asarray(x[_positions(indices, x.shape)])
    lead = x.shape[:batch]
    flat, picks = x.reshape(-1, *x.shape[batch:]), indices.reshape(-1, *indices.shape[batch:])
    made = np.stack([one[_positions(pick, one.shape)] for one, pick in zip(flat, picks, strict=True)])
    return made.reshape(*lead, *made.shape[1:])


def _positions(indices: Array, shape: tuple[int, ...]) -> tuple[Array, ...]:
    return tuple(_inside(indices[..., place], shape[place]) for place in range(indices.shape[-1]))


def _apply(made: Array, where: tuple[Any, ...], updates: Array, mode: str) -> None:
    if mode == "update":
        target = np.zeros(made.shape, np.int32)
        np.add.at(target, where, 1)
        if (target > 1).any():
            raise Undocumented("a scatter that updates a position twice")
        made[where] = updates
    elif mode in _MODES:
        _MODES[mode].at(made, where, updates)
    else:
        raise Undocumented(f"scatter mode {mode!r}")


@evaluates("scatter")
def scatter(
    data: Array, indices: Any, updates: Array, axis: Any = 0, mode: Any = "add", validate_indices: Any = False
) -> Any:
    """Slices along an axis, changed by updates."""
    made, at = data.copy(), int(axis) % data.ndim
    picks = _inside(np.asarray(indices), data.shape[at])
    _apply(made, (slice(None),) * at + (picks,), updates, text(mode))
    return made


@evaluates("scatter_along_axis")
def scatter_along_axis(
    data: Array, indices: Array, updates: Array, axis: Any = 0, mode: Any = "add", validate_indices: Any = False
) -> Any:
    """Elements along an axis, changed by updates."""
    made, at = data.copy(), int(axis) % data.ndim
    where: list[Any] = list(np.indices(indices.shape, sparse=True))
    where[at] = _inside(indices, data.shape[at])
    _apply(made, tuple(np.broadcast_arrays(*where)), updates, text(mode))
    return made


@evaluates("scatter_nd")
def scatter_nd(data: Array, indices: Array, updates: Array, mode: Any = "add", validate_indices: Any = False) -> Any:
    """Slices at positions that the last axis of the indices holds, changed by updates."""
    made = data.copy()
    _apply(made, _positions(indices, data.shape), updates, text(mode))
    return made


@evaluates("one_hot")
def one_hot(indices: Array, one_hot_vector_size: Any, axis: Any = -1, on_value: Any = 1, off_value: Any = 0) -> Any:
    """on_value at each index along a new axis, off_value elsewhere."""
    size = int(one_hot_vector_size)
    at = int(axis) % (indices.ndim + 1)
    shape = [1] * (indices.ndim + 1)
    shape[at] = size
    hits = np.expand_dims(_inside(indices, size), at) == np.arange(size).reshape(shape)
    return np.where(hits, on_value, off_value)


@evaluates("non_zero")
def non_zero(x: Array) -> Any:
    """Positions that are not zero, a row each."""
    return np.argwhere(x).astype(np.int32)


@evaluates("non_maximum_suppression")
def non_maximum_suppression(**arguments: Any) -> Any:
    """Refused: how the result is padded and how equal scores are ordered is not documented."""
    per_class = flag(arguments.get("per_class_suppression"))
    raise Undocumented(f"non_maximum_suppression (per_class_suppression={per_class})")

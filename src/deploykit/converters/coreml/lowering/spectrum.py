"""Fourier transforms as products with fixed matrices, and short-time ones as a convolution."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Var

from deploykit.converters.coreml.lowering.context import OpContext, Refused, like, lowers, positive_axis, size_of
from deploykit.converters.coreml.lowering.shape import as_shape
from deploykit.opsupport.verdict import Verdict, supported, unknown, unsupported

if TYPE_CHECKING:
    from deploykit.converters.coreml.lowering.node import Node

_MOST = 4096  # a longer transform is a matrix of more than 128 MB


def _form(node: Node) -> Verdict:
    if node.dtype(0) not in ("float32", "float16", None):
        return unsupported(f"its signal is {node.dtype(0)}", remedy="cast to float32 before it")
    for position, what in (
        ((1, "length"), (2, "axis")) if node.op == "DFT" else ((1, "step"), (2, "window"), (3, "length"))
    ):
        if node.has(position) and node.constant(position) is None:
            return unknown(f"its {what} is computed while the model runs", remedy="make it a constant")
    return supported()


def _matrices(rows: int, columns: int, length: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Cosines and sines of 2 pi row * column / length, [rows, columns]; the product modulo the length, exactly."""
    angles = np.outer(np.arange(rows), np.arange(columns)) % length * (2 * np.pi / length)
    return np.cos(angles), np.sin(angles)


@lowers("DFT", since=(17, 20), when=_form)
def dft(op: OpContext) -> Var:
    """The transform along an axis of [..., 1] (real) or [..., 2] (real and imaginary parts), by its definition."""
    x = op.input(0)
    axis = op.integer("axis", 1) if op.opset < 20 else int(op.required_array(2, "axis")) if op.has(2) else -2
    axis = positive_axis(axis, x.rank)
    size, parts = x.shape[axis], x.shape[-1]
    if not all(isinstance(number, (int, np.integer)) for number in (size, parts)) or axis == x.rank - 1:
        raise Refused("the size that it transforms varies", "fix the size")
    inverse, onesided = op.flag("inverse"), op.flag("onesided")
    length = int(size) if not (inverse and onesided) else 2 * (int(size) - 1)
    if op.has(1):
        length = int(op.required_array(1, "length").reshape(-1)[0])
    if length > _MOST or length < 1:
        raise Refused(f"it transforms {length} elements", f"transform at most {_MOST}")
    half = length // 2 + 1
    given = min(int(size), half if inverse and onesided else length)
    order = [other for other in range(x.rank - 1) if other != axis] + [axis]
    real, imaginary = (_part(x, place, order, given) if place < int(parts) else None for place in (0, 1))
    columns = half if onesided and not inverse else length
    cosines, sines = _matrices(given, columns, length)
    if inverse and onesided:  # the other half is the conjugate of this one
        twice = np.full(given, 2.0)
        twice[0] = 1.0
        if length % 2 == 0 and given == half:
            twice[-1] = 1.0
        cosines, sines = cosines * twice[:, None], sines * twice[:, None]
    scale = 1 / length if inverse else 1.0
    turn = 1.0 if inverse else -1.0
    made = [_sum(real, cosines * scale, imaginary, -turn * sines * scale)]
    if not (inverse and onesided):
        made.append(_sum(real, turn * sines * scale, imaginary, cosines * scale))
    stacked = mb.stack(values=made, axis=x.rank - 1) if len(made) > 1 else mb.expand_dims(x=made[0], axes=[x.rank - 1])
    return mb.transpose(x=stacked, perm=[*(order.index(place) for place in range(x.rank - 1)), x.rank - 1])


def _part(x: Var, place: int, order: list[int], given: int) -> Var:
    """The real (0) or imaginary (1) part with the transformed axis last, cut to what the transform reads."""
    picked = mb.gather(x=x, indices=np.int32(place), axis=x.rank - 1)
    last = mb.transpose(x=picked, perm=order) if order != sorted(order) else picked
    if given == last.shape[-1]:
        return last
    open_ = [True] * (last.rank - 1) + [False]
    return mb.slice_by_index(
        x=last, begin=[0] * last.rank, end=[0] * (last.rank - 1) + [given], begin_mask=open_, end_mask=open_
    )


def _sum(real: Var, left: np.ndarray[Any, Any], imaginary: Var | None, right: np.ndarray[Any, Any]) -> Var:
    kind = like(real, 0).dtype
    made = _product(real, left.astype(kind))
    return made if imaginary is None else mb.add(x=made, y=_product(imaginary, right.astype(kind)))


def _product(x: Var, matrix: np.ndarray[Any, Any]) -> Var:
    wide = mb.expand_dims(x=x, axes=[0]) if x.rank == 1 else x
    made = mb.matmul(x=wide, y=matrix)
    return mb.squeeze(x=made, axes=[0]) if x.rank == 1 else made


@lowers("STFT", since=17, when=_form)
def stft(op: OpContext) -> Var:
    """Spectra [N, frames, bins, 2] of a real signal [N, length, 1]: a convolution with windowed cosines and sines."""
    x = op.input(0)
    if x.rank != 3 or x.shape[2] != 1:
        raise Refused("its signal is not real, [N, length, 1]", "transform real and imaginary parts apart")
    window = op.required_array(2, "window").reshape(-1) if op.has(2) else None
    length = int(op.required_array(3, "length").reshape(-1)[0]) if op.has(3) else None
    if length is None and window is None:
        raise Refused("it has neither a window nor a length of frames", "give one of them")
    length = len(window) if length is None and window is not None else int(length or 0)
    if window is not None and len(window) != length:
        raise Refused(f"its window has {len(window)} elements, its frames {length}", "give a window of the same length")
    if length > _MOST:
        raise Refused(f"it transforms {length} elements", f"transform at most {_MOST}")
    bins = length // 2 + 1 if op.flag("onesided", default=True) else length
    cosines, sines = _matrices(bins, length, length)
    weight = np.concatenate([cosines, -sines]) * (1.0 if window is None else window.astype(np.float64))
    signal = mb.reshape(x=x, shape=as_shape([size_of(x, 0), 1, size_of(x, 1)]))
    made = mb.conv(
        x=signal,
        weight=weight[:, None].astype(like(x, 0).dtype),
        strides=[int(op.required_array(1, "step").reshape(-1)[0])],
        pad_type="valid",
    )
    parts = mb.reshape(x=made, shape=as_shape([size_of(made, 0), 2, bins, size_of(made, 2)]))
    return mb.transpose(x=parts, perm=[0, 3, 2, 1])

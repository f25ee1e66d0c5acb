"""Sampling an image at positions that are computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Var, types

from deploykit.converters.coreml.lowering.context import OpContext, Refused, like, lowers, size_of
from deploykit.converters.coreml.lowering.indexing import element_of
from deploykit.converters.coreml.lowering.shape import as_shape
from deploykit.opsupport.verdict import Verdict, supported, unsupported

if TYPE_CHECKING:
    from deploykit.converters.coreml.lowering.node import Node

_PADDING = {"zeros": "constant", "border": "border"}


def _bilinear(node: Node) -> Verdict:
    if node.rank(0) != 4:
        return unsupported("Core ML samples 4-D images only", remedy="export with a known rank of 4")
    mode = node.text("mode", "linear")
    if mode not in ("linear", "bilinear"):
        return unsupported(
            f"Core ML has no {mode} sampling of which the rounding is documented", remedy="sample linearly"
        )
    if node.text("padding_mode", "zeros") not in _PADDING:
        return unsupported("where Core ML reflects is not documented for both alignments", remedy="use zeros or border")
    return supported()


@lowers("GridSample", since=(16, 20, 22), when=_bilinear)
def grid_sample(op: OpContext) -> Var:
    """Bilinear samples of x [N, C, H, W] at grid [N, H2, W2, (x, y)], positions from -1 to 1."""
    x = op.input(0)
    return mb.resample(
        x=x,
        coordinates=op.input(1),
        sampling_mode="bilinear",
        padding_mode=_PADDING[op.text("padding_mode", "zeros")],
        padding_value=like(x, 0),
        coordinates_mode="normalized_minus_one_to_one",
        align_corners=op.flag("align_corners"),
    )


def _affine_form(node: Node) -> Verdict:
    if node.dtype(0) not in ("float32", "float16", None):
        return unsupported(f"Core ML has no grids of {node.dtype(0)}", remedy="cast to float32 before it")
    return supported()


@lowers("AffineGrid", since=20, when=_affine_form)
def affine_grid(op: OpContext) -> Var:
    """Positions of theta [N, K, K + 1] applied to the pixels' own: [N, *plane, K], from -1 to 1 (AffineGrid-20)."""
    theta, sizes = op.input(0), op.partial(1)
    count, kind, aligned = int(theta.shape[1]), like(theta, 0).dtype, op.flag("align_corners")
    known = [None] * count if sizes is None else sizes[2:]
    plane = [element_of(op.input(1), 2 + place) if size is None else size for place, size in enumerate(known)]
    if all(isinstance(size, int) for size in plane):
        if aligned and 1 in plane:
            raise Refused("its corners are aligned over a single pixel, whose place is not defined", "align_corners=0")
        axes = [np.linspace(-1, 1, size) if aligned else (2 * np.arange(size) + 1) / size - 1 for size in plane]
        grids = np.meshgrid(*axes, indexing="ij")[::-1]
        base: Any = np.stack([*(grid.reshape(-1) for grid in grids), np.ones(grids[0].size)], axis=-1).astype(kind)
    else:
        base = _running_base(plane, theta, aligned=aligned)
    made = mb.matmul(x=mb.expand_dims(x=base, axes=[0]), y=theta, transpose_x=False, transpose_y=True)
    return mb.reshape(x=made, shape=as_shape([size_of(theta, 0), *plane, count]))


def _running_base(plane: list[Any], theta: Var, *, aligned: bool) -> Var:
    """[pixels, K + 1] of a plane whose sizes are computed while the model runs: every pixel's place, and 1."""
    none = mb.fill(shape=as_shape(plane), value=like(theta, 0))
    columns = []
    for axis, size in reversed(list(enumerate(plane))):
        count = size if isinstance(size, Var) else np.int32(size)
        numbers = mb.range_1d(start=np.int32(0), end=count, step=np.int32(1))
        at, whole = (mb.cast(x=part, dtype=types.builtin_to_string(theta.dtype)) for part in (numbers, count))
        if aligned:
            at = mb.real_div(x=mb.mul(x=at, y=like(theta, 2)), y=mb.sub(x=whole, y=like(theta, 1)))
        else:
            at = mb.real_div(x=mb.add(x=mb.mul(x=at, y=like(theta, 2)), y=like(theta, 1)), y=whole)
        at = mb.sub(x=at, y=like(theta, 1))
        lying = [other for other in range(len(plane)) if other != axis]
        columns.append(mb.reshape(x=mb.add(x=mb.expand_dims(x=at, axes=lying), y=none), shape=[-1]))
    columns.append(mb.reshape(x=mb.add(x=none, y=like(theta, 1)), shape=[-1]))
    return mb.stack(values=columns, axis=1)

"""Sampling an image at positions that are computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Var, types

from deploykit.converters.coreml.lowering.context import OpContext, Refused, like, lowers, size_of
from deploykit.converters.coreml.lowering.indexing import element_of
from deploykit.converters.coreml.lowering.sampling_grid import sampled
from deploykit.converters.coreml.lowering.shape import as_shape
from deploykit.opsupport.verdict import Verdict, supported, unsupported

if TYPE_CHECKING:
    from deploykit.converters.coreml.lowering.node import Node

_PADDING = {"zeros": "constant", "border": "border"}
_MODES = {"bilinear": "linear", "bicubic": "cubic", "linear": "linear", "cubic": "cubic", "nearest": "nearest"}


def _sampling_form(node: Node) -> Verdict:
    rank = node.rank(0)
    if rank not in (3, 4, 5):
        return unsupported("its input has no 1 to 3 spatial dimensions", remedy="export with a known rank of 3 to 5")
    mode, padding = node.text("mode", "linear"), node.text("padding_mode", "zeros")
    if mode not in _MODES or padding not in ("zeros", "border", "reflection"):
        return unsupported(f"{mode} sampling with {padding} is none of ONNX's", remedy="sample linearly, with zeros")
    if _MODES[mode] == "cubic" and padding != "zeros":
        return unsupported(
            f"cubic sampling with {padding}: ONNX moves positions into the image first, PyTorch does not",
            remedy="use zeros, or sample linearly",
        )
    if _MODES[mode] == "cubic" and rank == 5:
        return unsupported("cubic sampling of volumes takes 64 gathers", remedy="sample linearly")
    return supported()


@lowers("GridSample", since=(16, 20, 22), when=_sampling_form)
def grid_sample(op: OpContext) -> Var:
    """Samples of x [N, C, *plane] at grid [N, *out, K] from -1 to 1: MIL's `resample`, else by gathers."""
    x, mode, padding = op.input(0), _MODES[op.text("mode", "linear")], op.text("padding_mode", "zeros")
    aligned = op.flag("align_corners")
    if x.rank != 4 or mode != "linear" or padding not in _PADDING:
        return sampled(x, op.input(1), mode, padding, aligned=aligned)
    return mb.resample(
        x=x,
        coordinates=op.input(1),
        sampling_mode="bilinear",
        padding_mode=_PADDING[padding],
        padding_value=like(x, 0),
        coordinates_mode="normalized_minus_one_to_one",
        align_corners=aligned,
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

"""Sampling an image at positions that are computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Var

from deploykit.converters.coreml.lowering.context import OpContext, like, lowers
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

"""Resizing of images by whole factors, where Core ML's sampling points are ONNX's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Var

from deploykit.converters.coreml.lowering.context import OpContext, Refused, lowers, positive_axis
from deploykit.opsupport.verdict import Verdict, supported, unknown, unsupported

if TYPE_CHECKING:
    from deploykit.converters.coreml.lowering.node import Node

_REMEDY = "resize by a whole factor, nearest (asymmetric, floor) or linear (half_pixel or align_corners)"
# (coordinate_transformation_mode, nearest_mode) that take element floor(i / factor) for a whole factor: with half
# pixels the position is floor(i / factor) plus something within (-0.5, 0.5), so that any rounding gives the same.
_NEAREST = {
    ("asymmetric", "floor"),
    ("half_pixel", "round_prefer_floor"),
    ("half_pixel", "round_prefer_ceil"),
    ("pytorch_half_pixel", "round_prefer_floor"),
    ("pytorch_half_pixel", "round_prefer_ceil"),
}
_LINEAR = {"half_pixel": False, "pytorch_half_pixel": False, "align_corners": True}


def _sampling(node: Node) -> tuple[str, str, str]:
    """Mode, coordinate transformation, rounding; before opset 11 positions are i / factor, rounded down."""
    mode = node.text("mode", "nearest")
    if node.op == "Upsample" or node.opset < 11:
        return mode, "asymmetric", "floor"
    return (
        mode,
        node.text("coordinate_transformation_mode", "half_pixel"),
        node.text("nearest_mode", "round_prefer_floor"),
    )


def _form(node: Node) -> Verdict:
    rank = node.rank(0)
    if rank is None:
        return unknown("the rank of its input is unknown", remedy="export with a known rank")
    mode, coordinates, rounding = _sampling(node)
    if rank != 4 or node.is_integer(0):
        return unsupported("Core ML resizes 4-D floats only", remedy="add dimensions, cast to float32")
    if mode not in ("nearest", "linear"):
        return unsupported(f"Core ML has no {mode} interpolation", remedy=_REMEDY)
    fits = (coordinates, rounding) in _NEAREST if mode == "nearest" else coordinates in _LINEAR
    if not fits or node.flag("antialias") or node.text("keep_aspect_ratio_policy", "stretch") != "stretch":
        return unsupported(f"Core ML does not sample as {mode}, {coordinates}, {rounding} do", remedy=_REMEDY)
    return supported()


@lowers("Resize", since=(10, 11, 13, 18, 19), when=_form)
@lowers("Upsample", since=9, when=_form)
def resize(op: OpContext) -> Var:
    """Resize of x [N, C, H, W] by whole factors in H and W."""
    x = op.input()
    height, width = _factors(op, x)
    mode, coordinates, _ = _sampling(op)
    if mode == "nearest":
        return mb.upsample_nearest_neighbor(x=x, scale_factor_height=height, scale_factor_width=width)
    return mb.upsample_bilinear(
        x=x, scale_factor_height=height, scale_factor_width=width, align_corners=_LINEAR[coordinates]
    )


def _factors(op: OpContext, x: Var) -> tuple[int, int]:
    place = 1 if op.op == "Upsample" or op.opset < 11 else 2
    scales, sizes = op.constant(place), op.constant(3) if place == 2 else None
    axes = [positive_axis(axis, 4) for axis in op.ints("axes", range(4))]
    factors = [1.0] * 4
    if scales is not None and scales.size:
        for axis, factor in zip(axes, scales.reshape(-1).tolist(), strict=True):
            factors[axis] = factor
    elif sizes is not None:
        for axis, size in zip(axes, sizes.reshape(-1).tolist(), strict=True):
            have = x.shape[axis]
            if str(have).isdigit():
                factors[axis] = int(size) / int(have)
            elif axis > 0:
                raise Refused("it resizes a size that varies to a fixed one", _REMEDY)
    else:
        raise Refused("its factors are computed while the model runs", "make the factors constant")
    if factors[:2] != [1.0, 1.0] or any(factor < 1 or factor != int(factor) for factor in factors):
        raise Refused(f"its factors are {factors}", _REMEDY)
    return int(factors[2]), int(factors[3])

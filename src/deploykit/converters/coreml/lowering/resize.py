"""Resizing: Core ML's own samplers where they sample as ONNX does, otherwise a product with the weights."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Var, types

from deploykit.converters.coreml.lowering.context import OpContext, Refused, is_fixed, lowers, positive_axis
from deploykit.converters.coreml.lowering.sampling import Sampling, nearest, positions, weights
from deploykit.opsupport.verdict import Verdict, conditional, supported, unknown, unsupported

if TYPE_CHECKING:
    from deploykit.converters.coreml.lowering.node import Node

_REMEDY = "fix the sizes (deploykit export --dim), or resize 4-D images by a whole factor, nearest or linear"
# (coordinate_transformation_mode, nearest_mode) that take element floor(i / factor) for a whole factor: with half
# pixels the position is floor(i / factor) plus something within (-0.5, 0.5), so that any rounding gives the same.
_NEAREST = {
    ("asymmetric", "floor"),
    ("half_pixel", "round_prefer_floor"),
    ("half_pixel", "round_prefer_ceil"),
    ("pytorch_half_pixel", "round_prefer_floor"),
    ("pytorch_half_pixel", "round_prefer_ceil"),
}
_LINEAR = {
    "half_pixel": "UNALIGN_CORNERS",
    "pytorch_half_pixel": "UNALIGN_CORNERS",
    "align_corners": "STRICT_ALIGN_CORNERS",
}
_COORDINATES = {
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize",
}  # fmt: skip


def _sampling(node: Node) -> Sampling:
    """Before opset 11 positions are i / factor, rounded down."""
    mode = node.text("mode", "nearest")
    if node.op == "Upsample" or node.opset < 11:
        return Sampling(mode, "asymmetric", "floor")
    return Sampling(
        mode,
        node.text("coordinate_transformation_mode", "half_pixel"),
        node.text("nearest_mode", "round_prefer_floor"),
        node.real("cubic_coeff_a", -0.75),
        node.flag("exclude_outside"),
        node.flag("antialias"),
    )


def _form(node: Node) -> Verdict:
    rank = node.rank(0)
    if rank is None:
        return unknown("the rank of its input is unknown", remedy="export with a known rank")
    how = _sampling(node)
    if node.is_integer(0) or node.dtype(0) == "bool":
        return unsupported("Core ML resizes floats only", remedy="cast to float32 before it")
    if how.mode not in ("nearest", "linear", "cubic") or how.coordinates not in _COORDINATES:
        return unsupported(f"{how.mode} with {how.coordinates} is no ONNX resizing", remedy=_REMEDY)
    if how.antialias and how.mode == "nearest":
        return unsupported("nearest has no antialiasing", remedy=_REMEDY)
    computed = node.op == "Resize" and node.opset >= 11 and node.has(3) and node.constant(3) is None
    if computed and how.coordinates == "pytorch_half_pixel":
        return conditional(
            "a side that is resized to a single element is sampled elsewhere in Core ML",
            remedy="harmless as long as every resized side has 2 elements or more",
        )
    return supported()


@lowers("Resize", since=(10, 11, 13, 18, 19), when=_form)
@lowers("Upsample", since=(9, 10), when=_form)
def resize(op: OpContext) -> Var:
    """Resize of any axes in any mode."""
    x, how = op.input(), _sampling(op)
    running = _running(op, x, how)
    if running is not None:
        return running
    scales, sizes = _asked(op, x)
    native = _by_core_ml(x, how, scales, sizes)
    if native is not None:
        return native
    changed = [axis for axis in range(x.rank) if scales[axis] != 1 or how.coordinates == "tf_crop_and_resize"]
    outside: dict[int, np.ndarray[Any, Any]] = {}
    rois = _rois(op, x.rank)
    for axis in changed:
        size, count = x.shape[axis], sizes[axis]
        if not isinstance(size, (int, np.integer)) or count is None:
            raise Refused("it resizes a size that varies, and not by a whole factor", _REMEDY)
        ends = how.coordinates in ("align_corners", "tf_crop_and_resize")
        if ends and not math.isclose(int(size) * scales[axis], count, rel_tol=1e-6):
            raise Refused(
                f"{how.coordinates} over {size} * {scales[axis]:g} elements: ONNX's reference and ONNX Runtime differ",
                "give sizes instead of scales",
            )
        points = positions(how, int(size), count, scales[axis], rois[axis])
        if how.coordinates == "tf_crop_and_resize":
            outside[axis] = (points < 0) | (points > int(size) - 1)
        x = _resampled(x, axis, how, points, scales[axis])
    if any(mask.any() for mask in outside.values()):
        x = _extrapolated(x, outside, op.real("extrapolation_value", 0.0))
    return x if changed else mb.identity(x=x)


def _running(op: OpContext, x: Var, how: Sampling) -> Var | None:
    """Images resized linearly to height and width that are computed while the model runs; None for all else."""
    asked = op.partial(3) if op.op == "Resize" and op.opset >= 11 and op.has(3) else None
    if (
        asked is None
        or len(asked) != x.rank
        or None not in asked[2:]
        or all(_is_size_of(op, x, axis, axis) for axis, size in enumerate(asked) if size is None)
    ):
        return None
    if x.rank != 4 or how.mode != "linear" or how.antialias or how.coordinates not in _LINEAR:
        raise Refused("its sizes are computed while the model runs", _REMEDY)
    for axis in (0, 1):
        if asked[axis] is None:
            _refuse_other_size(op, x, axis, axis)
        elif asked[axis] != x.shape[axis]:
            raise Refused("it resizes more than height and width, to sizes that are computed", _REMEDY)
    if op.text("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise Refused("it keeps an aspect ratio, and a size varies", _REMEDY)
    return mb.resize(
        x=x,
        shape=mb.slice_by_index(x=op.input(3), begin=[2], end=[4]),
        resized_dims=np.uint32(2),
        interpolation_mode="LINEAR",
        sampling_mode=_LINEAR[how.coordinates],
    )


def _resampled(x: Var, axis: int, how: Sampling, points: np.ndarray[Any, Any], scale: float) -> Var:
    size = int(x.shape[axis])
    if how.mode == "nearest":
        picks = nearest(how, points, size)
        if picks is None:
            raise Refused("a position lies between two elements, and rounding decides which it takes", _REMEDY)
        return mb.gather(x=x, indices=picks.astype(np.int32), axis=axis)
    matrix = weights(how, points, size, scale).astype(types.nptype_from_builtin(x.dtype))
    if axis == x.rank - 1:
        return (
            mb.matmul(x=mb.expand_dims(x=x, axes=[0]), y=matrix.T.copy())
            if x.rank == 1
            else mb.matmul(x=x, y=matrix.T.copy())
        )
    if axis == x.rank - 2:
        return mb.matmul(x=matrix, y=x)
    order = [other for other in range(x.rank) if other != axis] + [axis]
    made = mb.matmul(x=mb.transpose(x=x, perm=order), y=matrix.T.copy())
    return mb.transpose(x=made, perm=[order.index(place) for place in range(x.rank)])


def _extrapolated(x: Var, outside: dict[int, np.ndarray[Any, Any]], value: float) -> Var:
    """The extrapolation value wherever any axis was sampled outside."""
    if not is_fixed(x):
        raise Refused("it extrapolates, and a size varies", _REMEDY)
    shape = [int(size) for size in x.shape]
    mask = np.zeros(shape, bool)
    for axis, rows in outside.items():
        mask |= rows.reshape([-1 if place == axis else 1 for place in range(len(shape))])
    kind = types.nptype_from_builtin(x.dtype)
    return mb.select(cond=mask, a=np.full(shape, value, kind), b=x)


def _by_core_ml(x: Var, how: Sampling, scales: list[float], sizes: list[int | None]) -> Var | None:
    """Core ML's own operator for the last two axes of a 4-D input, where its sampling points are ONNX's."""
    if x.rank != 4 or scales[:2] != [1.0, 1.0] or how.antialias or how.coordinates == "tf_crop_and_resize":
        return None
    height, width = scales[2:]
    whole = all(scale >= 1 and scale == int(scale) for scale in (height, width))
    if whole and how.mode == "nearest" and (how.coordinates, how.rounding) in _NEAREST:
        return mb.upsample_nearest_neighbor(x=x, scale_factor_height=int(height), scale_factor_width=int(width))
    if how.mode != "linear" or how.coordinates not in _LINEAR:
        return None
    if whole:
        aligned = how.coordinates == "align_corners"
        return mb.upsample_bilinear(
            x=x, scale_factor_height=int(height), scale_factor_width=int(width), align_corners=aligned
        )
    exact = all(
        isinstance(size, (int, np.integer))
        and count is not None
        and math.isclose(int(size) * scale, count, rel_tol=1e-9)
        for size, scale, count in zip(x.shape[2:], scales[2:], sizes[2:], strict=True)
    )
    if not exact or 1 in sizes[2:]:  # a single sample lies elsewhere in some modes
        return None
    return mb.resize_bilinear(
        x=x, target_size_height=sizes[2], target_size_width=sizes[3], sampling_mode=_LINEAR[how.coordinates]
    )


def _asked(op: OpContext, x: Var) -> tuple[list[float], list[int | None]]:
    """Scale and resulting size of every axis; no size where it varies."""
    place = 1 if op.op == "Upsample" or op.opset < 11 else 2
    scales, sizes = op.constant(place), op.partial(3) if place == 2 and op.has(3) else None
    axes = [positive_axis(axis, x.rank) for axis in op.ints("axes", range(x.rank))]
    have = [int(size) if isinstance(size, (int, np.integer)) else None for size in x.shape]
    factors, counts = [1.0] * x.rank, list(have)
    if scales is not None and scales.size:
        for axis, factor in zip(axes, scales.reshape(-1).tolist(), strict=True):
            size, factors[axis] = have[axis], factor
            # The spec takes the floor of the product; in the scales' own precision, as engines do.
            counts[axis] = None if size is None else int(np.floor(np.float32(size) * np.float32(factor)))
    elif sizes is not None:
        asked = dict(zip(axes, sizes, strict=True))
        for axis in [axis for axis, count in asked.items() if count is None]:
            _refuse_other_size(op, x, axes.index(axis), axis)
        wanted = {axis: count for axis, count in asked.items() if count is not None}
        for axis, count in wanted.items():
            size = have[axis]
            if size is None:
                if axis == 0:  # the batch, whose size a graph of one sample has written down
                    continue
                raise Refused("it resizes a size that varies to a fixed one", _REMEDY)
            factors[axis], counts[axis] = count / size, count
        _keep_aspect(op, wanted, have, factors, counts)
    else:
        raise Refused("its factors are computed while the model runs", "make the factors constant")
    return factors, counts


def _is_size_of(op: OpContext, x: Var, place: int, axis: int) -> bool:
    folded = op.input(3).sym_val
    return folded is not None and np.asarray(folded).reshape(-1)[place] == x.shape[axis]


def _refuse_other_size(op: OpContext, x: Var, place: int, axis: int) -> None:
    """A size that varies may be asked for on an axis that has that very size: it is not resized."""
    if not _is_size_of(op, x, place, axis):
        raise Refused("its sizes are computed while the model runs", _REMEDY)


def _keep_aspect(
    op: OpContext, wanted: dict[int, int], have: list[int | None], factors: list[float], counts: list[int | None]
) -> None:
    """One factor for all axes: the smallest (not_larger) or largest (not_smaller), sizes rounded half up."""
    policy = op.text("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return
    pick = min if policy == "not_larger" else max
    factor = pick(factors[axis] for axis in wanted)
    for axis in wanted:
        size = have[axis]
        if size is None:
            raise Refused("it keeps an aspect ratio, and a size varies", _REMEDY)
        factors[axis], counts[axis] = factor, math.floor(factor * size + 0.5)


def _rois(op: OpContext, rank: int) -> list[tuple[float, float]]:
    whole = [(0.0, 1.0)] * rank
    if op.opset < 11 or op.op == "Upsample" or op.text("coordinate_transformation_mode") != "tf_crop_and_resize":
        return whole
    roi = op.required_array(1, "region of interest").reshape(-1).tolist()
    axes = [positive_axis(axis, rank) for axis in op.ints("axes", range(rank))]
    for place, axis in enumerate(axes):
        whole[axis] = (roi[place], roi[place + len(axes)])
    return whole

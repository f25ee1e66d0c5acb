"""Detection: non-maximum suppression as ONNX defines it, and positions that are not zero."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Var, types

from deploykit.converters.coreml.lowering.context import OpContext, Refused, is_fixed, lowers, size_of
from deploykit.converters.coreml.lowering.shape import as_shape
from deploykit.opsupport.verdict import Verdict, supported, unsupported

if TYPE_CHECKING:
    from deploykit.converters.coreml.lowering.node import Node

_REMEDY = "make the limits constants, or keep the suppression in the application"


def _limits_known(node: Node) -> Verdict:
    if not node.has(2) or any(node.has(place) and node.constant(place) is None for place in (2, 3, 4)):
        return unsupported("its limits are computed while the model runs, or it selects without one", remedy=_REMEDY)
    if node.dtype(0) != "float32":
        return unsupported("areas of boxes do not fit float16", remedy="cast boxes and scores to float32")
    return supported()


@lowers("NonMaxSuppression", since=(10, 11), when=_limits_known)
def non_max_suppression(op: OpContext) -> Var:
    """Rows (batch, class, box): of each class the best box over and over, without those that it covers too much.

    A loop of the program, since what Core ML's own operator does with padding and equal scores is not documented.
    Among equal scores the box that comes first, as in ONNX Runtime.
    """
    boxes, scores = op.input(0), op.input(1)
    classes, count = scores.shape[1], size_of(scores, 2)
    if not isinstance(classes, (int, np.integer)):
        raise Refused("the number of its classes varies", "fix it")
    most = int(op.required_array(2, "limit").reshape(-1)[0])
    most = most if isinstance(count, Var) else min(most, count)
    if most <= 0:
        raise Refused("it selects nothing, and Core ML has no empty tensors", "give a limit above 0")
    covered = float(op.required_array(3, "threshold").reshape(-1)[0]) if op.has(3) else 0.0
    shape = as_shape([-1, count])
    flat = mb.reshape(x=scores, shape=shape)
    if op.has(4):
        enough = mb.greater(x=flat, y=np.float32(op.required_array(4, "threshold").reshape(-1)[0]))
        flat = mb.select(cond=enough, a=flat, b=_filled(flat, np.float32(-np.inf)))
    corners = _corners(boxes, int(classes), shape, centred=op.flag("center_point_box"))
    return _rows(_loop(flat, corners, most, count, covered), int(classes), most)


def _filled(like_it: Var, value: Any) -> Var:
    """A tensor of one value, as large as another."""
    if is_fixed(like_it):
        return mb.const(val=np.full([int(size) for size in like_it.shape], value))
    return mb.fill(shape=mb.shape(x=like_it), value=value)


def _corners(boxes: Var, classes: int, shape: Any, *, centred: bool) -> list[Var]:
    """y1, x1, y2, x2 and area, [batch * classes, count] each; corners may be given in any order."""
    parts = [mb.squeeze(x=part, axes=[2]) for part in mb.split(x=boxes, num_splits=4, axis=2)]
    if centred:
        x, y, width, height = parts
        half_w, half_h = mb.mul(x=width, y=np.float32(0.5)), mb.mul(x=height, y=np.float32(0.5))
        parts = [mb.sub(x=y, y=half_h), mb.sub(x=x, y=half_w), mb.add(x=y, y=half_h), mb.add(x=x, y=half_w)]
    top, bottom = mb.minimum(x=parts[0], y=parts[2]), mb.maximum(x=parts[0], y=parts[2])
    left, right = mb.minimum(x=parts[1], y=parts[3]), mb.maximum(x=parts[1], y=parts[3])
    area = mb.mul(x=mb.sub(x=bottom, y=top), y=mb.sub(x=right, y=left))

    def by_class(part: Var) -> Var:
        return mb.reshape(x=mb.tile(x=mb.expand_dims(x=part, axes=[1]), reps=[1, classes, 1]), shape=shape)

    return [by_class(part) for part in (top, left, bottom, right, area)]


def _loop(scores: Var, corners: list[Var], most: int, count: Any, covered: float) -> Var:
    """[rows, most] of int32: the boxes in the order in which they are picked, -1 where none is left."""
    columns = np.arange(most, dtype=np.int32)[None]
    order: Any = np.arange(1, count + 1, dtype=np.int32)[None] if not isinstance(count, Var) else None
    if order is None:
        numbers = mb.range_1d(start=np.int32(1), end=mb.add(x=count, y=np.int32(1)), step=np.int32(1))
        order = mb.expand_dims(x=numbers, axes=[0])
    total = count if isinstance(count, Var) else np.int32(count)
    turned = mb.sub(x=mb.add(x=total, y=np.int32(1)), y=order)  # the first of equal ones has the largest number
    gone = _filled(scores, np.float32(-np.inf))

    def test(turn: Var, _scores: Var, _picked: Var) -> Var:
        return mb.less(x=turn, y=np.int32(most))

    def body(turn: Var, left: Var, picked: Var) -> tuple[Var, ...]:
        best = mb.reduce_max(x=left, axes=[1], keep_dims=True)
        hits = mb.cast(x=mb.equal(x=left, y=best), dtype="int32")
        first = mb.sub(x=total, y=mb.reduce_max(x=mb.mul(x=hits, y=turned), axes=[1], keep_dims=True))
        there = mb.cast(x=mb.greater(x=best, y=np.float32(-3.4e38)), dtype="int32")
        ahead = mb.sub(x=mb.mul(x=mb.add(x=first, y=np.int32(1)), y=there), y=np.int32(1))
        here = mb.cast(x=mb.equal(x=turn, y=columns), dtype="int32")
        picked = mb.add(x=mb.mul(x=picked, y=mb.sub(x=np.int32(1), y=here)), y=mb.mul(x=ahead, y=here))
        own = [mb.gather_along_axis(x=part, indices=first, axis=1) for part in corners]
        cover = _covers(corners, own, covered)
        itself = mb.equal(x=first, y=mb.sub(x=order, y=np.int32(1)))
        left = mb.select(cond=mb.logical_or(x=cover, y=itself), a=gone, b=left)
        return mb.add(x=turn, y=np.int32(1)), left, picked

    if is_fixed(scores):
        empty = mb.const(val=np.full((int(scores.shape[0]), most), -1, np.int32))
    else:
        empty = mb.fill(shape=as_shape([size_of(scores, 0), most]), value=np.int32(-1))
    return mb.while_loop(_cond=test, _body=body, loop_vars=(np.int32(0), scores, empty))[2]


def _covers(boxes: list[Var], own: list[Var], limit: float) -> Var:
    """Where intersection over union with the picked box is above the limit; boxes without area cover nothing."""
    height = mb.sub(x=mb.minimum(x=boxes[2], y=own[2]), y=mb.maximum(x=boxes[0], y=own[0]))
    width = mb.sub(x=mb.minimum(x=boxes[3], y=own[3]), y=mb.maximum(x=boxes[1], y=own[1]))
    common = mb.mul(x=mb.relu(x=height), y=mb.relu(x=width))
    union = mb.sub(x=mb.add(x=boxes[4], y=own[4]), y=common)
    safe = mb.select(cond=mb.greater(x=union, y=np.float32(0)), a=union, b=_filled(union, np.float32(1)))
    some = mb.greater(x=common, y=np.float32(0))
    return mb.logical_and(x=mb.greater(x=mb.real_div(x=common, y=safe), y=np.float32(limit)), y=some)


def _rows(picked: Var, classes: int, most: int) -> Var:
    """(batch, class, box) of what was picked, by batch, class and turn."""
    flat = mb.reshape(x=picked, shape=[-1])
    size = flat.shape[0]
    if isinstance(size, (int, np.integer)):
        places: Any = np.arange(int(size), dtype=np.int32)
        owners: list[Any] = [(places // (classes * most))[:, None], (places // most % classes)[:, None]]
    else:
        places = mb.range_1d(start=np.int32(0), end=size_of(flat, 0), step=np.int32(1))
        image = mb.floor_div(x=places, y=np.int32(classes * most))
        label = mb.mod(x=mb.floor_div(x=places, y=np.int32(most)), y=np.int32(classes))
        owners = [mb.expand_dims(x=column, axes=[1]) for column in (image, label)]
    table = mb.concat(values=[*owners, mb.expand_dims(x=flat, axes=[1])], axis=1)
    kept = mb.squeeze(x=mb.non_zero(x=mb.cast(x=mb.greater_equal(x=flat, y=np.int32(0)), dtype="int32")), axes=[1])
    return mb.gather(x=table, indices=kept, axis=0)


@lowers("NonZero", since=(9, 13))
def non_zero(op: OpContext) -> Var:
    """Positions of what is not zero, an axis a row."""
    x = op.input()
    x = mb.cast(x=x, dtype="int32") if x.dtype == types.bool else x
    return mb.transpose(x=mb.non_zero(x=x), perm=[1, 0])

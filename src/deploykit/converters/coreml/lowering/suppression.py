"""Detection: non-maximum suppression as ONNX defines it, and positions that are not zero."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Var, types

from deploykit.converters.coreml.lowering.context import OpContext, Refused, is_fixed, lowers
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
    if not (is_fixed(boxes) and is_fixed(scores)):
        raise Refused("the number of its boxes or its batch varies", "fix the sizes")
    batch, classes, count = (int(size) for size in scores.shape)
    most = min(int(op.required_array(2, "limit").reshape(-1)[0]), count)
    if most <= 0:
        raise Refused("it selects nothing, and Core ML has no empty tensors", "give a limit above 0")
    covered = float(op.required_array(3, "threshold").reshape(-1)[0]) if op.has(3) else 0.0
    rows = batch * classes
    flat = mb.reshape(x=scores, shape=[rows, count])
    lowest = np.float32(-np.inf)
    if op.has(4):
        enough = mb.greater(x=flat, y=np.float32(op.required_array(4, "threshold").reshape(-1)[0]))
        flat = mb.select(cond=enough, a=flat, b=np.full((rows, count), lowest))
    corners = _corners(boxes, batch, classes, count, centred=op.flag("center_point_box"))
    picked = _loop(flat, corners, most, count, covered)
    return _rows(picked, batch, classes, most)


def _corners(boxes: Var, batch: int, classes: int, count: int, *, centred: bool) -> list[Var]:
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
        wide = mb.tile(x=mb.expand_dims(x=part, axes=[1]), reps=[1, classes, 1])
        return mb.reshape(x=wide, shape=[batch * classes, count])

    return [by_class(part) for part in (top, left, bottom, right, area)]


def _loop(scores: Var, corners: list[Var], most: int, count: int, covered: float) -> Var:
    """[rows, most] of int32: the boxes in the order in which they are picked, -1 where none is left."""
    rows = int(scores.shape[0])
    order = np.arange(count, 0, -1, dtype=np.int32)[None]
    columns = np.arange(most, dtype=np.int32)[None]
    gone = np.full((rows, count), -np.inf, np.float32)

    def test(turn: Var, _scores: Var, _picked: Var) -> Var:
        return mb.less(x=turn, y=np.int32(most))

    def body(turn: Var, left: Var, picked: Var) -> tuple[Var, ...]:
        best = mb.reduce_max(x=left, axes=[1], keep_dims=True)
        hits = mb.cast(x=mb.equal(x=left, y=best), dtype="int32")
        first = mb.sub(x=np.int32(count), y=mb.reduce_max(x=mb.mul(x=hits, y=order), axes=[1], keep_dims=True))
        there = mb.greater(x=best, y=np.float32(-3.4e38))
        ahead = mb.select(cond=there, a=first, b=np.full((rows, 1), -1, np.int32))
        here = mb.cast(x=mb.equal(x=turn, y=columns), dtype="int32")
        picked = mb.add(x=mb.mul(x=picked, y=mb.sub(x=np.int32(1), y=here)), y=mb.mul(x=ahead, y=here))
        own = [mb.gather_along_axis(x=part, indices=first, axis=1) for part in corners]
        cover = _covers(corners, own, covered)
        itself = mb.equal(x=first, y=np.arange(count, dtype=np.int32)[None])
        left = mb.select(cond=mb.logical_or(x=cover, y=itself), a=gone, b=left)
        return mb.add(x=turn, y=np.int32(1)), left, picked

    empty = mb.const(val=np.full((rows, most), -1, np.int32))
    return mb.while_loop(_cond=test, _body=body, loop_vars=(np.int32(0), scores, empty))[2]


def _covers(boxes: list[Var], own: list[Var], limit: float) -> Var:
    """Where intersection over union with the picked box is above the limit; boxes without area cover nothing."""
    height = mb.sub(x=mb.minimum(x=boxes[2], y=own[2]), y=mb.maximum(x=boxes[0], y=own[0]))
    width = mb.sub(x=mb.minimum(x=boxes[3], y=own[3]), y=mb.maximum(x=boxes[1], y=own[1]))
    common = mb.mul(x=mb.relu(x=height), y=mb.relu(x=width))
    union = mb.sub(x=mb.add(x=boxes[4], y=own[4]), y=common)
    safe = mb.select(cond=mb.greater(x=union, y=np.float32(0)), a=union, b=np.ones(boxes[4].shape, np.float32))
    some = mb.greater(x=common, y=np.float32(0))
    return mb.logical_and(x=mb.greater(x=mb.real_div(x=common, y=safe), y=np.float32(limit)), y=some)


def _rows(picked: Var, batch: int, classes: int, most: int) -> Var:
    """(batch, class, box) of what was picked, by batch, class and turn."""
    grid: Any = np.stack(np.meshgrid(np.arange(batch), np.arange(classes), np.arange(most), indexing="ij"), -1)
    owners = grid.reshape(-1, 3)[:, :2].astype(np.int32)
    flat = mb.reshape(x=picked, shape=[batch * classes * most])
    table = mb.concat(values=[owners, mb.expand_dims(x=flat, axes=[1])], axis=1)
    kept = mb.squeeze(x=mb.non_zero(x=mb.cast(x=mb.greater_equal(x=flat, y=np.int32(0)), dtype="int32")), axes=[1])
    return mb.gather(x=table, indices=kept, axis=0)


@lowers("NonZero", since=(9, 13))
def non_zero(op: OpContext) -> Var:
    """Positions of what is not zero, an axis a row."""
    x = op.input()
    x = mb.cast(x=x, dtype="int32") if x.dtype == types.bool else x
    return mb.transpose(x=mb.non_zero(x=x), perm=[1, 0])

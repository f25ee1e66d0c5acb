"""Padding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Var, types

from deploykit.converters.coreml.lowering.context import OpContext, Refused, like, lowers, positive_axis, size_of
from deploykit.converters.coreml.lowering.shape import as_shape, known_rank
from deploykit.opsupport.verdict import Verdict, unknown, unsupported

if TYPE_CHECKING:
    from deploykit.converters.coreml.lowering.node import Node


def _pad_form(node: Node) -> Verdict:
    mode = node.text("mode", "constant")
    if mode not in ("constant", "reflect", "edge", "wrap"):
        return unsupported(f"Core ML has no padding mode {mode!r}", remedy="use constant, reflect, edge or wrap")
    if node.has(1) and node.constant(1) is None and (mode != "constant" or node.has(3)):
        return unknown("its pads are computed while the model runs", remedy="deploykit simplify MODEL")
    if node.has(3) and node.constant(3) is None:
        return unknown("its axes are computed while the model runs", remedy="deploykit simplify MODEL")
    if node.has(2) and node.constant(2) is None:
        return unknown("its value is computed while the model runs", remedy="make the value a constant")
    return known_rank(node)


@lowers("Pad", since=(2, 11, 13, 18, 19, 21, 23, 24, 25), when=_pad_form)
def pad(op: OpContext) -> Var:
    """Pads (negative ones cut) with a constant, by reflection, or with the edge; integers through float."""
    x = op.input()
    if op.has(1) and op.constant(1) is None:
        return _running(op, x)
    given = op.integers("pads", 1) or []
    axes = op.integers("axes", 3) if op.has(3) else None
    axes = [positive_axis(axis, x.rank) for axis in axes] if axes is not None else list(range(len(given) // 2))
    begins, ends = [0] * x.rank, [0] * x.rank
    for place, axis in enumerate(axes):
        begins[axis], ends[axis] = given[place], given[place + len(axes)]
    if any(size < 0 for size in (*begins, *ends)):
        x = _cut(x, begins, ends)
    pads = [max(size, 0) for pair in zip(begins, ends, strict=True) for size in pair]
    mode = op.text("mode", "constant")
    if not any(pads):
        return mb.identity(x=x)
    number = op.is_integer(0) or op.dtype(0) == "bool"
    many = sum(1 for axis in range(x.rank) if pads[2 * axis] or pads[2 * axis + 1]) > 2
    if mode == "wrap" or (mode != "constant" and (number or many)):
        return _picked(x, pads, mode)
    value = _value(op)
    if number:
        return _joined(x, pads, value)
    first = next(axis for axis in range(x.rank) if pads[2 * axis] or pads[2 * axis + 1])
    return mb.pad(
        x=x,
        pad=pads if mode == "constant" else pads[2 * first :],
        mode={"constant": "constant", "reflect": "reflect", "edge": "replicate"}[mode],
        constant_val=like(x, value),
    )


def _value(op: OpContext) -> float:
    if op.opset < 11:
        return op.real("value", 0.0)
    stated = op.constant(2)
    return 0.0 if stated is None else float(stated.reshape(()))


def _joined(x: Var, pads: list[int], value: float) -> Var:
    """Integers and booleans, which Core ML does not pad: joined with blocks of the value, axis by axis."""
    number = mb.cast(x=x, dtype="int32") if x.dtype == types.bool else x
    for axis in range(x.rank):
        sides = []
        for size in pads[2 * axis : 2 * axis + 2]:
            shape = as_shape([size if place == axis else size_of(number, place) for place in range(x.rank)])
            sides.append(mb.fill(shape=shape, value=np.int32(value)) if size else None)
        if any(side is not None for side in sides):
            parts = [part for part in (sides[0], number, sides[1]) if part is not None]
            number = mb.concat(values=parts, axis=axis)
    return mb.not_equal(x=number, y=np.int32(0)) if x.dtype == types.bool else number


def _running(op: OpContext, x: Var) -> Var:
    """A constant around x, as wide as is computed while the model runs; what is negative is cut off first."""
    if op.is_integer(0):
        raise Refused("its pads are computed while the model runs, and Core ML pads floats only", "cast to float32")
    truth = x.dtype == types.bool
    wide = mb.cast(x=x, dtype="fp32") if truth else x
    pads, rank = op.input(1), x.rank
    begins = mb.slice_by_index(x=pads, begin=[0], end=[rank])
    ends = mb.slice_by_index(x=pads, begin=[rank], end=[2 * rank])
    none = np.int32(0)
    first = mb.maximum(x=mb.sub(x=none, y=begins), y=none)
    last = mb.add(x=mb.shape(x=x), y=mb.minimum(x=ends, y=none))
    wide = mb.slice_by_index(x=wide, begin=first, end=last)
    pairs = mb.reshape(x=mb.stack(values=[begins, ends], axis=1), shape=[2 * rank])
    made = mb.pad(x=wide, pad=mb.maximum(x=pairs, y=none), mode="constant", constant_val=like(wide, _value(op)))
    return mb.not_equal(x=made, y=like(made, 0)) if truth else made


def _picked(x: Var, pads: list[int], mode: str) -> Var:
    """Padding with elements of x as a gather along each axis: any type, any number of axes."""
    if x.dtype == types.bool:
        raise Refused("Core ML gathers numbers only", "cast to int32 before it")
    for axis in range(x.rank):
        before, after = pads[2 * axis], pads[2 * axis + 1]
        if not before and not after:
            continue
        size = x.shape[axis]
        if not isinstance(size, (int, np.integer)):
            raise Refused(f"it pads an axis whose size varies in mode {mode!r}", "fix the size")
        style: Any = {"reflect": "reflect", "edge": "edge", "wrap": "wrap"}[mode]
        places = np.pad(np.arange(int(size), dtype=np.int32), (before, after), mode=style)
        x = mb.gather(x=x, indices=places, axis=axis)
    return x


def _cut(x: Var, begins: list[int], ends: list[int]) -> Var:
    """Takes away what negative pads say."""
    return mb.slice_by_index(
        x=x,
        begin=[max(-size, 0) for size in begins],
        end=[min(size, 0) for size in ends],
        begin_mask=[size >= 0 for size in begins],
        end_mask=[size >= 0 for size in ends],
    )

"""Ranges, sizes, masks and one-hot vectors: what is made from numbers rather than from tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Var, types

from deploykit.converters.coreml.lowering.context import (
    OpContext,
    Refused,
    constant,
    is_fixed,
    like,
    lowers,
    positive_axis,
)
from deploykit.opsupport.verdict import Verdict, supported, unknown, unsupported

if TYPE_CHECKING:
    from deploykit.converters.coreml.lowering.node import Node


@lowers("Range", since=(11, 27))
def range_(op: OpContext) -> Var:
    """start, start + delta, ... below (above) limit. A constant where all three are; a running one in int32."""
    known = [op.constant(position) for position in range(3)]
    if all(value is not None for value in known):
        start, limit, delta = (np.asarray(value).reshape(()) for value in known)
        count = max(int(np.ceil((limit - start) / delta)), 0)
        if not count:
            raise Refused("it is empty, and Core ML has no empty tensors", "remove what uses it")
        return constant((start + np.arange(count) * delta).astype(start.dtype))
    if known[2] is None or not op.is_integer(0):
        raise Refused("its step is computed while the model runs, or it is not of integers", "make the step constant")
    start_at, end_at = (mb.squeeze(x=v) if v.rank else v for v in (op.input(0), op.input(1)))
    return mb.range_1d(start=start_at, end=end_at, step=np.int32(known[2].reshape(())))


@lowers("Size", since=(1, 13, 19, 21, 23, 24, 25))
def size(op: OpContext) -> Var:
    """The number of elements."""
    x = op.input()
    if is_fixed(x):
        return constant(np.array(np.prod([int(part) for part in x.shape], dtype=np.int64), np.int64))
    return mb.reduce_prod(x=mb.shape(x=x), keep_dims=False)


def _cast_like(node: Node) -> Verdict:
    if node.dtype(1) not in ("float32", "float16", "int32", "int64", "bool"):
        return unsupported(f"Core ML has no {node.dtype(1)}", remedy="cast to float32, float16, int32 or bool")
    return supported()


@lowers("CastLike", since=(15, 19, 21, 23, 24, 25), when=_cast_like)
def cast_like(op: OpContext) -> Var:
    """Converts to the type of the second input."""
    x, to = op.input(0), {"float32": "fp32", "float16": "fp16", "bool": "bool"}.get(op.dtype(1) or "", "int32")
    if to == "bool":
        return mb.identity(x=x) if x.dtype == types.bool else mb.not_equal(x=x, y=like(x, 0))
    return mb.cast(x=x, dtype=to)


def _trilu_form(node: Node) -> Verdict:
    if node.has(1) and node.constant(1) is None:
        return unknown("its k is computed while the model runs", remedy="make k a constant")
    rank = node.rank(0)
    if rank is None or rank < 2:
        return unknown("its input has no known rank of 2 or more", remedy="export with a known rank")
    return supported()


@lowers("Trilu", since=14, when=_trilu_form)
def trilu(op: OpContext) -> Var:
    """The upper (or lower) triangle from the k-th diagonal on; the rest becomes 0, whatever stood there."""
    x, k, upper = op.input(), int(op.required_array(1, "k").reshape(-1)[0]) if op.has(1) else 0, True
    upper = op.flag("upper", default=True)
    rows, columns = x.shape[-2:]
    if isinstance(rows, (int, np.integer)) and isinstance(columns, (int, np.integer)):
        keeps = np.tri(int(rows), int(columns), k - 1 if upper else k, dtype=bool)
        return masked(x, ~keeps if upper else keeps)
    if (k > 0) if upper else (k < 0):
        raise Refused("its sizes vary and its diagonal leaves the main one out", "fix the sizes")
    if x.dtype == types.bool:
        raise Refused("its sizes vary, and its input is bool", "cast to int32 before it")
    return mb.band_part(x=x, lower=-k if upper else -1, upper=-1 if upper else k)


def masked(x: Var, keeps: np.ndarray[Any, Any]) -> Var:
    """x where the mask (of the last axes) is true, 0 elsewhere: a select, so that NaN and infinity go too."""
    if x.dtype == types.bool:
        return mb.logical_and(x=x, y=keeps)
    shape = [int(part) if isinstance(part, (int, np.integer)) else 1 for part in x.shape]
    if is_fixed(x):
        return mb.select(cond=np.broadcast_to(keeps, shape), a=x, b=np.zeros(shape, types.nptype_from_builtin(x.dtype)))
    zeros = mb.fill(shape=mb.shape(x=x), value=like(x, 0))
    whole = mb.fill(shape=mb.shape(x=x), value=np.int32(1))
    cond = mb.not_equal(x=mb.mul(x=whole, y=keeps.astype(np.int32)), y=np.int32(0))
    return mb.select(cond=cond, a=x, b=zeros)


def _eye_form(node: Node) -> Verdict:
    shape = node.shape(0)
    if shape is None or len(shape) != 2 or not all(isinstance(part, int) for part in shape):
        return unsupported("its sizes vary", remedy="fix the sizes")
    if node.out_dtype() not in ("float32", "float16", "int32", "int64", "bool"):
        return unsupported(f"Core ML has no {node.out_dtype()}", remedy="use float32 or int32")
    return supported()


@lowers("EyeLike", since=(9, 22), when=_eye_form)
def eye_like(op: OpContext) -> Var:
    """Ones on a diagonal, as a constant."""
    rows, columns = (int(str(part)) for part in op.shape(0) or ())
    return constant(np.eye(rows, columns, op.integer("k"), dtype=op.out_dtype()))


def _depth_known(node: Node) -> Verdict:
    if node.constant(1) is None:
        return unknown("its depth is computed while the model runs", remedy="make the depth a constant")
    if node.dtype(2) not in ("float32", "float16", "int32", "int64"):
        return unsupported(f"Core ML has no one-hot vectors of {node.dtype(2)}", remedy="cast the values")
    return supported()


@lowers("OneHot", since=(9, 11, 28), when=_depth_known)
def one_hot(op: OpContext) -> Var:
    """on at each index along a new axis, off elsewhere; -1 is the last position, what lies outside is off everywhere.

    Written as a comparison with 0..depth-1: MIL's one_hot does not say what an index outside does.
    """
    depth = int(op.required_array(1, "depth").reshape(-1)[0])
    indices = op.input(0)
    if indices.rank == 5:
        raise Refused("it would have rank 6, and Core ML stops at 5", "flatten the indices")
    if indices.dtype != types.int32:
        indices = mb.cast(x=indices, dtype="int32")
    axis = positive_axis(op.integer("axis", -1), indices.rank + 1)
    wrapped = mb.select(cond=mb.less(x=indices, y=np.int32(0)), a=mb.add(x=indices, y=np.int32(depth)), b=indices)
    shape = [1] * (indices.rank + 1)
    shape[axis] = depth
    places = np.arange(depth, dtype=np.int32).reshape(shape)
    hits = mb.equal(x=mb.expand_dims(x=wrapped, axes=[axis]), y=places)
    values = op.input(2)
    kind = types.builtin_to_string(values.dtype)
    off, on = (mb.slice_by_index(x=values, begin=[place], end=[place + 1], squeeze_mask=[True]) for place in (0, 1))
    share = mb.cast(x=hits, dtype=kind)
    return mb.add(x=mb.mul(x=share, y=on), y=mb.mul(x=mb.sub(x=like(off, 1), y=share), y=off))


def _parts(node: Node) -> Verdict:
    if node.dtype(0) not in ("float32", "float16"):
        return unsupported("it tests floats only", remedy="cast to float32 before it")
    return supported()


@lowers("IsNaN", since=(9, 13, 20), when=_parts)
def is_nan(op: OpContext) -> Var:
    """What is not equal to itself; Core ML documents comparisons as numpy's."""
    x = op.input()
    return mb.not_equal(x=x, y=x)


@lowers("IsInf", since=(10, 20), when=_parts)
def is_inf(op: OpContext) -> Var:
    """Equal to infinity, of the signs that the attributes ask for."""
    x = op.input()
    up, down = op.flag("detect_positive", default=True), op.flag("detect_negative", default=True)
    if up and down:
        return mb.equal(x=mb.abs(x=x), y=like(x, np.inf))
    return mb.equal(x=x, y=like(x, np.inf if up else -np.inf))

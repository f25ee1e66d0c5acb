"""Reductions."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Var, types

from deploykit.converters.coreml.lowering.context import OpContext, Refused, like, lowers, positive_axis
from deploykit.opsupport.verdict import Verdict, conditional, supported, unknown, unsupported

if TYPE_CHECKING:
    from deploykit.converters.coreml.lowering.node import Node

_SAME_WITHOUT_AXES = {"ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd"}
_FLOAT_ONLY = {"ReduceMean", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp"}


def _axes_known(node: Node) -> Verdict:
    if node.rank(0) is None:
        return unknown("the rank of its input is unknown", remedy="export with a known rank")
    if node.has(1) and node.constant(1) is None:
        return unknown("its axes are computed while the model runs", remedy="deploykit simplify MODEL")
    truth = node.dtype(0) == "bool" and node.op not in ("ReduceMax", "ReduceMin")
    if truth or (node.op in _FLOAT_ONLY and node.is_integer(0)):
        return unsupported(f"Core ML computes {node.op} in float only", remedy="cast to float32 before it")
    return supported()


def _sum_of_squares(x: Var, axes: list[int], keep_dims: bool) -> Var:
    return mb.reduce_sum(x=mb.mul(x=x, y=x), axes=axes, keep_dims=keep_dims)


def _log(x: Var) -> Var:
    return mb.log(x=x, epsilon=like(x, 0))


def _log_sum_exp(x: Var, axes: list[int], keep_dims: bool) -> Var:
    """max + log(sum(exp(x - max))): no overflow."""
    peak = mb.reduce_max(x=x, axes=axes, keep_dims=True)
    total = mb.reduce_sum(x=mb.exp(x=mb.sub(x=x, y=peak)), axes=axes, keep_dims=keep_dims)
    return mb.add(x=_log(total), y=peak if keep_dims else mb.squeeze(x=peak, axes=axes))


def _plain(build: Any, x: Var, axes: list[int], keep_dims: bool) -> Var:
    return build(x=x, axes=axes, keep_dims=keep_dims)


# Operator -> (what builds it, revisions).
_REDUCTIONS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "ReduceMean": (functools.partial(_plain, mb.reduce_mean), (1, 11, 13, 18)),
    "ReduceSum": (functools.partial(_plain, mb.reduce_sum), (1, 11, 13)),
    "ReduceMax": (functools.partial(_plain, mb.reduce_max), (1, 11, 12, 13, 18, 20)),
    "ReduceMin": (functools.partial(_plain, mb.reduce_min), (1, 11, 12, 13, 18, 20)),
    "ReduceProd": (functools.partial(_plain, mb.reduce_prod), (1, 11, 13, 18)),
    "ReduceL1": (lambda x, a, k: mb.reduce_sum(x=mb.abs(x=x), axes=a, keep_dims=k), (1, 11, 13, 18)),
    "ReduceL2": (lambda x, a, k: mb.sqrt(x=_sum_of_squares(x, a, k)), (1, 11, 13, 18)),
    "ReduceSumSquare": (_sum_of_squares, (1, 11, 13, 18)),
    "ReduceLogSum": (lambda x, a, k: _log(mb.reduce_sum(x=x, axes=a, keep_dims=k)), (1, 11, 13, 18, 28)),
    "ReduceLogSumExp": (_log_sum_exp, (1, 11, 13, 18, 28)),
}


def _reduce(op: OpContext, build: Any) -> Var:
    """Reduces over `axes` (attribute or input; all when there are none, unless noop_with_empty_axes says otherwise)."""
    x = op.input()
    axes = op.integers("axes", 1)
    if not axes:
        if op.flag("noop_with_empty_axes"):
            if op.op not in _SAME_WITHOUT_AXES:
                raise Refused(
                    "it reduces over no axes, which is an elementwise function", "write that function instead"
                )
            return mb.identity(x=x)
        axes = list(range(x.rank))
    axes = [axis + x.rank if axis < 0 else axis for axis in axes]
    if x.dtype == types.bool:  # any and all, as the larger and the smaller of 0 and 1
        number = build(mb.cast(x=x, dtype="int32"), axes, op.flag("keepdims", default=True))
        return mb.not_equal(x=number, y=np.int32(0))
    return build(x, axes, op.flag("keepdims", default=True))


def _register() -> None:
    """One rule an operator: they differ in what builds them only."""
    for name, (build, since) in _REDUCTIONS.items():
        lowers(name, since=since, when=_axes_known)(functools.partial(_reduce, build=build))


_register()


def _ties(node: Node) -> Verdict:
    if node.rank(0) is None:
        return unknown("the rank of its input is unknown", remedy="export with a known rank")
    if node.flag("select_last_index"):
        return supported()
    return conditional(
        "among equal values ONNX takes the first, Core ML does not say which",
        remedy="harmless unless values can be exactly equal; return the scores and take the index in the application",
    )


@lowers("ArgMax", since=(1, 11, 12, 13), when=_ties)
def arg_max(op: OpContext) -> Var:
    """Index of the largest value along the axis."""
    if op.flag("select_last_index"):
        return _position(op, op.input(), mb.reduce_max, last=True)
    return mb.reduce_argmax(x=op.input(), axis=op.integer("axis", 0), keep_dims=op.flag("keepdims", default=True))


@lowers("ArgMin", since=(1, 11, 12, 13), when=_ties)
def arg_min(op: OpContext) -> Var:
    """Index of the smallest value along the axis."""
    if op.flag("select_last_index"):
        return _position(op, op.input(), mb.reduce_min, last=True)
    return mb.reduce_argmin(x=op.input(), axis=op.integer("axis", 0), keep_dims=op.flag("keepdims", default=True))


def _position(op: OpContext, x: Var, extreme: Any, *, last: bool) -> Var:
    """The first or last position that holds the extreme value, whatever Core ML does with equal ones."""
    axis = positive_axis(op.integer("axis", 0), x.rank)
    made = extreme_position(x, axis, extreme, last=last)
    return made if op.flag("keepdims", default=True) else mb.squeeze(x=made, axes=[axis])


def extreme_position(x: Var, axis: int, extreme: Any, *, last: bool) -> Var:
    """As `_position`, with the axis kept: the largest of the positions (counted from the other end for the first)."""
    size = x.shape[axis]
    if not isinstance(size, (int, np.integer)):
        raise Refused("the size of its axis varies", "fix the size")
    count = int(size)
    order = np.arange(1, count + 1) if last else np.arange(count, 0, -1)
    places = order.astype(np.int32).reshape([-1 if place == axis else 1 for place in range(x.rank)])
    hits = mb.cast(x=mb.equal(x=x, y=extreme(x=x, axes=[axis], keep_dims=True)), dtype="int32")
    best = mb.reduce_max(x=mb.mul(x=hits, y=places), axes=[axis], keep_dims=True)
    return mb.sub(x=best, y=np.int32(1)) if last else mb.sub(x=np.int32(count), y=best)


def _float_axis(node: Node) -> Verdict:
    if node.is_integer(0) or node.rank(0) is None:
        return unsupported("its input is not of floats with a known rank", remedy="cast to float32 before it")
    return supported()


@lowers("Hardmax", since=13, when=_float_axis)
def hard_max(op: OpContext) -> Var:
    """1 at the first largest value along the axis, 0 elsewhere."""
    x = op.input()
    axis = positive_axis(op.integer("axis", -1), x.rank)
    first = extreme_position(x, axis, mb.reduce_max, last=False)
    places = np.arange(int(x.shape[axis]), dtype=np.int32).reshape([-1 if p == axis else 1 for p in range(x.rank)])
    return mb.cast(x=mb.equal(x=first, y=places), dtype=types.builtin_to_string(x.dtype))


@lowers("LpNormalization", since=(1, 22), when=_float_axis)
def lp_normalization(op: OpContext) -> Var:
    """x divided by its norm of order 1 or 2 along the axis; 0 where the norm is 0."""
    x, order = op.input(), op.integer("p", 2)
    if order not in (1, 2):
        raise Refused(f"its norm is of order {order}", "use order 1 or 2")
    axes = [positive_axis(op.integer("axis", -1), x.rank)]
    if order == 1:
        norm = mb.reduce_sum(x=mb.abs(x=x), axes=axes, keep_dims=True)
    else:
        norm = mb.sqrt(x=_sum_of_squares(x, axes, True))
    return mb.real_div(x=x, y=mb.select(cond=mb.equal(x=norm, y=like(x, 0)), a=like(x, 1), b=norm))

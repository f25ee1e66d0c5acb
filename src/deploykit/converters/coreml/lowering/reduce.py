"""Reductions."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Var

from deploykit.converters.coreml.lowering.context import OpContext, Refused, like, lowers
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
    if node.dtype(0) == "bool" or (node.op in _FLOAT_ONLY and node.is_integer(0)):
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
    "ReduceLogSum": (lambda x, a, k: _log(mb.reduce_sum(x=x, axes=a, keep_dims=k)), (1, 11, 13, 18)),
    "ReduceLogSumExp": (_log_sum_exp, (1, 11, 13, 18)),
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
    return build(x, axes, op.flag("keepdims", default=True))


def _register() -> None:
    """One rule an operator: they differ in what builds them only."""
    for name, (build, since) in _REDUCTIONS.items():
        lowers(name, since=since, when=_axes_known)(functools.partial(_reduce, build=build))


_register()


def _ties(node: Node) -> Verdict:
    if node.flag("select_last_index"):
        return unsupported("Core ML does not say which of equal values it takes", remedy="use select_last_index=0")
    if node.rank(0) is None:
        return unknown("the rank of its input is unknown", remedy="export with a known rank")
    return conditional(
        "among equal values ONNX takes the first, Core ML does not say which",
        remedy="harmless unless values can be exactly equal; return the scores and take the index in the application",
    )


@lowers("ArgMax", since=(1, 11, 12, 13), when=_ties)
def arg_max(op: OpContext) -> Var:
    """Index of the largest value along the axis."""
    return mb.reduce_argmax(x=op.input(), axis=op.integer("axis", 0), keep_dims=op.flag("keepdims", default=True))


@lowers("ArgMin", since=(1, 11, 12, 13), when=_ties)
def arg_min(op: OpContext) -> Var:
    """Index of the smallest value along the axis."""
    return mb.reduce_argmin(x=op.input(), axis=op.integer("axis", 0), keep_dims=op.flag("keepdims", default=True))

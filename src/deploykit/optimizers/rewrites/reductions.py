"""Reductions and global pools as the elementary ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import onnx_ir as ir

from deploykit.optimizers.editing import rank_of
from deploykit.optimizers.rewrites.decomposition import Decomposition
from deploykit.optimizers.rewrites.normalizations import integer, is_float

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploykit.optimizers.rewrites.decomposition import Builder
    from deploykit.optimizers.rewrites.emitting import Emitter


def _sum(op: Emitter, node: ir.Node, value: ir.Value, op_type: str = "ReduceSum", **changed: int) -> ir.Value | None:
    """The same reduction of another value: over the axes that the node has, as its opset writes them."""
    attributes: dict[str, Any] = {
        key: integer(node, key, default) for key, default in _ATTRIBUTES if key in node.attributes
    } | changed
    axes = node.inputs[1] if len(node.inputs) > 1 else None
    listed = node.attributes.get("axes")
    if axes is not None:  # an input: from opset 18 on, where ReduceSum and ReduceMax take one, too
        return op.op(op_type, value, axes, **attributes)
    if listed is None:
        return op.op(op_type, value, **attributes)
    return op.reduce(op_type, value, list(listed.as_ints()), keepdims=attributes.get("keepdims", 1))


_ATTRIBUTES = (("keepdims", 1), ("noop_with_empty_axes", 0))


def _of(before: str | None, after: str | None, floats_only: bool) -> Builder:
    """Sum of `before` of the values, and `after` of the sum."""

    def build(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
        x = node.inputs[0]
        if x is None or (floats_only and not is_float(x)):
            return None
        each = x
        if before is not None:
            each = op.op("Mul", x, x) if before == "Mul" else op.op(before, x)
        total = _sum(op, node, each)
        if total is None:
            return None
        return [total if after is None else op.op(after, total)]

    return build


def log_sum_exp(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """As m + log(sum(exp(x - m))) with m the maximum, kept finite so that infinities do not cancel."""
    x = node.inputs[0]
    if x is None or x.dtype not in (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE):
        return None
    limits = np.finfo(x.dtype.numpy())
    low, high = op.like(float(limits.min), x), op.like(float(limits.max), x)

    def largest(keepdims: int) -> ir.Value | None:
        found = _sum(op, node, x, "ReduceMax", keepdims=keepdims)
        return None if found is None else op.op("Min", op.op("Max", found, low), high)

    kept = largest(1)
    if kept is None:
        return None
    total = _sum(op, node, op.op("Exp", op.op("Sub", x, kept)))
    again = kept if integer(node, "keepdims", 1) else largest(0)
    if total is None or again is None:
        return None
    return [op.op("Add", op.op("Log", total), again)]


def _global(op_type: str) -> Builder:
    def build(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
        x = node.inputs[0]
        rank = rank_of(x)
        if x is None or rank is None or rank < 3:
            return None
        return [op.reduce(op_type, x, list(range(2, rank)))]

    return build


def global_lp_pool(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """(sum |x|^p)^(1/p) over the spatial dimensions of x [N, C, *spatial] (spec, GlobalLpPool-2)."""
    x, power = node.inputs[0], integer(node, "p", 2)
    rank = rank_of(x)
    if x is None or not is_float(x) or rank is None or rank < 3 or power < 1:
        return None
    total = op.reduce("ReduceSum", raised(op, x, power), list(range(2, rank)))
    return [rooted(op, total, power, x)]


def raised(op: Emitter, x: ir.Value, power: int) -> ir.Value:
    """|x|^power."""
    if power == 2:
        return op.op("Mul", x, x)
    size = op.op("Abs", x)
    return size if power == 1 else op.op("Pow", size, op.like(power, x))


def rooted(op: Emitter, total: ir.Value, power: int, like: ir.Value) -> ir.Value:
    """total^(1/power)."""
    if power == 1:
        return total
    return op.op("Sqrt", total) if power == 2 else op.op("Pow", total, op.like(1 / power, like))


def lp_pool(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """An average that counts the padding, times the size of the window; not where the window is cut (ceil_mode)."""
    x, power = node.inputs[0], integer(node, "p", 2)
    kernel = node.attributes.get("kernel_shape")
    if x is None or not is_float(x) or kernel is None or power < 1 or integer(node, "ceil_mode", 0):
        return None
    if node.attributes.get_string("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return None
    dilations = node.attributes.get("dilations")
    dilated = dilations is not None and any(step != 1 for step in dilations.as_ints())
    if dilated and op.opset < 19:  # AveragePool has no dilations before
        return None
    window = list(kernel.as_ints())
    given: dict[str, Any] = {
        key: list(node.attributes[key].as_ints()) for key in ("strides", "pads") if key in node.attributes
    }
    average = op.op(
        "AveragePool",
        raised(op, x, power),
        kernel_shape=window,
        count_include_pad=1,
        dilations=list(dilations.as_ints()) if dilations is not None and dilated else None,
        **given,
    )
    average.type = x.type
    return [rooted(op, op.op("Mul", average, op.like(float(np.prod(window)), x)), power, x)]


class DecomposeReductions(Decomposition):
    """ReduceL1, L2, LogSum, LogSumExp, SumSquare, the global pools and LpPool."""

    name: ClassVar[str] = "decompose-reductions"
    title: ClassVar[str] = "writes norms, logarithms and pools over everything as sums, means and maxima"
    builders: ClassVar[Mapping[tuple[str, str], Builder]] = {
        ("", "ReduceL1"): _of("Abs", None, floats_only=False),
        ("", "ReduceL2"): _of("Mul", "Sqrt", floats_only=True),
        ("", "ReduceLogSum"): _of(None, "Log", floats_only=True),
        ("", "ReduceSumSquare"): _of("Mul", None, floats_only=False),
        ("", "ReduceLogSumExp"): log_sum_exp,
        ("", "GlobalAveragePool"): _global("ReduceMean"),
        ("", "GlobalMaxPool"): _global("ReduceMax"),
        ("", "GlobalLpPool"): global_lp_pool,
        ("", "LpPool"): lp_pool,
    }

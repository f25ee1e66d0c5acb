"""Pooling over windows and over whole planes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Var

from deploykit.converters.coreml.lowering.context import OpContext, Refused, lowers
from deploykit.converters.coreml.lowering.window import ceil_extension, explicit_pads
from deploykit.opsupport.verdict import Verdict, supported, unknown, unsupported

if TYPE_CHECKING:
    from deploykit.converters.coreml.lowering.node import Node


def _pool_limits(node: Node) -> Verdict:
    rank = node.rank(0)
    if rank is None:
        return unknown("the rank of its input is unknown", remedy="export with a known rank")
    if not 3 <= rank <= 5:
        return unsupported(
            f"Core ML pools over 1 to 3 spatial dimensions, this one has {rank - 2}",
            remedy="merge leading dimensions with a Reshape before the pool",
        )
    if any(dilation != 1 for dilation in node.ints("dilations")):
        return unsupported("Core ML has no dilated pooling", remedy="use dilations of 1")
    if node.op == "MaxPool" and node.used_outputs > 1:
        return unsupported("Core ML's pool gives no indices", remedy="remove the second output and what uses it")
    if node.is_integer(0):
        return unsupported("Core ML pools floats only", remedy="cast to float32 before the pool")
    return supported()


def _window(op: OpContext, x: Var) -> dict[str, Any]:
    kernel = op.ints("kernel_shape")
    ones = [1] * len(kernel)
    strides = op.ints("strides", ones)
    pads = explicit_pads(op.text("auto_pad", "NOTSET"), op.ints("pads"), x.shape[2:], kernel, strides, ones)
    if op.flag("ceil_mode"):
        extra = ceil_extension(x.shape[2:], kernel, strides, ones, pads)
        if any(extra) and op.op == "AveragePool" and op.flag("count_include_pad"):
            raise Refused(
                "ceil_mode with count_include_pad counts the padding of the last window, but not what ceil_mode adds",
                "use ceil_mode=0 with explicit pads",
            )
        pads = [pad + (extra[index // 2] if index % 2 else 0) for index, pad in enumerate(pads)]
    return {"kernel_sizes": kernel, "strides": strides, "pad_type": "custom", "pad": pads, "ceil_mode": False}


@lowers("MaxPool", since=(1, 8, 10, 11, 12, 22), when=_pool_limits)
def max_pool(op: OpContext) -> Var:
    """MaxPool of x [N, C, *spatial]; ceil_mode as additional padding at the end, which a maximum never sees."""
    x = op.input()
    return mb.max_pool(x=x, **_window(op, x))


@lowers("AveragePool", since=(1, 7, 10, 11, 19, 22), when=_pool_limits)
def average_pool(op: OpContext) -> Var:
    """AveragePool of x [N, C, *spatial]; padding counts only when count_include_pad is 1 (spec, AveragePool-22)."""
    x = op.input()
    exclude = not op.flag("count_include_pad")
    return mb.avg_pool(x=x, exclude_padding_from_average=exclude, **_window(op, x))


def _planes(node: Node) -> Verdict:
    rank = node.rank(0)
    if rank is None or rank < 3:
        return unknown("its input has no known spatial dimensions", remedy="export with a known rank of 3 or more")
    return supported()


@lowers("GlobalAveragePool", since=(1, 22), when=_planes)
def global_average_pool(op: OpContext) -> Var:
    """Mean over all spatial dimensions, kept as size 1."""
    x = op.input()
    return mb.reduce_mean(x=x, axes=list(range(2, x.rank)), keep_dims=True)


@lowers("GlobalMaxPool", since=(1, 22), when=_planes)
def global_max_pool(op: OpContext) -> Var:
    """Maximum over all spatial dimensions, kept as size 1."""
    x = op.input()
    return mb.reduce_max(x=x, axes=list(range(2, x.rank)), keep_dims=True)

"""Convolutions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Var

from deploykit.converters.coreml.lowering.context import OpContext, Refused, lowers
from deploykit.converters.coreml.lowering.window import explicit_pads
from deploykit.opsupport.verdict import Verdict, supported, unknown, unsupported

if TYPE_CHECKING:
    from deploykit.converters.coreml.lowering.node import Node

_CONSTANT = "make it a constant: deploykit simplify MODEL"


def _spatial_limits(node: Node) -> Verdict:
    rank = node.rank(0) or node.rank(1)
    if rank is None:
        return unknown("the rank of its input is unknown", remedy="export with a known rank")
    if not 3 <= rank <= 5:
        return unsupported(
            f"Core ML convolves over 1 to 3 spatial dimensions, this one has {rank - 2}",
            remedy="merge dimensions with a Reshape around it",
        )
    return supported()


def _transpose_limits(node: Node) -> Verdict:
    weight = node.rank(1)
    if node.constant(1) is None and not _is_dequantized(node, 1):
        return unknown("its weight is computed while the model runs", remedy=_CONSTANT)
    if weight == 5 and any(dilation != 1 for dilation in node.ints("dilations")):
        return unsupported("Core ML has no dilated transposed convolution in 3-D", remedy="use dilations of 1")
    return _spatial_limits(node)


def _is_dequantized(node: Node, position: int) -> bool:
    producer = node.value(position).producer()
    return producer is not None and producer.op_type == "DequantizeLinear"


def channel_bias(op: OpContext, position: int) -> tuple[np.ndarray[Any, Any] | None, Var | None]:
    """A bias as a constant that MIL takes with the operator, or as a variable to add afterwards."""
    if not op.has(position):
        return None, None
    known = op.constant(position)
    return (known, None) if known is not None else (None, op.input(position))


def with_bias(y: Var, bias: Var | None) -> Var:
    """Adds a computed [C] bias to y [N, C, *spatial]."""
    if bias is None:
        return y
    return mb.add(x=y, y=mb.reshape(x=bias, shape=[1, -1] + [1] * (y.rank - 2)))


@lowers("Conv", since=(1, 11, 22), when=_spatial_limits)
def conv(op: OpContext) -> Var:
    """Conv of x [N, C, *spatial] with weight [M, C / group, *kernel]."""
    x, weight = op.input(0), op.input(1)
    kernel = [int(size) for size in weight.shape[2:]]
    count = len(kernel)
    strides, dilations = op.ints("strides", [1] * count), op.ints("dilations", [1] * count)
    bias, late_bias = channel_bias(op, 2)
    arguments = {} if bias is None else {"bias": bias}
    y = mb.conv(
        x=x,
        weight=weight,
        strides=strides,
        dilations=dilations,
        groups=op.integer("group", 1),
        pad_type="custom",
        pad=explicit_pads(op.text("auto_pad", "NOTSET"), op.ints("pads"), x.shape[2:], kernel, strides, dilations),
        **arguments,
    )
    return with_bias(y, late_bias)


@lowers("ConvTranspose", since=(1, 11, 22), when=_transpose_limits)
def conv_transpose(op: OpContext) -> Var:
    """ConvTranspose of x [N, C, *spatial] with weight [C, M / group, *kernel] (spec, ConvTranspose-22).

    MIL knows pads only. output_padding takes away from the end pads; what is left of it are positions that no input
    reaches, which are padded with zeros before the bias.
    """
    x, weight = op.input(0), op.input(1)
    kernel = [int(size) for size in weight.shape[2:]]
    count = len(kernel)
    strides, dilations = op.ints("strides", [1] * count), op.ints("dilations", [1] * count)
    pads, beyond = _transposed_pads(op, x, kernel, strides, dilations)
    bias, late_bias = channel_bias(op, 2)
    arguments = {} if bias is None or any(beyond) else {"bias": bias}
    y = mb.conv_transpose(
        x=x,
        weight=weight,
        strides=strides,
        dilations=dilations,
        groups=op.integer("group", 1),
        pad_type="custom",
        pad=pads,
        **arguments,
    )
    if any(beyond):
        y = mb.pad(x=y, pad=[size for end in beyond for size in (0, end)], mode="constant", constant_val=_zero(y))
        if bias is not None:
            y = mb.add(x=y, y=bias.reshape([1, -1] + [1] * count))
    return with_bias(y, late_bias)


def _zero(variable: Var) -> Any:
    from deploykit.converters.coreml.lowering.context import like

    return like(variable, 0)


def _transposed_pads(
    op: OpContext, x: Var, kernel: list[int], strides: list[int], dilations: list[int]
) -> tuple[list[int], list[int]]:
    """Pads [begin, end] by dimension that are taken off, and zeros to add at the end by dimension."""
    count = len(kernel)
    output_padding = op.ints("output_padding", [0] * count)
    auto_pad, wanted = op.text("auto_pad", "NOTSET"), op.ints("output_shape")
    if auto_pad in ("SAME_UPPER", "SAME_LOWER") or wanted:
        pads = []
        for axis in range(count):
            size = x.shape[2 + axis]
            if not isinstance(size, (int, np.integer)):
                raise Refused(
                    "auto_pad and output_shape depend on a spatial size that varies",
                    "fix the spatial size, or export with explicit pads",
                )
            target = wanted[axis - count] if wanted else int(size) * strides[axis]
            reach = (kernel[axis] - 1) * dilations[axis] + 1
            total = strides[axis] * (int(size) - 1) + output_padding[axis] + reach - target
            if total < 0:
                raise Refused(
                    "its output_shape needs negative padding", "choose an output_shape within the kernel's reach"
                )
            first = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
            pads += [first, total - first]
    else:
        pads = explicit_pads(auto_pad, op.ints("pads"), x.shape[2:], kernel, strides, dilations)
    ends = [pads[2 * axis + 1] - output_padding[axis] for axis in range(count)]
    taken = [size for axis in range(count) for size in (pads[2 * axis], max(ends[axis], 0))]
    return taken, [max(-end, 0) for end in ends]

"""Normalizations, every epsilon stated: MIL's defaults are not ONNX's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Var

from deploykit.converters.coreml.lowering.context import OpContext, is_fixed, like, lowers, positive_axis
from deploykit.opsupport.verdict import Verdict, supported, unsupported

if TYPE_CHECKING:
    from deploykit.converters.coreml.lowering.node import Node


def _inference_only(node: Node) -> Verdict:
    if node.flag("training_mode") or node.used_outputs > 1 or (node.opset < 7 and not node.flag("is_test")):
        return unsupported("it is in training form", remedy="export the model in evaluation mode (model.eval())")
    if node.opset < 9 and node.integer("spatial", 1) != 1:
        return unsupported("spatial=0 has statistics for every position", remedy="export with a newer opset")
    return supported()


@lowers("BatchNormalization", since=(7, 9, 14, 15), when=_inference_only)
def batch_normalization(op: OpContext) -> Var:
    """(x - mean) / sqrt(var + epsilon) * scale + bias by channel, as one multiplication and addition."""
    x = op.input()
    gamma, beta, mean, variance = (op.required_array(i, "statistics").astype(np.float64) for i in (1, 2, 3, 4))
    factor = gamma / np.sqrt(variance + op.real("epsilon", 1e-5))
    kind = like(x, 0).dtype
    shape = [1, -1] + [1] * (x.rank - 2) if x.rank > 1 else [-1]
    scaled = mb.mul(x=x, y=factor.reshape(shape).astype(kind))
    return mb.add(x=scaled, y=(beta - mean * factor).reshape(shape).astype(kind))


def _planes(node: Node) -> Verdict:
    if node.rank(0) not in (3, 4, 5):
        return unsupported("its input has no 1 to 3 spatial dimensions", remedy="export with a known rank of 3 to 5")
    return supported()


@lowers("InstanceNormalization", since=(6, 22), when=_planes)
def instance_normalization(op: OpContext) -> Var:
    """Normalizes every plane of x [N, C, *spatial] by itself, then scale and bias by channel."""
    x = op.input()
    normal = _normalized(x, list(range(2, x.rank)), op.real("epsilon", 1e-5))
    return _by_channel(normal, op.input(1), op.input(2))


def _group_form(node: Node) -> Verdict:
    shape = node.shape(0)
    if shape is None or not all(isinstance(size, int) for size in shape[1:]):
        return unsupported(
            "its channels or spatial sizes vary, and the groups are made by a reshape", remedy="fix the spatial sizes"
        )
    return supported()


@lowers("GroupNormalization", since=21, when=_group_form)
def group_normalization(op: OpContext) -> Var:
    """Normalizes groups of channels of x [N, C, *spatial], then scale and bias by channel (revision 21)."""
    x = op.input()
    sizes = [int(size) for size in x.shape[1:]]
    flat = mb.reshape(x=x, shape=[-1, op.integer("num_groups"), int(np.prod(sizes)) // op.integer("num_groups")])
    normal = _normalized(flat, [2], op.real("epsilon", 1e-5))
    back = mb.reshape(x=normal, shape=[-1, *sizes] if not is_fixed(x) else [int(size) for size in x.shape])
    return _by_channel(back, op.input(1), op.input(2))


@lowers("LayerNormalization", since=17)
def layer_normalization(op: OpContext) -> tuple[Var, ...]:
    """Normalizes over all axes from `axis` on, then scale and bias (broadcast); mean and 1 / deviation on request."""
    x = op.input()
    axes = list(range(positive_axis(op.integer("axis", -1), x.rank), x.rank))
    epsilon = op.real("epsilon", 1e-5)
    y = mb.mul(x=_normalized(x, axes, epsilon), y=op.input(1))
    y = mb.add(x=y, y=op.input(2)) if op.has(2) else y
    if op.used_outputs == 1:
        return (y,)
    mean = mb.reduce_mean(x=x, axes=axes, keep_dims=True)
    centred = mb.sub(x=x, y=mean)
    variance = mb.reduce_mean(x=mb.mul(x=centred, y=centred), axes=axes, keep_dims=True)
    deviation = mb.sqrt(x=mb.add(x=variance, y=like(x, epsilon)))
    return y, mean, mb.real_div(x=like(x, 1), y=deviation)


@lowers("RMSNormalization", since=23)
def rms_normalization(op: OpContext) -> Var:
    """x / sqrt(mean(x^2) + epsilon) * scale over all axes from `axis` on."""
    x = op.input()
    axes = list(range(positive_axis(op.integer("axis", -1), x.rank), x.rank))
    power = mb.reduce_mean(x=mb.mul(x=x, y=x), axes=axes, keep_dims=True)
    root = mb.sqrt(x=mb.add(x=power, y=like(x, op.real("epsilon", 1e-5))))
    return mb.mul(x=mb.real_div(x=x, y=root), y=op.input(1))


def _normalized(x: Var, axes: list[int], epsilon: float) -> Var:
    return mb.layer_norm(x=x, axes=axes, epsilon=like(x, epsilon))


def _by_channel(x: Var, scale: Var, bias: Var) -> Var:
    shape = [1, -1] + [1] * (x.rank - 2)
    return mb.add(x=mb.mul(x=x, y=mb.reshape(x=scale, shape=shape)), y=mb.reshape(x=bias, shape=shape))


def _odd_size(node: Node) -> Verdict:
    if node.integer("size") % 2 == 0:
        return unsupported("an even window is not centred the same way in Core ML", remedy="use an odd size")
    return _planes(node)


@lowers("LRN", since=(1, 13), when=_odd_size)
def local_response_normalization(op: OpContext) -> Var:
    """x / (bias + alpha / size * sum(x^2 over `size` neighbouring channels))^beta."""
    x = op.input()
    return mb.local_response_norm(
        x=x,
        size=op.integer("size"),
        alpha=like(x, op.real("alpha", 1e-4)),
        beta=like(x, op.real("beta", 0.75)),
        k=like(x, op.real("bias", 1.0)),
    )

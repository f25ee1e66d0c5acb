"""Normalizations as means, differences and roots: the form that every target takes, and that keeps the precision.

The bodies by which ONNX defines them compute the variance as E[x^2] - E[x]^2, which cancels, and go through shapes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import onnx_ir as ir

from deploykit.optimizers.editing import input_at, rank_of
from deploykit.optimizers.rewrites.decomposition import Decomposition
from deploykit.optimizers.rewrites.shaping import reshape_back

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploykit.optimizers.rewrites.decomposition import Builder
    from deploykit.optimizers.rewrites.emitting import Emitter

_FLOATS = {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE}


def number(node: ir.Node, name: str, default: float) -> float:
    """A float attribute."""
    return node.attributes.get_float(name, default)


def integer(node: ir.Node, name: str, default: int) -> int:
    """An integer attribute."""
    return node.attributes.get_int(name, default)


def is_float(value: ir.Value | None) -> bool:
    """Whether it is known to hold floats."""
    return value is not None and value.dtype in _FLOATS


def _stash(op: Emitter, node: ir.Node, x: ir.Value) -> tuple[ir.Value, bool]:
    """The input in the type that the mean is computed in, and whether that is another one."""
    stash = ir.DataType(integer(node, "stash_type", int(ir.DataType.FLOAT)))
    if x.dtype == stash:
        return x, False
    wide = op.op("Cast", x, to=stash)
    wide.type = ir.TensorType(stash)
    return wide, True


def widened(op: Emitter, x: ir.Value) -> tuple[ir.Value, bool]:
    """Half precision as float, as kernels compute means, and whether it was: squares and an epsilon do not fit it."""
    if x.dtype not in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16):
        return x, False
    wide = op.op("Cast", x, to=ir.DataType.FLOAT)
    wide.type = ir.TensorType(ir.DataType.FLOAT)
    return wide, True


def _centred(op: Emitter, x: ir.Value, axes: Sequence[int], epsilon: float) -> tuple[ir.Value, ir.Value, ir.Value]:
    """(x - mean) / sqrt(var + epsilon), the mean, and the square root; over the axes."""
    mean = op.reduce("ReduceMean", x, axes)
    centred = op.op("Sub", x, mean)
    variance = op.reduce("ReduceMean", op.op("Mul", centred, centred), axes)
    deviation = op.op("Sqrt", op.op("Add", variance, op.like(epsilon, x)))
    return op.op("Div", centred, deviation), mean, deviation


def _last_axes(axis: int, rank: int | None) -> list[int] | None:
    """From this axis to the last one, counted from the end where the rank does not matter."""
    if axis < 0:
        return list(range(axis, 0))
    return None if rank is None else list(range(axis - rank, 0))


def layer_normalization(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """Ba, Kiros and Hinton 2016, equations 3 and 4; the scale applies after the cast back (spec)."""
    x, scale, bias = node.inputs[0], input_at(node, 1), input_at(node, 2)
    axes = _last_axes(integer(node, "axis", -1), rank_of(x))
    if x is None or scale is None or not is_float(x) or axes is None:
        return None
    wide, cast = _stash(op, node, x)
    normal, mean, deviation = _centred(op, wide, axes, number(node, "epsilon", 1e-5))
    y = op.op("Mul", op.op("Cast", normal, to=x.dtype) if cast else normal, scale)
    y = y if bias is None else op.op("Add", y, bias)
    if len(node.outputs) < 3:
        return [y, mean]
    return [y, mean, op.op("Reciprocal", deviation)]


def rms_normalization(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """As x / sqrt(mean(x^2) + epsilon) * scale (Zhang and Sennrich 2019, equation 4)."""
    x, scale = node.inputs[0], input_at(node, 1)
    axes = _last_axes(integer(node, "axis", -1), rank_of(x))
    if x is None or scale is None or not is_float(x) or axes is None or len(node.inputs) > 2:
        return None
    wide, cast = _stash(op, node, x)
    square = op.reduce("ReduceMean", op.op("Mul", wide, wide), axes)
    root = op.op("Sqrt", op.op("Add", square, op.like(number(node, "epsilon", 1e-5), wide)))
    normal = op.op("Div", wide, root)
    y = op.op("Mul", op.op("Cast", normal, to=x.dtype) if cast else normal, scale)
    return [y] if len(node.outputs) == 1 else [y, op.op("Reciprocal", root)]


def instance_normalization(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """Over the spatial dimensions of x [N, C, *spatial], scale and bias [C] (spec, InstanceNormalization)."""
    x, scale, bias = node.inputs[0], input_at(node, 1), input_at(node, 2)
    rank = rank_of(x)
    if x is None or scale is None or bias is None or not is_float(x) or rank is None or rank < 3:
        return None
    wide, cast = widened(op, x)
    normal, _, _ = _centred(op, wide, list(range(2, rank)), number(node, "epsilon", 1e-5))
    normal = op.op("Cast", normal, to=x.dtype) if cast else normal
    ahead = list(range(1, rank - 1))
    scaled = op.op("Mul", normal, op.unsqueeze(scale, ahead))
    return [op.op("Add", scaled, op.unsqueeze(bias, ahead))]


def group_normalization(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """Takes x [N, C, *spatial] as [N, groups, rest]; scale and bias are per group before opset 21, then per channel.

    Wu and He 2018, equation 7; spec, GroupNormalization-18 and -21.
    """
    x, scale, bias = node.inputs[0], input_at(node, 1), input_at(node, 2)
    rank, groups = rank_of(x), integer(node, "num_groups", 0)
    if x is None or scale is None or bias is None or not is_float(x) or rank is None or rank < 2 or groups < 1:
        return None
    per_channel = op.opset >= 21
    wide, cast = _stash(op, node, x) if per_channel else widened(op, x)
    grouped = op.reshape(wide, [0, groups, -1])
    normal, _, _ = _centred(op, grouped, [2], number(node, "epsilon", 1e-5))
    normal = op.op("Cast", normal, to=x.dtype) if cast else normal
    if per_channel:
        normal, ahead = reshape_back(op, normal, x), list(range(1, rank - 1))
    else:
        ahead = [1]
    scaled = op.op("Mul", normal, op.unsqueeze(scale, ahead))
    y = op.op("Add", scaled, op.unsqueeze(bias, ahead))
    return [y if per_channel else reshape_back(op, y, x)]


def lp_normalization(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """As x / |x|_p along one axis; 0 where the norm is 0 (spec): no other norm is below the tiniest number."""
    x, power = node.inputs[0], integer(node, "p", 2)
    if x is None or x.dtype not in _FLOATS or power not in (1, 2):
        return None
    axes = [integer(node, "axis", -1)]
    if power == 1:
        norm = op.reduce("ReduceSum", op.op("Abs", x), axes)
    else:
        norm = op.op("Sqrt", op.reduce("ReduceSum", op.op("Mul", x, x), axes))
    tiny = float(np.finfo(np.float16 if x.dtype == ir.DataType.FLOAT16 else np.float32).tiny)
    return [op.op("Div", x, op.op("Max", norm, op.like(tiny, x)))]


class DecomposeNormalizations(Decomposition):
    """LayerNormalization, GroupNormalization, InstanceNormalization, RMSNormalization, LpNormalization."""

    name: ClassVar[str] = "decompose-normalizations"
    title: ClassVar[str] = "writes normalizations as means, differences and square roots"
    builders: ClassVar[Mapping[tuple[str, str], Builder]] = {
        ("", "LayerNormalization"): layer_normalization,
        ("", "RMSNormalization"): rms_normalization,
        ("", "SimplifiedLayerNormalization"): rms_normalization,
        ("", "InstanceNormalization"): instance_normalization,
        ("", "GroupNormalization"): group_normalization,
        ("", "LpNormalization"): lp_normalization,
    }

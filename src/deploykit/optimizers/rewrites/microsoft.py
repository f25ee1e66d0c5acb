"""Operators of onnxruntime's own domain, as the standard ones that they fuse."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

from deploykit.optimizers.editing import input_at, rank_of
from deploykit.optimizers.rewrites.decomposition import Decomposition
from deploykit.optimizers.rewrites.normalizations import integer, is_float, number, widened

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx_ir as ir

    from deploykit.optimizers.rewrites.decomposition import Builder
    from deploykit.optimizers.rewrites.emitting import Emitter

_DOMAIN = "com.microsoft"


def _half_times(op: Emitter, x: ir.Value, gate: ir.Value) -> ir.Value:
    """As x / 2 * (1 + gate)."""
    return op.op("Mul", op.op("Mul", x, op.like(0.5, x)), op.op("Add", gate, op.like(1.0, x)))


def _erf_gelu(op: Emitter, x: ir.Value) -> ir.Value:
    """As x / 2 * (1 + erf(x / sqrt 2)) (Hendrycks and Gimpel 2016, equation 1)."""
    return _half_times(op, x, op.op("Erf", op.op("Mul", x, op.like(math.sqrt(0.5), x))))


def gelu(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """Exactly, by the error function."""
    x = node.inputs[0]
    return [_erf_gelu(op, x)] if x is not None and is_float(x) else None


def bias_gelu(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """Of the sum of both inputs."""
    x, bias = node.inputs[0], input_at(node, 1)
    if x is None or bias is None or not is_float(x):
        return None
    return [_erf_gelu(op, op.op("Add", x, bias))]


def fast_gelu(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """By tanh(sqrt(2 / pi) * (x + 0.044715 x^3)), as onnxruntime computes it (Hendrycks and Gimpel 2016, section 2)."""
    x, bias = node.inputs[0], input_at(node, 1)
    if x is None or not is_float(x):
        return None
    x = x if bias is None else op.op("Add", x, bias)
    cube = op.op("Mul", op.op("Mul", x, x), x)
    inner = op.op("Add", x, op.op("Mul", cube, op.like(0.044715, x)))
    return [_half_times(op, x, op.op("Tanh", op.op("Mul", inner, op.like(math.sqrt(2 / math.pi), x))))]


def quick_gelu(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """As x * sigmoid(alpha * x)."""
    x = node.inputs[0]
    if x is None or not is_float(x):
        return None
    scaled = op.op("Mul", x, op.like(number(node, "alpha", 1.702), x))
    return [op.op("Mul", x, op.op("Sigmoid", scaled))]


def _skip_sum(op: Emitter, node: ir.Node, bias: ir.Value | None) -> ir.Value | None:
    x, skip = node.inputs[0], input_at(node, 1)
    if x is None or skip is None or not is_float(x) or rank_of(x) != 3:
        return None
    total = op.op("Add", x, skip)
    return total if bias is None else op.op("Add", total, bias)


def skip_layer_normalization(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """Layer normalization of input + skip + bias over the last dimension; the sum is the fourth output."""
    total = _skip_sum(op, node, input_at(node, 4))
    scale, shift = input_at(node, 2), input_at(node, 3)
    if total is None or scale is None:
        return None
    wide, cast = widened(op, total)
    mean = op.reduce("ReduceMean", wide, [-1])
    centred = op.op("Sub", wide, mean)
    variance = op.reduce("ReduceMean", op.op("Mul", centred, centred), [-1])
    root = op.op("Sqrt", op.op("Add", variance, op.like(number(node, "epsilon", 1e-12), wide)))
    normal = op.op("Div", centred, root)
    y = op.op("Mul", op.op("Cast", normal, to=total.dtype) if cast else normal, scale)
    return [y if shift is None else op.op("Add", y, shift), mean, op.op("Reciprocal", root), total]


def skip_rms_normalization(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """The same without mean and shift (SkipSimplifiedLayerNormalization)."""
    total = _skip_sum(op, node, input_at(node, 3))
    scale = input_at(node, 2)
    # The mean is not computed, and not promised to anybody.
    if total is None or scale is None or (len(node.outputs) > 1 and node.outputs[1].uses()):
        return None
    wide, cast = widened(op, total)
    square = op.reduce("ReduceMean", op.op("Mul", wide, wide), [-1])
    root = op.op("Sqrt", op.op("Add", square, op.like(number(node, "epsilon", 1e-12), wide)))
    normal = op.op("Div", wide, root)
    y = op.op("Mul", op.op("Cast", normal, to=total.dtype) if cast else normal, scale)
    return [y, total, op.op("Reciprocal", root), total]


def fused_matmul(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """As alpha * A' * B', each with its last two dimensions swapped when it says so (not those of transBatch)."""
    a, b = node.inputs[0], input_at(node, 1)
    if a is None or b is None or not is_float(a) or integer(node, "transBatchA", 0) or integer(node, "transBatchB", 0):
        return None
    sides = []
    for value, swapped in ((a, integer(node, "transA", 0)), (b, integer(node, "transB", 0))):
        rank = rank_of(value)
        if swapped and rank is None:
            return None
        order = list(range(rank or 0))
        sides.append(op.transpose(value, [*order[:-2], order[-1], order[-2]]) if swapped and len(order) > 1 else value)
    result = op.op("MatMul", *sides)
    alpha = number(node, "alpha", 1.0)
    return [result if alpha == 1.0 else op.op("Mul", result, op.like(alpha, a))]


def bias_softmax(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """Softmax of data + bias over the last dimension."""
    x, bias = node.inputs[0], input_at(node, 1)
    rank = rank_of(x)
    if x is None or bias is None or rank is None or integer(node, "axis", 1) not in (-1, rank - 1):
        return None
    if integer(node, "is_inner_broadcast", 0) and rank_of(bias) != rank:
        return None
    return [op.op("Softmax", op.op("Add", x, bias), axis=rank - 1)]


def fused_conv(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """Conv, the addition of Z, and the activation."""
    activation, parameters = node.attributes.get_string("activation", ""), []
    if "activation_params" in node.attributes:
        parameters = list(node.attributes["activation_params"].as_floats())
    names: tuple[str, ...] = {"LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta"), "Clip": ("min", "max")}.get(
        activation, ()
    )
    if activation not in ("", "Relu", "Sigmoid", "Tanh", *_WITH_PARAMETERS) or len(parameters) < len(names):
        return None
    conv = {key: value.value for key, value in node.attributes.items() if not key.startswith("activation")}
    result = op.op("Conv", *[value for value in node.inputs[:3] if value is not None], **conv)
    result.type = node.inputs[0].type if node.inputs[0] is not None else None
    added = input_at(node, 3)
    if added is not None:
        result = op.op("Add", result, added)
    if not activation:
        return [result]
    if activation == "Clip":
        if result.dtype is None:
            return None
        return [op.op("Clip", result, op.like(parameters[0], result), op.like(parameters[1], result))]
    given: dict[str, Any] = dict(zip(names, parameters, strict=False))
    return [op.op(activation, result, **given)]


_WITH_PARAMETERS = ("LeakyRelu", "HardSigmoid", "Clip")


class DecomposeMicrosoft(Decomposition):
    """What onnxruntime's optimizer fuses, for runtimes that do not have its operators."""

    name: ClassVar[str] = "decompose-com-microsoft"
    title: ClassVar[str] = "writes onnxruntime's fused operators as the standard ones"
    builders: ClassVar[Mapping[tuple[str, str], Builder]] = {
        (_DOMAIN, "Gelu"): gelu,
        (_DOMAIN, "BiasGelu"): bias_gelu,
        (_DOMAIN, "FastGelu"): fast_gelu,
        (_DOMAIN, "QuickGelu"): quick_gelu,
        (_DOMAIN, "SkipLayerNormalization"): skip_layer_normalization,
        (_DOMAIN, "SkipSimplifiedLayerNormalization"): skip_rms_normalization,
        (_DOMAIN, "FusedMatMul"): fused_matmul,
        (_DOMAIN, "TransposeMatMul"): fused_matmul,
        (_DOMAIN, "BiasSoftmax"): bias_softmax,
        (_DOMAIN, "FusedConv"): fused_conv,
    }

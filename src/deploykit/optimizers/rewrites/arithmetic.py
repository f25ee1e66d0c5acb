"""Operators that are short formulas of simpler ones, and whose bodies in ONNX are missing, new, or lose precision."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from deploykit.optimizers.editing import rank_of
from deploykit.optimizers.rewrites.decomposition import Decomposition
from deploykit.optimizers.rewrites.emitting import known_array, size_of
from deploykit.optimizers.rewrites.normalizations import integer, is_float, number

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import onnx_ir as ir

    from deploykit.optimizers.rewrites.decomposition import Builder
    from deploykit.optimizers.rewrites.emitting import Emitter

# Longest dimension of which a triangular or counting constant is made.
_LONGEST = 2048
_MAX_OF_INTEGERS = 12  # the opset from which on Min and Max take integers


def _chain(op_type: str, average: bool = False) -> Builder:
    def build(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
        given = [value for value in node.inputs if value is not None]
        if len(given) < 2 or (len(given) == 2 and op_type == node.op_type):
            return None
        result = given[0]
        for value in given[1:]:
            result = op.op(op_type, result, value)
        if average:
            if not is_float(given[0]):
                return None
            result = op.op("Mul", result, op.like(1 / len(given), given[0]))
        return [result]

    return build


def gemm(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """As alpha * A' * B' + beta * C (spec, Gemm-13)."""
    a, b = node.inputs[0], node.inputs[1]
    c = node.inputs[2] if len(node.inputs) > 2 else None
    alpha, beta = number(node, "alpha", 1.0), number(node, "beta", 1.0)
    if a is None or b is None or (not is_float(a) and (alpha, beta) != (1.0, 1.0)):
        return None
    left = op.transpose(a, [1, 0]) if integer(node, "transA", 0) else a
    right = op.transpose(b, [1, 0]) if integer(node, "transB", 0) else b
    result = op.op("MatMul", left, right)
    if alpha != 1.0:
        result = op.op("Mul", result, op.like(alpha, a))
    if c is None:
        return [result]
    return [op.op("Add", result, c if beta == 1.0 else op.op("Mul", c, op.like(beta, a)))]


def clip(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """Min(Max(x, low), high) (spec, Clip-13); bounds that are attributes before opset 11 become constants."""
    x = node.inputs[0]
    if x is None or x.dtype is None or (not is_float(x) and op.opset < _MAX_OF_INTEGERS):
        return None
    bounds: list[ir.Value | None] = [node.inputs[at] if at < len(node.inputs) else None for at in (1, 2)]
    if op.opset < 11:
        bounds = [op.like(number(node, key, 0), x) if key in node.attributes else None for key in ("min", "max")]
    result = x
    for op_type, bound in zip(("Max", "Min"), bounds, strict=True):
        result = result if bound is None else op.op(op_type, result, bound)
    return None if result is x else [result]


def softplus(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """max(x, 0) + log(1 + exp(-|x|)): unlike ONNX's own body it does not overflow."""
    x = node.inputs[0]
    if x is None or not is_float(x):
        return None
    small = op.op("Exp", op.op("Neg", op.op("Abs", x)))
    return [op.op("Add", op.op("Relu", x), op.op("Log", op.op("Add", small, op.like(1.0, x))))]


def mish(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """As x * tanh(softplus(x)) (Misra 2019, equation 1)."""
    x = node.inputs[0]
    plus = softplus(op, node)
    return None if x is None or plus is None else [op.op("Mul", x, op.op("Tanh", plus[0]))]


def prelu(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """relu(x) - slope * relu(-x) (He et al. 2015, equation 1)."""
    x, slope = node.inputs[0], node.inputs[1]
    if x is None or not is_float(x):
        return None
    negative = op.op("Mul", op.op("Relu", op.op("Neg", x)), slope)
    return [op.op("Sub", op.op("Relu", x), negative)]


def _unary(formula: Callable[[Emitter, ir.Value], ir.Value]) -> Builder:
    def build(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
        x = node.inputs[0]
        return [formula(op, x)] if x is not None and is_float(x) else None

    return build


def _hyperbolic(op: Emitter, x: ir.Value, combine: str) -> ir.Value:
    both = op.op(combine, op.op("Exp", x), op.op("Exp", op.op("Neg", x)))
    return op.op("Mul", both, op.like(0.5, x))


def _atanh(op: Emitter, x: ir.Value) -> ir.Value:
    one = op.like(1.0, x)
    ratio = op.op("Div", op.op("Add", x, one), op.op("Sub", one, x))
    return op.op("Mul", op.op("Log", ratio), op.like(0.5, x))


def _acosh(op: Emitter, x: ir.Value) -> ir.Value:
    root = op.op("Sqrt", op.op("Sub", op.op("Mul", x, x), op.like(1.0, x)))
    return op.op("Log", op.op("Add", x, root))


def _asinh(op: Emitter, x: ir.Value) -> ir.Value:
    """Of |x|, with the sign of x: log(x + sqrt(x^2 + 1)) cancels for negative x."""
    size = op.op("Abs", x)
    root = op.op("Sqrt", op.op("Add", op.op("Mul", x, x), op.like(1.0, x)))
    return op.op("Mul", op.op("Sign", x), op.op("Log", op.op("Add", size, root)))


def is_nan(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """As x != x; Equal compares floats from opset 11 on."""
    x = node.inputs[0]
    return None if x is None or op.opset < 11 else [op.op("Not", op.op("Equal", x, x))]


def is_inf(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """|x|, x or -x is infinity, as detect_positive and detect_negative say."""
    x = node.inputs[0]
    positive, negative = integer(node, "detect_positive", 1), integer(node, "detect_negative", 1)
    if x is None or not is_float(x) or op.opset < 11 or not (positive or negative):
        return None
    size = op.op("Abs", x) if positive and negative else x
    return [op.op("Equal", size, op.like(math.inf if positive else -math.inf, x))]


def xor(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """Booleans that differ."""
    return [op.op("Not", op.op("Equal", node.inputs[0], node.inputs[1]))]


def size(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """The product of the shape; as a scalar, which is what a reduction without kept dimensions gives."""
    return [op.reduce("ReduceProd", op.op("Shape", node.inputs[0]), None, keepdims=0)]


def cumulative_sum(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """A product with a triangular matrix, along an axis of known size."""
    x, axis_of = node.inputs[0], known_array(node.inputs[1])
    rank = rank_of(x)
    if x is None or not is_float(x) or axis_of is None or rank is None:
        return None
    axis = int(axis_of.ravel()[0]) % rank
    length = size_of(x, axis)
    if length is None or not 0 < length <= _LONGEST:
        return None
    triangle = np.triu(np.ones((length, length), np.float32), k=1 if integer(node, "exclusive", 0) else 0)
    if integer(node, "reverse", 0):
        triangle = triangle.T
    order = [at for at in range(rank) if at != axis] + [axis]
    summed = op.op("MatMul", op.transpose(x, order), op.const(triangle, x.dtype)) if rank > 1 else None
    if summed is None:
        row = op.op("MatMul", op.unsqueeze(x, [0]), op.const(triangle, x.dtype))
        return [op.squeeze(row, [0])]
    return [op.transpose(summed, [order.index(at) for at in range(rank)])]


def modulo(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """The rest of an integer division: with the sign of the divisor, or with fmod of the dividend (spec, Mod-13)."""
    a, b = node.inputs[0], node.inputs[1]
    if a is None or b is None or a.dtype is None or a.dtype.name not in ("INT32", "INT64"):
        return None
    rest = op.op("Sub", a, op.op("Mul", op.op("Div", a, b), b))  # Div of integers rounds towards 0
    if integer(node, "fmod", 0):
        return [rest]
    zero = op.like(0, a)
    differs = op.op("Not", op.op("Equal", op.op("Less", rest, zero), op.op("Less", b, zero)))
    turned = op.op("And", differs, op.op("Not", op.op("Equal", rest, zero)))
    return [op.op("Where", turned, op.op("Add", rest, b), rest)]


def trilu(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """A choice by a constant mask, where the last two dimensions and k are known."""
    x = node.inputs[0]
    offset = known_array(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] is not None else np.array(0)
    if x is None or x.dtype is None or offset is None or (rank_of(x) or 0) < 2:
        return None
    rows, columns = size_of(x, -2), size_of(x, -1)
    if rows is None or columns is None or not 0 < rows * columns <= _LONGEST * _LONGEST:
        return None
    make = np.triu if integer(node, "upper", 1) else np.tril
    mask = make(np.ones((rows, columns), np.bool_), k=int(offset.ravel()[0]))
    return [op.op("Where", op.const(mask), x, op.like(0, x))]


def hardmax(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """Whether a position is that of the first maximum, along an axis of known size."""
    x = node.inputs[0]
    rank = rank_of(x)
    if x is None or x.dtype is None or rank is None:
        return None
    axis = integer(node, "axis", -1 if op.opset >= 13 else 1) % max(rank, 1)
    length = size_of(x, axis)
    # Before opset 13 the input is seen as a matrix: the same only along the last axis.
    if length is None or not 0 < length <= _LONGEST or (op.opset < 13 and axis != rank - 1):
        return None
    place = op.op("ArgMax", x, axis=axis, keepdims=1)
    positions = np.arange(length, dtype=np.int64).reshape([-1] + [1] * (rank - 1 - axis))
    return [op.op("Cast", op.op("Equal", place, op.const(positions)), to=x.dtype)]


class DecomposeArithmetic(Decomposition):
    """Sums of many, Gemm, Clip, Softplus, hyperbolic functions, CumSum, Trilu, Hardmax and the like."""

    name: ClassVar[str] = "decompose-arithmetic"
    title: ClassVar[str] = "writes operators that are short formulas as the simpler ones they are made of"
    builders: ClassVar[Mapping[tuple[str, str], Builder]] = {
        ("", "Sum"): _chain("Add"),
        ("", "Mean"): _chain("Add", average=True),
        ("", "Min"): _chain("Min"),
        ("", "Max"): _chain("Max"),
        ("", "Gemm"): gemm,
        ("", "Clip"): clip,
        ("", "Softplus"): softplus,
        ("", "Mish"): mish,
        ("", "PRelu"): prelu,
        ("", "Sinh"): _unary(lambda op, x: _hyperbolic(op, x, "Sub")),
        ("", "Cosh"): _unary(lambda op, x: _hyperbolic(op, x, "Add")),
        ("", "Tan"): _unary(lambda op, x: op.op("Div", op.op("Sin", x), op.op("Cos", x))),
        ("", "Asinh"): _unary(_asinh),
        ("", "Acosh"): _unary(_acosh),
        ("", "Atanh"): _unary(_atanh),
        ("", "Reciprocal"): _unary(lambda op, x: op.op("Div", op.like(1.0, x), x)),
        ("", "IsNaN"): is_nan,
        ("", "IsInf"): is_inf,
        ("", "Xor"): xor,
        ("", "Size"): size,
        ("", "CumSum"): cumulative_sum,
        ("", "Mod"): modulo,
        ("", "Trilu"): trilu,
        ("", "Hardmax"): hardmax,
    }

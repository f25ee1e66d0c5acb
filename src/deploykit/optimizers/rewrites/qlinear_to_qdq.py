"""Operators that compute on integers, written as DequantizeLinear, the float operator, QuantizeLinear."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import onnx_ir as ir

from deploykit.optimizers.editing import rank_of
from deploykit.optimizers.rewrites.decomposition import Builder, Decomposition
from deploykit.optimizers.rewrites.emitting import known_array

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploykit.optimizers.rewrites.emitting import Emitter
    from deploykit.optimizers.rewriting import Change

_MICROSOFT = "com.microsoft"


def given(node: ir.Node, index: int) -> ir.Value | None:
    """The input at this position; None where it is left out."""
    return node.inputs[index] if index < len(node.inputs) else None


def attributes_of(node: ir.Node, *without: str) -> dict[str, Any]:
    """The attributes as Python values, without some."""
    return {name: attribute.value for name, attribute in node.attributes.items() if name not in without}


def inputs_of(node: ir.Node, *at: int) -> tuple[ir.Value | None, ...]:
    """The inputs at these positions: integers, scale, zero point."""
    return tuple(given(node, index) for index in at)


def dequantized(emitter: Emitter, quantized: tuple[ir.Value | None, ...], axis: int) -> ir.Value | None:
    """DequantizeLinear of integers, scale and zero point; axis: of a scale with several elements.

    None where the opset has no form for it: DequantizeLinear has an axis from opset 13 on.
    """
    value, scale, zero = quantized
    rank = rank_of(scale)
    if value is None or scale is None or rank is None or rank > 1 or emitter.opset < 10:
        return None
    several = rank == 1 and scale.shape is not None and scale.shape[0] != 1
    if several and emitter.opset < 13:
        return None
    made = emitter.op("DequantizeLinear", value, scale, zero, axis=axis if several else None)
    made.dtype = ir.DataType.FLOAT
    return made


def quantized(
    emitter: Emitter, value: ir.Value, scale: ir.Value | None, zero: ir.Value | None, dtype: ir.DataType | None
) -> list[ir.Value] | None:
    """QuantizeLinear with one scale. dtype: of the result, which a zero point that is left out does not say."""
    if scale is None or rank_of(scale) not in (0, 1):
        return None
    if zero is None:
        if dtype is None:
            return None
        zero = emitter.const(np.zeros(() if rank_of(scale) == 0 else (1,)), dtype)
    return [emitter.op("QuantizeLinear", value, scale, zero)]


def _conv(emitter: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    if attributes_of(node).get("channels_last"):
        return None
    x = dequantized(emitter, inputs_of(node, 0, 1, 2), 1)
    w = dequantized(emitter, inputs_of(node, 3, 4, 5), 0)
    if x is None or w is None:
        return None
    bias = given(node, 8)
    inputs = [x, w] if bias is None else [x, w, _bias(emitter, bias, given(node, 1), given(node, 4))]
    y = emitter.op("Conv", *inputs, **attributes_of(node, "channels_last"))
    return quantized(emitter, y, given(node, 6), given(node, 7), _dtype(node, 0))


def _bias(emitter: Emitter, bias: ir.Value, x_scale: ir.Value | None, w_scale: ir.Value | None) -> ir.Value | None:
    """The float bias: integers times x_scale * w_scale (QLinearConv, ONNX specification)."""
    integers, xs, ws = known_array(bias), known_array(x_scale), known_array(w_scale)
    if integers is not None and xs is not None and ws is not None:
        return emitter.const((integers * (xs.astype(np.float64).reshape(()) * ws)).astype(np.float32))
    return emitter.op("Mul", emitter.op("Cast", bias, to=ir.DataType.FLOAT), emitter.op("Mul", x_scale, w_scale))


def _dtype(node: ir.Node, index: int) -> ir.DataType | None:
    """Of the output, which is that of the input at `index` where inference did not say."""
    value = given(node, index)
    return node.outputs[0].dtype or (None if value is None else value.dtype)


def _matmul(emitter: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    a = dequantized(emitter, inputs_of(node, 0, 1, 2), -2)
    b = dequantized(emitter, inputs_of(node, 3, 4, 5), -1)
    if a is None or b is None:
        return None
    return quantized(emitter, emitter.op("MatMul", a, b), given(node, 6), given(node, 7), _dtype(node, 0))


def _gemm(emitter: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """QGemm: A, B and an int32 C with the scale of their product; the result is float when it has no scale."""
    settings = attributes_of(node)
    a = dequantized(emitter, inputs_of(node, 0, 1, 2), 0)
    b = dequantized(emitter, inputs_of(node, 3, 4, 5), 0 if settings.get("transB") else 1)
    if a is None or b is None:
        return None
    inputs = [a, b]
    if (c := given(node, 6)) is not None:
        # The kernel gives C the scale alpha * a_scale * b_scale; Gemm adds it as it is.
        alpha = np.float32(settings.get("alpha", 1.0))
        scaled = _bias(emitter, c, given(node, 1), given(node, 4))
        if scaled is not None and alpha != 1:
            scaled = emitter.op("Mul", scaled, emitter.const(alpha))
        inputs.append(scaled) if scaled is not None else None
    y = emitter.op("Gemm", *inputs, **settings)
    if given(node, 7) is None:
        return [y]
    return quantized(emitter, y, given(node, 7), given(node, 8), _dtype(node, 0))


def _binary(op_type: str) -> Builder:
    def build(emitter: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
        a = dequantized(emitter, inputs_of(node, 0, 1, 2), 1)
        b = dequantized(emitter, inputs_of(node, 3, 4, 5), 1)
        if a is None or b is None:
            return None
        return quantized(emitter, emitter.op(op_type, a, b), given(node, 6), given(node, 7), _dtype(node, 0))

    return build


def _unary(op_type: str, *without: str) -> Builder:
    """without: attributes that the float operator does not have; they have to be 0."""

    def build(emitter: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
        settings = attributes_of(node)
        x = dequantized(emitter, inputs_of(node, 0, 1, 2), 1)
        if x is None or any(settings.get(name) for name in without):
            return None
        y = emitter.op(op_type, x, **attributes_of(node, *without))
        return quantized(emitter, y, given(node, 3), given(node, 4), _dtype(node, 0))

    return build


def _softmax(emitter: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """QLinearSoftmax says which opset's Softmax it means: before 13 the axes from `axis` on are one."""
    settings, rank = attributes_of(node, "opset"), rank_of(given(node, 0))
    meant = attributes_of(node).get("opset", emitter.opset)
    axis = settings.get("axis", 1 if meant < 13 else -1)
    if rank is None or ((meant < 13) != (emitter.opset < 13) and axis not in (-1, rank - 1)):
        return None
    x = dequantized(emitter, inputs_of(node, 0, 1, 2), 1)
    if x is None:
        return None
    y = emitter.op("Softmax", x, axis=axis)
    return quantized(emitter, y, given(node, 3), given(node, 4), _dtype(node, 0))


def _mean(emitter: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    settings = attributes_of(node)
    x = dequantized(emitter, inputs_of(node, 0, 1, 2), 1)
    if x is None:
        return None
    y = emitter.reduce("ReduceMean", x, settings.get("axes"), settings.get("keepdims", 1))
    return quantized(emitter, y, given(node, 3), given(node, 4), _dtype(node, 0))


def _concat(emitter: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    parts = [dequantized(emitter, inputs_of(node, at, at + 1, at + 2), 1) for at in range(2, len(node.inputs), 3)]
    if any(part is None for part in parts):
        return None
    y = emitter.op("Concat", *parts, **attributes_of(node))
    return quantized(emitter, y, given(node, 0), given(node, 1), _dtype(node, 2))


def _where(emitter: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    x = dequantized(emitter, inputs_of(node, 1, 2, 3), 1)
    y = dequantized(emitter, inputs_of(node, 4, 5, 6), 1)
    if x is None or y is None:
        return None
    z = emitter.op("Where", given(node, 0), x, y)
    return quantized(emitter, z, given(node, 7), given(node, 8), _dtype(node, 1))


def _integers(op_type: str, axes: tuple[int, int]) -> Builder:
    """MatMulInteger and ConvInteger: the product of what is left when the zero points are taken off, as int32.

    float32 holds sums up to 2^24 exactly; a sum beyond it is rounded to 24 bits.
    """

    def build(emitter: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
        if from_dynamic(given(node, 0)) is not None:
            return None
        sides = []
        for at, axis in enumerate(axes):
            zero = given(node, 2 + at)
            shape = () if zero is None or zero.shape is None else tuple(zero.shape)
            if any(not isinstance(size, int) for size in shape):
                return None
            ones = emitter.const(np.ones([int(size) for size in shape if isinstance(size, int)], np.float32))
            sides.append(dequantized(emitter, (given(node, at), ones, zero), axis))
        if any(side is None for side in sides):
            return None
        return [emitter.op("Cast", emitter.op(op_type, *sides, **attributes_of(node)), to=ir.DataType.INT32)]

    return build


def from_dynamic(value: ir.Value | None) -> ir.Node | None:
    """The DynamicQuantizeLinear that makes this value."""
    producer = None if value is None else value.producer()
    return producer if producer is not None and producer.op_type == "DynamicQuantizeLinear" else None


def _to_float(emitter: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """MatMulIntegerToFloat: A, B, a_scale, b_scale, a_zero_point, b_zero_point, bias."""
    if from_dynamic(given(node, 0)) is not None:
        return None
    a = dequantized(emitter, inputs_of(node, 0, 2, 4), -2)
    b = dequantized(emitter, inputs_of(node, 1, 3, 5), -1)
    if a is None or b is None:
        return None
    y, bias = emitter.op("MatMul", a, b), given(node, 6)
    return [y if bias is None else emitter.op("Add", y, bias)]


class QLinearToQdq(Decomposition):
    """QLinearConv, QLinearMatMul, QGemm and their kin between DequantizeLinear and QuantizeLinear.

    The same values but for rounding: the integer kernels round once in the end, and so does QuantizeLinear; a value
    halfway between two steps may come out one step away. What DynamicQuantizeLinear feeds has no fixed scale:
    it stays.
    """

    name: ClassVar[str] = "qlinear-to-qdq"
    title: ClassVar[str] = "writes QLinear operators as DequantizeLinear, the float operator, QuantizeLinear"
    builders: ClassVar[Mapping[tuple[str, str], Builder]] = {
        ("", "QLinearConv"): _conv,
        ("", "QLinearMatMul"): _matmul,
        ("", "MatMulInteger"): _integers("MatMul", (-2, -1)),
        ("", "ConvInteger"): _integers("Conv", (1, 0)),
        (_MICROSOFT, "QLinearConv"): _conv,
        (_MICROSOFT, "QGemm"): _gemm,
        (_MICROSOFT, "QLinearAdd"): _binary("Add"),
        (_MICROSOFT, "QLinearMul"): _binary("Mul"),
        (_MICROSOFT, "QLinearSigmoid"): _unary("Sigmoid"),
        (_MICROSOFT, "QLinearLeakyRelu"): _unary("LeakyRelu"),
        (_MICROSOFT, "QLinearGlobalAveragePool"): _unary("GlobalAveragePool", "channels_last"),
        (_MICROSOFT, "QLinearAveragePool"): _unary("AveragePool", "channels_last"),
        (_MICROSOFT, "QLinearSoftmax"): _softmax,
        (_MICROSOFT, "QLinearReduceMean"): _mean,
        (_MICROSOFT, "QLinearConcat"): _concat,
        (_MICROSOFT, "QLinearWhere"): _where,
        (_MICROSOFT, "MatMulIntegerToFloat"): _to_float,
    }

    def apply(self, model: ir.Model, nodes: Sequence[ir.Node]) -> list[Change]:
        """Replaces each node that has a form in Q/DQ; rounding differs by at most one quantization step."""
        return [dataclasses.replace(change, bound="int8") for change in super().apply(model, nodes)]

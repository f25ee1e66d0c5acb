"""Multiply-accumulates of ONNX Runtime's kernels, its fused and quantized ones included, from the shapes of a call."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import onnx_ir

    Shape = tuple[int, ...]
    Inputs = Sequence[Shape | None]


def macs_of(node: onnx_ir.Node, inputs: Inputs, output: Shape) -> int:
    """Multiply-accumulates of one call; 0 for kernels without any and where a shape is not known.

    inputs: shapes by position, None where missing. output: shape of the first output.
    """
    rule = _RULES.get(node.op_type)
    if rule is None:
        return 0
    count, positions = rule
    chosen = [inputs[position] if position < len(inputs) else None for position in positions]
    known = [shape for shape in chosen if shape is not None]
    return count(node, known, output) if len(known) == len(positions) else 0


def _convolution(node: onnx_ir.Node, shapes: list[Shape], output: Shape) -> int:
    # W is [out, in / group, *kernel] in every layout of the activations.
    return math.prod(output) * math.prod(shapes[0][1:])


def _transposed(node: onnx_ir.Node, shapes: list[Shape], output: Shape) -> int:
    # W is [in, out / group, *kernel]: each input element meets each of them.
    return math.prod(shapes[0]) * math.prod(shapes[1][1:])


def _matmul(node: onnx_ir.Node, shapes: list[Shape], output: Shape) -> int:
    left = shapes[0]
    axis = -2 if _flag(node, "transA") and len(left) > 1 else -1
    return math.prod(output) * left[axis]


def _recurrent(node: onnx_ir.Node, shapes: list[Shape], output: Shape) -> int:
    # X has [time, batch] or [batch, time] in front; W and R are [directions, gates * hidden, in or hidden].
    data, weights, recurrence = shapes
    return math.prod(data[:2]) * (math.prod(weights) + math.prod(recurrence))


def _attention(node: onnx_ir.Node, shapes: list[Shape], output: Shape) -> int:
    # com.microsoft Attention: the projection to Q, K and V, then Q K^T and the product with V over the sequence.
    data, weights = shapes
    batch, length = data[0], data[1]
    return math.prod(data[:2]) * math.prod(weights) + 2 * batch * length * length * (weights[1] // 3)


def _multi_head(node: onnx_ir.Node, shapes: list[Shape], output: Shape) -> int:
    query, key = shapes
    if len(query) != 3 or len(key) != 3:  # packed forms keep Q, K and V in one tensor
        return 0
    return 2 * math.prod(query) * key[1]


def _blockwise(node: onnx_ir.Node, shapes: list[Shape], output: Shape) -> int:
    return math.prod(output) * shapes[0][-1]


def _flag(node: onnx_ir.Node, name: str) -> bool:
    attribute = node.attributes.get(name)
    return attribute is not None and bool(attribute.as_int())


# Operator -> how it counts, and which inputs it needs for that.
_RULES: dict[str, tuple[Callable[[Any, Any, Any], int], tuple[int, ...]]] = {
    **dict.fromkeys(("Conv", "FusedConv", "NhwcFusedConv", "NhwcConv", "ConvInteger"), (_convolution, (1,))),
    "QLinearConv": (_convolution, (3,)),
    "ConvTranspose": (_transposed, (0, 1)),
    "QLinearConvTranspose": (_transposed, (0, 3)),
    **dict.fromkeys(
        (
            "MatMul", "FusedMatMul", "Gemm", "FusedGemm", "QGemm", "MatMulInteger", "MatMulInteger16", "QLinearMatMul",
            "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "TransposeMatMul",
        ),
        (_matmul, (0,)),
    ),
    "MatMulNBits": (_blockwise, (0,)),
    **dict.fromkeys(("LSTM", "GRU", "RNN", "DynamicQuantizeLSTM"), (_recurrent, (0, 1, 2))),
    **dict.fromkeys(("Attention", "QAttention"), (_attention, (0, 1))),
    "MultiHeadAttention": (_multi_head, (0, 1)),
}  # fmt: skip

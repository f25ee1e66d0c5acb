"""Operator families as quantization sees them; the order of inputs follows the ONNX operator specification."""

from __future__ import annotations

MAC_OPS = frozenset({"Conv", "ConvTranspose", "MatMul", "Gemm"})
# Their outputs are written by an int8 kernel only when a QuantizeLinear follows (onnxruntime has no int8 convolution
# with a float output), so they get one even before a float operator.
CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})
# A convolution and one of these run as one kernel: Q/DQ goes after the pair, never between.
FUSED_ACTIVATIONS = frozenset({"Relu", "Clip"})
# Output values are input values (or 0): integer in, integer out, one scale on both sides. The number of leading
# inputs that carry data; None: all of them.
PASS_THROUGH: dict[str, int | None] = {
    "Concat": None,
    "DepthToSpace": 1,
    "Flatten": 1,
    "Identity": 1,
    "MaxPool": 1,
    "Reshape": 1,
    "SpaceToDepth": 1,
    "Squeeze": 1,
    "Transpose": 1,
    "Unsqueeze": 1,
}
# They only choose among their values, so that they can work on integers as well: where the target's scheme asks for it.
EXTREMES = frozenset({"GlobalMaxPool", "ReduceMax", "ReduceMin"})
AVERAGES = frozenset({"AveragePool", "GlobalAveragePool", "ReduceMean", "ReduceSum"})
# Keep the ratios of small and large values, or nearly: what reaches a Log through them decides by its magnitude.
ARITHMETIC = frozenset(
    {
        "Abs",
        "Add",
        "Clip",
        "Concat",
        "Div",
        "Identity",
        "Max",
        "Mul",
        "Pow",
        "ReduceSum",
        "ReduceSumSquare",
        "ReduceL2",
        "Reshape",
        "Slice",
        "Sqrt",
        "Squeeze",
        "Transpose",
        "Unsqueeze",
    }
)
RECURRENT = frozenset({"LSTM", "GRU", "RNN"})
CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})
QUANTIZED_OPS = frozenset(
    {
        "QuantizeLinear",
        "DequantizeLinear",
        "DynamicQuantizeLinear",
        "QLinearConv",
        "QLinearMatMul",
        "MatMulInteger",
        "ConvInteger",
        "QLinearAdd",
        "QGemm",
        "MatMulNBits",
        "MatMulIntegerToFloat",
        "DynamicQuantizeMatMul",
        "QAttention",
    }
)

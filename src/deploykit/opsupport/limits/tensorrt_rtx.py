"""TensorRT-RTX: what its ONNX parser takes and its builder then refuses, and the types it has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deploykit.opsupport.limits.rules import ANY, Limits, fails, given, wrong
from deploykit.opsupport.verdict import unsupported

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deploykit.opsupport.facts import NodeFacts, TensorFacts
    from deploykit.opsupport.verdict import Verdict

LIMITS = Limits("TensorRT-RTX", "1.7.1.116")
_TYPES = {
    *("float32", "float16", "bfloat16", "float64", "bool", "int8", "uint8", "int32", "int64", "int4"),
    *("float8_e4m3fn", "float4_e2m1fn"),
}
_FALLBACK = {
    **dict.fromkeys(("int16", "uint16"), "int32"),
    **dict.fromkeys(("uint32", "uint64"), "int64"),
    "float8_e5m2": "float8_e4m3fn",
    "uint4": "int4",
    "int2": "int4",
    "uint2": "int4",
}
# What moves elements without computing: such layers take types that only Q/DQ produces and consumes.
_MOVES = {"Concat", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
_NARROW = {"float8_e4m3fn": "FP8", "float4_e2m1fn": "FP4", "int4": "INT4"}
_QDQ = "quantize in Q/DQ form: deploykit quantize MODEL -o OUT --precision int8 --calib DATA --target tensorrt-rtx"


@LIMITS.rule(ANY)
def _types(node: NodeFacts) -> Verdict | None:
    for tensor in _tensors(node):
        if tensor.dtype in _TYPES or tensor.dtype == "unknown" or "(" in tensor.dtype:
            continue
        instead = _FALLBACK.get(tensor.dtype, "float32")
        remedy = f"make it {instead} in the model"
        if tensor.dtype == "string":
            remedy = "keep text outside the model: tokenise before it, and feed numbers"
        return unsupported(
            f"tensor {tensor.name!r} is {tensor.dtype}, a type that TensorRT does not have", remedy=remedy
        )
    return None


@LIMITS.rule(ANY)
def _narrow_types(node: NodeFacts) -> Verdict | None:
    if node.op in _MOVES:
        return None
    for tensor in node.inputs if node.op not in ("DequantizeLinear", "QuantizeLinear", "Shape", "Size") else ():
        if tensor is not None and tensor.dtype in _NARROW:
            told = f"{node.op} gets {tensor.name!r} in {_NARROW[tensor.dtype]}, which only DequantizeLinear takes"
            return fails(told, remedy="put a DequantizeLinear before it")
    for tensor in node.outputs if node.op not in ("QuantizeLinear", "Constant") else ():
        if tensor is not None and tensor.dtype in _NARROW:
            told = f"{node.op} makes {tensor.name!r} in {_NARROW[tensor.dtype]}, which only QuantizeLinear may"
            return fails(told, remedy="use a QuantizeLinear in its place")
    return None


@LIMITS.rule(ANY)
def _int8_constant(node: NodeFacts) -> Verdict | None:
    if node.op in ("DequantizeLinear", "QuantizeLinear", "Constant", "CastLike"):
        return None
    for tensor in node.inputs:
        if tensor is not None and tensor.constant and tensor.dtype == "int8":
            told = f"the constant {tensor.name!r} is int8, which its builder lets DequantizeLinear only have"
            return fails(told, remedy="store it as int32, or as int8 with a DequantizeLinear behind it")
    return None


@LIMITS.rule("QuantizeLinear")
def _four_bit_activations(node: NodeFacts) -> Verdict | None:
    made = node.outputs[0]
    if made is None or made.dtype != "float4_e2m1fn":
        return None
    told = "it quantizes to FP4, which GPUs before compute capability 10.0 do not have"
    return fails(
        told,
        remedy="quantize to INT8 or FP8: "
        "deploykit quantize MODEL -o OUT --precision int8 --calib DATA --target tensorrt-rtx",
    )


@LIMITS.rule("NonMaxSuppression")
def _no_kernel(node: NodeFacts) -> Verdict | None:
    told = "its builder finds no kernel for NonMaxSuppression"
    return fails(told, remedy="end the model before it, and run the suppression on the host")


@LIMITS.rule("QuantizeLinear", "DequantizeLinear")
def _computed_zero_point(node: NodeFacts) -> Verdict | None:
    zero_point = given(node, 2)
    if zero_point is None or zero_point.foldable:
        return None
    return fails("its zero point is not an initializer", remedy=_QDQ)


@LIMITS.rule("QuantizeLinear", "DequantizeLinear")
def _unsigned(node: NodeFacts) -> Verdict | None:
    """The parser makes INT8 layers of uint8 ones (`ITensor.dtype` of what it parsed): 128 to 255 would end at 127."""
    quantized = node.outputs[0] if node.op == "QuantizeLinear" else given(node, 0)
    if quantized is None or quantized.dtype != "uint8":
        return None
    told = f"{quantized.name!r} is uint8, which its parser reads as int8: everything above 127 is cut off"
    return wrong(told, remedy=_QDQ)


@LIMITS.rule("TensorScatter")
def _fixed_update(node: NodeFacts) -> Verdict | None:
    update = given(node, 1)
    if update is None or not update.constant:
        return None
    return fails("its update is a constant", remedy="feed the update as an input, or compute it in the model")


@LIMITS.rule("If")
def _branch_ranks(node: NodeFacts) -> Verdict | None:
    condition = given(node, 0)
    branches = [node.attributes.get(name) for name in ("then_branch", "else_branch")]
    if condition is None or condition.foldable or any(branch is None for branch in branches):
        return None
    for index, ranks in enumerate(zip(*(_ranks(branch) for branch in branches), strict=False)):
        if None not in ranks and len(set(ranks)) > 1:
            told = f"output {index} has rank {ranks[0]} in one branch and rank {ranks[1]} in the other"
            return fails(told, remedy="make both branches give the same rank, or fix the condition and simplify")
    return None


def _ranks(branch: Any) -> list[int | None]:
    return [None if value.shape is None else len(value.shape) for value in branch.outputs]


def _tensors(node: NodeFacts) -> Iterator[TensorFacts]:
    yield from (tensor for tensor in (*node.inputs, *node.outputs) if tensor is not None)

"""What a microcontroller needs beside the `.tflite`: its bytes as a C array, the operators to register, and the arena.

Operators are those of TensorFlow Lite Micro's `MicroMutableOpResolver`, by its own names.
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import TYPE_CHECKING, Any

from deploykit.converters.litert.flatbuffer import NAME, dtype_name, operator_name
from deploykit.report import Finding, failure, note

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

# `Add...` by operator, micro_mutable_op_resolver.h; those whose name is not the operator's words in capitals first.
_NAMED = {
    "AVERAGE_POOL_2D": "AveragePool2D",
    "BATCH_MATMUL": "BatchMatMul",
    "CONV_2D": "Conv2D",
    "CUMSUM": "CumSum",
    "DEPTHWISE_CONV_2D": "DepthwiseConv2D",
    "L2_POOL_2D": "L2Pool2D",
    "MAX_POOL_2D": "MaxPool2D",
    "PADV2": "PadV2",
    "UNIDIRECTIONAL_SEQUENCE_LSTM": "UnidirectionalSequenceLSTM",
    "TFLite_Detection_PostProcess": "DetectionPostprocess",
}
_WORDS = """
ABS ADD ADD_N ARG_MAX ARG_MIN ASSIGN_VARIABLE BATCH_TO_SPACE_ND BROADCAST_ARGS BROADCAST_TO CALL_ONCE CAST
CEIL CIRCULAR_BUFFER CONCATENATION COS DEPTH_TO_SPACE DEQUANTIZE DIV ELU EMBEDDING_LOOKUP EQUAL EXP
EXPAND_DIMS FILL FLOOR FLOOR_DIV FLOOR_MOD FULLY_CONNECTED GATHER GATHER_ND GREATER GREATER_EQUAL HARD_SWISH
IF L2_NORMALIZATION LEAKY_RELU LESS LESS_EQUAL LOG LOG_SOFTMAX LOGICAL_AND LOGICAL_NOT LOGICAL_OR LOGISTIC
MAXIMUM MEAN MINIMUM MIRROR_PAD MUL NEG NOT_EQUAL PACK PAD PRELU QUANTIZE READ_VARIABLE REDUCE_MAX
REDUCE_MIN RELU RELU6 RESHAPE RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR REVERSE_V2 ROUND RSQRT SELECT_V2 SHAPE
SIN SLICE SOFTMAX SPACE_TO_BATCH_ND SPACE_TO_DEPTH SPLIT SPLIT_V SQRT SQUARE SQUARED_DIFFERENCE SQUEEZE
STRIDED_SLICE SUB SUM SVDF TANH TRANSPOSE TRANSPOSE_CONV UNPACK VAR_HANDLE WHILE ZEROS_LIKE
"""
_REGULAR = frozenset(_WORDS.split())
# Operators whose kernels are float with float weights or integers throughout, never float with integer weights.
_WEIGHTED = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV", "BATCH_MATMUL")
_ALIGNMENT = 16
# On a 32-bit core, of what the interpreter keeps for good: TfLiteEvalTensor, a node with its registration and the
# kernel's data, two int32 for each channel of a quantized weight, and the interpreter's own.
_TENSOR_BYTES, _NODE_BYTES, _CHANNEL_BYTES, _FIXED_BYTES = 16, 96, 8, 1536


@dataclasses.dataclass(frozen=True, slots=True)
class Planned:
    """A tensor in the arena. first, last: operators between which it lives, -1 for inputs."""

    size: int
    first: int
    last: int


def added_by(operator: str) -> str | None:
    """`AddConv2D` for CONV_2D; None for an operator that TensorFlow Lite Micro does not have."""
    if operator in _NAMED:
        return f"Add{_NAMED[operator]}"
    if operator in _REGULAR:
        return "Add" + "".join(word[:1] + word[1:].lower() for word in operator.split("_"))
    return None


def write_beside(final: Path, content: bytes, model: Any) -> tuple[list[str], list[Finding], dict[str, Any]]:
    """Writes OUT.cc and OUT.h; their names, what is to be said, and the operators and arena as facts.

    An operator that TensorFlow Lite Micro lacks is an error (DK567).
    """
    operators = sorted({operator_name(model, op) for graph in model.subgraphs for op in graph.operators or []})
    findings = [*_lacking(operators), *_hybrids(model)]
    calls = [call for operator in operators if (call := added_by(operator)) is not None]
    activations, kept = arena(model)
    total = math.ceil((activations + kept) / 1024) * 1024
    facts = {"operators": calls, "arena_bytes": total, "activation_bytes": activations, "persistent_bytes": kept}
    if any(finding.severity == "error" for finding in findings):
        return [], findings, facts
    symbol = re.sub(r"\W", "_", final.stem, flags=re.ASCII)
    symbol = f"m_{symbol}" if symbol[:1].isdigit() else symbol
    header, source = final.with_suffix(".h"), final.with_suffix(".cc")
    header.write_text(_header(symbol, calls, total, activations, kept), encoding="ascii")
    source.write_text(_source(symbol, header.name, content), encoding="ascii")
    text = (
        f"arena: about {total:,} bytes, an estimate: {activations:,} for activations, by the greedy planner that "
        f"TensorFlow Lite Micro uses, and {kept:,} for what its interpreter keeps; scratch buffers of optimised "
        "kernels come on top. arena_used_bytes() on the device tells the real number"
    )
    varying = [tensor for graph in model.subgraphs for tensor in graph.tensors if _varies(tensor)]
    if varying:
        text += "; sizes that vary are 1 there"
    findings.append(note("DK568", text, target=NAME))
    return [source.name, header.name], findings, facts


def _lacking(operators: Iterable[str]) -> list[Finding]:
    return [
        failure(
            "DK567",
            f"TensorFlow Lite Micro has no operator {operator}",
            target=NAME,
            op=operator,
            hint="replace it in the model, or leave micro=true away",
        )
        for operator in operators
        if added_by(operator) is None
    ]


def _hybrids(model: Any) -> list[Finding]:
    """What its kernels do not take: float activations with integer weights, and float16."""
    found = {}
    for graph in model.subgraphs:
        for operator in graph.operators or []:
            name = operator_name(model, operator)
            kinds = [dtype_name(graph.tensors[index].type) for index in operator.inputs or [] if index >= 0]
            if name in _WEIGHTED and kinds[0] == "float32" and {"int8", "int4"} & set(kinds[1:]):
                found[name] = f"{name} with float activations and integer weights"
            elif "float16" in kinds:
                found[name] = f"{name} of float16"
    return [
        failure(
            "DK567",
            f"TensorFlow Lite Micro has no kernel for {told}",
            target=NAME,
            op=name,
            hint="--option precision=int8 --calib DATA, or the float32 model",
        )
        for name, told in sorted(found.items())
    ]


def arena(model: Any) -> tuple[int, int]:
    """Bytes for activations and for what stays, of all graphs; both are estimates.

    Activations are placed as `GreedyMemoryPlanner` of TensorFlow Lite Micro does: by size, the largest first, each at
    the lowest offset that no tensor of an overlapping lifetime takes; graphs share nothing.
    """
    activations = sum(_placed(_lifetimes(model, graph)) for graph in model.subgraphs)
    kept = _FIXED_BYTES
    for graph in model.subgraphs:
        kept += _TENSOR_BYTES * len(graph.tensors) + _NODE_BYTES * len(graph.operators or [])
        for tensor in graph.tensors:
            scales = None if tensor.quantization is None else tensor.quantization.scale
            kept += _CHANNEL_BYTES * len(scales) if scales is not None and len(scales) > 1 else 0
            kept += _bytes_of(tensor) if tensor.isVariable else 0
    return activations, kept


def _lifetimes(model: Any, graph: Any) -> list[Planned]:
    operators = list(graph.operators or [])
    first = {int(index): -1 for index in graph.inputs}
    last = {int(index): 0 for index in graph.inputs}
    for place, operator in enumerate(operators):
        for index in operator.outputs if operator.outputs is not None else []:
            first.setdefault(int(index), place)
            last[int(index)] = max(last.get(int(index), place), place)
        for index in operator.inputs if operator.inputs is not None else []:
            if index >= 0 and int(index) in first:
                last[int(index)] = place
    for index in graph.outputs:
        last[int(index)] = len(operators)
    return [
        Planned(_bytes_of(graph.tensors[index]), start, last[index])
        for index, start in first.items()
        if not graph.tensors[index].isVariable and not _constant(model, graph.tensors[index])
    ]


def _placed(tensors: Sequence[Planned]) -> int:
    """The end of the highest tensor."""
    taken: list[tuple[int, Planned]] = []
    for tensor in sorted(tensors, key=lambda one: (-one.size, one.first)):
        offset = 0
        for start, other in sorted(taken, key=lambda pair: pair[0]):
            if other.first > tensor.last or other.last < tensor.first:
                continue
            if offset + tensor.size <= start:
                break
            offset = max(offset, start + other.size)
        taken.append((offset, tensor))
    return max((start + tensor.size for start, tensor in taken), default=0)


def _constant(model: Any, tensor: Any) -> bool:
    data = model.buffers[tensor.buffer].data if tensor.buffer else None
    return data is not None and len(data) > 0


def _varies(tensor: Any) -> bool:
    sizes = tensor.shapeSignature
    return sizes is not None and any(size < 0 for size in sizes)


def _bytes_of(tensor: Any) -> int:
    kind = dtype_name(tensor.type)
    bits = int("".join(filter(str.isdigit, kind)) or 8)
    elements = math.prod(max(int(size), 1) for size in (tensor.shape if tensor.shape is not None else []))
    return math.ceil(elements * bits / 8 / _ALIGNMENT) * _ALIGNMENT


def _header(symbol: str, calls: Sequence[str], total: int, activations: int, kept: int) -> str:
    guard = f"DEPLOYKIT_{symbol.upper()}_H_"
    lines = "".join(f"  if (resolver.{call}() != 0) return false;\n" for call in calls)
    return f"""// Made by deploykit. The model's bytes, and what TensorFlow Lite Micro needs to run it.
#ifndef {guard}
#define {guard}

#ifdef __cplusplus
extern "C" {{
#endif
extern const unsigned char g_{symbol}_model[];
extern const unsigned int g_{symbol}_model_len;
#ifdef __cplusplus
}}
#endif

// An estimate: {activations} bytes for activations (greedy planner) and {kept} for what the interpreter keeps.
// Scratch buffers of optimised kernels come on top; MicroInterpreter::arena_used_bytes() tells the real number.
#define {symbol.upper()}_ARENA_BYTES {total}
#define {symbol.upper()}_OPERATORS {len(calls)}

#ifdef __cplusplus
// resolver: tflite::MicroMutableOpResolver<{symbol.upper()}_OPERATORS>. False where it is too small.
template <typename Resolver>
bool {symbol}_add_operators(Resolver& resolver) {{
{lines}  return true;
}}
#endif

#endif  // {guard}
"""


def _source(symbol: str, header: str, content: bytes) -> str:
    rows = [content[at : at + 16] for at in range(0, len(content), 16)]
    body = ",\n".join("    " + ", ".join(f"0x{byte:02x}" for byte in row) for row in rows)
    return f"""// Made by deploykit. The bytes of a .tflite file; compiles as C11 and as C++11.
#include "{header}"

#ifdef __cplusplus
alignas({_ALIGNMENT})
#else
_Alignas({_ALIGNMENT})
#endif
const unsigned char g_{symbol}_model[] = {{
{body}}};
const unsigned int g_{symbol}_model_len = {len(content)};
"""

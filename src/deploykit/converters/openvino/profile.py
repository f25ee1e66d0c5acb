"""What OpenVINO executed: kernels, their precision and their work, read from the plugin's execution graph."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from deploykit.runtime import Kernel

if TYPE_CHECKING:
    from collections.abc import Callable

    import openvino as ov

    Shape = tuple[int, ...]

_NOT_KERNELS = {"Const", "Input", "Output", "Parameter", "Result"}
_PRECISIONS = {
    "f32": "fp32",
    "f16": "fp16",
    "bf16": "bf16",
    "f64": "fp64",
    "boolean": "bool",
    "i8": "int8",
    "u8": "int8",
    "i32": "int32",
    "i64": "int64",
    "u32": "uint32",
}


def kernels_of(graph: ov.Model) -> list[Kernel]:
    """The executed nodes of a runtime model (`CompiledModel.get_runtime_model` after a call), in execution order.

    precision comes from the primitive's own name ("brgconv_avx512_I8"), where the plugin says what the kernel computes
    in; `runtimePrecision` speaks of the tensors.
    """
    found = []
    for node in graph.get_ordered_ops():
        facts = _facts(node)
        if facts["layerType"] in _NOT_KERNELS or facts.get("execTimeMcs") == "not_executed":
            continue
        found.append(
            Kernel(
                name=node.get_friendly_name(),
                op=facts["layerType"],
                precision=_precision(facts),
                nodes=_origins(facts.get("originalLayersNames", "")),
                macs=_macs(node, facts["layerType"]),
                microseconds=float(facts.get("execTimeMcs", 0)),
            )
        )
    return found


def _origins(names: str) -> tuple[str, ...]:
    # Passes that take a node apart name the pieces `X/WithoutBiases/DequantizationMultiply`.
    stems = (name.replace("/WithoutBiases", "").partition("/Dequantization")[0] for name in names.split(","))
    return tuple(dict.fromkeys(stem for stem in stems if stem))


def _facts(node: ov.Node) -> dict[str, str]:
    # Node.get_rt_info()[key].astype(str) fails on values without a text form: those are left out.
    info = node.get_rt_info()
    keys = ("layerType", "execTimeMcs", "originalLayersNames", "primitiveType", "runtimePrecision")
    return {key: str(info[key].astype(str)) for key in keys if key in info}


def _precision(facts: dict[str, str]) -> str:
    kind = facts.get("primitiveType", "").rpartition("_")[2].lower()
    name = kind if kind in _PRECISIONS else facts.get("runtimePrecision", "").lower()
    return _PRECISIONS.get(name, name or "unknown")


def _macs(node: ov.Node, kind: str) -> int:
    """Multiply-accumulates of the call that was profiled; 0 for kernels that have none or whose shapes are not told."""
    count = _MACS.get(kind)
    if count is None:
        return 0
    try:
        inputs = [tuple(port.get_shape()) for port in node.inputs()]
        output = tuple(node.outputs()[0].get_shape())
    except RuntimeError:  # a dimension that stayed dynamic
        return 0
    return count(inputs, output) if len(inputs) > 1 else 0


def _convolution(inputs: list[Shape], output: Shape) -> int:
    # Weights are [O, I, *k], or [G, O/G, I/G, *k] for a grouped convolution.
    weights = inputs[1]
    return math.prod(output) * math.prod(weights[2:] if len(weights) > len(output) else weights[1:])


def _deconvolution(inputs: list[Shape], output: Shape) -> int:
    # Each input element meets every kernel element of each of its output channels.
    data, weights = inputs[0], inputs[1]
    return math.prod(data) * math.prod(weights[2:] if len(weights) > len(data) else weights[1:])


def _matrix(inputs: list[Shape], output: Shape) -> int:
    # The graph does not tell whether an operand is transposed: what is not in the output is what was summed over.
    left = inputs[0]
    rows = output[-2] if len(left) > 1 and len(output) > 1 else 1
    return math.prod(output) * (math.prod(left[-2:]) // max(rows, 1))


def _fully_connected(inputs: list[Shape], output: Shape) -> int:
    return math.prod(output) * inputs[0][-1]


def _recurrent(inputs: list[Shape], output: Shape) -> int:
    # X is [batch, time, in] or [batch, in]; the weight matrices are those inputs whose rows are gates * hidden.
    steps = math.prod(inputs[0][:-1])
    hidden = output[-1]
    matrices = [s for s in inputs[1:] if len(s) >= 2 and s[-2] % hidden == 0 and s[-1] in (inputs[0][-1], hidden)]
    weights = [s for s in matrices if s[-2] in (hidden, 3 * hidden, 4 * hidden)][-2:]
    return steps * sum(math.prod(s) for s in weights)


def _attention(inputs: list[Shape], output: Shape) -> int:
    # Q K^T and the product with V: [.., L, E] x [.., S, E], then [.., L, S] x [.., S, Ev].
    query, key = inputs[0], inputs[1]
    return math.prod(query) * key[-2] + math.prod(output) * key[-2]


def _subgraph(inputs: list[Shape], output: Shape) -> int:
    """The attention that the plugin compiles into one kernel: [.., L, E] x [.., E, S], softmax, x [.., S, V].

    Other subgraphs are element-wise, and their inputs broadcast to the output.
    """
    if len(output) < 2 or all(_broadcasts(shape, output) for shape in inputs):
        return 0
    query, others = inputs[0], [shape for shape in inputs[1:] if len(shape) >= 2]
    for key in others:
        for value in others:
            chained = len(query) >= 2 and query[-1] == key[-2] and key[-1] == value[-2]
            if chained and output[-2:] == (query[-2], value[-1]):
                return math.prod(query) * key[-1] + math.prod(output) * key[-1]
    return 0


def _broadcasts(shape: Shape, output: Shape) -> bool:
    return len(shape) <= len(output) and all(a in (1, b) for a, b in zip(shape[::-1], output[::-1], strict=False))


_MACS: dict[str, Callable[[list[Any], Any], int]] = {
    "Convolution": _convolution,
    "Deconvolution": _deconvolution,
    "FullyConnected": _fully_connected,
    "MatMul": _matrix,
    "RNNCell": _recurrent,
    "RNNSeq": _recurrent,
    "ScaledDotProductAttention": _attention,
    "Subgraph": _subgraph,
}

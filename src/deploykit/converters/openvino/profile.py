"""What OpenVINO executed: kernels, their precision and their work, read from the plugin's execution graph."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from deploykit.runtime import Kernel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

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


def kernels_of(graph: ov.Model, products: Mapping[str, int]) -> list[Kernel]:
    """The executed nodes of a runtime model (`CompiledModel.get_runtime_model` after a call), in execution order.

    products: what `matrix_products` says of the model, for kernels that the plugin generates for several operators.
    precision comes from the primitive's own name ("brgconv_avx512_I8"), where the plugin says what the kernel computes
    in; `runtimePrecision` speaks of the tensors.
    """
    found = []
    for node in graph.get_ordered_ops():
        facts = _facts(node)
        if facts["layerType"] in _NOT_KERNELS or facts.get("execTimeMcs") == "not_executed":
            continue
        origins = _origins(facts.get("originalLayersNames", ""))
        found.append(
            Kernel(
                name=node.get_friendly_name(),
                op=facts["layerType"],
                precision=_precision(facts),
                nodes=origins,
                # Attention becomes one generated kernel, whose shapes do not tell what it multiplies.
                macs=sum(products.get(name, 0) for name in origins)
                if facts["layerType"] == "Subgraph"
                else _macs(node, facts["layerType"]),
                microseconds=float(facts.get("execTimeMcs", 0)),
            )
        )
    return found


def warm_kernels(kernels: Sequence[Kernel], cold: Sequence[Kernel], before: int, calls: int) -> list[Kernel]:
    """The kernels with the time of a call after the first ones.

    The plugin's counters are means over all calls of a request, the first included, which reorders weights and makes
    code and takes fifty times as long. cold: the kernels after `before` calls; kernels: after `calls` more, without
    those whose mean has become less than half a microsecond, which the plugin calls not executed.
    """
    means = {(kernel.name, kernel.op): kernel.microseconds or 0.0 for kernel in kernels}
    found = []
    for kernel in cold:
        mean = means.get((kernel.name, kernel.op), 0.0)
        spent = mean * (before + calls) - (kernel.microseconds or 0.0) * before
        found.append(dataclasses.replace(kernel, microseconds=max(spent, 0.0) / calls))
    return found


def matrix_products(model: ov.Model, feeds: Mapping[str, Shape], names: Sequence[str]) -> dict[str, int]:
    """Multiply-accumulates of each MatMul of a model, by its name, for inputs of these shapes.

    names: the model's inputs in order. Empty when the shapes cannot be propagated.
    """
    fixed = model.clone()
    try:
        fixed.reshape({port: list(feeds[name]) for port, name in zip(fixed.inputs, names, strict=True)})
    except RuntimeError:
        return {}
    found = {}
    for node in fixed.get_ordered_ops():
        if node.get_type_name() != "MatMul" or node.get_output_partial_shape(0).is_dynamic:
            continue
        left = node.get_input_partial_shape(0)
        inner = left[-2 if node.get_attributes()["transpose_a"] and len(left) > 1 else -1]
        found[node.get_friendly_name()] = math.prod(node.get_output_shape(0)) * inner.get_length()
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


_MACS: dict[str, Callable[[list[Any], Any], int]] = {
    "Convolution": _convolution,
    "Deconvolution": _deconvolution,
    "FullyConnected": _fully_connected,
    "MatMul": _matrix,
    "RNNCell": _recurrent,
    "RNNSeq": _recurrent,
    "ScaledDotProductAttention": _attention,
}

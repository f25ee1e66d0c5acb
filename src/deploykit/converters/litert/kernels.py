"""The kernels of one call, from the graph that the interpreter executes: types and multiply-accumulates, no times."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from deploykit.converters.litert.flatbuffer import dtype_name, operator_name, text
from deploykit.runtime import Kernel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_NAMES = {"float32": "fp32", "float16": "fp16", "float64": "fp64"}
_INTEGERS = ("int8", "uint8", "int4")
_NO_WORK = ("QUANTIZE", "DEQUANTIZE")


def kernels_of(model: Any, shapes: Mapping[int, Sequence[int]]) -> list[Kernel]:
    """The operators of the main graph; shapes: of its tensors in this call, by index.

    Float activations that meet integer weights are quantized by the kernel, which computes in integers.
    """
    graph = model.subgraphs[0]
    found = []
    for operator in graph.operators or []:
        name = operator_name(model, operator)
        inputs = [int(index) for index in operator.inputs] if operator.inputs is not None else []
        outputs = [int(index) for index in operator.outputs] if operator.outputs is not None else []
        if name in _NO_WORK or not outputs:
            continue
        kinds = [dtype_name(graph.tensors[index].type) for index in inputs if index >= 0]
        made = dtype_name(graph.tensors[outputs[0]].type)
        macs = _macs(name, operator, [tuple(shapes.get(index, ())) for index in inputs], shapes.get(outputs[0], ()))
        integer = made in _INTEGERS or (macs > 0 and any(kind in _INTEGERS for kind in kinds[1:2]))
        precision = "int8" if integer else _NAMES.get(made, made)
        found.append(Kernel(text(graph.tensors[outputs[0]].name), name, precision, macs=macs))
    return found


def _macs(name: str, operator: Any, inputs: Sequence[tuple[int, ...]], output: Sequence[int]) -> int:
    """Multiply-accumulates of the operators that have weights or are products; 0 of others."""
    made = math.prod(int(size) for size in output)
    if name in ("CONV_2D", "FULLY_CONNECTED"):  # weights [out, ..., in]
        return made * math.prod(int(size) for size in inputs[1][1:])
    if name == "DEPTHWISE_CONV_2D":  # weights [1, height, width, channels]
        return made * math.prod(int(size) for size in inputs[1][1:3])
    if name == "TRANSPOSE_CONV":  # output shape, weights [out, height, width, in], input
        return math.prod(int(size) for size in inputs[2]) * math.prod(int(size) for size in inputs[1][:3])
    if name == "BATCH_MATMUL":
        turned = bool(getattr(operator.builtinOptions, "adjX", False))
        return made * int(inputs[0][-2 if turned else -1])
    return 0

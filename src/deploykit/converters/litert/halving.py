"""Weights in float16: each float32 constant is stored in half the bytes, and a DEQUANTIZE before its readers widens it.

The form that TensorFlow's converter gives float16 models; engines widen such constants once, when they load.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.converters.litert.flatbuffer import code_name, operator_name, text

if TYPE_CHECKING:
    from collections.abc import Iterator

# Smaller constants would grow: a tensor and an operator more for a scale, an epsilon or a short bias.
_LEAST_ELEMENTS = 32
_LARGEST = float(np.finfo(np.float16).max)


def halve_weights(model: Any) -> int:
    """Stores the float constants as float16, in place; how many bytes became half.

    Constants with numbers that float16 does not reach stay as they are.
    """
    from ai_edge_litert.schema_py_generated import BufferT, BuiltinOperator, OperatorT, TensorType

    code: int | None = None
    buffers: dict[int, int] = {}
    saved = 0
    for graph in model.subgraphs:
        added = []
        kept = {int(index) for index in (*graph.inputs, *graph.outputs)}
        for index in list(_constants(model, graph)):
            tensor = graph.tensors[index]
            values = np.frombuffer(bytes(model.buffers[tensor.buffer].data), dtype=np.float32)
            if index in kept or values.size < _LEAST_ELEMENTS or not _reaches(values):
                continue
            if tensor.buffer not in buffers:
                half = BufferT()
                half.data = values.astype(np.float16).view(np.uint8)
                buffers[tensor.buffer] = len(model.buffers)
                model.buffers.append(half)
                saved += values.nbytes
            stored = copy.copy(tensor)
            stored.type, stored.buffer = TensorType.FLOAT16, buffers[tensor.buffer]
            stored.name = f"{text(tensor.name)}/float16"
            graph.tensors.append(stored)
            tensor.buffer = 0
            code = _code(model, BuiltinOperator.DEQUANTIZE) if code is None else code
            widening = OperatorT()
            widening.opcodeIndex, widening.inputs, widening.outputs = code, [len(graph.tensors) - 1], [index]
            added.append(widening)
        graph.operators = [*added, *(graph.operators or [])]
    _drop_unread(model)
    return saved


def widen_weights(model: Any) -> None:
    """The opposite, in place: float16 constants that a DEQUANTIZE widens become float32 ones, and it goes."""
    from ai_edge_litert.schema_py_generated import BufferT, TensorType

    for graph in model.subgraphs:
        kept = []
        for operator in graph.operators or []:
            if operator_name(model, operator) != "DEQUANTIZE":
                kept.append(operator)
                continue
            source = graph.tensors[operator.inputs[0]]
            data = model.buffers[source.buffer].data if source.buffer else None
            if data is None or source.type != TensorType.FLOAT16:
                kept.append(operator)
                continue
            wide = BufferT()
            wide.data = np.frombuffer(bytes(data), dtype=np.float16).astype(np.float32).view(np.uint8)
            graph.tensors[operator.outputs[0]].buffer = len(model.buffers)
            model.buffers.append(wide)
        graph.operators = kept
    _drop_unread_tensors(model)
    _drop_unread(model)


def _drop_unread_tensors(model: Any) -> None:
    """Takes out tensors that no operator, input or output has any more: calibration would read them."""
    for at, graph in enumerate(model.subgraphs):
        lists = [names for op in graph.operators or [] for names in (op.inputs, op.outputs) if names is not None]
        used = {int(index) for names in (*lists, graph.inputs, graph.outputs) for index in names if index >= 0}
        places = {old: new for new, old in enumerate(sorted(used))}
        graph.tensors = [graph.tensors[old] for old in sorted(used)]
        for names in (*lists, graph.inputs, graph.outputs):
            names[:] = [places[int(index)] if index >= 0 else index for index in names]
        for signature in model.signatureDefs or []:
            for pair in (
                (*(signature.inputs or []), *(signature.outputs or [])) if signature.subgraphIndex == at else ()
            ):
                pair.tensorIndex = places[int(pair.tensorIndex)]


def _drop_unread(model: Any) -> None:
    """Empties buffers that nothing has any more."""
    from ai_edge_litert.schema_py_generated import BufferT

    read = {tensor.buffer for graph in model.subgraphs for tensor in graph.tensors}
    read |= {entry.buffer for entry in model.metadata or []}
    model.buffers = [buffer if at in read else BufferT() for at, buffer in enumerate(model.buffers)]


def _constants(model: Any, graph: Any) -> Iterator[int]:
    """Float32 constants that operators read."""
    from ai_edge_litert.schema_py_generated import TensorType

    read = {int(i) for operator in graph.operators or [] for i in (operator.inputs or []) if i >= 0}
    for index in sorted(read):
        tensor = graph.tensors[index]
        data = model.buffers[tensor.buffer].data if tensor.buffer else None
        if tensor.type == TensorType.FLOAT32 and not tensor.isVariable and data is not None and len(data):
            yield index


def _reaches(values: np.ndarray[Any, Any]) -> bool:
    return bool(np.isfinite(values).all() and np.abs(values).max() <= _LARGEST)


def _code(model: Any, builtin: int) -> int:
    """The index of an operator's code, added where it is not there yet."""
    from ai_edge_litert.schema_py_generated import OperatorCodeT

    # Version 3 takes float16.
    for index, code in enumerate(model.operatorCodes):
        if code_name(code) == "DEQUANTIZE" and code.version >= 3:
            return index
    made = OperatorCodeT()
    made.builtinCode = made.deprecatedBuiltinCode = builtin
    made.version = 3
    model.operatorCodes.append(made)
    return len(model.operatorCodes) - 1

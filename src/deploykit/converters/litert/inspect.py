"""What is in a LiteRT model (runs in the worker)."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit import io
from deploykit.converters.litert.flatbuffer import (
    dtype_name,
    interpreter,
    metadata_of,
    operator_name,
    parse,
    read,
    text,
)
from deploykit.converters.litert.interface import METADATA, interface_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from deploykit.converters.litert.interface import Port

_FLOATS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64"}


def describe(path: str | Path) -> dict[str, Any]:
    """Inputs, outputs, operators, weights by type, quantized inputs and outputs, signatures, metadata and size.

    Raises InvalidFileError (DK528) for what is no whole model, ModelError (DK202) for one that LiteRT does not take.
    """
    file = Path(path)
    content = read(file)
    interpreter(content, file.name, delegates=False)  # its verifier comes before we look
    model = parse(content, file.name)
    found = interface_of(model)
    operators = Counter(operator_name(model, op) for graph in model.subgraphs for op in graph.operators or [])
    weights: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    counted: set[int] = set()
    for tensor, data in _constants(model):
        kind = dtype_name(tensor.type)
        weights[kind] += math.prod(int(size) for size in (tensor.shape if tensor.shape is not None else []))
        if tensor.buffer not in counted:
            sizes[kind] += len(data)
        counted.add(tensor.buffer)
    integers = _integer_activations(model)
    return {
        "format": "litert",
        "inputs": [port.spec.as_dict() for port in found.inputs],
        "outputs": [port.spec.as_dict() for port in found.outputs],
        "operators": dict(sorted(operators.items())),
        "nodes": sum(operators.values()),
        "parameters": sum(weights.values()),
        "parameters_by_dtype": dict(sorted(weights.items())),
        "weight_bytes": sum(sizes.values()),
        "precision": _precision(sizes, integers=integers),
        "quantized": integers,
        "quantization": _quantization((*found.inputs, *found.outputs)),
        "model_interface": {
            name: {"spec": door.spec.as_dict(), "permutation": list(door.permutation)}
            for name, door in found.doors.items()
        },
        "dynamic_dims": sorted({size for port in found.inputs for size in port.shape if isinstance(size, str)}),
        "signatures": {
            text(one.signatureKey): {
                "graph": int(one.subgraphIndex),
                "inputs": [text(pair.name) for pair in one.inputs or []],
                "outputs": [text(pair.name) for pair in one.outputs or []],
            }
            for one in model.signatureDefs or []
        },
        "graphs": len(model.subgraphs),
        "stateful": any(tensor.isVariable for graph in model.subgraphs for tensor in graph.tensors or []),
        "metadata": sorted(text(entry.name) for entry in model.metadata or []),
        "files": {file.name: io.size_of(file)},
        "size_bytes": io.size_of(file),
        "producer": _producer(model),
    }


def _constants(model: Any) -> Iterator[tuple[Any, Any]]:
    for graph in model.subgraphs:
        for tensor in graph.tensors or []:
            data = model.buffers[tensor.buffer].data if tensor.buffer else None
            if data is not None and len(data):
                yield tensor, data


def _integer_activations(model: Any) -> bool:
    """Whether operators compute on integers that stand for real numbers, besides converting them."""
    for graph in model.subgraphs:
        for operator in graph.operators or []:
            if operator_name(model, operator) in ("QUANTIZE", "DEQUANTIZE"):
                continue
            for index in operator.outputs if operator.outputs is not None else []:
                tensor = graph.tensors[index]
                scales = None if tensor.quantization is None else tensor.quantization.scale
                if scales is not None and len(scales) and dtype_name(tensor.type) in ("int8", "uint8", "int16"):
                    return True
    return False


def _precision(sizes: Counter[str], *, integers: bool) -> str:
    if integers:
        return "int8"
    floating = {kind: size for kind, size in sizes.items() if kind in _FLOATS}
    if sizes["int4"] > sum(floating.values()):
        return "int4-weights"
    if sizes["int8"] + sizes["uint8"] > sum(floating.values()):
        return "int8-weights"
    return _FLOATS[max(floating, key=lambda kind: floating[kind])] if floating else "fp32"


def _quantization(ports: Sequence[Port]) -> dict[str, dict[str, float]]:
    """Scale and zero point of the inputs and outputs that are integers for real numbers."""
    return {port.name: {"scale": port.scale, "zero_point": port.zero_point} for port in ports if port.scale}


def _producer(model: Any) -> str | None:
    version = metadata_of(model, "CONVERSION_METADATA")
    told = text(model.description).strip()
    made = "deploykit" if metadata_of(model, METADATA) else ""
    return ", ".join(part for part in (told, made, "TensorFlow converter" if version else "") if part) or None

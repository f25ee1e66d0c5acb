"""What is in a file of ONNX Runtime's own format (runs in the worker)."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

from onnx import TensorProto

from deploykit import io
from deploykit.converters.onnxruntime.ort_format import FORMAT
from deploykit.converters.onnxruntime.runtime import OnnxRuntime
from deploykit.errors import ModelError
from deploykit.runtime import RuntimeOptions

_IDENTIFIER = b"ORTM"
_NAMES = {"float": "float32", "double": "float64"}
_FLOATS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64"}
_INTEGER_KERNELS = ("QLinear", "QGemm", "MatMulInteger", "ConvInteger", "QAttention", "DynamicQuantize")


def describe(path: str | Path) -> dict[str, Any]:
    """Inputs, outputs, operators with their revision, weights by type and the companions of a .ort file.

    Raises ModelError (DK528) for a file that is none, DK202 for one that ONNX Runtime does not load.
    """
    file = Path(path)
    content = io.existing_file(file, "ONNX Runtime model").read_bytes()
    if content[4:8] != _IDENTIFIER:
        raise ModelError(f"{file.name} is no ONNX Runtime model (it is not of its format)", code="DK528", file=file)
    # ONNX Runtime checks the buffer before it reads it; the reader below does not.
    runtime = OnnxRuntime(file, RuntimeOptions(optimize=False, threads=1))
    inputs, outputs = runtime.inputs, runtime.outputs
    runtime.close()
    from onnxruntime.tools.ort_format_model.ort_flatbuffers_py.fbs.InferenceSession import InferenceSession

    session = InferenceSession.GetRootAs(content, 0)
    operators: Counter[str] = Counter()
    weights: Counter[str] = Counter()
    _read(session.Model().Graph(), operators, weights)
    companions = sorted(entry.name for entry in file.parent.glob(f"{file.stem}.required_operators*.config"))
    return {
        "format": FORMAT,
        "format_version": session.OrtVersion().decode(),
        "inputs": [spec.as_dict() for spec in inputs],
        "outputs": [spec.as_dict() for spec in outputs],
        "operators": dict(sorted(operators.items())),
        "nodes": sum(operators.values()),
        "parameters": sum(weights.values()),
        "parameters_by_dtype": dict(sorted(weights.items())),
        "precision": _precision(operators, weights),
        "dynamic_dims": sorted({size for spec in inputs for size in spec.shape or () if isinstance(size, str)}),
        "required_operators": companions,
        "files": [file.name],
        "size_bytes": len(content),
    }


def _read(graph: Any, operators: Counter[str], weights: Counter[str]) -> None:
    """Counts operators and weights, bodies included."""
    for at in range(graph.InitializersLength()):
        tensor = graph.Initializers(at)
        kind = TensorProto.DataType.Name(tensor.DataType()).lower()
        weights[_NAMES.get(kind, kind)] += math.prod(tensor.Dims(axis) for axis in range(tensor.DimsLength()))
    for at in range(graph.NodesLength()):
        node = graph.Nodes(at)
        domain = (node.Domain() or b"").decode()
        operators[f"{domain}.{node.OpType().decode()}".removeprefix("ai.onnx.").lstrip(".")] += 1
        for place in range(node.AttributesLength()):
            if (body := node.Attributes(place).G()) is not None:
                _read(body, operators, weights)


def _precision(operators: Counter[str], weights: Counter[str]) -> str:
    names = [name.rpartition(".")[2] for name in operators]
    if any(name.startswith(_INTEGER_KERNELS) for name in names) or "QuantizeLinear" in names:
        return "int8"
    floating = {kind: count for kind, count in weights.items() if kind in _FLOATS}
    if weights["int8"] + weights["uint8"] > sum(floating.values()):
        return "int8-weights"
    return _FLOATS[max(floating, key=lambda kind: floating[kind])] if floating else "fp32"

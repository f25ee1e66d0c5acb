"""What is in an OpenVINO IR (runs in the worker)."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import openvino as ov

from deploykit import io
from deploykit.converters.openvino.interface import dtype_name, interface
from deploykit.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterator

_FLOATS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64"}


def describe(path: str | Path) -> dict[str, Any]:
    """Inputs, outputs, operators, weights by type, dynamic dimensions, files and sizes of an IR.

    Raises ModelError (DK202) when OpenVINO does not read it, DK203 when its .bin is missing.
    """
    file = Path(path)
    model = read(file)
    inputs, outputs = interface(model)
    operators = Counter(node.get_type_name() for node in _ops(model))
    weights: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for node in _ops(model):
        if node.get_type_name() == "Constant":
            kind = dtype_name(node.get_element_type())
            weights[kind] += math.prod(node.get_shape())
            sizes[kind] += node.get_byte_size()
    files = [member for member in (file, file.with_suffix(".bin")) if member.is_file()]
    return {
        "format": "openvino",
        "inputs": [spec.as_dict() for spec in inputs],
        "outputs": [spec.as_dict() for spec in outputs],
        "operators": dict(sorted(operators.items())),
        "nodes": sum(operators.values()),
        "parameters": sum(weights.values()),
        "parameters_by_dtype": dict(sorted(weights.items())),
        "weight_bytes": sum(sizes.values()),
        "precision": _precision(operators, sizes),
        "quantized": "FakeQuantize" in operators,
        "dynamic_dims": sorted({size for spec in inputs for size in spec.shape or () if isinstance(size, str)}),
        "files": {member.name: io.size_of(member) for member in files},
        "size_bytes": sum(io.size_of(member) for member in files),
        "producer": _producer(model),
    }


def read(file: Path, core: ov.Core | None = None) -> ov.Model:
    """The IR as an OpenVINO model, by a core that knows its operators. Raises ModelError (DK202, DK203)."""
    io.existing_file(file, "OpenVINO IR")
    try:
        return (core or ov.Core()).read_model(file)
    except RuntimeError as problem:
        weights = file.with_suffix(".bin")
        if file.suffix == ".xml" and not weights.is_file():
            raise ModelError(
                f"{file.name} needs its weights beside it, and {weights.name} is missing",
                code="DK203",
                file=file,
                hint=f"copy {weights.name} too, or convert again",
            ) from problem
        raise ModelError(
            f"OpenVINO does not read {file.name}: {' '.join(str(problem).split())[:400]}", code="DK202", file=file
        ) from problem


def _ops(model: ov.Model) -> Iterator[ov.Node]:
    for node in model.get_ordered_ops():
        yield node
        if hasattr(node, "get_then_body"):
            yield from _ops(node.get_then_body())
            yield from _ops(node.get_else_body())
        elif hasattr(node, "get_function"):
            yield from _ops(node.get_function())


def _precision(operators: Counter[str], sizes: Counter[str]) -> str:
    if "FakeQuantize" in operators:
        return "int8"
    floating = {kind: size for kind, size in sizes.items() if kind in _FLOATS}
    integer = sizes["int8"] + sizes["uint8"]
    if not floating:
        return "fp32"
    if integer > sum(floating.values()):
        return "int8-weights"
    return _FLOATS[max(floating, key=lambda kind: floating[kind])]


def _producer(model: ov.Model) -> str | None:
    for name in ("OpenVINO Runtime", "Runtime_version"):
        if model.has_rt_info([name]):
            return f"OpenVINO {model.get_rt_info([name]).astype(str)}"
    return None

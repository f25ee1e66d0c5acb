"""What a browser's backends do not take, said before anything is built: size, 64-bit integers, operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from deploykit import graph, io
from deploykit.converters.onnxruntime_web.package import NAME
from deploykit.opsupport.checker import check_model
from deploykit.opsupport.findings import findings_of
from deploykit.report import failure, note, warning

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from deploykit.report import Finding

# The largest ArrayBuffer that every current browser gives, and the end of WebAssembly's 32-bit memory.
BUFFER_LIMIT = 2**31 - 1
MEMORY_LIMIT = 2**32
_TITLES = {"webgpu": "WebGPU", "webnn": "WebNN", "webgl": "WebGL"}
_MOVES = ("Constant", "Shape", "Size", "Cast", "Gather", "Reshape", "Unsqueeze", "Squeeze", "Concat", "Slice")


def findings_for(path: Path, model: ir.Model, backend: str, dims: Mapping[str, Sequence[int | None]]) -> list[Finding]:
    """All that is to be said of a model on a backend; failures are what can never run."""
    size = sum(io.size_of(path.parent / name) for name in graph.describe(path).files)
    found = size_findings(size)
    if backend == "wasm":  # Node runs it, and is asked instead of its table
        return found
    found += _integers(model, backend)
    if backend == "webgl":
        found += _sizes(model)
    else:
        found += _foreign(model, backend)
    label = f"{NAME}@{backend}"
    summary = check_model(path, [label], dims=dims)[0]
    return [*found, *(finding for finding in findings_of(summary, label) if finding.code != "DK208")]


def size_findings(size: int) -> list[Finding]:
    """What a model of so many bytes meets in a browser."""
    told = f"the model has {size / 1e9:.1f} GB"
    smaller = "deploykit quantize MODEL -o OUT --precision fp16 or int8-weights"
    if size >= MEMORY_LIMIT:
        return [
            failure(
                "DK573",
                f"{told}, and WebAssembly's memory ends at 4 GB: it can be loaded in no browser",
                target=NAME,
                hint=smaller,
            )
        ]
    if size > BUFFER_LIMIT:
        return [
            warning(
                "DK573",
                f"{told}, and a browser's ArrayBuffer ends at 2 GB: browsers may not load it",
                target=NAME,
                hint=smaller,
            )
        ]
    return []


def _foreign(model: ir.Model, backend: str) -> list[Finding]:
    """Nodes that the build with WebGPU and WebNN has no operators for: onnxruntime-web 1.30.0 leaves ai.onnx.ml out.

    Measured ("No Op registered for Scaler with domain_version of 1"); the build for wasm alone has them.
    """
    return [
        failure(
            "DK201",
            f"ONNX Runtime Web's build for {_TITLES[backend]} has no operators of {node.domain}, and this is "
            f"{node.op_type}",
            target=f"{NAME}@{backend}",
            node=node.name,
            op=node.op_type,
            hint=f"--to {NAME}@wasm, whose build has them",
        )
        for node in graph.all_nodes(model)
        if node.domain == "ai.onnx.ml"
    ]


def _sizes(model: ir.Model) -> list[Finding]:
    """That a session of WebGL keeps the shapes of its first call."""
    open_inputs = [
        repr(value.name)
        for value in model.graph.inputs
        if value.shape is None or any(isinstance(size, ir.SymbolicDim) for size in value.shape)
    ]
    if not open_inputs:
        return []
    return [
        warning(
            "DK573",
            f"{', '.join(open_inputs)}: a session in WebGL takes the sizes of its first call only",
            target=f"{NAME}@webgl",
            hint="--dim NAME=N fixes them",
        )
    ]


def _integers(model: ir.Model, backend: str) -> list[Finding]:
    """Inputs, outputs and computations in 64 bits, which GPUs and NPUs do not have in a browser."""
    ports = [value.name for value in (*model.graph.inputs, *model.graph.outputs) if value.dtype == ir.DataType.INT64]
    nodes = [
        node
        for node in graph.all_nodes(model)
        if node.op_type not in _MOVES and any(value.dtype == ir.DataType.INT64 for value in node.outputs)
    ]
    found = []
    title = _TITLES[backend]
    if ports:
        found.append(
            warning(
                "DK573",
                f"{', '.join(map(repr, ports))}: int64, which JavaScript takes as BigInt64Array and {title} does not "
                "compute with: what they feed runs in wasm, or in 32 bits",
                target=f"{NAME}@{backend}",
                hint="an int32 interface avoids it: cast inside the model",
            )
        )
    if nodes:
        named = ", ".join(f"{node.op_type} {node.name!r}" for node in nodes[:3])
        more = f" and {len(nodes) - 3} more" if len(nodes) > 3 else ""
        found.append(
            note(
                "DK573",
                f"{len(nodes)} nodes compute int64 ({named}{more}), for which {title} has no numbers: they run in "
                "wasm, or in 32 bits",
                target=f"{NAME}@{backend}",
            )
        )
    return found

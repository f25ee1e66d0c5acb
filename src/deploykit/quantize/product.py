"""What a quantization job hands back: the written model and its facts, as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deploykit import graph, lazy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import onnx_ir as ir

    from deploykit.report import Finding

VERSIONS = ("onnx", "onnx-ir", "onnxruntime", "numpy")


def written(model: ir.Model, output: Path, precision: str, said: Sequence[Finding]) -> dict[str, Any]:
    """Saves the model and returns the facts of a `Product`, with empty metrics."""
    graph.infer_shapes(model)
    files = graph.save(model, output)
    inputs, outputs = graph.interface(model)
    return {
        "inputs": [spec.as_dict() for spec in inputs],
        "outputs": [spec.as_dict() for spec in outputs],
        "opset": graph.opset(model),
        "files": list(files),
        "precision": precision,
        "versions": lazy.versions_of(*VERSIONS),
        "findings": [finding.as_dict() for finding in said],
        "metrics": {},
    }


def counts(done: Sequence[str], left: Sequence[object]) -> dict[str, int]:
    """How many nodes were quantized, and how many that could have been were not."""
    return {"quantized_nodes": len(done), "float_nodes": len(left)}


def macs_share(done: Sequence[str], macs: Mapping[str, int]) -> float:
    """Share of the model's multiply-accumulates that the named nodes do, 0 to 1."""
    total = sum(macs.values())
    return round(sum(macs.get(name, 0) for name in done) / total, 6) if total else 0.0


def best_path(output: Path) -> Path:
    """Where the best that a search found is kept when it is not good enough for the asked name."""
    return output.with_name(f"{output.stem}.best.onnx")

"""ONNX to a SavedModel, by onnx2tf in its managed environment (runs in the worker)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit.converters.litert.from_onnx import convert
from deploykit.converters.savedmodel.folder import NAME, Port, meta_graph, remember, signature_of
from deploykit.errors import VendorError
from deploykit.report import note

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploykit.artifact import TensorSpec


def convert_job(
    model: str,
    output: str,
    options: Mapping[str, Any],
    dims: Mapping[str, Sequence[int | None]],
    profiles: Mapping[str, Sequence[Sequence[int]]],
    precision: str,
) -> dict[str, Any]:
    """Writes the folder `output` with the signature serving_default. The facts of a product as JSON.

    Raises UnavailableError (DK561) without the managed environment, GateError (DK526) with the node that onnx2tf
    refuses, VendorError.
    """
    final = Path(output)
    made = convert(Path(model), final, "savedmodel", dims, profiles, target=NAME)
    inputs, outputs = _ports(made.inputs, made.called), _ports(made.outputs, made.called)
    remember(final, inputs, outputs)
    found = signature_of(final, meta_graph(final))
    if (found.inputs, found.outputs) != (inputs, outputs):
        told = ", ".join(port.called for port in (*found.inputs, *found.outputs))
        raise VendorError(f"TensorFlow changed the interface: it has {told}", target=NAME)
    renamed = [port for port in (*inputs, *outputs) if port.called != port.spec.name]
    findings = [
        note(
            "DK529",
            f"{port.spec.name!r} is called {port.called!r} in the signature, where TensorFlow takes Python's names "
            "only; deploykit's commands take and give the model's",
            target=NAME,
            tensor=port.spec.name,
        )
        for port in renamed
    ]
    return {
        "inputs": [port.spec.as_dict() for port in inputs],
        "outputs": [port.spec.as_dict() for port in outputs],
        "files": [final.name],
        "versions": made.versions,
        "findings": [finding.as_dict() for finding in (*made.findings, *findings)],
        "metrics": {"pieces": len(made.pieces)},
        "precision": precision,
        "interface": {port.spec.name: {"called": port.called} for port in renamed},
    }


def _ports(specs: Sequence[TensorSpec], called: Mapping[str, str]) -> tuple[Port, ...]:
    return tuple(Port(called[spec.name], spec) for spec in specs)

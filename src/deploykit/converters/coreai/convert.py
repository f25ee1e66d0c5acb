"""ONNX to a Core AI asset by coreai-onnx, after our own preparation (runs in the worker)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit import graph, io
from deploykit.converters.bounds import bounds_of_input, unused_bounds
from deploykit.converters.coreai.asset import NARROWED, save
from deploykit.converters.coreai.inspect import expect_interface
from deploykit.converters.coreai.prepare import prepared
from deploykit.converters.coreai.vendor import label, program_of
from deploykit.errors import GateError
from deploykit.lazy import versions_of
from deploykit.report import Finding, note

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploykit.artifact import TensorSpec

NAME = "coreai"


def convert_job(
    model: str,
    output: str,
    options: Mapping[str, Any],
    dims: Mapping[str, Sequence[int | None]],
    profiles: Mapping[str, Sequence[Sequence[int]]],
    precision: str,
) -> dict[str, Any]:
    """Writes the asset at `output`, a folder; a `Product` as JSON.

    Raises GateError (DK526) with the node that is refused, VendorError where the asset has another interface.
    """
    path, final = Path(model), Path(output)
    loaded, folded = prepared(path, dims, profiles)
    inputs, outputs = interface_of(loaded)
    with io.scratch_folder() as folder:
        place = Path(folder) / "model.onnx"
        graph.save(loaded, place)
        program, refusal = program_of(place)
    if refusal is not None:
        name, why = next(iter(refusal.nodes.items()), ("", refusal.whole))
        raise GateError(
            f"Core AI refuses {f'node {name!r}' if name else path.name}: {why} [{label()}]",
            code="DK526",
            file=path,
            node=name or None,
            target=NAME,
            hint="deploykit check MODEL --target coreai names every node that is known to be refused",
        )
    original, _ = graph.interface(graph.load(path))
    limits = {spec.name: bounds_of_input(spec, dims, profiles.get(spec.name)) for spec in original}
    with io.no_space_named(Path(final.name)):
        save(program, final, inputs, outputs, runtime_bounds(inputs, limits))
    expect_interface(final, inputs, outputs)
    findings = [*unused_bounds(original, dims, profiles, target=NAME), *narrowed(inputs, outputs)]
    return {
        "inputs": [spec.as_dict() for spec in inputs],
        "outputs": [spec.as_dict() for spec in outputs],
        "files": [final.name],
        "versions": versions_of("coreai-core", "coreai-onnx"),
        "findings": [finding.as_dict() for finding in findings],
        "metrics": {"float_biases": folded},
    }


def interface_of(loaded: Any) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Inputs and outputs of the prepared model."""
    inputs, outputs = graph.interface(loaded)
    return tuple(inputs), tuple(outputs)


def runtime_bounds(
    inputs: Sequence[TensorSpec], limits: Mapping[str, Sequence[Any]]
) -> dict[str, list[list[int | None]]]:
    """[min, max] of each axis of the inputs that were bounded, which an asset itself does not say."""
    found: dict[str, list[list[int | None]]] = {}
    for spec in inputs:
        given = limits.get(spec.name) or ()
        if any(bound is not None for bound in given):
            found[spec.name] = [
                [size, size] if isinstance(size, int) else list(bound or (1, None))
                for size, bound in zip(spec.shape or (), given, strict=True)
            ]
    return found


def narrowed(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> list[Finding]:
    """A note for each input and output that has 32 bits in the asset."""
    return [
        note(
            "DK529",
            f"{kind} {spec.name!r} is {spec.dtype} in the model and {NARROWED[spec.dtype]} in the asset",
            target=NAME,
            tensor=spec.name,
            hint="deploykit's commands keep the model's type, and refuse values that do not fit",
        )
        for kind, specs in (("input", inputs), ("output", outputs))
        for spec in specs
        if spec.dtype in NARROWED
    ]

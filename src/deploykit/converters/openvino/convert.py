"""ONNX to OpenVINO IR (runs in the worker)."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import openvino as ov

from deploykit import graph
from deploykit.converters.bounds import bounds_of_input, fixed_by, unused_bounds
from deploykit.converters.openvino.extension import core_with
from deploykit.converters.openvino.interface import versioned
from deploykit.converters.openvino.options import settings_of
from deploykit.converters.openvino.preprocessing import doors_for
from deploykit.converters.openvino.support import judge
from deploykit.converters.openvino.writing import told, write_ir
from deploykit.data.stated import stated_contract
from deploykit.errors import GateError, UsageError, VendorError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploykit.artifact import TensorSpec
    from deploykit.converters.bounds import Bounds
    from deploykit.converters.openvino.options import Settings

_FLOATS = ("fp32", "fp16", "bf16")


def convert_job(
    model: str,
    output: str,
    options: Mapping[str, Any],
    dims: Mapping[str, Sequence[int | None]],
    profiles: Mapping[str, Sequence[Sequence[int]]],
    precision: str,
    calib: Mapping[str, Any] | None = None,
    contract: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Writes `output` (.xml) and its .bin; the precision is the ONNX file's own unless an option asks for another.

    dims bound a symbolic dimension wherever it stands; a profile bounds the dimensions of its input. calib: a
    `DataRequest` for NNCF. contract: preprocessing; None: that of the model's manifest.
    Raises GateError (DK201) for a node that OpenVINO refuses, VendorError when the written IR is not what was read,
    UsageError for a bad option, MissingDependencyError without NNCF where it is asked for.
    """
    path, final = Path(model), Path(output)
    settings = settings_of(options, calibrated=calib is not None)
    if (settings.quantizer or settings.weights) and precision not in _FLOATS:
        raise _quantized_already(path, precision, settings)
    loaded = graph.load(path)
    inputs, outputs = graph.interface(loaded)
    library = options.get("custom_ops")
    core = core_with(library)
    try:
        converted = core.read_model(path)
    except RuntimeError as problem:
        raise _refusal(path, problem, library) from problem
    _expect_names(inputs, converted.inputs)
    _expect_names(outputs, converted.outputs)
    limits = [bounds_of_input(spec, dims, profiles.get(spec.name)) for spec in inputs]
    if any(bound is not None for shape in limits for bound in shape):
        _restrict(converted, limits)
    findings = unused_bounds(inputs, dims, profiles, target="openvino")
    inputs = tuple(
        dataclasses.replace(spec, shape=fixed_by(spec, shape)) for spec, shape in zip(inputs, limits, strict=True)
    )
    doors = doors_for(settings, inputs, outputs, contract if contract is not None else stated_contract(path))
    facts = write_ir(converted, inputs, outputs, final, settings, doors, calib, _names(loaded), core)
    facts["findings"][:0] = [finding.as_dict() for finding in findings]
    return facts | {"precision": settings.precision(precision)}


def _quantized_already(path: Path, precision: str, settings: Settings) -> UsageError:
    option = "quantizer=nncf" if settings.quantizer else f"weights={settings.weights}"
    return UsageError(
        f"{option} takes a float model, and {path.name} is {precision} already",
        code="DK527",
        file=path,
        target="openvino",
        hint="give the float ONNX model, or leave the option away",
    )


def _refusal(path: Path, problem: Exception, library: str | None) -> Exception:
    refused = [(node, verdict) for node, verdict in judge(path, library)[0] if verdict.status == "unsupported"]
    if not refused:
        return VendorError(
            f"OpenVINO {versioned()} does not read {path.name}: {' '.join(str(problem).split())[:1000]}",
            target="openvino",
            log=str(problem).splitlines()[-20:],
        )
    node, verdict = refused[0]
    return GateError(
        f"OpenVINO refuses node {node.name!r} ({node.op_type}): {verdict.reason}",
        code="DK201",
        file=path,
        node=node.name,
        op=node.op_type,
        target="openvino",
        context=[f"and {other.op_type} {other.name!r}: {why.reason}" for other, why in refused[1:10]],
        hint=verdict.remedy,
    )


def _restrict(model: ov.Model, limits: list[list[Bounds | None]]) -> None:
    shapes = {}
    for port, bounds in zip(model.inputs, limits, strict=True):
        shape = port.get_partial_shape()
        for axis, bound in enumerate(bounds):
            if bound is not None:
                low, high = bound
                shape[axis] = ov.Dimension(low, -1 if high is None else high)
        shapes[port] = shape
    model.reshape(shapes)


def _names(loaded: Any) -> set[str]:
    """Every name in the ONNX file that OpenVINO may have taken over."""
    names = {value.name for value in (*loaded.graph.inputs, *loaded.graph.initializers.values()) if value.name}
    for node in graph.all_nodes(loaded):
        names |= {node.name or "", *(value.name or "" for value in (*node.inputs, *node.outputs) if value is not None)}
    return names


def _expect_names(specs: Sequence[TensorSpec], ports: Sequence[ov.Output]) -> None:
    """OpenVINO must list inputs and outputs in the ONNX file's order, for their specs are remembered by position."""
    if len(specs) != len(ports) or any(s.name not in p.get_names() for s, p in zip(specs, ports, strict=True)):
        found = "; ".join(" = ".join(sorted(port.get_names())) for port in ports)
        raise VendorError(
            f"OpenVINO {versioned()} changed the interface: {told(specs)} became {found}", target="openvino"
        )

"""The torch worker's export: the exporter that works, the opset that was asked for, reproducible bytes."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from deploykit import graph
from deploykit.errors import DeploykitError, GateError, ModelError, UsageError, VendorError
from deploykit.exporters import torch_call, torch_source
from deploykit.exporters.diagnosis import in_two_lines
from deploykit.exporters.onnx_source import check_opset
from deploykit.exporters.symbols import rename_symbols
from deploykit.exporters.torch_dynamo import LOWEST_OPSET, export_dynamo
from deploykit.exporters.torch_tracing import OPSETS, export_tracing
from deploykit.io import file_sha256
from deploykit.lazy import versions_of
from deploykit.report import Finding, note, warning

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import onnx_ir as ir

    from deploykit.exporters.request import TorchRequest
    from deploykit.exporters.torch_call import Call
    from deploykit.exporters.torch_source import Loaded

DEFAULT_OPSET = 20
_EXPORTERS: dict[str, Callable[[Loaded, Call, int, Path], ir.Model]] = {
    "dynamo": export_dynamo,
    "torchscript": export_tracing,
}
_TITLES = {"dynamo": "the dynamo exporter", "torchscript": "the TorchScript exporter"}


def export_job(request: TorchRequest, output: str, opset: int | None, exporter: str) -> dict[str, Any]:
    """Writes the ONNX of a PyTorch source at `output`; returns its facts as JSON.

    exporter: "auto", "dynamo" or "torchscript".
    """
    if opset is not None:
        check_opset(opset)
    loaded = torch_source.load(request)
    call = torch_call.prepare(loaded, request)
    # Weights that an exporter left in a file stay there until they are saved.
    with tempfile.TemporaryDirectory(prefix="deploykit-export-") as scratch:
        chosen, model, findings = _export(loaded, call, opset, exporter, Path(scratch))
        findings = [*loaded.findings, *findings, *_settle_interface(model, call)]
        graph.name_nodes(model)
        files = graph.save(model, Path(output))
    inputs, outputs = graph.interface(model)
    return {
        "inputs": [spec.as_dict() for spec in inputs],
        "outputs": [spec.as_dict() for spec in outputs],
        "files": list(files),
        "opset": graph.opset(model),
        "precision": precision_of(loaded.module),
        "versions": versions_of("torch", "onnxscript", "onnx-ir"),
        "findings": [finding.as_dict() for finding in findings],
        "metrics": {
            "exporter": chosen,
            "dims": {name: [bounds.minimum, bounds.maximum] for name, bounds in call.symbols.items()},
            "source_files": {str(file): file_sha256(file) for file in loaded.files},
        },
    }


def precision_of(module: torch.nn.Module) -> str:
    """The narrowest floating point type among the module's parameters and buffers: "fp32", "fp16" or "bf16"."""
    dtypes = {tensor.dtype for tensor in (*module.parameters(), *module.buffers())}
    if torch.bfloat16 in dtypes:
        return "bf16"
    return "fp16" if torch.float16 in dtypes else "fp32"


def _order(loaded: Loaded, opset: int | None, exporter: str) -> list[str]:
    """The exporters to try, in turn."""
    if exporter != "auto":
        if exporter == "dynamo" and opset is not None and opset < LOWEST_OPSET:
            raise UsageError(
                f"the dynamo exporter starts at opset {LOWEST_OPSET}, and {opset} was asked for",
                code="DK612",
                hint=f"--exporter torchscript, or --opset {LOWEST_OPSET}",
            )
        return [exporter]
    if loaded.scripted:
        return ["torchscript"]
    if loaded.program is not None:
        return ["dynamo"]
    if opset is not None and opset < LOWEST_OPSET:
        return ["torchscript"]
    return ["dynamo", "torchscript"]


def _export(
    loaded: Loaded, call: Call, opset: int | None, exporter: str, scratch: Path
) -> tuple[str, ir.Model, list[Finding]]:
    failures: dict[str, Exception] = {}
    for name in _order(loaded, opset, exporter):
        try:
            model = _run(name, loaded, call, opset or DEFAULT_OPSET, scratch)
        except Exception as problem:  # exporters raise anything; the reason goes into the report or the final error
            failures[name] = problem
            continue
        return name, model, [_fallback(name, failures)] if failures else []
    raise _refused(failures)


def _run(name: str, loaded: Loaded, call: Call, opset: int, scratch: Path) -> ir.Model:
    if name == "torchscript" and opset not in OPSETS:
        raise UsageError(
            f"{_TITLES[name]} writes opset {OPSETS.start} to {OPSETS.stop - 1}, and {opset} was asked for",
            code="DK612",
            hint=f"--opset {OPSETS.stop - 1}",
        )
    model = _EXPORTERS[name](loaded, call, opset, scratch)
    got = graph.opset(model)
    if got != opset:
        raise ModelError(
            f"{_TITLES[name]} wrote opset {got} where {opset} was asked for",
            code="DK612",
            hint=f"--opset {got}, then deploykit export out.onnx --opset {opset} -o lower.onnx",
        )
    _refuse_constants(model, call)
    return model


def _refuse_constants(model: ir.Model, call: Call) -> None:
    """Raises GateError (DK623) when a dimension that was declared as symbolic is a number in the graph."""
    made = {spec.name: spec for spec in graph.interface(model)[0]}
    for spec in call.specs:
        shape = made[spec.name].shape if spec.name in made else None
        for axis, (wanted, got) in enumerate(zip(spec.shape or (), shape or (), strict=False)):
            if isinstance(wanted, str) and isinstance(got, int):
                raise GateError(
                    f"dimension {wanted!r} (axis {axis} of input {spec.name!r}) became the constant {got}",
                    code="DK623",
                    tensor=spec.name,
                    hint=f"the module computes with this size as a number: change that, or --dim {wanted}={got}",
                )


def _fallback(name: str, failures: Mapping[str, Exception]) -> Finding:
    other, problem = next(iter(failures.items()))
    return note("DK617", f"exported with {_TITLES[name]}; {_TITLES[other]} failed: {in_two_lines(problem)}")


def _refused(failures: Mapping[str, Exception]) -> DeploykitError:
    """The error when no exporter worked: the one that knows the cause in the user's code, otherwise all of them."""
    for code in ("DK613", "DK623"):
        for problem in failures.values():
            if isinstance(problem, DeploykitError) and (len(failures) == 1 or problem.code == code):
                return problem
    lines = [
        line
        for name, problem in failures.items()
        for line in (_TITLES[name] + ": " + in_two_lines(problem)).splitlines()
    ]
    return VendorError(
        "PyTorch could not export the module to ONNX",
        code="DK618",
        context=lines,
        log=lines,
        hint="change the line that is named, or export a part of the module",
    )


def _settle_interface(model: ir.Model, call: Call) -> list[Finding]:
    """Gives the inputs the symbols that the user wrote; says which input is missing."""
    findings: list[Finding] = []
    inputs = {str(value.name): value for value in model.graph.inputs}
    renamed: dict[str, str] = {}
    for spec in call.specs:
        value = inputs.get(spec.name)
        if value is None:
            findings.append(
                warning(
                    "DK619",
                    f"input {spec.name!r} has no influence on the outputs and is not in the ONNX",
                    tensor=spec.name,
                )
            )
            continue
        made = next(s for s in graph.interface(model)[0] if s.name == spec.name)
        for _axis, (wanted, got) in enumerate(zip(spec.shape or (), made.shape or (), strict=False)):
            if isinstance(wanted, str) and isinstance(got, str) and wanted != got:
                renamed[got] = wanted
    if renamed:
        rename_symbols(model, renamed)
    return findings

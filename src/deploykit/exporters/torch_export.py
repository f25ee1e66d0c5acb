"""The torch worker's export: the exporter that works, the opset that was asked for, reproducible bytes."""

from __future__ import annotations

import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from deploykit import graph
from deploykit.errors import DeploykitError, GateError, ModelError, UsageError, VendorError
from deploykit.exporters import torch_call, torch_source
from deploykit.exporters import torch_translations as translated
from deploykit.exporters.diagnosis import in_two_lines, reason, user_line
from deploykit.exporters.onnx_source import check_opset
from deploykit.exporters.torch_checks import operator_lines, refuse_unstable
from deploykit.exporters.torch_dynamo import LOWEST_OPSET, export_dynamo
from deploykit.exporters.torch_interface import settle_interface, settle_outputs
from deploykit.exporters.torch_tracing import OPSETS, export_tracing
from deploykit.io import file_sha256
from deploykit.lazy import versions_of
from deploykit.report import Finding, note

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import onnx_ir as ir

    from deploykit.exporters.request import TorchRequest
    from deploykit.exporters.torch_call import Call
    from deploykit.exporters.torch_source import Loaded
    from deploykit.exporters.torch_translations import Tables

DEFAULT_OPSET = 20
_EXPORTERS: dict[str, Callable[[Loaded, Call, int, Path, Tables], ir.Model]] = {
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
    refuse_unstable(call)
    tables = translated.load_translations(request.get("translations", []))
    # Weights that an exporter left in a file stay there until they are saved.
    with tempfile.TemporaryDirectory(prefix="deploykit-export-") as scratch:
        chosen, model, findings = _export(loaded, call, opset, exporter, Path(scratch), tables)
        findings = [*loaded.findings, *call.findings, *findings, *settle_interface(model, call)]
        settle_outputs(model, call)
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
    loaded: Loaded, call: Call, opset: int | None, exporter: str, scratch: Path, tables: Tables
) -> tuple[str, ir.Model, list[Finding]]:
    failures: dict[str, Exception] = {}
    for name in _order(loaded, opset, exporter):
        try:
            model = _run(name, loaded, call, opset or DEFAULT_OPSET, scratch, tables)
        except Exception as problem:  # exporters raise anything; the reason goes into the report or the final error
            failures[name] = problem
            traceback.print_exception(problem)  # into the worker's log, which -v shows
            continue
        return name, model, [_fallback(name, failures)] if failures else []
    raise _untranslated(failures, call, tables) or _refused(failures)


def _run(name: str, loaded: Loaded, call: Call, opset: int, scratch: Path, tables: Tables) -> ir.Model:
    if name == "torchscript" and opset not in OPSETS:
        raise UsageError(
            f"{_TITLES[name]} writes opset {OPSETS.start} to {OPSETS.stop - 1}, and {opset} was asked for",
            code="DK612",
            hint=f"--opset {OPSETS.stop - 1}",
        )
    model = _EXPORTERS[name](loaded, call, opset, scratch, tables)
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


def _untranslated(failures: Mapping[str, Exception], call: Call, tables: Tables) -> DeploykitError | None:
    """The error when an operator has no ONNX form: which, the user's line that calls it, and the way to add one."""
    problem = failures.get("dynamo")
    if problem is not None and (failing := translated.failed_translation(problem, tables)):
        where = user_line(problem)
        return ModelError(
            f"the translation of {failing} failed: {reason(problem)}",
            code="DK687",
            op=failing,
            file=where.file if where else None,
            context=[where.describe()] if where else [],
            hint="deploykit explain DK687 shows what a translation looks like",
        )
    found = next((op for problem in failures.values() if (op := translated.untranslated(problem))), None)
    if found is None:
        return None
    line = operator_lines(call).get(found)
    own = not found.startswith("aten::")
    function = found.rpartition(":")[2]
    way = f"TRANSLATIONS = {{{found!r}: {function}}} with an ONNX Script function {function}, in translations.py"
    return VendorError(
        f"PyTorch has no ONNX form for the operator {found}",
        code="DK689",
        op=found,
        file=line.file if line else None,
        context=[line.describe()] if line else [],
        hint=f"add one: {way}, then --custom-ops translations.py"
        + ("" if own else "; or write it with other operators"),
    )


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

"""ONNX to a library of machine code by TVM's Relax compiler (runs in the worker)."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from deploykit import graph
from deploykit.artifact import Artifact, TensorSpec, write_manifest
from deploykit.converters.bounds import bounds_of_input, fixed_by, unused_bounds
from deploykit.converters.recurrent import with_axes_as_inputs
from deploykit.converters.tvm import trailer
from deploykit.converters.tvm.importing import RefusedError, first_line, import_model, known_operators
from deploykit.converters.tvm.linking import linker
from deploykit.converters.tvm.order import calls_of, compiler_passes
from deploykit.converters.tvm.prepare import prepare
from deploykit.converters.tvm.processor import features, wanted
from deploykit.converters.tvm.vendor import NAME, tvm, versioned
from deploykit.errors import UsageError, VendorError
from deploykit.report import Finding, failure

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_WRITTEN_OUT = {"GRU", "LSTM"}
_FLAGS = {"true": True, "false": False}
# Types that TVM's tensors have; a string has none.
_HELD = re.compile(r"float(16|32|64)|u?int(8|16|32|64)|bool")


def convert_job(
    model: str,
    output: str,
    options: Mapping[str, Any],
    dims: Mapping[str, Sequence[int | None]],
    profiles: Mapping[str, Sequence[Sequence[int]]],
    precision: str,
) -> dict[str, Any]:
    """Writes `output` (.so); a dimension with one size left is fixed, others stay open whatever their bounds.

    Findings: DK526 for each node that the importer does not take, DK529 for types that TVM does not hold.
    Raises UsageError (DK527) for an option's value, UnavailableError (DK581) without a linker, VendorError when TVM
    fails otherwise.
    """
    path, final = Path(model), Path(output).resolve()
    target, fuse = wanted(options), _flag(options, "fuse", default=True)
    link = linker()
    loaded = graph.load(path)
    inputs, outputs = graph.interface(loaded)
    findings = unused_bounds(inputs, dims, profiles, target=NAME)
    limits = [bounds_of_input(spec, dims, profiles.get(spec.name)) for spec in inputs]
    inputs = tuple(
        dataclasses.replace(spec, shape=fixed_by(spec, shape)) for spec, shape in zip(inputs, limits, strict=True)
    )
    findings += list(_types(inputs, outputs))
    built_for = {"triple": target["mtriple"], "cpu": target.get("mcpu", "generic"), "features": features(target)}
    made: dict[str, Any] = {
        "inputs": [spec.as_dict() for spec in inputs],
        "outputs": [spec.as_dict() for spec in outputs],
        "files": [final.name],
        "versions": {NAME: versioned(), "llvm": str(tvm.target.codegen.llvm_version_major())},
        "precision": precision,
        "built_for": built_for,
        "metrics": {},
    }
    if not any(finding.severity == "error" for finding in findings):
        graph.name_nodes(loaded)
        loaded = with_axes_as_inputs(loaded, _WRITTEN_OUT)
        prepare(loaded, inputs)
        refused = _missing(loaded, inputs)
        if not refused:
            try:
                facts = _compiled(loaded, final, target, link, fuse=fuse, open_dims=_open(inputs))
            except RefusedError as problem:
                refused = [_refusal(problem.node, problem.op, problem.reason, inputs)]
            else:
                told = {key: made[key] for key in ("inputs", "outputs", "precision", "built_for")}
                trailer.add(final, {**told, **facts, "version": versioned()})
                made["metrics"] = {"operators": facts["functions"]}
                _vouch(final, inputs, outputs, precision)
        findings += refused
    made["findings"] = [finding.as_dict() for finding in findings]
    return made


def _flag(options: Mapping[str, Any], name: str, *, default: bool) -> bool:
    text = str(options.get(name, default)).lower()
    if text not in _FLAGS:
        raise UsageError(
            f"option {name}={text!r} is neither true nor false", code="DK527", target=NAME, hint=f"--option {name}=true"
        )
    return _FLAGS[text]


def _types(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> Iterable[Finding]:
    for kind, specs in (("input", inputs), ("output", outputs)):
        for spec in specs:
            if not _HELD.fullmatch(spec.dtype):
                text = f"{kind} {spec.name!r} is {spec.dtype}, of which TVM has no tensors"
                yield failure("DK529", text, target=NAME, tensor=spec.name, hint="Cast it to float32 in the model")


def _open(inputs: Sequence[TensorSpec]) -> list[str]:
    return sorted({size for spec in inputs for size in spec.shape or () if isinstance(size, str)})


def _fix_hint(inputs: Sequence[TensorSpec]) -> str:
    found = _open(inputs)
    if not found:
        return "rewrite it with operators that TVM has, or use another target"
    words = " ".join(f"--dim {name}=N..N" for name in found)
    return f"it may take it with fixed sizes: {words}"


def _refusal(node: str, op: str, reason: str, inputs: Sequence[TensorSpec]) -> Finding:
    text = f"TVM {versioned()} refuses node {node!r} ({op}): {reason}"
    return failure("DK526", text, target=NAME, node=node, op=op, hint=_fix_hint(inputs))


def _missing(model: ir.Model, inputs: Sequence[TensorSpec]) -> list[Finding]:
    """Every node whose operator the importer does not have."""
    known = known_operators()
    found = []
    for node in graph.all_nodes(model):
        if node.domain in ("", "ai.onnx") and node.op_type in known:
            continue
        op = f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
        # A recurrence that is still there has an open number of steps, or a variant that is not written out.
        sizes = inputs if op in _WRITTEN_OUT else ()
        found.append(_refusal(node.name or "", op, "its importer does not have the operator", sizes))
    return found


def _compiled(
    model: ir.Model, final: Path, target: Mapping[str, Any], link: Any, *, fuse: bool, open_dims: Sequence[str]
) -> dict[str, Any]:
    """Writes the library; its functions, and the tensor that each call of it makes."""
    makers = {value.name: node.name for node in model.graph for value in node.outputs}
    proto = ir.to_proto(model)
    module, tensors = import_model(proto, model.opset_imports.get("", 20))
    del proto
    where = tvm.target.Target(dict(target))
    seen: list[Any] = []
    try:
        with where:
            built = tvm.compile(module, where, relax_pipeline=compiler_passes(seen.append, fuse=fuse))
            built.export_library(str(final), fcompile=link)
    except VendorError:
        raise
    except Exception as problem:  # passes and code generation raise anything
        raise VendorError(
            f"TVM {versioned()} does not compile the model: {first_line(problem)}",
            target=NAME,
            log=str(problem).splitlines()[-20:],
            hint=f"fix its open sizes: {' '.join(f'--dim {name}=N..N' for name in open_dims)}" if open_dims else "",
        ) from problem
    calls, functions = calls_of(seen[0], seen[-1], tensors)
    named = [[name, tensor, makers.get(tensor) or ""] for name, tensor in calls]
    return {"calls": named, "functions": dict(sorted(functions.items()))}


def _vouch(final: Path, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...], precision: str) -> None:
    """The manifest without which nothing loads a library: for the comparison, until the stage writes the whole one."""
    write_manifest(Artifact.of(final, NAME, inputs=inputs, outputs=outputs, target=NAME, precision=precision))

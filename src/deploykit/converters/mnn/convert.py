"""ONNX to MNN (runs in the worker)."""

from __future__ import annotations

import dataclasses
import hashlib
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit import graph, io
from deploykit.converters.bounds import bounds_of_input, fixed_by, unused_bounds
from deploykit.converters.mnn.interface import NAME, findings_of, tag
from deploykit.converters.mnn.options import storage
from deploykit.converters.mnn.prepare import prepare
from deploykit.converters.mnn.tool import call_converter, look_into, refused_operators, versioned
from deploykit.errors import GateError, VendorError
from deploykit.report import Finding, failure, note

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploykit.artifact import TensorSpec
    from deploykit.converters.vendor_process import Finished

_LARGEST = 2**31 - 1  # bytes of a FlatBuffer
# By default erf in x * P(x) is approximated, 5e-4 off.
_EXACT = ("--useGeluApproximation", "0")
_DONE = "Converted Success!"


def convert_job(
    model: str,
    output: str,
    options: Mapping[str, Any],
    dims: Mapping[str, Sequence[int | None]],
    profiles: Mapping[str, Sequence[Sequence[int]]],
    precision: str,
) -> dict[str, Any]:
    """Writes `output` (.mnn); a dimension with one size left is fixed, others stay open whatever their bounds.

    Findings: DK526 for each node that the converter does not have, DK529 for types of the interface.
    Raises UsageError (DK527) for an option's value, VendorError when the converter fails otherwise, GateError (DK575)
    for a model that is too large for the format.
    """
    path, final = Path(model), Path(output).resolve()
    stored = storage(options, precision)
    loaded = graph.load(path)
    inputs, outputs = graph.interface(loaded)
    findings = unused_bounds(inputs, dims, profiles, target=NAME)
    limits = [bounds_of_input(spec, dims, profiles.get(spec.name)) for spec in inputs]
    inputs = tuple(
        dataclasses.replace(spec, shape=fixed_by(spec, shape)) for spec, shape in zip(inputs, limits, strict=True)
    )
    findings += findings_of(inputs, outputs)
    if precision == "int4-weights" and stored.kind != "int4":
        text = (
            f"the model's int4 weights are stored as {stored.kind}: MNN would quantize them anew into another int4 grid"
        )
        hint = "convert the float model with --option weights=int4 for a file with int4 weights"
        findings.append(note("DK576", text, target=NAME, hint=hint))
    made: dict[str, Any] = {
        "inputs": [spec.as_dict() for spec in inputs],
        "outputs": [spec.as_dict() for spec in outputs],
        "files": [final.name],
        "versions": {NAME: versioned()},
        "precision": stored.precision,
        "metrics": {},
    }
    if not any(finding.severity == "error" for finding in findings):
        nodes = [(node.name or "", node.op_type) for node in graph.all_nodes(graph.name_nodes(loaded))]
        prepare(loaded, inputs)
        _expect_room(loaded, path)
        with io.scratch_folder() as folder:
            ready = Path(folder) / "model.onnx"
            graph.save(loaded, ready)
            del loaded
            about = ["--bizCode", tag(inputs, outputs, stored.precision), *stored.arguments]
            finished = call_converter(
                [
                    "-f",
                    "ONNX",
                    "--modelFile",
                    str(ready),
                    "--MNNModel",
                    str(final),
                    "--keepInputFormat",
                    *_EXACT,
                    *about,
                ]
            )
        if _DONE not in finished.log or not final.is_file():
            findings += _refusals(finished, path, nodes)
        else:
            facts = look_into(final)
            _name_by_content(final, facts["uuid"])
            findings += _changes(facts, inputs, outputs)
            made["metrics"] = {"operators": facts["operators"]}
    made["findings"] = [finding.as_dict() for finding in findings]
    return made


def _expect_room(loaded: Any, path: Path) -> None:
    size = sum(
        value.const_value.nbytes for value in loaded.graph.initializers.values() if value.const_value is not None
    )
    if size > _LARGEST:
        raise GateError(
            f"the weights of {path.name} take {size / 2**30:.1f} GiB, and an MNN file holds 2 GiB",
            code="DK575",
            file=path,
            target=NAME,
            hint="onnxruntime and openvino take models of this size",
        )


def _refusals(finished: Finished, path: Path, nodes: Sequence[tuple[str, str]]) -> list[Finding]:
    """Every node of the operators that the log names. Raises VendorError where it names none."""
    operators = set(refused_operators(finished.log))
    found = [
        failure(
            "DK526",
            f"MNN {versioned()} refuses node {name!r} ({op}): its converter does not have the operator",
            target=NAME,
            node=name,
            op=op,
            hint="rewrite it with operators that MNN has, or use another target",
        )
        for name, op in nodes
        if op in operators
    ]
    if not found:
        how = "" if finished.code == 0 else f": it {finished.how}"
        raise VendorError(
            f"MNN's converter {versioned()} does not convert {path.name}{how}", target=NAME, log=finished.log[-20:]
        )
    return found


def _changes(facts: Mapping[str, Any], inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> list[Finding]:
    """Failures for inputs and outputs that the file does not have; an input that nothing reads may be left out."""
    told = []
    names = {row["name"] for row in facts["inputs"]}
    for kind, specs, have in (("input", inputs, names), ("output", outputs, set(facts["outputs"]))):
        for spec in specs:
            if spec.name not in have:
                text = f"MNN's converter has left out {kind} {spec.name!r}: it has {', '.join(sorted(have)) or 'none'}"
                hint = f"leave {kind} {spec.name!r} out of the ONNX model, too"
                told.append(failure("DK529", text, target=NAME, tensor=spec.name, hint=hint))
    return told


def _name_by_content(file: Path, number: str) -> None:
    """MNN numbers each model it writes at random: the number becomes one of the content, of the same length."""
    content = file.read_bytes()
    given = number.encode()
    if content.count(given) != 1:
        raise VendorError(f"MNN {versioned()} does not keep its identifier where it is expected", target=NAME)
    digest = hashlib.sha256(content.replace(given, bytes(len(given)))).hexdigest()
    named = str(uuid.uuid5(uuid.NAMESPACE_OID, digest)).encode()
    file.write_bytes(content.replace(given, named))

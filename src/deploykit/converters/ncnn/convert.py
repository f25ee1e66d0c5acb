"""ONNX to ncnn by pnnx (runs in the worker)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit.artifact import Artifact, write_manifest
from deploykit.converters.bounds import unused_bounds
from deploykit.converters.ncnn.interface import digests
from deploykit.converters.ncnn.options import stored
from deploykit.converters.ncnn.param import may_be_called, renamed, write_param
from deploykit.converters.ncnn.support import REMEDY
from deploykit.converters.ncnn.tool import NAME, Translated, look_into, versions
from deploykit.converters.ncnn.tracing import too_many_axes
from deploykit.converters.ncnn.translation import Attempt, attempt
from deploykit.errors import VendorError
from deploykit.report import Finding, failure, note

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploykit.artifact import TensorSpec
    from deploykit.converters.vendor_process import Finished


def convert_job(
    model: str,
    output: str,
    options: Mapping[str, Any],
    dims: Mapping[str, Sequence[int | None]],
    profiles: Mapping[str, Sequence[Sequence[int]]],
    precision: str,
) -> dict[str, Any]:
    """Writes `output` (.param) and its .bin, whose blobs have the model's names for inputs and outputs.

    Findings: DK526 for each node that is left untranslated, DK529 for types, ranks and names that ncnn cannot have.
    Raises UsageError (DK527) for an option's value, VendorError when pnnx fails.
    """
    path, final = Path(model), Path(output).resolve()
    kept = stored(options, precision)
    found = attempt(path, dims, profiles, half=kept == "fp16")
    findings = [*unused_bounds(found.inputs, dims, profiles, target=NAME), *found.findings]
    made: dict[str, Any] = {
        "inputs": [spec.as_dict() for spec in found.inputs],
        "outputs": [spec.as_dict() for spec in found.outputs],
        "files": [final.name, final.with_suffix(".bin").name],
        "versions": versions(),
        "precision": kept,
        "metrics": {},
    }
    if found.traced is not None and found.finished is not None:
        if found.result is None:
            raise _failed(path, found.finished, found.traced.shapes)
        findings += _untranslated(found) or _written(found.result, final, found.inputs, found.outputs, made)
        made["metrics"] |= {"traced": {name: list(sizes) for name, sizes in found.traced.sizes.items()}}
    made["findings"] = [finding.as_dict() for finding in findings]
    return made


def _failed(path: Path, finished: Finished, shapes: Sequence[str]) -> VendorError:
    told = [line for line in finished.log if "not supported" in line.lower() or "failed" in line.lower()]
    why = told[-1].strip() if told else f"it {finished.how}" if finished.code else "it wrote no network"
    return VendorError(
        f"pnnx {versions()['pnnx']} does not translate {path.name}: {why[:400]}",
        target=NAME,
        log=finished.log[-20:],
        context=[f"it followed the model with inputs of {' and '.join(shapes)}"],
        hint="--dim NAME=MIN..MAX where the model does not run with inputs of these sizes",
    )


def _untranslated(found: Attempt) -> list[Finding]:
    """A failure for each node of an operator that is left in the network under a name that ncnn does not know."""
    told = []
    for place, why in found.left().items():
        name, op, _ = found.nodes[place]
        told.append(
            failure("DK526", f"ncnn refuses node {name!r} ({op}): {why}", target=NAME, node=name, op=op, hint=REMEDY)
        )
    version = versions()["ncnn"]
    told += [
        failure("DK526", f"pnnx leaves a layer {kind}, which ncnn {version} does not have", target=NAME, hint=REMEDY)
        for kind in found.unexplained()
    ]
    return told


def _written(
    found: Translated, final: Path, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], made: dict[str, Any]
) -> list[Finding]:
    """Writes both files and their manifest, by which the runtime knows them; what is to be told of them."""
    blobs = {f"in{place}": spec.name for place, spec in enumerate(inputs)}
    blobs |= {f"out{place}": spec.name for place, spec in enumerate(outputs)}
    have = {blob for layer in found.layers for blob in layer.outputs}
    findings = _left_out(blobs, have) + too_many_axes(inputs, found.inputs)
    if findings:
        return findings
    free = have - blobs.keys()
    names = {blob: name for blob, name in blobs.items() if may_be_called(name) and name not in free}
    names = {blob: name for blob, name in names.items() if list(names.values()).count(name) == 1}
    write_param(final, renamed(found.layers, names))
    shutil.copyfile(found.weights, final.with_suffix(".bin"))
    look_into(final)
    interface: dict[str, Any] = {
        kind: {
            spec.name: {"blob": names.get(f"{short}{place}", f"{short}{place}"), "batch": axes.get(place)}
            for place, spec in enumerate(specs)
        }
        for kind, short, specs, axes in (
            ("inputs", "in", inputs, found.inputs),
            ("outputs", "out", outputs, found.outputs),
        )
    }
    told = _changes(interface, names, blobs)
    interface["sha256"] = digests(final)
    made["interface"] = interface
    made["metrics"] = {"layers": len(found.layers)}
    record = Artifact.of(
        final,
        NAME,
        files=tuple(made["files"]),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        target=NAME,
        precision=made["precision"],
        interface=interface,
    )
    write_manifest(record)  # until the stage writes the whole one
    return told


def _left_out(blobs: Mapping[str, str], have: set[str]) -> list[Finding]:
    return [
        failure(
            "DK529",
            f"pnnx has left out {'input' if blob.startswith('in') else 'output'} {name!r}",
            target=NAME,
            tensor=name,
            hint="leave it out of the ONNX model, too",
        )
        for blob, name in blobs.items()
        if blob not in have
    ]


def _changes(
    interface: Mapping[str, Mapping[str, Mapping[str, Any]]], names: Mapping[str, str], blobs: Mapping[str, str]
) -> list[Finding]:
    told = [
        note("DK529", f"{name!r} is called {blob!r} in the network: ncnn cannot call it so", target=NAME, tensor=name)
        for blob, name in blobs.items()
        if blob not in names
    ]
    batched = [name for rows in interface.values() for name, row in rows.items() if row["batch"] is not None]
    if batched:
        text = f"the network is of one sample: {', '.join(map(repr, batched))} have no batch axis in it"
        hint = "deploykit's own runtime feeds the samples of a batch one after the other"
        told.append(note("DK529", text, target=NAME, hint=hint))
    return told

"""ONNX to ncnn by pnnx (runs in the worker)."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit import graph, io
from deploykit.artifact import Artifact, write_manifest
from deploykit.converters.bounds import bounds_of_input, fixed_by, unused_bounds
from deploykit.converters.ncnn.interface import digests
from deploykit.converters.ncnn.param import may_be_called, renamed, write_param
from deploykit.converters.ncnn.prepare import prepare
from deploykit.converters.ncnn.tool import NAME, Translated, look_into, translate, unknown_layers, versions
from deploykit.converters.ncnn.tracing import findings_of, too_many_axes, trace
from deploykit.errors import UsageError, VendorError
from deploykit.report import Finding, failure, note

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploykit.artifact import TensorSpec
    from deploykit.converters.vendor_process import Finished

_WEIGHTS = {"float32": "fp32", "fp16": "fp16"}


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
    half = _stored(options, precision) == "fp16"
    loaded = graph.load(path)
    inputs, outputs = graph.interface(loaded)
    findings = unused_bounds(inputs, dims, profiles, target=NAME)
    limits = [bounds_of_input(spec, dims, profiles.get(spec.name)) for spec in inputs]
    inputs = tuple(
        dataclasses.replace(spec, shape=fixed_by(spec, shape)) for spec, shape in zip(inputs, limits, strict=True)
    )
    findings += findings_of(inputs, outputs)
    made: dict[str, Any] = {
        "inputs": [spec.as_dict() for spec in inputs],
        "outputs": [spec.as_dict() for spec in outputs],
        "files": [final.name, final.with_suffix(".bin").name],
        "versions": versions(),
        "precision": "fp16" if half else "fp32",
        "metrics": {},
    }
    if not any(finding.severity == "error" for finding in findings):
        nodes = [(node.name or "", node.op_type) for node in graph.all_nodes(graph.name_nodes(loaded))]
        traced = trace(inputs, {**_by_symbol(inputs, limits), **dims})
        prepare(loaded, inputs)
        with io.scratch_folder() as folder:
            ready = Path(folder) / "model.onnx"
            graph.save(loaded, ready)
            del loaded
            found, finished = translate(ready, traced.shapes, half=half)
            if found is None:
                raise _failed(path, finished, traced.shapes)
            findings += _untranslated(found, nodes) or _written(found, final, inputs, outputs, made)
        made["metrics"] |= {"traced": {name: list(sizes) for name, sizes in traced.sizes.items()}}
    made["findings"] = [finding.as_dict() for finding in findings]
    return made


def _stored(options: Mapping[str, Any], precision: str) -> str:
    kind = str(options.get("weights") or ("fp16" if precision == "fp16" else "float32"))
    if kind not in _WEIGHTS:
        raise UsageError(
            f"option 'weights' is one of {', '.join(_WEIGHTS)}, and was {kind!r}",
            code="DK527",
            target=NAME,
            hint="--option weights=fp16",
        )
    return _WEIGHTS[kind]


def _by_symbol(inputs: Sequence[TensorSpec], limits: Sequence[Sequence[Any]]) -> dict[str, Sequence[int | None]]:
    """The bounds that profiles give, by the name of the dimension."""
    return {
        size: list(bound)
        for spec, bounds in zip(inputs, limits, strict=True)
        for size, bound in zip(spec.shape or (), bounds, strict=True)
        if isinstance(size, str) and bound is not None
    }


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


def _untranslated(found: Translated, nodes: Sequence[tuple[str, str]]) -> list[Finding]:
    """A failure for each node of an operator that is left in the network under a name that ncnn does not know."""
    told = []
    for kind in unknown_layers(found.layers):
        # `Gather` stays one; PyTorch's words for others, as in `torch.topk`, are near those of ONNX.
        word = kind.rpartition(".")[2].replace("_", "").lower()
        places = [(name, op) for name, op in nodes if op.lower() == word]
        why = f"pnnx leaves it as {kind}, which ncnn {versions()['ncnn']} does not have"
        hint = "rewrite it with operators that ncnn has, or use another target"
        told += [
            failure("DK526", f"ncnn refuses node {name!r} ({op}): {why}", target=NAME, node=name, op=op, hint=hint)
            for name, op in places
        ] or [failure("DK526", f"ncnn refuses the model: there is a layer {kind} that it does not have", target=NAME)]
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
    shutil.move(found.weights, final.with_suffix(".bin"))
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

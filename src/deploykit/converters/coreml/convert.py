"""Converts ONNX to a Core ML package (runs in the worker); it is reloaded and its interface compared."""

from __future__ import annotations

import os
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import coremltools as ct

from deploykit import graph, io
from deploykit.converters.coreml.asked import Asked, asked_for, flexible_problems, with_fixed_sizes
from deploykit.converters.coreml.door import package_shapes, write_names
from deploykit.converters.coreml.frontend import Built, build, door_type
from deploykit.converters.coreml.halving import Halving, asked_half
from deploykit.converters.coreml.images_program import image_type
from deploykit.converters.coreml.inspect import interface_of, open_package
from deploykit.converters.coreml.options import deployment_target
from deploykit.converters.coreml.package import normalize
from deploykit.converters.coreml.precision import settled
from deploykit.converters.coreml.shapes import (
    Flexibility,
    declared,
    plan,
    shape_mismatches,
    write_shapes,
)
from deploykit.converters.coreml.shapes_record import interface_record
from deploykit.converters.coreml.support import NAME, fixed_dims, interface_problems
from deploykit.converters.profiles import Profile, resolve_profiles
from deploykit.lazy import versions_of
from deploykit.report import Finding, failure, note, warning

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploykit.artifact import TensorSpec


def convert_job(
    model: str,
    output: str,
    options: Mapping[str, Any],
    dims: Mapping[str, Sequence[int | None]],
    profiles: Mapping[str, Profile],
    precision: str,
    calib: Mapping[str, Any] | None = None,
    contract: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Lowers the graph and writes the package at `output`, in the types that the graph has unless options say fp16.

    precision: what the ONNX holds. calib: a `DataRequest` to measure what fp16 costs on. contract: the preprocessing
    of the inputs, in JSON form. Returns the facts of a `Product`, error findings for
    every node that is refused. Raises UsageError (DK527, DK550, DK551).
    """
    target = deployment_target(options)
    loaded = graph.infer_shapes(graph.load(Path(model)))
    in_model = inputs, outputs = graph.interface(loaded)
    shapes, findings = resolve_profiles(inputs, dims, profiles, target=NAME)
    findings += interface_problems(inputs, outputs)
    result: dict[str, Any] = {
        "inputs": [],
        "outputs": [],
        "files": [Path(output).name],
        "versions": versions_of("coremltools"),
        "findings": findings,
        "metrics": {},
    }
    if not any(finding.severity == "error" for finding in findings):
        flexibility, more = plan(inputs, dims, profiles, shapes, target)
        findings += more
        given, sizes = with_fixed_sizes(inputs, fixed_dims(dims), shapes)
        asked = asked_for(options, Path(model), given, outputs, sizes, contract)
        findings += flexible_problems(asked, flexibility)
        half = asked_half(options, precision, Path(model), inputs, dims, asked, calib)
    if not any(finding.severity == "error" for finding in findings):
        built = build(loaded, inputs, outputs, fixed_dims(dims), ct.target[target], asked.images)
        findings += [_refusal(row) for row in built.refused]
        if built.program is not None:
            findings += interface_changes(asked.arrays(inputs), asked.vectors(outputs), built.names)
            findings += asked.changes()
            # The folder is a staging one: the user knows the package by its name.
            with io.no_space_named(Path(Path(output).name)):
                _write(built, inputs, flexibility, target, Path(output), asked, half)
            if half is not None:
                findings[:0] = half.findings(built, (*inputs, *outputs))
                inputs, outputs = half.doors(inputs), half.doors(outputs)
            opened = open_package(Path(output))
            findings += shape_mismatches(flexibility.renamed(built.names), package_shapes(opened.spec))
            findings += interface_mismatches(asked.arrays(inputs), asked.vectors(outputs), built.names, opened.facts)
            findings += asked.mismatches(opened, built.names)
            result |= asked.facts(product_facts(inputs, outputs, built.names, opened.facts), built.names, opened.facts)
            result["interface"] = interface_record(*in_model, built.names, result, flexibility)
            if half is not None:
                result["metrics"]["compute_precision"] = half.facts
                result["precision"] = half.precision(precision)
    result["findings"] = [finding.as_dict() for finding in findings]
    return result


def _refusal(row: Any) -> Finding:
    return failure(
        "DK526",
        f"Core ML refuses node {row.node.name!r} ({row.node.op}): {row.verdict.reason}",
        target=NAME,
        node=row.node.name,
        op=row.node.op,
        hint=row.verdict.remedy,
    )


def passes() -> Any:
    """All passes of coremltools but the one that makes `x * a + b` a batch_norm and leaves its epsilon at 1e-5.

    It scales every result by 1 / sqrt(1 + 1e-5) (coremltools 9.0, fuse_elementwise_to_batchnorm).
    """
    kept = ct.PassPipeline()
    kept.remove_passes({"common::fuse_elementwise_to_batchnorm"})
    return kept


def _write(
    built: Built,
    inputs: Sequence[TensorSpec],
    flexibility: Flexibility,
    target: str,
    output: Path,
    asked: Asked,
    half: Halving | None,
) -> None:
    interface = [
        image_type(built.names[spec.name], asked.images[spec.name], flexibility)
        if spec.name in asked.images
        else ct.TensorType(name=built.names[spec.name], shape=declared(spec.name, flexibility))
        for spec in inputs
    ]
    program = built.program if half is None else half.made(built, interface, ct.target[target])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # coremltools' notes about its own passes; ours are findings
        try:
            package = ct.convert(
                program,
                source="milinternal",
                inputs=interface,
                classifier_config=asked.classifier(built.names),
                convert_to="mlprogram",
                minimum_deployment_target=ct.target[target],
                compute_precision=ct.precision.FLOAT32,  # "as the program says": no pass changes it
                skip_model_load=True,
                pass_pipeline=passes() if half is None else settled(),
            )
            package.save(str(output))
        except RuntimeError as problem:
            if "FileWriter" in str(problem):
                expect_space()
            raise
    spec = package.get_spec()
    write_names(spec, built.names, list(built.names))
    write_shapes(spec, flexibility.renamed(built.names))
    asked.write(spec, built.names)
    normalize(output, spec)


def expect_space() -> None:
    """Where coremltools says "unknown error" of a blob it cannot write: OSError, when the disk is full."""
    with tempfile.TemporaryFile() as stream:
        stream.write(bytes(1 << 20))
        stream.flush()
        os.fsync(stream.fileno())


def interface_changes(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], names: Mapping[str, str]
) -> list[Finding]:
    """What callers see differently: a name that Core ML cannot have, a type that its interface cannot hold."""
    found = []
    for kind, specs in (("input", inputs), ("output", outputs)):
        for spec in specs:
            if names[spec.name] != spec.name:
                found.append(
                    warning(
                        "DK529",
                        f"{kind} {spec.name!r} is called {names[spec.name]!r} in the package",
                        target=NAME,
                        tensor=spec.name,
                        hint="Core ML names hold letters, digits and underscores; rename the tensor in the model",
                    )
                )
            if _at_the_door(spec, kind) != spec.shape:
                found.append(
                    note(
                        "DK529",
                        f"{kind} {spec.name!r} has shape [1] in the package, a scalar in the model",
                        target=NAME,
                        tensor=spec.name,
                        hint="feed it as a vector of one; Core ML has no scalar inputs",
                    )
                )
            made = door_type(spec.dtype)
            if made != spec.dtype:
                found.append(
                    note(
                        "DK529",
                        f"{kind} {spec.name!r} is {made} in the package, {spec.dtype} in the model",
                        target=NAME,
                        tensor=spec.name,
                        hint=f"feed and read it as {made}; Core ML's interface has no {spec.dtype}",
                    )
                )
    return found


def _at_the_door(spec: TensorSpec, kind: str) -> tuple[int | str, ...] | None:
    """The shape that a tensor of the model has in the package: scalar inputs are vectors of one."""
    return (1,) if kind.startswith("input") and spec.shape == () else spec.shape


def interface_mismatches(
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    names: Mapping[str, str],
    facts: Mapping[str, Any],
) -> list[Finding]:
    """The reloaded package against the model: names, types, shapes."""
    found = []
    for kind, specs in (("inputs", inputs), ("outputs", outputs)):
        made = {spec.name: spec for spec in interface_of(facts, kind)}
        for spec in specs:
            have = made.get(names[spec.name])
            if (
                have is None
                or have.dtype != door_type(spec.dtype)
                or not _same_shape(_at_the_door(spec, kind), have.shape)
            ):
                found.append(
                    failure(
                        "DK529",
                        f"{kind[:-1]} {spec.name!r} is {spec.describe()} in the model and "
                        f"{have.describe() if have else 'missing'} in the package",
                        target=NAME,
                        tensor=spec.name,
                    )
                )
    return found


def _same_shape(model: tuple[int | str, ...] | None, package: tuple[int | str, ...] | None) -> bool:
    """Numbers are equal; a size that varies in one may be a number that follows from bounds in the other."""
    if model is None or package is None:
        return True
    return len(model) == len(package) and all(
        isinstance(want, str) or isinstance(have, str) or want == have
        for want, have in zip(model, package, strict=True)
    )


def product_facts(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], names: Mapping[str, str], facts: Mapping[str, Any]
) -> dict[str, Any]:
    """The interface with the model's symbols, under the package's names and types; and what the package holds."""

    def spec_of(spec: TensorSpec, kind: str) -> dict[str, Any]:
        shape = list(_at_the_door(spec, kind) or ())
        return {"name": names[spec.name], "dtype": door_type(spec.dtype), "shape": shape}

    return {
        "inputs": [spec_of(spec, "input") for spec in inputs],
        "outputs": [spec_of(spec, "output") for spec in outputs],
        "metrics": {
            "reloaded": True,
            **{key: facts[key] for key in ("specification_version", "operators", "weights", "precision")},
        },
    }

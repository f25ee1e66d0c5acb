"""`deploykit inspect`: what is in a file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit import graph, io
from deploykit.artifact import Artifact, TensorSpec, read_manifest
from deploykit.errors import UnavailableError
from deploykit.isolation import run_isolated
from deploykit.report import Report, warning
from deploykit.target import format_of, target_of_format

if TYPE_CHECKING:
    from deploykit.target import Target


def inspect(file: str | Path) -> Report:
    """What an artifact holds: interface, operators, parameters, MACs, size, dynamic dimensions, precision.

    An ONNX file is read here; every other format in its target's worker. Nothing is executed.
    metrics of ONNX: those of `graph.summary`, `size_bytes` and `external_files` {name: bytes}. Of others: what the
    target tells. A file of unknown suffix is taken for ONNX when its content may be.
    Raises InvalidFileError or ModelError for a file that is missing, damaged or of another kind.
    """
    started = time.perf_counter()
    path = Path(file)
    format = format_of(path)
    target = target_of_format(format) if format is not None and format != "onnx" else None
    report = _inspect_onnx(path) if target is None else _inspect_native(path, target)
    _compare_manifest(report, path)
    report.seconds = time.perf_counter() - started
    return report


def _inspect_onnx(path: Path) -> Report:
    graph.check_kind(path)  # another kind of file is refused before the ONNX library is imported
    model = graph.load(path)
    artifact = graph.describe(path, model)
    metrics = graph.summary(model)
    metrics["size_bytes"] = artifact.size_bytes
    metrics["external_files"] = {name: io.size_of(path.parent / name) for name in artifact.files[1:]}
    return Report("inspect", artifacts=[artifact], metrics=metrics)


def _inspect_native(path: Path, target: Target) -> Report:
    if not path.is_dir():
        io.existing_file(path, f"{target.title} artifact")
    if target.inspect is None:
        raise UnavailableError(
            f"{target.title} artifacts cannot be looked into here", code="DK502", file=path, target=target.name
        )
    facts: dict[str, Any] = run_isolated(
        target.worker or target.name, target.inspect, {"path": str(path)}, block=target.blocked
    )
    artifact = _artifact_of(path, target, facts)
    known = {"inputs", "outputs", "precision", "size_bytes"}
    metrics = {
        "inputs": [spec.as_dict() for spec in artifact.inputs],
        "outputs": [spec.as_dict() for spec in artifact.outputs],
        "precision": artifact.precision,
        "size_bytes": artifact.size_bytes,
        **{key: value for key, value in facts.items() if key not in known},
    }
    return Report("inspect", artifacts=[artifact], metrics=metrics)


def _artifact_of(path: Path, target: Target, facts: dict[str, Any]) -> Artifact:
    """The artifact as the file tells it, with the origin that a manifest of the same digest claims."""
    claim = read_manifest(path)
    files = tuple(facts.get("files") or (claim.files if claim is not None else ()))
    present = files and all((path.parent / name).exists() for name in files)
    format = format_of(path) or target.format
    found = Artifact.of(path, format, files=files if present else ())
    proven = claim if claim is not None and claim.sha256 == found.sha256 else None
    inputs, outputs = _specs(facts.get("inputs")), _specs(facts.get("outputs"))
    return Artifact(
        path=path,
        format=format,
        inputs=inputs or (proven.inputs if proven else ()),
        outputs=outputs or (proven.outputs if proven else ()),
        target=(proven.target if proven else None) or target.name,
        precision=(proven.precision if proven else None) or facts.get("precision") or "unknown",
        opset=proven.opset if proven else None,
        sha256=found.sha256,
        size_bytes=found.size_bytes,
        parent_sha256=proven.parent_sha256 if proven else None,
        execution=proven.execution if proven else "none",
        stage=proven.stage if proven else "",
        options=proven.options if proven else {},
        tool_versions=proven.tool_versions if proven else {},
        files=found.files,
    )


def _specs(rows: list[dict[str, Any]] | None) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec.from_dict(row) for row in rows or ())


def _compare_manifest(report: Report, path: Path) -> None:
    claim = read_manifest(path)
    artifact = report.artifact
    if claim is not None and artifact is not None and claim.sha256 != artifact.sha256:
        report.add(
            warning(
                "DK130",
                f"the manifest beside {path.name} describes another file: the digests differ",
                hint="the file was changed or replaced after it was made; make it again to know what it came from",
            )
        )

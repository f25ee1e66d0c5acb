"""Stage and run_stage: the one place where an artifact is made, timed, described and published."""

from __future__ import annotations

import abc
import dataclasses
import time
from typing import TYPE_CHECKING, Any

from deploykit import io
from deploykit.artifact import Artifact, Execution, TensorSpec, write_manifest
from deploykit.errors import GateError, OutputError
from deploykit.progress import OnProgress, silent
from deploykit.report import Finding, Report

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclasses.dataclass(slots=True)
class Product:
    """What a stage wrote, in facts; `run_stage` adds digest, size, parent and path.

    files: names beside the main file that belong to the artifact, main file first; empty when there is only one.
    companions: names beside it that are published along and are not part of it.
    interface: how inputs and outputs differ from those of the model, in JSON form, for the manifest.
    built_for: the engine version and GPUs that alone load the artifact, for the manifest; empty where others do.
    kept: what to publish beside the output, under its own name, when a finding fails: the best that was possible. It is
    a path from the staging folder into a folder of its own.
    """

    format: str
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    target: str | None = None
    precision: str = "fp32"
    opset: int | None = None
    execution: Execution = "none"
    tool_versions: dict[str, str] = dataclasses.field(default_factory=dict)
    files: tuple[str, ...] = ()
    companions: tuple[str, ...] = ()
    kept: str | None = None
    interface: dict[str, Any] = dataclasses.field(default_factory=dict)
    built_for: dict[str, Any] = dataclasses.field(default_factory=dict)
    findings: list[Finding] = dataclasses.field(default_factory=list)
    metrics: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(slots=True)
class Verification:
    """The evidence for an artifact: findings, metrics, and whether it was executed to get them."""

    findings: list[Finding] = dataclasses.field(default_factory=list)
    metrics: dict[str, Any] = dataclasses.field(default_factory=dict)
    execution: Execution | None = None


class Stage(abc.ABC):
    """One step that makes one artifact from named inputs, which it never changes."""

    name: str
    # What lies beside the first input is copied beside the output, unless the stage sees to it.
    carries = True

    @property
    @abc.abstractmethod
    def options(self) -> dict[str, Any]:
        """Everything that decides the result besides the inputs, as JSON; goes into the manifest and the cache key."""

    def requires(self, inputs: Mapping[str, Artifact]) -> list[Finding]:
        """Preflight, before any work: problems of the inputs, all at once. An error finding stops the stage."""
        return []

    @abc.abstractmethod
    def run(self, inputs: Mapping[str, Artifact], output: Path, on_progress: OnProgress) -> Product:
        """Writes the artifact at `output` (a staging path of the final name) and says what it is."""

    def ensures(self, inputs: Mapping[str, Artifact], made: Artifact, on_progress: OnProgress) -> Verification:
        """Verification of what was written, before it is published. An error finding unpublishes it."""
        return Verification()


def run_stage(
    stage: Stage,
    inputs: Mapping[str, Artifact],
    output: Path,
    *,
    force: bool = False,
    on_progress: OnProgress = silent,
) -> Report:
    """Runs a stage: preflight, work, verification, manifest, publication.

    Returns a report whose artifact is published at `output`; when a gate failed the report has error findings, no
    artifact, and `output` is as it was.
    """
    started = time.perf_counter()
    report = Report(command=stage.name)
    io.check_output(output, force=force)
    report.add(*stage.requires(inputs))
    if not report.failed:
        try:
            _make(stage, inputs, output, report, force=force, on_progress=on_progress)
        except _GateFailedError:
            report.artifacts.clear()
    report.seconds = time.perf_counter() - started
    return report


class _GateFailedError(Exception):
    """Leaves the staging context without publishing."""


def _make(
    stage: Stage,
    inputs: Mapping[str, Artifact],
    output: Path,
    report: Report,
    *,
    force: bool,
    on_progress: OnProgress,
) -> None:
    with io.staged(output, force=force) as staging:
        try:
            product = stage.run(inputs, staging, on_progress)
        except GateError as problem:
            report.error = problem
            raise _GateFailedError from problem
        report.add(*product.findings)
        report.metrics.update(product.metrics)
        if report.failed:
            if product.kept is not None:
                kept = staging.parent / product.kept
                io.publish(kept.parent, output.parent / kept.name, force=force)
            raise _GateFailedError
        parent = next(iter(inputs.values()), None)
        made = Artifact.of(
            staging,
            product.format,
            files=product.files,
            companions=(*product.companions, *(_carried(parent, staging, output) if stage.carries else ())),
            inputs=product.inputs,
            outputs=product.outputs,
            target=product.target,
            precision=product.precision,
            opset=product.opset,
            parent_sha256=parent.sha256 if parent else None,
            execution=product.execution,
            stage=stage.name,
            options=stage.options,
            tool_versions=product.tool_versions,
            interface=product.interface,
            built_for=product.built_for,
        )
        report.artifacts.append(made)
        try:
            evidence = stage.ensures(inputs, made, on_progress)
        except GateError as problem:
            report.error = problem
            raise _GateFailedError from problem
        report.add(*evidence.findings)
        report.metrics.update(evidence.metrics)
        if report.failed:
            raise _GateFailedError
        made = dataclasses.replace(made, execution=evidence.execution or made.execution)
        write_manifest(made)
        _spare_inputs(inputs, staging, output)
        report.artifacts[0] = dataclasses.replace(made, path=output)


def _carried(parent: Artifact | None, staging: Path, output: Path) -> tuple[str, ...]:
    """Copies what lies beside the parent (`m.assets`, its tokenizer) under the output's name; the names.

    An output that stands beside its parent under the same stem has it already.
    """
    names: list[str] = []
    if parent is None:
        return ()
    for companion in parent.companions:
        source = parent.path.parent / companion
        name = output.stem + companion.removeprefix(parent.path.stem)
        if (output.parent / name).resolve() == source.resolve() and output.name != parent.path.name:
            continue
        io.copy_entry(source, staging.parent / name)
        names.append(name)
    return tuple(names)


def _spare_inputs(inputs: Mapping[str, Artifact], staging: Path, output: Path) -> None:
    """OutputError (DK128) when a file would replace one that an input needs; `--force` is not meant for that.

    An input that is itself replaced, as `simplify m.onnx -o m.onnx` does, goes with all its files.
    """
    folder = output.parent.resolve()
    names = {folder / entry.name for entry in staging.parent.iterdir()}
    for artifact in inputs.values():
        home = artifact.path.parent.resolve()
        if home / artifact.path.name == folder / output.name:
            continue
        for name in artifact.files:
            if home / name in names:
                raise OutputError(
                    f"{output} would replace {home / name}, which {artifact.path} needs",
                    code="DK128",
                    file=output,
                    hint="choose another name or folder for the output",
                )

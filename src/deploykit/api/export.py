"""`deploykit export`: a model source to an ONNX artifact, proven against the source."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit import io
from deploykit.data.specs import DimRange, parse_dim, parse_input
from deploykit.errors import UsageError
from deploykit.exporters.request import parse_args
from deploykit.exporters.sources import KINDS, detect, takes
from deploykit.isolation import workers
from deploykit.progress import OnProgress, silent

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from deploykit.artifact import Artifact, TensorSpec
    from deploykit.exporters.sources import Source
    from deploykit.exporters.stage import ExportOptions
    from deploykit.report import Report

EXPORTERS = ("auto", "dynamo", "torchscript")
_EXPORTED = tuple(kind.name for kind in KINDS.values() if kind.via in ("torch", "tensorflow"))


def export(
    source: str | Path,
    *,
    output: str | Path,
    inputs: Iterable[str | TensorSpec] = (),
    dims: Iterable[str | DimRange] = (),
    sample: str | Path | None = None,
    weights: str | Path | None = None,
    args: Mapping[str, Any] | Iterable[str] | None = None,
    opset: int | None = None,
    exporter: str = "auto",
    signature: str | None = None,
    force: bool = False,
    seed: int = 0,
    on_progress: OnProgress = silent,
) -> Report:
    """Exports a source to ONNX at `output`; the file is compared with the source before it is published.

    source: `path/file.py:factory`, `package.module:factory`, `.pt2`, TorchScript, ONNX, a SavedModel folder, `.keras`,
    `.h5`, or `.tflite`.
    inputs: `x:float32[batch,3]`. dims: `batch=1..64`. sample: a .npz with one array for each input.
    weights: .safetensors, or a state dict. args: constructor arguments.
    opset: None takes 20 for PyTorch, 18 for TensorFlow, and keeps the one of an ONNX source.
    exporter: "auto", "dynamo" or "torchscript", of PyTorch models; auto takes the second where the first fails.
    signature: of a SavedModel or LiteRT file; None takes `serving_default`, or the only one.
    Returns a report with the artifact, metrics "exporter", "dims", "source_files" ({path: digest} of the Python files
    that were imported from the source's folder), "parity", and for TensorFlow the "layout" of image tensors; failed,
    with nothing written, when the outputs differ.
    Raises UsageError, InvalidFileError, ModelError, OutputError, MissingDependencyError or VendorError.
    """
    from deploykit.exporters.stage import ExportOptions, ExportStage
    from deploykit.stage import run_stage

    found = detect(source)
    via = takes(found)
    if exporter not in EXPORTERS:
        raise UsageError(f"there is no exporter {exporter!r}", code="DK604", hint=f"one of {', '.join(EXPORTERS)}")
    target = io.check_output(Path(output), force=force, suffix=".onnx")
    options = ExportOptions(
        inputs=tuple(parse_input(spec) if isinstance(spec, str) else spec for spec in inputs),
        dims={bounds.name: bounds for bounds in (parse_dim(d) if isinstance(d, str) else d for d in dims)},
        sample=io.existing_file(Path(sample), "sample file") if sample is not None else None,
        weights=io.existing_file(Path(weights), "weights file") if weights is not None else None,
        args=parse_args(args),
        opset=opset,
        exporter=exporter,
        signature=signature,
        seed=seed,
    )
    _check_combination(found, options)
    with workers():
        return run_stage(
            ExportStage(found, via, options), _parents(found), target, force=force, on_progress=on_progress
        )


def _check_combination(source: Source, options: ExportOptions) -> None:
    """Refuses options that would do nothing for this kind of source."""
    for given, names, kinds, owner in (
        (options.weights is not None or options.args, "--weights and --arg", ("python",), "a Python factory"),
        (options.sample is not None, "--sample", _EXPORTED, "a source that is run to export it"),
        (options.signature, "--signature", ("savedmodel", "tflite"), "a SavedModel or LiteRT file"),
    ):
        if given and source.kind.name not in kinds:
            raise UsageError(
                f"{names} belong to {owner}, and {source.label} is {source.kind.title}",
                code="DK604",
                hint="leave them away",
            )
    if options.exporter != "auto" and source.kind.via != "torch":
        raise UsageError(
            f"--exporter chooses between PyTorch's exporters, and {source.label} is {source.kind.title}",
            code="DK604",
            hint="leave it away",
        )


def _parents(source: Source) -> dict[str, Artifact]:
    """The source as an artifact, so that the manifest has its digest; a module's file is known only after import."""
    if source.path is None:
        return {}
    if source.kind.name == "onnx":
        from deploykit import graph

        return {"source": graph.describe(source.path)}
    from deploykit.artifact import Artifact

    return {"source": Artifact.of(source.path, source.kind.name)}

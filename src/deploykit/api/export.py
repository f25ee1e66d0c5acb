"""`deploykit export`: a model source to an ONNX artifact, proven against the source."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit import io
from deploykit.api.extensions import extension_libraries, split_translations
from deploykit.data.specs import DimRange, parse_dim, parse_input
from deploykit.errors import UsageError
from deploykit.exporters.request import parse_args, parse_layout
from deploykit.exporters.sources import KINDS, detect, takes
from deploykit.isolation import workers
from deploykit.progress import OnProgress, silent
from deploykit.target import get_target

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from deploykit.api.extensions import CustomOps
    from deploykit.artifact import Artifact, TensorSpec
    from deploykit.exporters.sources import Source
    from deploykit.exporters.stage import ExportOptions, ExportStage
    from deploykit.report import Report

EXPORTERS = ("auto", "dynamo", "torchscript")
_EXPORTED = tuple(kind.name for kind in KINDS.values() if kind.via not in (None, "onnx"))
_TENSORFLOW, _TORCH = (
    tuple(kind.name for kind in KINDS.values() if kind.via == via) for via in ("tensorflow", "torch")
)


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
    task: str | None = None,
    layout: Iterable[str] | str = (),
    custom_ops: CustomOps = None,
    trust: bool = False,
    force: bool = False,
    seed: int = 0,
    on_progress: OnProgress = silent,
) -> Report:
    """Exports a source to ONNX at `output`; the file is compared with the source before it is published.

    source: `path/file.py:factory`, `package.module:factory`, `.pt2`, TorchScript, ONNX, a SavedModel folder, `.keras`,
    a Hugging Face folder, `.h5`, `.tflite`, `.skops`; `.joblib` and `.pkl` of scikit-learn models with `trust`.
    inputs: `x:float32[batch,3]`. dims: `batch=1..64`. sample: a .npz with one array for each input.
    weights: .safetensors, or a state dict. args: constructor arguments.
    opset: None takes 20 for PyTorch, 18 for TensorFlow, and keeps the one of an ONNX source.
    exporter: "auto", "dynamo" or "torchscript", of PyTorch models; auto takes the second where the first fails.
    trust: loads pickles and unknown types of a `.skops` file, which can run code.
    signature: of a SavedModel or LiteRT file; None takes `serving_default`, or the only one.
    task: of a Hugging Face folder, as the ecosystem calls it ("feature-extraction", "text-generation-with-past"); None
    takes the one of the class in config.json.
    layout: "nchw" or "nhwc" for every image tensor of a TensorFlow source, or `NAME=nchw` for single ones.
    custom_ops: Python files with a table `TRANSLATIONS` of ONNX forms for PyTorch operators, and onnxruntime's
    extension library with operators that the exported file has.
    Returns a report with the artifact, metrics "exporter", "dims", "source_files" ({path: digest} of the Python files
    that were imported from the source's folder), "parity", and for TensorFlow the "layout" of image tensors; failed,
    with nothing written, when the outputs differ.
    Raises UsageError, InvalidFileError, ModelError, OutputError, MissingDependencyError or VendorError.
    """
    from deploykit.stage import run_stage

    found = detect(source)
    takes(found, trust=trust)
    target = io.check_output(Path(output), force=force, suffix=".onnx")
    stage = export_stage(
        found,
        inputs=inputs,
        dims=dims,
        sample=sample,
        weights=weights,
        args=args,
        opset=opset,
        exporter=exporter,
        signature=signature,
        task=task,
        layout=layout,
        custom_ops=custom_ops,
        trust=trust,
        seed=seed,
    )
    with workers():
        return run_stage(stage, parents_of(found), target, force=force, on_progress=on_progress)


def export_stage(
    source: Source,
    *,
    inputs: Iterable[str | TensorSpec] = (),
    dims: Iterable[str | DimRange] = (),
    sample: str | Path | None = None,
    weights: str | Path | None = None,
    args: Mapping[str, Any] | Iterable[str] | None = None,
    opset: int | None = None,
    exporter: str = "auto",
    signature: str | None = None,
    task: str | None = None,
    layout: Iterable[str] | str = (),
    custom_ops: CustomOps = None,
    trust: bool = False,
    seed: int = 0,
) -> ExportStage:
    """The stage that `export` runs, its options checked; what a direct route asks a framework for is in it as well.

    Raises UsageError, InvalidFileError or ModelError.
    """
    from deploykit.exporters.stage import ExportOptions, ExportStage

    if exporter not in EXPORTERS:
        raise UsageError(f"there is no exporter {exporter!r}", code="DK604", hint=f"one of {', '.join(EXPORTERS)}")
    translations, rest = split_translations(custom_ops)
    libraries = extension_libraries(rest, [get_target("onnxruntime")])
    options = ExportOptions(
        inputs=tuple(parse_input(spec) if isinstance(spec, str) else spec for spec in inputs),
        dims={bounds.name: bounds for bounds in (parse_dim(d) if isinstance(d, str) else d for d in dims)},
        sample=io.existing_file(Path(sample), "sample file") if sample is not None else None,
        weights=io.existing_file(Path(weights), "weights file") if weights is not None else None,
        args=parse_args(args),
        opset=opset,
        exporter=exporter,
        signature=signature,
        task=task,
        layout=parse_layout([layout] if isinstance(layout, str) else layout),
        translations=translations,
        libraries=libraries,
        trust=trust,
        seed=seed,
    )
    _check_combination(source, options)
    return ExportStage(source, takes(source, trust=trust), options)


def _check_combination(source: Source, options: ExportOptions) -> None:
    """Refuses options that would do nothing for this kind of source."""
    for given, names, kinds, owner in (
        (options.weights, "--weights", ("python",), "a Python factory"),
        (options.args, "--arg", ("python", "torchscript"), "a Python factory, or a TorchScript method's arguments"),
        (options.sample is not None, "--sample", _EXPORTED, "a source that is run to export it"),
        (options.task, "--task", ("huggingface",), "a Hugging Face folder"),
        (options.signature, "--signature", ("savedmodel", "tflite"), "a SavedModel or LiteRT file"),
        (options.layout, "--layout", _TENSORFLOW, "a TensorFlow, Keras or LiteRT source"),
        (options.translations, "--custom-ops with translations", _TORCH, "a PyTorch source"),
        (options.libraries, "--custom-ops", _TORCH, "a PyTorch source whose translations have operators of your own"),
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


def parents_of(source: Source) -> dict[str, Artifact]:
    """The source as an artifact, so that the manifest has its digest; a module's file is known only after import."""
    if source.path is None:
        return {}
    if source.kind.name == "onnx":
        from deploykit import graph

        return {"source": graph.describe(source.path)}
    from deploykit.artifact import Artifact

    return {"source": Artifact.of(source.path, source.kind.name)}

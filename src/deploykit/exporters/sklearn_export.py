"""The scikit-learn worker's export: skl2onnx, the opset that was asked for, tensors with names that users know."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from deploykit import graph, io
from deploykit.errors import ModelError, UsageError
from deploykit.exporters import sklearn_data, sklearn_outputs, sklearn_source
from deploykit.exporters.canonical import make_canonical
from deploykit.exporters.diagnosis import reason
from deploykit.exporters.onnx_source import to_opset
from deploykit.exporters.sklearn_convert import HIGHEST_OPSET, LOWEST_OPSET, convert
from deploykit.exporters.sklearn_repairs import repair_distances, repair_probabilities
from deploykit.exporters.sklearn_thresholds import decide_alike
from deploykit.lazy import versions_of
from deploykit.reference import Reference
from deploykit.report import note

if TYPE_CHECKING:
    from deploykit.exporters.request import SklearnRequest
    from deploykit.exporters.sklearn_source import SklearnSource
    from deploykit.runtime import Outputs

DEFAULT_OPSET = 20
_TRIED = 7


def export_job(request: SklearnRequest, output: str, opset: int | None) -> dict[str, Any]:
    """Writes the ONNX of a scikit-learn model at `output`; returns its facts as JSON.

    Raises what `sklearn_source.load` and `sklearn_convert.convert` raise, UsageError (DK612) for an opset too low.
    """
    wanted = opset or DEFAULT_OPSET
    if wanted < LOWEST_OPSET:
        raise UsageError(
            f"scikit-learn models are written from opset {LOWEST_OPSET} on, and {wanted} was asked for",
            code="DK612",
            hint=f"--opset {LOWEST_OPSET}",
        )
    source = sklearn_source.load(request)
    model = convert(source.model, source.inputs, min(wanted, HIGHEST_OPSET), source.path)
    findings = list(source.findings)
    dropped = sklearn_outputs.settle(model, source.model)
    if dropped:
        text = f"{', '.join(map(repr, dropped))} is left out: the model has no method that gives it"
        findings.append(note("DK674", text))
    _tidy(model, source)
    decide_alike(model, source.model)
    repair_probabilities(model, source.model)
    repair_distances(model, source.model)
    if graph.opset(model) != wanted:
        model = to_opset(model, wanted)
    if graph.opset(model) != wanted:
        raise ModelError(f"skl2onnx wrote opset {graph.opset(model)} where {wanted} was asked for", code="DK612")
    _settle_shapes(model, source, request["seed"])
    make_canonical(model)
    graph.name_nodes(model)
    files = graph.save(model, Path(output))
    inputs, outputs = graph.interface(model)
    return {
        "inputs": [spec.as_dict() for spec in inputs],
        "outputs": [spec.as_dict() for spec in outputs],
        "files": list(files),
        "opset": graph.opset(model),
        "precision": graph.precision_of(model),
        "versions": versions_of(
            "scikit-learn", "skops", "skl2onnx", "onnxmltools", "xgboost", "xgboost-cpu", "lightgbm", "onnx-ir"
        ),
        "findings": [finding.as_dict() for finding in findings],
        "metrics": {
            "converter": "skl2onnx",
            "estimator": type(source.model).__name__,
            "dims": {name: [bounds.minimum, bounds.maximum] for name, bounds in source.symbols.items()},
            "source_files": {},
        },
    }


def _tidy(model: ir.Model, source: SklearnSource) -> None:
    """Takes away what is of the converter, gives the inputs their sizes, drops domains that nothing uses."""
    used = {node.domain or "" for node in graph.all_nodes(model)} | {""}
    for domain in [domain for domain in model.opset_imports if domain not in used]:
        del model.opset_imports[domain]
    model.graph.name, model.doc_string, model.graph.doc_string = "main", None, None
    specs = {spec.name: spec for spec in source.inputs.specs}
    for value in model.graph.inputs:
        value.shape = ir.Shape(list(specs[str(value.name)].shape or ()))
    for node in graph.all_nodes(model):
        for value in node.outputs:
            value.shape = None  # skl2onnx's shapes of inner values, and of some outputs, are not those that come


def _settle_shapes(model: ir.Model, source: SklearnSource, seed: int) -> None:
    """The outputs' sizes as they come, and mirrored scores of two classes as the one column of `decision_function`."""
    rows = _TRIED if isinstance(source.inputs.batch, str) else source.inputs.batch
    feeds = _example(source, rows, seed)
    try:
        answers = source.answers(feeds)
    except Exception as problem:  # scikit-learn's, and that of the user's own classes
        raise ModelError(
            f"the {type(source.model).__name__} in {source.path.name} does not answer: {reason(problem)}",
            code="DK672",
            file=source.path,
            hint="--sample FILE.npz with rows that it takes",
        ) from problem
    found = _run(model, feeds)
    scores = answers.get("decision_function")
    name = sklearn_outputs.SCORES
    if isinstance(scores, np.ndarray) and scores.ndim == 1 and name in found and found[name].shape == (rows, 2):
        off = [float(np.abs(found[name][:, at] - scores).max()) for at in (0, 1)]
        sklearn_outputs.take_column(model, name, int(np.argmin(off)))
        found[name] = found[name][:, :1]
    labels = answers.get("predict")
    name = sklearn_outputs.LABEL
    if isinstance(labels, np.ndarray) and labels.ndim == 1 and name in found and found[name].ndim == 2:
        sklearn_outputs.flatten_labels(model, name)
        found[name] = found[name].reshape(-1)
    for value in model.graph.outputs:
        array = found[str(value.name)]
        axis = _batch_axis(array.shape, rows)
        value.shape = ir.Shape(
            [source.inputs.batch if size == rows and at == axis else size for at, size in enumerate(array.shape)]
        )
        if value.type is None:  # members of a sequence have none
            value.type = ir.TensorType(ir.DataType.from_numpy(array.dtype))


def _example(source: SklearnSource, rows: int, seed: int) -> dict[str, Any]:
    """Rows to see the outputs' forms with: the user's, as often as needed, or random ones."""
    if not source.sample:
        return sklearn_data.rows(source, rows, np.random.default_rng(seed))
    return {name: np.resize(array, (rows, *array.shape[1:])) for name, array in source.sample.items()}


def _batch_axis(shape: tuple[int, ...], rows: int) -> int:
    """The axis of the rows: the first, or the second of outputs that are stacked by target."""
    return 0 if shape[0] == rows and len(shape) < 3 else 1


def _run(model: ir.Model, feeds: dict[str, Any]) -> Outputs:
    with io.scratch_folder() as folder:
        path = Path(folder) / "model.onnx"
        graph.save(model, path)
        reference = Reference(path)
        try:
            return dict(reference.predict(feeds))
        finally:
            reference.close()

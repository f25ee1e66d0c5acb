"""The work of `quantize`, as jobs for a worker process: they take and return JSON, models travel as files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit import graph, lazy
from deploykit.progress import OnProgress, Progress, silent
from deploykit.quantize import findings as say
from deploykit.quantize.half import convert_to_half
from deploykit.quantize.measuring import measure_ranges
from deploykit.quantize.plan import FloatNode, check_exclusions, make_plan, observable
from deploykit.quantize.prepare import load_float
from deploykit.quantize.qdq import Inserter
from deploykit.quantize.weight_only import quantize_weights
from deploykit.target import QuantizationScheme

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import onnx_ir as ir

    from deploykit.report import Finding

    Settings = Mapping[str, Any]

VERSIONS = ("onnx", "onnx-ir", "onnxruntime", "numpy")


def quantize_job(
    model: str,
    output: str,
    precision: str,
    settings: dict[str, Any],
    on_progress: OnProgress = silent,
) -> dict[str, Any]:
    """Writes the quantized model at `output`.

    settings: scheme (the fields of a QuantizationScheme, or None), data (a DataRequest, or None), method, exclude,
    keep_io, ranges (a path, or None), model_sha256, data_sha256.
    Returns the facts of a `Product` as JSON.
    """
    return _JOBS[precision](Path(model), Path(output), settings, on_progress)


def _int8(source: Path, output: Path, settings: Settings, on_progress: OnProgress) -> dict[str, Any]:
    scheme = QuantizationScheme(**{**settings["scheme"], "operators": tuple(settings["scheme"]["operators"])})
    model, said = load_float(source)
    macs = graph.macs(model)
    # A first plan, so that a wrong --exclude is refused before minutes of calibration.
    make_plan(model, scheme, exclude=settings["exclude"])
    names = observable(model)
    measured = measure_ranges(model, names, source, settings, on_progress)
    unseen = measured.ranges.unseen(names)
    plan = make_plan(model, scheme, exclude=settings["exclude"], unseen=unseen)
    said += measured.findings
    said += say.about_ranges(measured.ranges, {value.name or "" for value in plan.readers})
    said += say.about_plan(plan.nodes, plan.left)
    on_progress(Progress("inserting Q/DQ", source.name))
    names_done = [node.name or "" for node in plan.nodes]
    saturating = {}
    if plan.nodes:
        inserter = Inserter(model, plan, measured.ranges, scheme)
        inserter.run()
        saturating = inserter.saturating
    said += say.about_saturation(saturating)
    made = _write(model, output, "int8", said)
    made["metrics"] |= {"calibration": measured.metrics, **_counts(names_done, plan.left, macs)}
    made["metrics"]["int8_macs_share"] = _share(names_done, macs)
    return made


def _weights(source: Path, output: Path, settings: Settings, on_progress: OnProgress) -> dict[str, Any]:
    model, said = load_float(source)
    macs = graph.macs(model)
    check_exclusions(model, settings["exclude"])
    on_progress(Progress("quantizing weights", source.name))
    done, left = quantize_weights(model, exclude=tuple(settings["exclude"]))
    said += say.about_float(left)
    made = _write(model, output, "int8-weights", said)
    # The arithmetic stays float: no multiply-accumulate becomes an integer one.
    made["metrics"] |= {"calibration": None, **_counts(done, left, macs), "int8_macs_share": 0.0}
    return made


def _half(source: Path, output: Path, settings: Settings, on_progress: OnProgress) -> dict[str, Any]:
    model, said = load_float(source, minimum_opset=0, fold=False)
    macs = graph.macs(model)
    check_exclusions(model, settings["exclude"])
    peaks: dict[str, float] = {}
    calibration = None
    if settings["data"] is not None and settings["data"]["purpose"] == "calibration":
        from deploykit.quantize.measuring import measure_peaks

        peaks, calibration, more = measure_peaks(model, source, settings, on_progress)
        said += more
    on_progress(Progress("converting to half precision", source.name))
    result = convert_to_half(model, keep_io=settings["keep_io"], exclude=tuple(settings["exclude"]), peaks=peaks)
    said += say.about_half(result)
    made = _write(model, output, "fp16", said)
    left = [FloatNode(name, op, reason) for name, op, reason in result.islands]
    made["metrics"] |= {"calibration": calibration, **_counts(result.converted, left, macs), "int8_macs_share": 0.0}
    return made


def _counts(done: list[str], left: list[FloatNode], macs: Mapping[str, int]) -> dict[str, Any]:
    return {"quantized_nodes": len(done), "float_nodes": len(left)}


def _share(done: list[str], macs: Mapping[str, int]) -> float:
    total = sum(macs.values())
    return round(sum(macs.get(name, 0) for name in done) / total, 6) if total else 0.0


def _write(model: ir.Model, output: Path, precision: str, said: list[Finding]) -> dict[str, Any]:
    graph.infer_shapes(model)
    files = graph.save(model, output)
    inputs, outputs = graph.interface(model)
    return {
        "inputs": [spec.as_dict() for spec in inputs],
        "outputs": [spec.as_dict() for spec in outputs],
        "opset": graph.opset(model),
        "files": list(files),
        "precision": precision,
        "versions": lazy.versions_of(*VERSIONS),
        "findings": [finding.as_dict() for finding in said],
        "metrics": {},
    }


_JOBS: dict[str, Callable[[Path, Path, Settings, OnProgress], dict[str, Any]]] = {
    "int8": _int8,
    "int8-weights": _weights,
    "fp16": _half,
}
PRECISIONS = tuple(_JOBS)

"""`deploykit quantize`: float ONNX to int8, int8 weights or half precision, for a target, compared with float."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit import graph, io
from deploykit.data.request import bounds_of, data_request
from deploykit.errors import DataError, UsageError
from deploykit.isolation import workers
from deploykit.progress import OnProgress, silent
from deploykit.quantize.stage import PRECISIONS, AccuracyGate, QuantizeStage
from deploykit.quantize.thresholds import METHODS
from deploykit.stage import run_stage
from deploykit.target import Target, parse_target

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from deploykit.quantize.thresholds import Method
    from deploykit.report import Report


def quantize(
    model: str | Path,
    *,
    output: str | Path,
    precision: str,
    target: str = "onnxruntime",
    calib: str | None = None,
    method: Method = "auto",
    samples: int | None = None,
    exclude: Sequence[str] = (),
    keep_io: bool = False,
    ranges: str | Path | None = None,
    max_drop: float | None = None,
    eval: str | None = None,
    metric: str | None = None,
    contract: Any = None,
    dims: Iterable[str] | Mapping[str, Sequence[int | None]] = (),
    seed: int = 0,
    force: bool = False,
    on_progress: OnProgress = silent,
) -> Report:
    """Lowers the precision of a float ONNX model and compares the result with it.

    precision: "int8" (calibrated Q/DQ in the target's scheme), "int8-weights" or "fp16".
    calib: DATA for the ranges, required for int8 unless `ranges` has them; samples: at most so many (512).
    method: minmax, percentile, entropy, mse, or auto, which takes for each tensor what loses least.
    ranges: file that keeps the measured ranges, reused when it exists.
    exclude: node names or operators that stay float. keep_io: fp16 leaves inputs and outputs float32.
    eval, metric: labelled DATA and how it is scored (top1); max_drop: how much may be lost, in the metric's unit.
    contract: preprocessing and carried inputs (`data.InputContract` or its JSON form).
    A failed gate (SQNR below 20 dB for int8, fp16 tolerances, max_drop) is a failed report without an artifact.
    Raises UsageError, DataError, ModelError, OutputError or VendorError.
    """
    source, final = Path(model), Path(output)
    place, _ = parse_target(target)
    kept = None if ranges is None else Path(ranges)
    _check(precision, place, method, max_drop, eval, metric, samples)
    if precision == "int8" and calib is None and (kept is None or not kept.exists()):
        raise _no_calibration(kept)
    io.existing_file(source, "model file")
    io.check_output(final, force=force, suffix=".onnx")
    if kept is not None:
        io.check_output(kept, force=True)
    graph.check_file(source)
    about: dict[str, Any] = {"seed": seed, "dims": bounds_of(dims), "contract": contract}
    stage = QuantizeStage(
        precision,
        place.scheme if precision == "int8" else None,
        data_request(eval, "parity", **about)
        if calib is None
        else data_request(calib, "calibration", samples=samples, **about),
        data_sha256=_digest(calib),
        target=place.name,
        method=method,
        exclude=exclude,
        keep_io=keep_io,
        ranges=kept,
        gate=None
        if eval is None
        else AccuracyGate(data_request(eval, "accuracy", **about), metric or "top1", max_drop),
    )
    with workers():
        return run_stage(stage, {"model": graph.describe(source)}, final, force=force, on_progress=on_progress)


def _digest(calib: str | None) -> str:
    if calib is None:
        return ""
    from deploykit.data import digest_of

    return digest_of(calib, Path.cwd())


def _no_calibration(ranges: Path | None) -> DataError:
    without = "" if ranges is None else f" and there is no file {ranges} to reuse"
    return DataError(
        f"int8 needs calibration data: the range of every tensor is measured on it{without}",
        code="DK304",
        hint="--calib DATA, some hundred real samples; --calib random only to try the command; "
        "--precision fp16 or int8-weights need none",
    )


def _check(
    precision: str,
    target: Target,
    method: str,
    max_drop: float | None,
    labelled: str | None,
    metric: str | None,
    samples: int | None,
) -> None:
    """Everything about the options that can be told before a file is opened."""
    if precision not in PRECISIONS:
        raise UsageError(
            f"there is no precision {precision!r} to quantize to",
            code="DK380",
            context=[f"precisions: {', '.join(PRECISIONS)}"],
            hint=_nearest(precision, PRECISIONS, "--precision"),
        )
    if precision not in target.precisions:
        raise UsageError(
            f"target {target.name!r} does not take {precision}",
            code="DK381",
            target=target.name,
            context=[f"it takes {', '.join(target.precisions)}"],
            hint="choose one of these, or another --target",
        )
    if method not in METHODS:
        raise UsageError(
            f"there is no calibration method {method!r}",
            code="DK382",
            context=[f"methods: {', '.join(METHODS)}"],
            hint=_nearest(method, METHODS, "--method"),
        )
    if samples is not None and samples < 1:
        raise UsageError(f"--samples {samples}: at least 1 is needed", code="DK383", hint="--samples 256")
    if labelled is None and (max_drop is not None or metric is not None):
        option = "--max-drop" if max_drop is not None else "--metric"
        raise UsageError(
            f"{option} needs labelled data to score", code="DK384", hint="--eval DATA, where DATA has labels (key y)"
        )


def _nearest(given: str, known: Sequence[str], option: str) -> str:
    near = difflib.get_close_matches(given, known, n=1)
    return f"did you mean {option} {near[0]}?" if near else f"{option} {known[0]}"

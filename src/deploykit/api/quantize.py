"""`deploykit quantize`: float ONNX to lower precision, for a target, compared with float."""

from __future__ import annotations

import difflib
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from deploykit import graph, io
from deploykit.artifact import artifact_from_dict
from deploykit.data.request import bounds_of, data_request
from deploykit.errors import DataError, UsageError
from deploykit.isolation import run_isolated, workers
from deploykit.precision import PRECISIONS, requires_calibration
from deploykit.progress import OnProgress, silent
from deploykit.quantize.product import best_path
from deploykit.quantize.stage import WORKER, AccuracyGate, QuantizeStage
from deploykit.report import note
from deploykit.stage import run_stage
from deploykit.target import Target, get_target, parse_target, target_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from deploykit.quantize.thresholds import Method
    from deploykit.report import Report

# The comparison of outputs failed.
SQNR_MISSED = "DK401"
# What --block-size is when it is not given.
BLOCK = 32
# What the worker imports while this process reads its options.
IMPORTS = ("deploykit.quantize.jobs", "deploykit.quantize.verify", "onnxruntime")
# Below this a block's scale takes as much room as its weights.
SMALLEST_BLOCK = 16


def quantize(
    model: str | Path,
    *,
    output: str | Path,
    precision: str,
    target: str = "onnxruntime",
    calib: str | Path | None = None,
    method: str = "auto",
    samples: int | None = None,
    exclude: Sequence[str] = (),
    keep_io: bool = False,
    ranges: str | Path | None = None,
    block_size: int = BLOCK,
    smooth_quant: float | None = None,
    bias_correction: bool = False,
    sensitivity: bool = False,
    max_drop: float | None = None,
    eval: str | Path | None = None,
    metric: str | None = None,
    label: str | None = None,
    contract: Any = None,
    dims: Iterable[str] | Mapping[str, Sequence[int | None]] = (),
    seed: int = 0,
    force: bool = False,
    on_progress: OnProgress = silent,
) -> Report:
    """Lowers the precision of a float ONNX model and compares the result with it.

    precision: "int8" (calibrated Q/DQ in the target's scheme), "int8-dynamic", "int8-weights", "int4-weights", "fp16",
    "bf16" or "mixed" (INT8 where a search finds it harmless): `deploykit.precision.PRECISIONS`.
    calib: DATA for the ranges, required for int8 and mixed unless `ranges` has them; samples: at most so many (512).
    method: minmax, percentile, entropy, mse, moving-average, or auto, which takes for each tensor what loses least;
    for int4-weights rtn, gptq, hqq, or auto, which takes gptq where there is calibration data.
    ranges: file that keeps the measured ranges, reused when it exists; an interrupted calibration goes on from it.
    exclude: node names or operators that stay float. keep_io: half precision leaves inputs and outputs float32.
    block_size: weights that share a scale (int4-weights). smooth_quant: SmoothQuant's migration strength, 0 to 1.
    bias_correction: shift biases by the error that calibration measures. sensitivity: rank nodes by what they cost.
    eval, metric: labelled DATA and how it is scored (top1); max_drop: how much may be lost, in the metric's unit: with
    int8 and mixed a search leaves nodes in float until it is kept. label: the key or column of the labels (y).
    contract: preprocessing and carried inputs (`data.InputContract` or its JSON form).
    int8 whose plain result misses the gate is tried again by every method, with SmoothQuant and bias correction, when
    none of these was asked for. A failed gate (SQNR below 20 dB for int8, fp16 tolerances, max_drop) is a failed
    report without an artifact.
    Raises UsageError, DataError, ModelError, OutputError or VendorError.
    """
    source, final = Path(model), Path(output)
    place, _ = parse_target(target)
    kept = None if ranges is None else Path(ranges)
    calib, eval = _as_data(calib), _as_data(eval)
    _check(precision, place, method, max_drop, eval, metric, samples)
    _check_numbers(precision, block_size, smooth_quant)
    _check_own(
        precision,
        {
            "--smooth-quant": smooth_quant is not None,
            "--bias-correction": bias_correction,
            "--sensitivity": sensitivity,
            "--ranges": kept is not None,
            "--block-size": block_size != BLOCK,
        },
    )
    if requires_calibration(precision) and calib is None and (kept is None or not kept.exists()):
        raise _no_calibration(precision, kept)
    if calib is None and kept is not None:
        _check_ranges_alone(precision, bias_correction=bias_correction, sensitivity=sensitivity, eval=eval)
    io.existing_file(source, "model file")
    io.check_output(final, force=force, suffix=".onnx")
    if max_drop is not None or precision == "mixed":  # what a search without success writes
        io.check_output(best_path(final), force=force)
    if kept is not None:
        _check_ranges(kept, source, final)
    graph.check_kind(source)
    about: dict[str, Any] = {"seed": seed, "dims": bounds_of(dims), "contract": contract, "label": label}
    corrected = precision == "int8" and method == "auto" and calib is not None and not (smooth_quant or bias_correction)
    with workers() as pool:
        pool.warm({WORKER: (IMPORTS, ())})
        # Neither the graph library nor numpy is imported in this process, too.
        told = run_isolated(WORKER, "deploykit.quantize.jobs:describe_job", {"model": str(source), "data": calib})
        inputs = {"model": artifact_from_dict(told["model"], source)}
        make = functools.partial(
            QuantizeStage,
            precision,
            place.scheme,
            data_request(eval, "parity", **about)
            if calib is None
            else data_request(calib, "calibration", samples=samples, **about),
            data_sha256=told["data_sha256"],
            target=place.name,
            method=cast("Method", method),
            exclude=exclude,
            keep_io=keep_io,
            ranges=kept,
            block_size=block_size,
            smooth_quant=smooth_quant,
            bias_correction=bias_correction,
            sensitivity=sensitivity,
            gate=None
            if eval is None
            else AccuracyGate(data_request(eval, "accuracy", **about), metric or "top1", max_drop),
        )
        report = run_stage(make(), inputs, final, force=force, on_progress=on_progress)
        if not (corrected and _misses_sqnr(report)):
            return report
        # `auto` is there to find what holds; it costs a second calibration only where the plain result does not.
        again = run_stage(make(whole=True), inputs, final, force=force, on_progress=on_progress)
    return _second(report, again)


def _misses_sqnr(report: Report) -> bool:
    """Whether the only fault is that outputs, which could be compared, are too far from float."""
    errors = {finding.code for finding in report.findings if finding.severity == "error"}
    return report.error is None and errors == {SQNR_MISSED} and bool(_levels(report))


def _levels(report: Report) -> list[float]:
    return [row["sqnr_db"] for row in report.metrics.get("outputs", ()) if row["sqnr_db"] is not None]


def _second(first: Report, again: Report) -> Report:
    """The report of the second attempt, which says that there was a first one."""
    tried = (again.metrics.get("search") or {}).get("tried", [])
    text = f"the plain result has {min(_levels(first)):.1f} dB: {len(tried)} others were measured"
    again.add(note("DK379", text))
    again.seconds += first.seconds
    return again


def _as_data(given: str | Path | None) -> str | None:
    return None if given is None else str(given)


def _no_calibration(precision: str, ranges: Path | None) -> DataError:
    without = "" if ranges is None else f" and there is no file {ranges} to reuse"
    return DataError(
        f"{precision} needs calibration data: the range of every tensor is measured on it{without}",
        code="DK304",
        hint="--calib DATA, some hundred real samples; --calib random only to try the command; "
        "--precision fp16, int8-weights or int8-dynamic need none",
    )


def _check_ranges_alone(precision: str, *, bias_correction: bool, sensitivity: bool, eval: str | None) -> None:
    """What ranges from a file are not enough for."""
    wanting = {
        "--precision mixed searches": precision == "mixed" and eval is None,
        "--sensitivity ranks nodes": sensitivity and eval is None,
        "--bias-correction measures errors": bias_correction,
    }
    for what, asked in wanting.items():
        if asked:
            raise DataError(
                f"{what} on data, and ranges alone have none",
                code="DK304",
                hint="--calib DATA that the ranges were measured on; they are reused all the same",
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
            hint=_nearest(precision, tuple(PRECISIONS), "--precision"),
        )
    if precision not in target.precisions:
        raise UsageError(
            f"target {target.name!r} does not take {precision}",
            code="DK381",
            target=target.name,
            context=[f"it takes {', '.join(target.precisions)}"],
            hint=f"choose one of these, or a target that takes it: {', '.join(_taking(precision))}",
        )
    methods = PRECISIONS[precision].methods
    if method not in methods:
        raise UsageError(
            f"precision {precision} has no method {method!r}",
            code="DK382",
            context=[f"its methods: {', '.join(methods)}"],
            hint=_nearest(method, methods, "--method"),
        )
    if samples is not None and samples < 1:
        raise UsageError(f"--samples {samples}: at least 1 is needed", code="DK383", hint="--samples 256")
    if labelled is None and (max_drop is not None or metric is not None):
        option = "--max-drop" if max_drop is not None else "--metric"
        raise UsageError(
            f"{option} needs labelled data to score", code="DK384", hint="--eval DATA, where DATA has labels (key y)"
        )


def _check_numbers(precision: str, block_size: int, smooth_quant: float | None) -> None:
    if precision == "int4-weights" and (block_size < SMALLEST_BLOCK or block_size & (block_size - 1)):
        near = max(SMALLEST_BLOCK, 1 << max(block_size - 1, 1).bit_length())
        raise UsageError(
            f"--block-size {block_size}: a power of two from {SMALLEST_BLOCK} on is needed",
            code="DK343",
            hint=f"--block-size {near}; smaller blocks lose less and take more room",
        )
    if smooth_quant is not None and not 0.0 <= smooth_quant <= 1.0:
        raise UsageError(f"--smooth-quant {smooth_quant:g}: 0 to 1 is needed", code="DK344", hint="--smooth-quant 0.5")


def _check_ranges(ranges: Path, source: Path, output: Path) -> None:
    """Whether the file of ranges can be written, and is not one of the files that this is about."""
    io.check_output(ranges, force=True)
    for what, file in (("the model", source), ("the output", output), ("the output", best_path(output))):
        if ranges.resolve() == file.resolve():
            raise UsageError(
                f"--ranges names {what}: {ranges}", code="DK346", hint=f"--ranges {output.with_suffix('.ranges.json')}"
            )


def _check_own(precision: str, given: Mapping[str, bool]) -> None:
    """Options of one precision are refused elsewhere, not ignored."""
    for option, asked in given.items():
        owner = "int4-weights" if option == "--block-size" else "int8"
        if asked and precision != owner and not (owner == "int8" and PRECISIONS[precision].searched):
            others = " or mixed" if owner == "int8" else ""
            raise UsageError(
                f"{option} belongs to --precision {owner}{others}, and {precision} was asked for",
                code="DK345",
                hint=f"leave {option} away, or --precision {owner}",
            )


def _taking(precision: str) -> list[str]:
    return [name for name in target_names() if precision in get_target(name).precisions]


def _nearest(given: str, known: Sequence[str], option: str) -> str:
    near = difflib.get_close_matches(given, known, n=1)
    return f"did you mean {option} {near[0]}?" if near else f"{option} {known[0]}"

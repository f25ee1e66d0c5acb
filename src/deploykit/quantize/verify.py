"""Evidence for a quantized model: outputs against float on data that did not calibrate, and task accuracy."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit import graph
from deploykit.comparison import Side, compare, compare_job
from deploykit.data import open_request
from deploykit.data.holdout import carried, held_out, verifying, widened
from deploykit.errors import DataError, DeploykitError
from deploykit.parity import TOLERANCES
from deploykit.precision import PRECISIONS, requires_calibration
from deploykit.progress import OnProgress, silent
from deploykit.quantize.facts import facts_of
from deploykit.report import Finding, note, warning
from deploykit.runtime import RuntimeOptions, open_runtime

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from deploykit.data import Dataset, Sample
    from deploykit.runtime import Runtime

HALF, BFLOAT = "fp16", "bf16"
# How a comparison ends when the float model itself does not run on a sample.
REFUSED = "DK408"
# Random inputs prove nothing about these.
CALIBRATED = frozenset(name for name in PRECISIONS if requires_calibration(name))
VERIFY_SAMPLES = 16
ROUNDED_SAMPLES = 4
# Rounding after every operator takes the model once more, in float32.
ROUNDED_BYTES = 1 << 30
# What makes a result that failed the gate better, by precision.
HINTS = {
    "int8": "--precision mixed leaves in float what costs most; --sensitivity ranks the nodes",
    "int8-dynamic": "--precision int8 with --calib DATA, or --exclude NODE with the layers whose inputs have outliers",
    "int8-weights": "--exclude NODE with the layers that are sensitive; the first and the last ones often are",
    "int4-weights": "--calib DATA rounds by GPTQ; --block-size 16 and --exclude NODE lose less; so does int8-weights",
}
# The same for 4 bits that were rounded with calibration data already.
ROUNDED = "--block-size 16 and --exclude NODE with the layers that are sensitive lose less; so does int8-weights"
# A sequence of states needs more steps than independent samples do before an error has built up.
VERIFY_STEPS = 64


def verify_job(
    reference: str,
    candidate: str,
    precision: str,
    data: dict[str, Any],
    on_progress: OnProgress = silent,
) -> dict[str, Any]:
    """Compares a quantized ONNX model with its float source in onnxruntime, the source with graph optimisation off.

    A bfloat16 model runs in what `half_engine` finds for it.
    data: the DataRequest that calibrated, or one for random data. Returns what `comparison.compare` does.
    """
    paths = Path(reference), Path(candidate)
    stochastic = facts_of(paths[0]).stochastic
    if stochastic:
        loaded, about = _open_candidate(paths[1], precision)
        if loaded is None:
            return _not_compared(*about)
        loaded.close()
        engine = loaded.engine.partition(" ")[0]
        text = f"the model is stochastic ({stochastic[0]}): {engine} loads the result, its outputs were not compared"
        return _not_compared(warning("DK373", text, hint="fix the seed attribute, and outputs can be compared"))
    second, about = _open_candidate(paths[1], precision)
    if second is None:
        return _not_compared(*about)
    if precision in CALIBRATED and data["source"] is None:
        second.close()
        text = "outputs were not compared: there is no data but ranges, and random inputs would lie outside of them"
        hint = "--calib DATA that the ranges were measured on, or --eval DATA"
        return _not_compared(warning("DK377", text, hint=hint))
    first = open_runtime(paths[0], RuntimeOptions(optimize=False))
    try:
        dataset, held = verification_data(data, paths[0])
        limit = VERIFY_STEPS if carried(data) else VERIFY_SAMPLES
        total = len(held) or limit if dataset.total is None else min(len(held) or limit, dataset.total)
        chosen: list[Sample] | None = None

        def compared() -> dict[str, Any]:
            return compare(
                first,
                second,
                verifying(dataset, held, limit) if chosen is None else chosen,
                tolerance=TOLERANCES[precision],
                carry=carried(data),
                total=total if chosen is None else len(chosen),
                on_progress=on_progress,
            )

        try:
            result = compared()
        except DataError as problem:
            if problem.code != REFUSED or not _is_random(data):
                raise
            chosen, refusal = _taken(first, verifying(dataset, held, limit))
            about.append(refusal)
            if not chosen:
                return _not_compared(*about)
            result = compared()
        if precision == HALF and data["purpose"] != "calibration":
            few = verifying(dataset, held, ROUNDED_SAMPLES) if chosen is None else chosen[:ROUNDED_SAMPLES]
            about += _rounded(first, paths[1], few, result)
        if precision == BFLOAT:
            about += _kernels(second, verifying(dataset, held, limit), carried(data))
    finally:
        first.close()
        second.close()
    said = [finding.as_dict() for finding in about]
    if data["purpose"] != "calibration":
        said += [_about_data(finding).as_dict() for finding in dataset.findings]
    if data["purpose"] == "calibration" and not held and precision == "int8":
        text = f"outputs were compared on {result['samples']} samples that also calibrated: too few to hold some out"
        said.append(note("DK374", text, hint="give 64 samples or more to --calib").as_dict())
    hint = ROUNDED if data["purpose"] == "calibration" and precision == "int4-weights" else HINTS.get(precision, "")
    found = [_with_way_out(finding, hint) for finding in result["findings"]]
    return {**result, "findings": [*said, *found], "held_out": bool(held)}


def _about_data(finding: Finding) -> Finding:
    """What was said about the samples, with the option that this command takes them by."""
    if finding.code != "DK320":
        return finding
    return dataclasses.replace(finding, hint="--calib DATA compares on real inputs")


def _with_way_out(finding: dict[str, Any], hint: str) -> dict[str, Any]:
    """A failed gate says what makes a result of that precision better."""
    if not hint or finding["severity"] != "error" or finding["hint"]:
        return finding
    return {**finding, "hint": hint}


def _open_candidate(path: Path, precision: str) -> tuple[Runtime | None, list[Finding]]:
    """The result in the engine that runs it, and what is to be said about that; None when no engine here does."""
    if precision != BFLOAT:
        return open_runtime(path, RuntimeOptions(spin=False)), []
    from deploykit.quantize.half_engine import open_bfloat16

    return open_bfloat16(path)


def _rounded(
    reference: Runtime, candidate: Path, samples: Iterable[Sample], result: Mapping[str, Any]
) -> list[Finding]:
    """Whether the result also holds where values between nodes are half, which onnxruntime's are not."""
    from deploykit.quantize.half_engine import RoundingRuntime
    from deploykit.quantize.half_formats import FLOAT16

    if not all(row["passed"] for row in result["outputs"]) or candidate.stat().st_size > ROUNDED_BYTES:
        return []
    try:
        rounding = RoundingRuntime(candidate, FLOAT16)
    except DeploykitError:  # an operator that onnxruntime has for half precision only: nothing is known then
        return []
    try:
        found = compare(reference, rounding, samples, tolerance=TOLERANCES[HALF])
    finally:
        rounding.close()
    wrong = [row["name"] for row in found["outputs"] if not row["passed"]]
    if not wrong:
        return []
    text = f"{', '.join(map(repr, wrong))}: within the tolerance in onnxruntime, and not where every value is rounded"
    return [warning("DK319", text, hint="--calib DATA: what half precision cannot hold is measured, and stays float32")]


def _kernels(runtime: Runtime, samples: Iterable[Sample], carry: Mapping[str, str]) -> list[Finding]:
    from deploykit.quantize.half_engine import about_kernels

    sample = next(iter(samples), None)
    return [] if sample is None else about_kernels(runtime, Side(runtime, carry).feeds(sample))


def _is_random(data: Mapping[str, Any]) -> bool:
    return data["source"] is None or str(data["source"]).startswith("random")


def _taken(reference: Runtime, samples: Iterable[Sample]) -> tuple[list[Sample], Finding]:
    """The random samples that the float model takes itself, and what is to be said about those that it refuses."""
    taken: list[Sample] = []
    refused: list[str] = []
    for sample in samples:
        try:
            reference.predict(sample.feeds)
        except Exception as problem:
            if not type(problem).__module__.startswith("onnxruntime"):
                raise
            shapes = ", ".join(f"{name} {list(value.shape)}" for name, value in sample.feeds.items())
            refused.append(f"({shapes}): {str(problem).rpartition('Message:')[2].strip()}")
        else:
            taken.append(sample)
    compared = (
        f"compared on {len(taken)} of {len(taken) + len(refused)} random inputs only" if taken else "not compared"
    )
    return taken, warning(
        "DK377",
        f"outputs were {compared}: the float model does not run on random inputs {refused[0]}",
        hint="--calib DATA with real samples, or --dim NAME=MIN..MAX with sizes that the model takes",
    )


def verification_data(data: Mapping[str, Any], model: Path) -> tuple[Dataset, frozenset[int]]:
    """The samples of a DataRequest for a model, and which of them did not calibrate (see `holdout.verifying`)."""
    # The graph's own names of dimensions: the ones that a user sees in `inspect` and gives to --dim.
    inputs = facts_of(model).inputs
    if data["purpose"] != "calibration":
        return open_request(data, inputs, model), frozenset()  # type: ignore[arg-type]
    dataset = open_request(widened(data), inputs, model)  # type: ignore[arg-type]
    return dataset, held_out(dataset, data)


def _not_compared(*findings: Finding) -> dict[str, Any]:
    return {
        "outputs": [],
        "samples": 0,
        "accuracy": None,
        "execution": "none",
        "engines": {},
        "findings": [finding.as_dict() for finding in findings],
        "held_out": False,
    }


def accuracy_job(
    reference: str,
    candidate: str,
    data: dict[str, Any],
    metric: str,
    on_progress: OnProgress = silent,
) -> dict[str, Any] | None:
    """The metric of both models over the labelled data: metric, unit, reference, candidate, drop, samples.

    None for a stochastic model, which is not scored.
    """
    if graph.describe(Path(candidate)).precision == BFLOAT and not facts_of(Path(reference)).stochastic:
        return _bfloat16_accuracy(Path(reference), Path(candidate), data, metric, on_progress)
    found = compare_job(reference, candidate, data, metric=metric, on_progress=on_progress)
    accuracy: dict[str, Any] | None = found["accuracy"]
    return accuracy


def _bfloat16_accuracy(
    reference: Path, candidate: Path, data: dict[str, Any], metric: str, on_progress: OnProgress
) -> dict[str, Any] | None:
    second, _ = _open_candidate(candidate, BFLOAT)
    if second is None:  # which the comparison has said already
        return None
    first = open_runtime(reference, RuntimeOptions(optimize=False))
    try:
        dataset = open_request(data, facts_of(reference).inputs, reference)  # type: ignore[arg-type]
        found = compare(
            first,
            second,
            dataset,
            tolerance=TOLERANCES[BFLOAT],
            carry=carried(data),
            metric=metric,
            models=(reference, candidate),
            total=dataset.total,
            on_progress=on_progress,
        )
    finally:
        first.close()
        second.close()
    accuracy: dict[str, Any] | None = found["accuracy"]
    return accuracy

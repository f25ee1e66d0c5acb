"""The half-precision jobs: what half cannot hold is measured on calibration data, then types and casts are written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deploykit.progress import OnProgress, Progress
from deploykit.quantize import findings as say
from deploykit.quantize.half import convert_to_half
from deploykit.quantize.half_formats import BFLOAT16, FLOAT16, HalfFormat
from deploykit.quantize.half_islands import Evidence
from deploykit.quantize.half_opset import load_for_half
from deploykit.quantize.half_probes import Probes
from deploykit.quantize.half_refine import refine
from deploykit.quantize.measuring import measure_peaks
from deploykit.quantize.plan import FloatNode, check_exclusions
from deploykit.quantize.product import counts, written

if TYPE_CHECKING:
    from pathlib import Path

    from deploykit.quantize.settings import Settings

# Why a node of the refinement stays float32, as reports say it.
COSTLY = "rounding it costs most of the accuracy on the calibration data"


def quantize_half(source: Path, output: Path, settings: Settings, on_progress: OnProgress) -> dict[str, Any]:
    """The fp16 job."""
    return _quantize(source, output, settings, FLOAT16, on_progress)


def quantize_bfloat16(source: Path, output: Path, settings: Settings, on_progress: OnProgress) -> dict[str, Any]:
    """The bf16 job."""
    return _quantize(source, output, settings, BFLOAT16, on_progress)


def _quantize(
    source: Path, output: Path, settings: Settings, form: HalfFormat, on_progress: OnProgress
) -> dict[str, Any]:
    model, said = load_for_half(source, form)
    check_exclusions(model, settings.exclude)
    evidence = Evidence()
    calibration = None
    if settings.calibrates:
        probes = Probes(model)
        peaks, calibration, more = measure_peaks(probes.model, source, settings, on_progress)
        evidence = probes.read(peaks)
        said += more
    options: dict[str, Any] = {"keep_io": settings.keep_io, "exclude": settings.exclude, "evidence": evidence}
    plain = model.clone() if settings.calibrates else None
    on_progress(Progress(f"converting to {form.title}", source.name))
    result = convert_to_half(model, form, **options)
    if not result.converted and not settings.keep_io:
        # Rounding what goes in and out of a model that stays float32 would only make it worse.
        model, _ = load_for_half(source, form)
        result = convert_to_half(model, form, **{**options, "keep_io": True})
    refinement = None if plain is None else refine(plain, source, form, result.converted, settings, on_progress)
    if plain is not None and refinement is not None and refinement.islands:
        model = plain
        reasons = dict.fromkeys(refinement.islands, COSTLY)
        result = convert_to_half(model, form, **options, islands=reasons)
    said += say.about_half(result, form)
    said += say.about_refinement(refinement, form)
    if settings.target == "onnxruntime" and form is FLOAT16:
        said.append(say.about_speed())
    facts = written(model, output, form.name, said)
    left = [FloatNode(name, op, reason) for name, op, reason in result.islands]
    facts["metrics"] |= {"calibration": calibration, **counts(result.converted, left), "int8_macs_share": 0.0}
    return facts

"""The half-precision job: overflow measured on calibration data where there is some, then types and casts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deploykit.progress import OnProgress, Progress
from deploykit.quantize import findings as say
from deploykit.quantize.half import convert_to_half
from deploykit.quantize.measuring import measure_peaks
from deploykit.quantize.plan import FloatNode, check_exclusions
from deploykit.quantize.prepare import load_float
from deploykit.quantize.product import counts, written

if TYPE_CHECKING:
    from pathlib import Path

    from deploykit.quantize.settings import Settings


def quantize_half(source: Path, output: Path, settings: Settings, on_progress: OnProgress) -> dict[str, Any]:
    """The fp16 job."""
    model, said = load_float(source, minimum_opset=0, fold=False)
    check_exclusions(model, settings.exclude)
    peaks: dict[str, float] = {}
    calibration = None
    if settings.calibrates:
        peaks, calibration, more = measure_peaks(model, source, settings, on_progress)
        said += more
    on_progress(Progress("converting to half precision", source.name))
    result = convert_to_half(model, keep_io=settings.keep_io, exclude=settings.exclude, peaks=peaks)
    said += say.about_half(result)
    facts = written(model, output, "fp16", said)
    left = [FloatNode(name, op, reason) for name, op, reason in result.islands]
    facts["metrics"] |= {"calibration": calibration, **counts(result.converted, left), "int8_macs_share": 0.0}
    return facts

"""What OpenVINO's own defaults change in the numbers of an artifact on this machine (runs in the worker)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit.progress import OnProgress, silent
from deploykit.report import Finding, note

if TYPE_CHECKING:
    from collections.abc import Mapping

# A difference of arithmetic shows in the first samples.
_SAMPLES = 4
_NAMES = {"f32": "fp32", "f16": "fp16", "bf16": "bf16"}


def measure_job(
    artifact: str,
    data: Mapping[str, Any],
    options: Mapping[str, Any] | None = None,
    on_progress: OnProgress = silent,
) -> dict[str, Any]:
    """The artifact as OpenVINO runs it when nothing is said, against itself in its own precision, on the CPU.

    data: a `DataRequest`. Returns {"metrics": {"default_precision": ...}, "findings": a note where it differs}; metrics
    are {"engine", "hint", "differs", "outputs": rows as `comparison.compare` gives them, "samples"}.
    """
    import openvino as ov

    from deploykit.comparison import carry_of, compare, runtime_options
    from deploykit.converters.openvino.interface import versioned
    from deploykit.data.request import open_request, with_contract
    from deploykit.parity import TOLERANCES
    from deploykit.runtime import RuntimeOptions, open_runtime

    path, given = Path(artifact), runtime_options({**(options or {}), "device": "cpu"})
    core = ov.Core()
    hint = _NAMES.get(str(core.get_property("CPU", "INFERENCE_PRECISION_HINT").get_type_name()), "unknown")
    exact = open_runtime(path, given)
    usual = open_runtime(path, RuntimeOptions(threads=given.threads, custom_ops=given.custom_ops, exact=False))
    try:
        request = {**with_contract(data, exact.contract), "samples": _SAMPLES}
        dataset = open_request(request, exact.inputs)  # type: ignore[arg-type]  # a DataRequest, as JSON
        result = compare(exact, usual, dataset, tolerance=TOLERANCES["bf16"], carry=carry_of(dict(request)))
    finally:
        exact.close()
        usual.close()
    differs = any(not row["exact"] for row in result["outputs"])
    facts = {
        "engine": f"openvino {versioned()} (CPU)",
        "hint": hint,
        "differs": differs,
        "outputs": result["outputs"],
        "samples": result["samples"],
    }
    return {"metrics": {"default_precision": facts}, "findings": [_told(facts).as_dict()] if differs else []}


def _told(facts: Mapping[str, Any]) -> Finding:
    worst = max(facts["outputs"], key=lambda row: -_level(row))
    found = "SQNR n/a" if worst["sqnr_db"] is None else f"SQNR {worst['sqnr_db']:.1f} dB"
    text = (
        f"OpenVINO's default precision on this CPU ({facts['hint']}) moves output {worst['name']!r} by "
        f"{_number(worst['max_abs'])} at most ({found}); the comparison ran in the artifact's own"
    )
    hint = (
        "INFERENCE_PRECISION_HINT=f32 keeps the artifact's numbers; deploykit's own runs of accuracy and parity set it"
    )
    return note("DK589", text, target="openvino", hint=hint)


def _level(row: Mapping[str, Any]) -> float:
    return float("inf") if row["exact"] else float(row["sqnr_db"] or 0.0)


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.3g}"

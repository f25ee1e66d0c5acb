"""An INT8 artifact that is not within 30 dB of its parent: whether rounding alone does that, or a fault."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deploykit.errors import DeploykitError
from deploykit.parity import TOLERANCES
from deploykit.report import Finding, note

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from deploykit.artifact import Artifact

ROW = "int8-parent"
# Numbers that differ; another shape or NaN is no question of rounding.
_DIFFERS = ("DK401", "DK406")


def settle(
    call: Callable[..., Any],
    parent: Artifact,
    candidate: Path,
    result: dict[str, Any],
    data: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    every_size: bool = False,
) -> dict[str, Any]:
    """The result of a comparison, decided by `segments.segments_job` where the limit for the whole was missed.

    call: runs a job by its name and keyword arguments where the artifacts run. result, data, options, every_size: of
    `comparison.compare_job`.
    Outputs pass when every segment is right; the result has "segments" then (see the job), and a note DK446 in the
    place of the errors. Where one is wrong, DK447 names it. Where the engine shows no integers nothing changes but the
    findings: DK448 says when the model's own results lie as far apart.
    """
    failed = [row["name"] for row in result["outputs"] if not row["passed"]]
    errors = {finding["code"] for finding in result["findings"] if finding["severity"] == "error"}
    if result["row"] != ROW or parent.format != "onnx" or not failed or errors - set(_DIFFERS):
        return result
    both = {"data": data, "options": options}
    files = {"reference": str(parent.path), "candidate": str(candidate)}
    try:
        found = call("deploykit.segments:segments_job", **files, **both, every_size=every_size)
    except DeploykitError:  # what the whole comparison said stands
        found = {"segments": 0}
    if not found["segments"]:
        apart = call("deploykit.spread:spread_job", model=str(parent.path), **both)
        return {**result, "findings": [*result["findings"], *(_apart(result, apart))]}
    wrong = [row["name"] for row in found["outputs"] if not row["passed"]]
    result = {**result, "segments": found}
    if found["wrong"] or wrong:
        return {**result, "findings": [*result["findings"], _fault(found, wrong).as_dict()]}
    return {
        **result,
        "outputs": [_passed(row) if row["name"] in failed else row for row in result["outputs"]],
        "findings": [
            *(finding for finding in result["findings"] if finding["severity"] != "error"),
            *(_rounding(row, found).as_dict() for row in result["outputs"] if row["name"] in failed),
        ],
    }


def _passed(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "passed": True, "tolerance": f"{row['tolerance']}, or every segment right by itself"}


def _rounding(row: Mapping[str, Any], found: Mapping[str, Any]) -> Finding:
    far = "differs" if row["sqnr_db"] is None else f"is {row['sqnr_db']:.1f} dB from it"
    text = (
        f"output {row['name']!r} {far} by rounding alone: computed from the engine's own values, all "
        f"{found['segments'] + 1} segments between quantizations are right, {found['elements']:,} integers among them"
    )
    return note("DK446", text, tensor=row["name"])


def _fault(found: Mapping[str, Any], wrong: Sequence[str]) -> Finding:
    """The first segment that is not right, in the order of the graph."""
    if not found["faults"]:
        text = f"output {wrong[0]!r} is not what the ONNX computes of the engine's own last integers"
        return note("DK447", text, tensor=wrong[0])
    first = found["faults"][0]
    text = (
        f"first wrong segment: {first['tensor']!r}, made by {first['node']}: of the engine's own integers before it "
        f"the ONNX computes others, {first['wrong']:,} of {first['elements']:,}, by up to {first['worst']:.3g} levels"
    )
    return note("DK447", text, tensor=first["tensor"])


def _apart(result: Mapping[str, Any], apart: Mapping[str, float]) -> list[dict[str, Any]]:
    """A note for each failed output that may differ by rounding; twice as far off (6 dB) has faults of its own."""
    limit = TOLERANCES[ROW].min_sqnr_db or 0.0
    return [
        note(
            "DK448",
            f"output {row['name']!r}: on these inputs the INT8 model is {apart[row['name']]:.1f} dB from itself once "
            f"its values move by 5e-7, a few roundings, so that rounding alone can miss {limit:g} dB; this engine "
            "shows no integers inside, which would tell a fault from it",
            tensor=row["name"],
            hint="give --data in use, or quantize with --max-drop or --exclude",
        ).as_dict()
        for row in result["outputs"]
        if not row["passed"] and row["name"] in apart and row["sqnr_db"] is not None
        if apart[row["name"]] < limit and row["sqnr_db"] > apart[row["name"]] - 6
    ]

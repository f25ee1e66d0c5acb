"""An artifact that is not as near to its ONNX parent as its precision asks: whether rounding alone does that."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from deploykit.errors import DeploykitError
from deploykit.parity import TOLERANCES
from deploykit.report import Finding, note

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from deploykit.artifact import Artifact

ROW = "int8-parent"
FLOAT_ROW = "fp32"
# The largest share of max|ref| that rounding excuses: ten times the row, below what bf16, fp16 or TF32 would do.
_MOST = 10 * (TOLERANCES[FLOAT_ROW].atol_factor or 0.0)
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
    """The result of a comparison, looked into where the limit of the row was missed.

    fp32: `spread.movement_job` says whether the ONNX model itself is as far from itself; see `_settle_float`.
    INT8 against its parent: `segments.segments_job` decides.

    call: runs a job by its name and keyword arguments where the artifacts run. result, data, options, every_size: of
    `comparison.compare_job`.
    Outputs pass when every segment is right; the result has "segments" then (see the job), and a note DK446 in the
    place of the errors. Where one is wrong, DK447 names it. Where the engine shows no integers nothing changes but the
    findings: DK448 says when the model's own results lie as far apart.
    """
    failed = [row["name"] for row in result["outputs"] if not row["passed"]]
    errors = {finding["code"] for finding in result["findings"] if finding["severity"] == "error"}
    if result["row"] == FLOAT_ROW and parent.format == "onnx" and failed and not errors - {"DK401"}:
        return _settle_float(call, parent, candidate, result, data, options, every_size=every_size)
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


def _settle_float(
    call: Callable[..., Any],
    parent: Artifact,
    candidate: Path,
    result: dict[str, Any],
    data: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    every_size: bool,
) -> dict[str, Any]:
    """Outputs pass when the model's own move as far by roundings of its weights, and ten times the row at most.

    What the model does to roundings is measured on the reference alone, so that it does not depend on the candidate.
    """
    failed = [row for row in result["outputs"] if not row["passed"]]
    if any(row.get("excess", math.inf) > _MOST for row in failed):
        return result
    files = {"reference": str(parent.path), "candidate": str(candidate)}
    try:
        moved = call("deploykit.spread:movement_job", **files, data=data, options=options, every_size=every_size)
    except DeploykitError:  # what the comparison said stands
        return result
    own = {row["name"]: moved.get(row["name"], 0.0) for row in failed}
    if any(row["excess"] > own[row["name"]] for row in failed):
        said = [_no_rounding(row, own[row["name"]]).as_dict() for row in failed if row["excess"] > own[row["name"]]]
        return {**result, "findings": [*result["findings"], *said]}
    return {
        **result,
        "outputs": [
            {**row, "passed": True, "tolerance": f"{row['tolerance']}, or the model's own movement"}
            if row["name"] in own
            else row
            for row in result["outputs"]
        ],
        "findings": [
            *(finding for finding in result["findings"] if finding["severity"] != "error"),
            *(_own_movement(row, own[row["name"]]).as_dict() for row in failed),
        ],
    }


def _own_movement(row: Mapping[str, Any], own: float) -> Finding:
    text = (
        f"output {row['name']!r} differs by rounding alone: by {row['excess']:.2g} of its largest value beyond the "
        f"relative tolerance, where the ONNX model itself moves by {own:.2g} once its weights move by 5e-7, four units "
        "in their last place"
    )
    return note("DK450", text, tensor=row["name"])


def _no_rounding(row: Mapping[str, Any], own: float) -> Finding:
    text = (
        f"output {row['name']!r}: no rounding explains it: the ONNX model itself moves by {own:.2g} of its largest "
        f"value beyond the relative tolerance once its weights move by 5e-7, and this is {row['excess']:.2g}"
    )
    return note("DK451", text, tensor=row["name"])


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

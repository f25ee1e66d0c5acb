"""Why a quantized model and its artifact differ: whether the model's own results are further apart than that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deploykit.isolation import run_isolated
from deploykit.parity import TOLERANCES
from deploykit.target import Target, comparison_worker

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deploykit.artifact import Artifact


def spread_of(
    target: Target, model: Artifact, result: Mapping[str, Any], data: Mapping[str, Any], options: Mapping[str, Any]
) -> dict[str, str]:
    """A hint for each output of a failed comparison that no engine could pass; measured where one failed by SQNR.

    result, data, options: of `comparison.compare_job` for the model and its artifact. An artifact that lies more than
    twice as far off as a rounding moves the model (6 dB) has faults of its own, and gets no such hint.
    """
    limit = TOLERANCES["int8-parent"].min_sqnr_db
    short = {
        row["name"]: row["sqnr_db"] for row in result["outputs"] if not row["passed"] and row["sqnr_db"] is not None
    }
    if result["row"] != "int8-parent" or limit is None or not short:
        return {}
    arguments = {"model": str(model.path), "data": data, "options": options}
    found = run_isolated(comparison_worker(target), "deploykit.spread:spread_job", arguments, block=target.blocked)
    return {
        name: f"on these inputs the INT8 model is {found[name]:.1f} dB from itself once its values move by 5e-7, a few "
        f"roundings: rounding alone can miss {limit:g} dB. Give --data in use, or quantize with --max-drop or --exclude"
        for name, measured in short.items()
        if name in found and found[name] < limit and measured > found[name] - 6
    }

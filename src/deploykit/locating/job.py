"""Opens both sides, finds a sample on which they part, and then where (runs in the worker)."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit.comparison import Side, carry_of, runtime_options, shared_samples
from deploykit.locating.pair import Pair
from deploykit.parity import TOLERANCES, OutputComparison, Tolerance
from deploykit.progress import OnProgress, Progress, silent
from deploykit.runtime import open_runtime
from deploykit.taps import open_taps
from deploykit.target import format_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]


@dataclasses.dataclass(frozen=True, slots=True)
class Failing:
    """A sample on which outputs differ: its name, the reference's feeds, and the outputs that do."""

    name: str
    feeds: Mapping[str, Array]
    outputs: list[str]


def locate_job(
    reference: str,
    candidate: str,
    data: dict[str, Any],
    row: str,
    rtol: float | None = None,
    atol: float | None = None,
    min_sqnr: float | None = None,
    options: dict[str, Any] | None = None,
    save: str | None = None,
    on_progress: OnProgress = silent,
) -> dict[str, Any]:
    """The first tensor that differs on the first sample whose outputs do; arguments as of `comparison.compare_job`.

    save: where the failing part is written. Returns JSON: "first" (None when no output differs on any sample, or none
    does once its tensors are read), "sample", "outputs", "matched" and "tensors" (how many of how many), "looks"
    (comparisons of inner tensors), "neighbourhood" (rows in order), "alone" (the row of the part on equal inputs),
    "added_up" (tensors before it at which rounding alone was beyond the limit), "repro".
    """
    paths = (Path(reference), Path(candidate))
    wanted = runtime_options(options)
    exact = dataclasses.replace(wanted, optimize=False)
    tolerance = TOLERANCES[row].override(rtol, atol, min_sqnr)
    failing = _failing(paths, exact, wanted, data, tolerance, on_progress)
    if failing is None:
        return {"first": None, "sample": None}
    pair = Pair(open_taps(paths[0], exact), open_taps(paths[1], wanted), failing.feeds, tolerance, on_progress)
    found = pair.locate(failing.outputs, None if save is None else Path(save), format_of(paths[1]) or "")
    return {"sample": failing.name, "row": row, "limits": tolerance.describe(), **found}


def _failing(
    paths: Sequence[Path], exact: Any, wanted: Any, data: dict[str, Any], tolerance: Tolerance, on_progress: OnProgress
) -> Failing | None:
    """The first sample with an output beyond the tolerance."""
    first, second = open_runtime(paths[0], exact), open_runtime(paths[1], wanted)
    try:
        dataset = shared_samples(data, first, second, paths)
        sides = [Side(first, carry_of(data), "reference"), Side(second, carry_of(data), "candidate")]
        for index, sample in enumerate(dataset):
            on_progress(Progress("looking for a sample that differs", sample.name, index, dataset.total))
            feeds = sides[0].feeds(sample)
            ours, theirs = (side(sample) for side in sides)
            bad = []
            for name in (name for name in ours if name in theirs):
                comparison = OutputComparison(name, tolerance)
                comparison.add(ours[name], theirs[name])
                bad += [] if comparison.passed else [name]
            if bad:
                return Failing(sample.name, feeds, bad)
        return None
    finally:
        first.close()
        second.close()

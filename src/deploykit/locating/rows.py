"""One inner tensor on both sides: how far apart, and whether within the tolerance."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.parity import OutputComparison, as_array, kind_of

if TYPE_CHECKING:
    from deploykit.parity import Tolerance

    Array = np.ndarray[Any, np.dtype[Any]]

_EIGHT_BITS = 1  # bytes of an element


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """A tensor of the reference against the candidate's.

    agrees: within tolerance. max_abs, max_rel, sqnr_db: None where they do not exist. first_bad: index of the first
    element beyond the limit (of the largest difference where only the SQNR is limited). values: what stands there.
    problem: what is wrong besides the distance: another shape, NaN or infinities (not_finite) that one side has alone.
    """

    tensor: str
    agrees: bool
    exact: bool
    max_abs: float | None
    max_rel: float | None
    sqnr_db: float | None
    first_bad: tuple[int, ...] | None = None
    values: tuple[float, float] | None = None
    problem: str = ""
    not_finite: bool = False

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        facts = dataclasses.asdict(self)
        for key in ("first_bad", "values"):
            facts[key] = None if facts[key] is None else [_json(value) for value in facts[key]]
        return facts


def compare_tensor(tensor: str, reference: Any, candidate: Any, tolerance: Tolerance) -> Row | None:
    """The row of a tensor; None for two that say nothing about each other.

    These are texts, numbers of another kind (a mask that is bool here and int there), integers of 8 bits, whose scale
    is that of the node behind them, and equal numbers of elements in another arrangement. Infinities that are equal on
    both sides, and NaN at the same places, agree: a mask holds them in a sound model.
    """
    ref, cand = as_array(reference), as_array(candidate)
    kind = kind_of(ref.dtype)
    if kind == "string" or kind != kind_of(cand.dtype):
        return None
    if kind == "integer" and min(ref.dtype.itemsize, cand.dtype.itemsize) == _EIGHT_BITS:
        return None
    if ref.shape != cand.shape:
        if [size for size in ref.shape if size != 1] == [size for size in cand.shape if size != 1]:
            cand = cand.reshape(ref.shape)
        elif ref.size == cand.size:
            return None
        else:
            problem = f"shape {list(cand.shape)}, {list(ref.shape)} in the reference"
            return Row(tensor, False, False, None, None, None, problem=problem)
    nonfinite = ""
    if kind == "float":
        ref, cand, bad = _without_equal_infinities(ref, cand)
        if bad is not None:
            nonfinite = _told(ref, cand, bad)
    comparison = OutputComparison(tensor, tolerance)
    comparison.add(ref, cand)
    facts = comparison.result()
    at = None if comparison.passed else _first_bad(ref, cand, tolerance)
    return Row(
        tensor,
        comparison.passed,
        bool(facts["exact"]),
        facts["max_abs"],
        facts["max_rel"],
        facts["sqnr_db"],
        first_bad=at,
        values=None if at is None else (float(ref[at]), float(cand[at])),
        problem=nonfinite,
        not_finite=bool(nonfinite),
    )


def _without_equal_infinities(ref: Array, cand: Array) -> tuple[Array, Array, Array | None]:
    """Both with zeros where the same infinity or NaN stands on both sides; where else one is not finite."""
    finite = np.isfinite(ref) & np.isfinite(cand)
    if finite.all():
        return ref, cand, None
    same = ~finite & ((np.isnan(ref) & np.isnan(cand)) | (ref == cand))
    ref, cand = np.where(same, 0, ref), np.where(same, 0, cand)
    bad = ~finite & ~same
    return ref, cand, bad if bad.any() else None


def _told(ref: Array, cand: Array, bad: Array) -> str:
    parts = []
    for side, array in (("candidate", cand), ("reference", ref)):
        nan, infinite = int((np.isnan(array) & bad).sum()), int((np.isinf(array) & bad).sum())
        if nan or infinite:
            counts = [f"{nan} NaN"] * bool(nan) + [f"{infinite} infinite"] * bool(infinite)
            parts.append(f"{' and '.join(counts)} values in the {side}")
    return f"{', '.join(parts)}, of {ref.size}"


def _first_bad(ref: Array, cand: Array, tolerance: Tolerance) -> tuple[int, ...] | None:
    if not ref.size:
        return None
    a, b = ref.astype(np.float64), cand.astype(np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    if not finite.all():
        beyond = ~finite
    elif kind_of(ref.dtype) != "float":
        beyond = a != b
    else:
        difference, size = np.abs(a - b), np.abs(a)
        limit = (tolerance.rtol or 0.0) * size + (tolerance.atol or 0.0)
        limit += (tolerance.atol_factor or 0.0) * float(size.max())
        beyond = difference > limit if tolerance.elementwise else difference == difference.max()
    if not beyond.any():
        return None
    return tuple(int(index) for index in np.unravel_index(int(beyond.argmax()), ref.shape))


def _json(value: float) -> float | int | str:
    """JSON has no NaN and no infinities."""
    return value if isinstance(value, int) or np.isfinite(value) else str(value)

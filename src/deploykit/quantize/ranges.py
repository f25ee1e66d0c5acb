"""Calibrated ranges as an artifact: measured once, shared by all schemes, valid for one model, data and method."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import TYPE_CHECKING, Any

from deploykit import io
from deploykit.errors import DataError, InvalidFileError
from deploykit.quantize.thresholds import Interval

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

SCHEMA = "deploykit.ranges/1"


@dataclasses.dataclass(frozen=True, slots=True)
class TensorRange:
    """What calibration found about one tensor.

    minimum, maximum: exact, in the tensor's units. growth: share of the width that the second half of the data added.
    typical: the magnitude that 99 % of the values stay below. affine, symmetric: the range that the method chose for
    either form; None when the tensor never had a finite element.
    """

    minimum: float
    maximum: float
    samples: int
    growth: float = 0.0
    not_finite: int = 0
    typical: float = 0.0
    affine: Interval | None = None
    symmetric: Interval | None = None

    @property
    def fired(self) -> bool:
        """Whether any finite element was seen."""
        return self.affine is not None

    @property
    def constant(self) -> bool:
        """Whether every element had the same value."""
        return self.fired and self.minimum == self.maximum

    def interval(self, *, symmetric: bool) -> Interval:
        """The range in one form; ValueError for a tensor that never fired."""
        found = self.symmetric if symmetric else self.affine
        if found is None:
            message = "a tensor that never fired has no range"
            raise ValueError(message)
        return found

    def as_dict(self) -> dict[str, Any]:
        """JSON form; intervals as [low, high, method]."""
        facts = dataclasses.asdict(self)
        for form in ("affine", "symmetric"):
            found: Interval | None = getattr(self, form)
            facts[form] = None if found is None else [found.low, found.high, found.method]
        if not self.fired:
            facts["minimum"] = facts["maximum"] = 0.0
        return facts

    @classmethod
    def from_dict(cls, facts: dict[str, Any]) -> TensorRange:
        """The range that `as_dict` wrote."""
        forms = {form: Interval(*facts[form]) if facts[form] else None for form in ("affine", "symmetric")}
        return cls(**{**facts, **forms})


@dataclasses.dataclass(frozen=True, slots=True)
class Ranges:
    """The ranges of a model's tensors, with the digests of what they were measured on.

    factors: what the channels of some tensors were divided by before (`smoothing.equalise`), at strength smooth_quant.
    """

    model_sha256: str
    data_sha256: str
    method: str
    samples: int
    tensors: dict[str, TensorRange]
    factors: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    smooth_quant: float | None = None

    def unseen(self, names: Iterable[str]) -> set[str]:
        """Those of the tensors that have no range: absent, or never a finite element."""
        return {name for name in names if name not in self.tensors or not self.tensors[name].fired}

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "schema": SCHEMA,
            "model_sha256": self.model_sha256,
            "data_sha256": self.data_sha256,
            "method": self.method,
            "samples": self.samples,
            "smooth_quant": self.smooth_quant,
            "factors": self.factors,
            "tensors": {name: found.as_dict() for name, found in self.tensors.items()},
        }

    def save(self, path: Path) -> None:
        """Writes the ranges, whole or not at all; the same ranges give the same bytes."""
        io.write_text(path, json.dumps(self.as_dict(), indent=1, allow_nan=False) + "\n", force=True)


def load_ranges(path: Path, *, model_sha256: str, data_sha256: str, method: str) -> Ranges:
    """Ranges from a file, when they were measured on this model and data with this method (no data: "" fits any).

    Raises DataError (DK362) with both digests when they were not, InvalidFileError (DK361) for another kind of file.
    """
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        if facts.pop("schema") != SCHEMA:
            raise ValueError(facts)
        tensors = {name: TensorRange.from_dict(found) for name, found in facts.pop("tensors").items()}
        factors = {name: [float(one) for one in found] for name, found in facts.pop("factors").items()}
        found = Ranges(tensors=tensors, factors=factors, **facts)
        _check_numbers(found)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise InvalidFileError(
            f"{path} holds no calibration ranges",
            code="DK361",
            file=path,
            hint="give a new path to --ranges, and they are saved there",
        ) from problem
    keys = {"model_sha256": found.model_sha256, "data_sha256": found.data_sha256, "method": found.method}
    wanted = {"model_sha256": model_sha256, "data_sha256": data_sha256, "method": method}
    check_keys(path, found=keys, wanted=wanted)
    return found


def _check_numbers(ranges: Ranges) -> None:
    """ValueError for what no calibration gives: bounds that are no numbers or in the wrong order, factors below 0."""
    ends = [(form.low, form.high) for one in ranges.tensors.values() for form in (one.affine, one.symmetric) if form]
    if not all(math.isfinite(low) and math.isfinite(high) and low <= high for low, high in ends):
        raise ValueError(ends)
    factors = [one for found in ranges.factors.values() for one in found]
    if not all(math.isfinite(one) and one > 0 for one in factors):
        raise ValueError(factors)


def check_keys(path: Path, *, found: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    """Raises DataError (DK362) when a file of ranges belongs to another model, data or method ("" fits any)."""
    for key, what in (("model_sha256", "model"), ("data_sha256", "calibration data"), ("method", "method")):
        ours, theirs = wanted[key], found[key]
        if ours and ours != theirs:
            raise DataError(
                f"the ranges in {path.name} were measured with another {what}",
                code="DK362",
                file=path,
                context=[f"{what} now:        {ours}", f"{what} in the file: {theirs}"],
                hint="give a new path to --ranges, or delete the file to measure again",
            )


def check_strength(path: Path, found: Ranges, wanted: float | None) -> None:
    """Raises DataError (DK362) when a file of ranges was measured after another --smooth-quant."""
    if found.smooth_quant != wanted:
        raise DataError(
            f"the ranges in {path.name} were measured with another --smooth-quant",
            code="DK362",
            file=path,
            context=[f"--smooth-quant now: {wanted}", f"in the file: {found.smooth_quant}"],
            hint="give a new path to --ranges, or the same --smooth-quant",
        )

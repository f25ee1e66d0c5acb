"""Observers: what calibration remembers of a tensor, in a size that depends on neither samples nor shapes."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

Array = np.ndarray[Any, Any]
BINS = 4096
# Histograms of a tensor larger than this are taken from evenly spaced elements: the extremes stay exact (first pass).
SUBSAMPLE = 1 << 18


@dataclasses.dataclass(slots=True)
class RangeObserver:
    """Exact extremes of a tensor, with the extremes of the first half of the data to see whether they still move.

    samples: calls that had at least one element. not_finite: NaN and infinite elements, which the extremes leave out.
    """

    minimum: float = math.inf
    maximum: float = -math.inf
    half_minimum: float = math.inf
    half_maximum: float = -math.inf
    samples: int = 0
    elements: int = 0
    not_finite: int = 0

    def observe(self, values: Array, *, second_half: bool = False) -> None:
        """Takes in a tensor of any shape; an empty one changes nothing."""
        if values.size == 0:
            return
        low, high = float(values.min()), float(values.max())
        if not (math.isfinite(low) and math.isfinite(high)):
            finite = values[np.isfinite(values)]
            self.not_finite += values.size - finite.size
            if finite.size == 0:
                return
            low, high = float(finite.min()), float(finite.max())
        self.samples += 1
        self.elements += values.size
        self.minimum, self.maximum = min(self.minimum, low), max(self.maximum, high)
        if not second_half:
            self.half_minimum, self.half_maximum = min(self.half_minimum, low), max(self.half_maximum, high)

    @property
    def fired(self) -> bool:
        """Whether any finite element was seen."""
        return self.samples > 0

    @property
    def constant(self) -> bool:
        """Whether every element had the same value."""
        return self.fired and self.minimum == self.maximum

    @property
    def growth(self) -> float:
        """How much wider the second half of the data made the range, as a share of the final width; 0 when settled."""
        width = self.maximum - self.minimum
        if not self.fired or width <= 0 or not math.isfinite(self.half_minimum):
            return 0.0
        return 1.0 - (self.half_maximum - self.half_minimum) / width


class HistogramObserver:
    """Counts of a tensor over equal bins between its exact extremes, which a first pass has measured."""

    def __init__(self, minimum: float, maximum: float, bins: int = BINS) -> None:
        """An empty histogram from `minimum` to `maximum`, in the units of the tensor; minimum < maximum."""
        self.minimum = minimum
        self.maximum = maximum
        self.counts = np.zeros(bins, dtype=np.int64)

    def observe(self, values: Array) -> None:
        """Takes in a tensor of any shape; values outside the range, NaN among them, are left out."""
        flat = values.reshape(-1)
        if flat.size > SUBSAMPLE:
            flat = flat[:: -(-flat.size // SUBSAMPLE)]
        if flat.size == 0:
            return
        bins = self.counts.size
        with np.errstate(invalid="ignore"):
            place = (flat.astype(np.float64) - self.minimum) * (bins / (self.maximum - self.minimum))
            place = place[(place >= 0) & (place <= bins)]
        index = np.minimum(place.astype(np.int64), bins - 1)
        self.counts += np.bincount(index, minlength=bins)

    @property
    def centers(self) -> Array:
        """The value that stands for each bin: its middle, but exactly 0 in the bin that holds 0."""
        edges = np.linspace(self.minimum, self.maximum, self.counts.size + 1)
        middles: Array = (edges[:-1] + edges[1:]) / 2
        middles[(edges[:-1] <= 0) & (edges[1:] > 0)] = 0.0
        return middles


def new_observers(names: list[str]) -> dict[str, RangeObserver]:
    """One empty range observer a tensor."""
    return {name: RangeObserver() for name in names}


def new_histograms(ranges: Mapping[str, RangeObserver]) -> dict[str, HistogramObserver]:
    """One empty histogram for each tensor whose range has a width."""
    return {
        name: HistogramObserver(observed.minimum, observed.maximum)
        for name, observed in ranges.items()
        if observed.fired and not observed.constant
    }

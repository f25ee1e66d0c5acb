"""Observers: what calibration remembers of its tensors, in a size that depends on neither samples nor shapes.

One pass sees everything. Extremes are exact. Histograms are counted on bins whose width is a power of two and that
start at 0, so that a range that grows merges bins in pairs: the result is, bit for bit, that of counting on the final
bins, whatever the order of the samples. They are taken from evenly spaced elements, `quota` of them a sample:
with n of them in all, a share p of the values is known to within sqrt(p / n) (1 standard error), which for the share
1e-4 that `percentile` cuts and the 262144 elements that a run aims at is a fifth of that share.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

Array = np.ndarray[Any, Any]
# Bins on either side of 0: the larger side of a range fills more than half of its own.
BINS = 4096
# Elements of a tensor that all samples together give its histogram, and what one sample gives at least and at most.
ELEMENTS = 1 << 18
FEWEST, MOST = 1 << 12, 1 << 15
# Elements that are looked at together: half the second-level cache, so that the second look costs no memory traffic.
CHUNK = 1 << 17
# `moving-average`: the plain mean of the first 1/RATE batches' extremes, then an exponential average.
RATE = 0.01
# 2**_SMALLEST is the narrowest bin; anything smaller than a float32 can scale counts as 0.
_SMALLEST = -126


def quota(samples: int | None) -> int:
    """Elements that one of `samples` samples gives a histogram; an unknown number counts as many."""
    return FEWEST if not samples else min(max(ELEMENTS // samples, FEWEST), MOST)


class Look(NamedTuple):
    """One tensor in one sample: its extremes, NaN and infinite elements apart, and elements for the histogram."""

    low: float
    high: float
    size: int
    not_finite: int
    elements: Array


def look(values: Array, elements: int, turn: int) -> Look:
    """Exact extremes of a float tensor of any shape, and about `elements` evenly spaced ones (0: none).

    turn: number of the sample; each takes other places. The step is a prime that does not divide the size, so that it
    meets all places of every axis alike.
    """
    flat = values.reshape(-1)
    if flat.size == 0:
        return Look(math.inf, -math.inf, 0, 0, flat)
    step = _step(flat.size, elements) if elements else 0
    start = turn * 7919 % step if step else 0
    if flat.size <= CHUNK:
        low, high = float(np.minimum.reduce(flat)), float(np.maximum.reduce(flat))
        taken = flat[start::step].copy() if step else flat[:0]
    else:
        low, high, taken = _by_parts(flat, step, start)
    if math.isfinite(low) and math.isfinite(high):
        return Look(low, high, flat.size, 0, taken)
    finite = flat[np.isfinite(flat)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (math.inf, -math.inf)
    return Look(low, high, flat.size, flat.size - finite.size, taken[np.isfinite(taken)])


def _by_parts(flat: Array, step: int, start: int) -> tuple[float, float, Array]:
    lows, highs, kept = [], [], [flat[:0]]
    for first in range(0, flat.size, CHUNK):
        part = flat[first : first + CHUNK]
        lows.append(np.minimum.reduce(part))
        highs.append(np.maximum.reduce(part))
        if step:
            kept.append(part[(start - first) % step :: step])
    return float(np.min(lows)), float(np.max(highs)), np.concatenate(kept)


@functools.lru_cache(maxsize=4096)
def _step(size: int, elements: int) -> int:
    """The smallest prime that takes at most `elements` of `size` and does not divide `size`; 1: all."""
    step = -(-size // elements)
    if step <= 1:
        return 1
    while size % step == 0 or any(step % divisor == 0 for divisor in range(2, math.isqrt(step) + 1)):
        step += 1
    return step


class RangeObserver:
    """Exact extremes of many tensors, those of the first half of the data, and moving averages.

    All attributes are arrays with one entry a tensor. samples: those with at least one finite element.
    not_finite: NaN and infinite elements, which the extremes leave out.
    """

    FIELDS = ("minimum", "maximum", "half_minimum", "half_maximum", "mean_minimum", "mean_maximum")
    COUNTS = ("samples", "elements", "not_finite")
    minimum: Array
    maximum: Array
    half_minimum: Array
    half_maximum: Array
    mean_minimum: Array
    mean_maximum: Array
    samples: Array
    elements: Array
    not_finite: Array

    def __init__(self, tensors: int) -> None:
        """Nothing was seen yet of so many tensors."""
        for field in self.FIELDS:
            setattr(self, field, np.full(tensors, -math.inf if field.endswith("maximum") else math.inf))
        for field in self.COUNTS:
            setattr(self, field, np.zeros(tensors, np.int64))

    def observe(self, looks: Sequence[Look], *, second_half: bool = False) -> None:
        """Takes in one sample: a look at every tensor; an empty one changes nothing."""
        low, high = (np.array([getattr(found, end) for found in looks]) for end in ("low", "high"))
        seen = low <= high
        self.samples += seen
        self.elements += np.array([found.size for found in looks], np.int64)
        self.not_finite += np.array([found.not_finite for found in looks], np.int64)
        np.minimum(self.minimum, low, out=self.minimum)
        np.maximum(self.maximum, high, out=self.maximum)
        if not second_half:
            np.minimum(self.half_minimum, low, out=self.half_minimum)
            np.maximum(self.half_maximum, high, out=self.half_maximum)
        first, later = seen & (self.samples == 1), seen & (self.samples > 1)
        rate = np.maximum(1 / np.maximum(self.samples, 1), RATE)
        for mean, found in ((self.mean_minimum, low), (self.mean_maximum, high)):
            mean[first] = found[first]
            mean[later] += rate[later] * (found[later] - mean[later])

    def of(self, tensor: int) -> Extremes:
        """What was seen of one tensor."""
        return Extremes(*(getattr(self, field)[tensor].item() for field in (*self.FIELDS, *self.COUNTS)))


@dataclasses.dataclass(frozen=True, slots=True)
class Extremes:
    """Row of a `RangeObserver`."""

    minimum: float
    maximum: float
    half_minimum: float
    half_maximum: float
    mean_minimum: float
    mean_maximum: float
    samples: int
    elements: int
    not_finite: int

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
    """Counts of one tensor on bins of width 2**exponent; bin BINS is the first one at or above 0."""

    __slots__ = ("counts", "exponent")

    def __init__(self) -> None:
        self.exponent = _SMALLEST
        self.counts: Array = np.zeros(2 * BINS, dtype=np.int32)

    def widen(self, largest: float) -> None:
        """Makes room for magnitudes up to `largest`: merges bins in pairs as often as it takes."""
        wanted = max(math.frexp(largest / BINS)[1], _SMALLEST) if largest > 0 else _SMALLEST
        times = wanted - self.exponent
        if times <= 0:
            return
        self.exponent = wanted
        if not self.counts.any():
            return
        for _ in range(min(times, 14)):  # 14: all of either side lies in its first bin by then
            merged = self.counts[0::2] + self.counts[1::2]
            self.counts[:] = 0
            self.counts[BINS // 2 : BINS // 2 + BINS] = merged

    def observe(self, elements: Array) -> None:
        """Counts finite elements that `widen` has made room for."""
        if elements.size == 0:
            return
        # Exact: a division by a power of two only changes the exponent (of float32 in the range that `widen` allows).
        place = elements * np.float32(2.0**-self.exponent)
        np.floor(place, out=place)
        self.counts += np.bincount(place.astype(np.int32) + BINS, minlength=2 * BINS).astype(np.int32)


@dataclasses.dataclass(frozen=True, slots=True)
class Histogram:
    """A finished histogram: counts over `edges` (one more), cut to where something was counted.

    minimum, maximum: the exact extremes, which the first and the last bin hold.
    """

    minimum: float
    maximum: float
    edges: Array
    counts: Array

    @property
    def centers(self) -> Array:
        """The value that stands for each bin: its middle, within the extremes, but exactly 0 in the bin at 0."""
        middles: Array = (self.edges[:-1] + self.edges[1:]) / 2
        middles[self.edges[:-1] == 0.0] = 0.0
        return np.clip(middles, self.minimum, self.maximum)


def finished(observer: HistogramObserver, extremes: Extremes) -> Histogram:
    """The histogram between the exact extremes of its tensor; counts are shares of an element where it must be."""
    width = 2.0**observer.exponent
    first = BINS + math.floor(extremes.minimum / width)
    last = BINS + math.floor(extremes.maximum / width)
    counts = observer.counts[first : last + 1].astype(np.float64)
    # A subsample may have missed the extremes, and a range that clips what is there must show a loss: each stands for
    # one element of all.
    least = max(counts.sum(), 1.0) / max(extremes.elements, 1)
    counts[0], counts[-1] = max(counts[0], least), max(counts[-1], least)
    edges = (np.arange(first, last + 2) - BINS) * width
    return Histogram(extremes.minimum, extremes.maximum, edges, counts)

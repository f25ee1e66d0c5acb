"""Calibration methods: from what the observers saw to the range that is quantized.

A range is clipped to 8 bits; every method works on the histogram of one tensor and is independent of the target: the
signed and the affine form of the same histogram give one range each.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from deploykit.quantize.observers import Histogram

Array = np.ndarray[Any, Any]
Method = Literal["auto", "minmax", "percentile", "entropy", "mse", "moving-average"]
METHODS: tuple[Method, ...] = ("auto", "minmax", "percentile", "entropy", "mse", "moving-average")
PERCENTILE = 99.99
LEVELS = 256
CANDIDATES = 80
# What `auto` counts an error beyond the range as, against one of rounding: rounding errors differ in sign and mostly
# cancel in the sums that follow, those of clipping do not. Of 1, 4, 16, 64 and 256 this was the best over PP-OCR rec,
# digits and MNIST together (SQNR of the outputs with 8 to 64 samples; 14.1 instead of 13.0 dB on rec with 32).
CLIPPING = 4.0
ENTROPY_CANDIDATES = 40
# `auto` clips only where that is measurably better: a range that clips nothing wins ties.
AUTO_MARGIN = 0.95


@dataclasses.dataclass(frozen=True, slots=True)
class Interval:
    """A quantized range low..high in the units of the tensor, and the method that chose it."""

    low: float
    high: float
    method: str = "minmax"

    def symmetric(self) -> Interval:
        """The smallest range around 0 that holds this one."""
        limit = max(abs(self.low), abs(self.high))
        return Interval(-limit, limit, self.method)

    def with_zero(self) -> Interval:
        """The smallest range that holds this one and 0, which must be exact (padding, Relu)."""
        return Interval(min(self.low, 0.0), max(self.high, 0.0), self.method)

    def shaped(self, *, symmetric: bool) -> Interval:
        """In the form that a scheme takes: symmetric around 0, or affine and holding 0."""
        return self.symmetric() if symmetric else self.with_zero()

    def union(self, other: Interval) -> Interval:
        """The smallest range that holds both."""
        method = self.method if self.method == other.method else f"{self.method}+{other.method}"
        return Interval(min(self.low, other.low), max(self.high, other.high), method)


def choose_interval(
    histogram: Histogram, method: Method, *, symmetric: bool, average: Interval | None = None
) -> Interval:
    """The range that `method` takes for a histogram, symmetric around 0 or affine and holding 0.

    average: the mean of the batches' extremes, which `moving-average` takes (without it: the whole range).
    """
    full = Interval(histogram.minimum, histogram.maximum).shaped(symmetric=symmetric)
    if histogram.counts.sum() == 0 or method == "minmax":
        return full
    if method == "moving-average":
        return dataclasses.replace((average or full).shaped(symmetric=symmetric), method=method)
    curve = _Curve(histogram)
    if method == "auto":
        return _auto(curve, full, symmetric=symmetric)
    return _clipping(curve, method, symmetric=symmetric)


def quantization_loss(histogram: Histogram, interval: Interval) -> float:
    """Mean squared error of the tensor when quantized to 256 levels over the interval, in its squared units."""
    return _Curve(histogram).loss(interval)


class _Curve:
    """A histogram with the running sums that make the loss of a range cheap: one look-up a level instead of a bin."""

    def __init__(self, histogram: Histogram) -> None:
        self.histogram = histogram
        self.centers = histogram.centers
        counts = histogram.counts
        self.total = float(counts.sum())
        moments = np.stack([counts, counts * self.centers, counts * self.centers**2])
        self._sums = np.concatenate([np.zeros((3, 1)), np.cumsum(moments, axis=1)], axis=1)

    def loss(self, interval: Interval, *, clipping: float = 1.0) -> float:
        """Mean squared error of one range."""
        return float(self.losses(np.array([interval.low]), np.array([interval.high]), clipping=clipping)[0])

    def losses(self, lows: Array, highs: Array, *, clipping: float = 1.0) -> Array:
        """Mean squared quantization error for each range lows[i]..highs[i] (shape [candidates]).

        clipping: weight of the errors of what lies beyond the range.
        """
        scale = np.maximum((highs - lows) / (LEVELS - 1), np.finfo(np.float64).tiny)[:, None]
        zero = np.round(-lows[:, None] / scale)
        values = (np.arange(LEVELS) - zero) * scale
        # Level k takes the bins whose centre is nearest to it; the outer ones take what is beyond.
        borders = values[:, :-1] + scale / 2
        places = np.empty((len(lows), LEVELS + 1), np.int64)
        places[:, 0], places[:, -1] = 0, self.centers.size
        places[:, 1:-1] = np.searchsorted(self.centers, borders)
        errors: Array = self._squares(places, values).sum(axis=1)
        if clipping != 1.0:
            ends = np.zeros((len(lows), 2), np.int64)
            ends[:, 1] = np.searchsorted(self.centers, values[:, 0])
            errors += (clipping - 1.0) * self._squares(ends, values[:, :1])[:, 0]
            ends[:, 0], ends[:, 1] = np.searchsorted(self.centers, values[:, -1]), self.centers.size
            errors += (clipping - 1.0) * self._squares(ends, values[:, -1:])[:, 0]
        return np.maximum(errors, 0.0) / self.total

    def _squares(self, places: Array, values: Array) -> Array:
        """Sums of (centre - values[k])**2 over the bins from places[k] to places[k + 1]."""
        zeroth, first, second = np.diff(self._sums[:, places], axis=2)
        return np.asarray(second - 2 * values * first + values**2 * zeroth)


def _auto(curve: _Curve, full: Interval, *, symmetric: bool) -> Interval:
    best, best_loss = full, curve.loss(full, clipping=CLIPPING) * AUTO_MARGIN
    for method, search in AUTO.items():
        found = search(curve, symmetric).shaped(symmetric=symmetric)
        candidate = dataclasses.replace(found, method=method)
        loss = curve.loss(candidate, clipping=CLIPPING)
        if loss < best_loss:
            best, best_loss = candidate, loss
    return best


def _clipping(curve: _Curve, method: str, *, symmetric: bool) -> Interval:
    found = _METHODS[method](curve, symmetric).shaped(symmetric=symmetric)
    return dataclasses.replace(found, method=method)


def _percentile(curve: _Curve, symmetric: bool) -> Interval:
    """Keeps the central 99.99 % of the values."""
    histogram = curve.histogram
    counts, edges = histogram.counts, np.clip(histogram.edges, histogram.minimum, histogram.maximum)
    share = (100 - PERCENTILE) / 100
    if symmetric:
        magnitude = np.maximum(np.abs(edges[:-1]), np.abs(edges[1:]))
        order = np.argsort(magnitude, kind="stable")
        kept = np.cumsum(counts[order])
        limit = float(magnitude[order][np.searchsorted(kept, (1 - share) * kept[-1])])
        return Interval(-limit, limit)
    kept = np.cumsum(counts)
    # One-sided tensors (after a Relu) have one tail only.
    one_sided = histogram.minimum >= 0 or histogram.maximum <= 0
    tail = share if one_sided else share / 2
    low = edges[np.searchsorted(kept, tail * kept[-1])] if histogram.minimum < 0 else histogram.minimum
    high = edges[np.searchsorted(kept, (1 - tail) * kept[-1]) + 1] if histogram.maximum > 0 else histogram.maximum
    return Interval(float(low), float(high))


def _clipped(histogram: Histogram, limits: Array, symmetric: bool) -> tuple[Array, Array]:
    """Ranges -limit..limit, cut to what was observed when affine."""
    if symmetric:
        return -limits, limits
    return np.maximum(min(histogram.minimum, 0.0), -limits), np.minimum(max(histogram.maximum, 0.0), limits)


def _mse(curve: _Curve, symmetric: bool, clipping: float = 1.0) -> Interval:
    """The range with the smallest mean squared error: a geometric grid of limits, then either end alone."""
    histogram = curve.histogram
    largest = max(abs(histogram.minimum), abs(histogram.maximum))
    limits = largest * np.geomspace(1.0, 1 / 256, CANDIDATES)
    lows, highs = _clipped(histogram, limits, symmetric)
    best = int(np.argmin(curve.losses(lows, highs, clipping=clipping)))
    low, high = float(lows[best]), float(highs[best])
    if symmetric:
        fine = limits[best] * np.linspace(0.94, 1.06, 13)
        low_, high_ = _clipped(histogram, np.minimum(fine, largest), symmetric)
        best = int(np.argmin(curve.losses(low_, high_, clipping=clipping)))
        return Interval(float(low_[best]), float(high_[best]))
    shrink = np.linspace(1.0, 0.4, 31)
    if low < 0:
        lows = low * shrink
        low = float(lows[np.argmin(curve.losses(lows, np.full_like(lows, high), clipping=clipping))])
    if high > 0:
        highs = high * shrink
        high = float(highs[np.argmin(curve.losses(np.full_like(highs, low), highs, clipping=clipping))])
    return Interval(low, high)


def _entropy(curve: _Curve, symmetric: bool) -> Interval:
    """The range that loses the least information, KL(P || Q) over candidate limits.

    S. Migacz, 8-bit inference with TensorRT, GTC 2017, slides 38-42. P is |x| with what is beyond the limit added to
    its last bin, Q is P in 128 levels (256 for a one-sided affine range) spread over the bins that were not empty.
    """
    histogram = curve.histogram
    one_sided = histogram.minimum >= 0 or histogram.maximum <= 0
    largest = max(abs(histogram.minimum), abs(histogram.maximum))
    width = float(histogram.edges[1] - histogram.edges[0])
    index = np.floor(np.abs((histogram.edges[:-1] + histogram.edges[1:]) / 2) / width).astype(np.int64)
    counts = np.bincount(index, weights=histogram.counts)
    # The bin of exact zeros says nothing about the range (zero is always exact) and drowns the rest after a Relu.
    counts[0] = 0
    total = counts.sum()
    levels = LEVELS if one_sided and not symmetric else LEVELS // 2
    if total == 0 or counts.size <= 2 * levels:
        return Interval(histogram.minimum, histogram.maximum)
    stops = np.unique(np.geomspace(2 * levels, counts.size, ENTROPY_CANDIDATES).astype(np.int64))
    divergences = [_divergence(counts, int(stop), levels) for stop in stops]
    limit = min(float(stops[int(np.argmin(divergences))]) * width, largest)
    lows, highs = _clipped(histogram, np.array([limit]), symmetric)
    return Interval(float(lows[0]), float(highs[0]))


def _divergence(counts: Array, stop: int, levels: int) -> float:
    kept = counts[:stop]
    reference = kept.copy()
    reference[-1] += counts[stop:].sum()
    level = np.arange(stop) * levels // stop
    filled = kept > 0
    sums = np.bincount(level, weights=kept, minlength=levels)
    places = np.bincount(level, weights=filled, minlength=levels)
    spread = np.where(filled, sums[level] / np.maximum(places[level], 1), 0.0)
    if spread.sum() == 0:
        return float("inf")
    p, q = reference / reference.sum(), spread / spread.sum()
    some = p > 0
    # A bin that P has and Q lacks (the clipped mass on an empty last bin) costs as a tiny probability, not infinity.
    return float(np.sum(p[some] * np.log(p[some] / np.maximum(q[some], 1e-9))))


_METHODS: dict[str, Callable[[_Curve, bool], Interval]] = {
    "percentile": _percentile,
    "entropy": _entropy,
    "mse": _mse,
}
# What `auto` tries besides the whole range; `entropy` looks for something else than a small error, and costs the most.
AUTO: dict[str, Callable[[_Curve, bool], Interval]] = {
    "percentile": _percentile,
    "mse": functools.partial(_mse, clipping=CLIPPING),
}

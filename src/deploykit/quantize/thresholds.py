"""Calibration methods: from what the observers saw to the range that is quantized.

A range is clipped to 8 bits; every method works on the histogram of one tensor and is independent of the target: the
signed and the affine form of the same histogram give one range each.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from deploykit.quantize.observers import HistogramObserver

Array = np.ndarray[Any, Any]
Method = Literal["auto", "minmax", "percentile", "entropy", "mse"]
METHODS: tuple[Method, ...] = ("auto", "minmax", "percentile", "entropy", "mse")
PERCENTILE = 99.99
LEVELS = 256
CANDIDATES = 80
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

    def union(self, other: Interval) -> Interval:
        """The smallest range that holds both."""
        method = self.method if self.method == other.method else f"{self.method}+{other.method}"
        return Interval(min(self.low, other.low), max(self.high, other.high), method)


def choose_interval(histogram: HistogramObserver, method: Method, *, symmetric: bool) -> Interval:
    """The range that `method` takes for a histogram, symmetric around 0 or affine and holding 0."""
    full = _shape(Interval(histogram.minimum, histogram.maximum), symmetric=symmetric)
    if histogram.counts.sum() == 0 or method == "minmax":
        return full
    if method == "auto":
        return _auto(histogram, full, symmetric=symmetric)
    found = _METHODS[method](histogram, symmetric)
    return dataclasses.replace(_shape(found, symmetric=symmetric), method=method)


def quantization_loss(histogram: HistogramObserver, interval: Interval) -> float:
    """Mean squared error of the tensor when quantized to 256 levels over the interval, in its squared units."""
    centers, counts = histogram.centers, histogram.counts
    return float(_losses(centers, counts, np.array([interval.low]), np.array([interval.high]))[0])


def _shape(interval: Interval, *, symmetric: bool) -> Interval:
    return interval.symmetric() if symmetric else interval.with_zero()


def _auto(histogram: HistogramObserver, full: Interval, *, symmetric: bool) -> Interval:
    best, best_loss = full, quantization_loss(histogram, full) * AUTO_MARGIN
    for method in ("percentile", "entropy", "mse"):
        candidate = choose_interval(histogram, method, symmetric=symmetric)
        loss = quantization_loss(histogram, candidate)
        if loss < best_loss:
            best, best_loss = candidate, loss
    return best


def _losses(centers: Array, counts: Array, lows: Array, highs: Array) -> Array:
    """Mean squared quantization error for each range lows[i]..highs[i] (shape [candidates])."""
    low, high = lows[:, None], highs[:, None]
    scale = np.maximum((high - low) / (LEVELS - 1), np.finfo(np.float64).tiny)
    zero = np.round(-low / scale)
    level = np.clip(np.round(centers[None, :] / scale) + zero, 0, LEVELS - 1)
    error = (level - zero) * scale - centers[None, :]
    losses: Array = (error * error) @ counts / counts.sum()
    return losses


def _percentile(histogram: HistogramObserver, symmetric: bool) -> Interval:
    """Keeps the central 99.99 % of the values."""
    counts = histogram.counts
    edges = np.linspace(histogram.minimum, histogram.maximum, counts.size + 1)
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


def _clipped(histogram: HistogramObserver, limits: Array, symmetric: bool) -> tuple[Array, Array]:
    """Ranges -limit..limit, cut to what was observed when affine."""
    if symmetric:
        return -limits, limits
    return np.maximum(min(histogram.minimum, 0.0), -limits), np.minimum(max(histogram.maximum, 0.0), limits)


def _mse(histogram: HistogramObserver, symmetric: bool) -> Interval:
    """The range with the smallest mean squared error: a geometric grid of limits, then either end alone."""
    centers, counts = histogram.centers, histogram.counts
    largest = max(abs(histogram.minimum), abs(histogram.maximum))
    limits = largest * np.geomspace(1.0, 1 / 256, CANDIDATES)
    lows, highs = _clipped(histogram, limits, symmetric)
    best = int(np.argmin(_losses(centers, counts, lows, highs)))
    low, high = float(lows[best]), float(highs[best])
    if symmetric:
        fine = limits[best] * np.linspace(0.94, 1.06, 13)
        low_, high_ = _clipped(histogram, np.minimum(fine, largest), symmetric)
        best = int(np.argmin(_losses(centers, counts, low_, high_)))
        return Interval(float(low_[best]), float(high_[best]))
    shrink = np.linspace(1.0, 0.4, 31)
    lows = low * shrink
    low = float(lows[np.argmin(_losses(centers, counts, lows, np.full_like(lows, high)))])
    highs = high * shrink
    high = float(highs[np.argmin(_losses(centers, counts, np.full_like(highs, low), highs))])
    return Interval(low, high)


def _entropy(histogram: HistogramObserver, symmetric: bool) -> Interval:
    """The range that loses the least information, KL(P || Q) over candidate limits.

    S. Migacz, 8-bit inference with TensorRT, GTC 2017, slides 38-42. P is |x| with what is beyond the limit added to
    its last bin, Q is P in 128 levels (256 for a one-sided affine range) spread over the bins that were not empty.
    """
    bins = histogram.counts.size
    largest = max(abs(histogram.minimum), abs(histogram.maximum))
    magnitude = np.abs(histogram.centers)
    index = np.minimum((magnitude / largest * bins).astype(np.int64), bins - 1)
    counts = np.bincount(index, weights=histogram.counts, minlength=bins)
    # The bin of exact zeros says nothing about the range (zero is always exact) and drowns the rest after a Relu.
    counts[0] = 0
    total = counts.sum()
    if total == 0:
        return Interval(histogram.minimum, histogram.maximum)
    one_sided = histogram.minimum >= 0 or histogram.maximum <= 0
    levels = LEVELS if one_sided and not symmetric else LEVELS // 2
    stops = np.unique(np.geomspace(2 * levels, bins, CANDIDATES).astype(np.int64))
    divergences = [_divergence(counts, int(stop), levels) for stop in stops]
    limit = largest * float(stops[int(np.argmin(divergences))]) / bins
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


_METHODS: dict[str, Callable[[HistogramObserver, bool], Interval]] = {
    "percentile": _percentile,
    "entropy": _entropy,
    "mse": _mse,
}

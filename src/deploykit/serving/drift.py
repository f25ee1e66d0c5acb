"""Whether the inputs of requests still look like the data that the model was calibrated with."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.serving.pictures import Pictures

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from deploykit.artifact import TensorSpec
    from deploykit.runtime import Feeds

    Array = np.ndarray[Any, Any]

# Elements of one request's tensor that are looked at, evenly spread: enough for a mean, and too few to cost anything.
_LOOKED_AT = 4096
_FARTHEST = 1e100
# Weight of a request in the running figures: after some hundred requests the old ones are forgotten.
_WEIGHT = 0.01


@dataclasses.dataclass(frozen=True, slots=True)
class Profile:
    """The values of one input over the calibration data."""

    mean: float
    std: float
    low: float
    high: float


def profiles_of(samples: Iterable[Feeds]) -> dict[str, Profile]:
    """The profile of every numeric input over all samples, streamed: memory of one sample."""
    sums: dict[str, list[float]] = {}
    for feeds in samples:
        for name, array in feeds.items():
            values = _numbers(array)
            if values is None:
                continue
            count, total, squares, low, high = sums.get(name, [0.0, 0.0, 0.0, math.inf, -math.inf])
            sums[name] = [
                count + values.size,
                total + float(values.sum()),
                squares + float(np.square(values).sum()),
                min(low, float(values.min())),
                max(high, float(values.max())),
            ]
    found = {}
    for name, (count, total, squares, low, high) in sums.items():
        mean = total / count
        found[name] = Profile(mean, math.sqrt(max(0.0, squares / count - mean * mean)), low, high)
    return found


def profile_data(request: Any, inputs: Sequence[TensorSpec], model: Path | None) -> dict[str, Profile]:
    """The profiles of a `DataRequest` for a model's inputs. model: its ONNX file, if it is one. Raises DataError."""
    from deploykit.data import open_request

    return profiles_of(sample.feeds for sample in open_request(request, inputs, model=model))


@dataclasses.dataclass(slots=True)
class _Running:
    mean: float = 0.0
    square: float = 0.0
    outside: float = 0.0
    weight: float = 0.0

    def add(self, mean: float, square: float, outside: float) -> None:
        # While few requests are known each counts as much as another; then old ones fade.
        self.weight = self.weight * (1 - _WEIGHT) + 1
        share = 1 / self.weight
        self.mean += share * (mean - self.mean)
        self.square += share * (square - self.square)
        self.outside += share * (outside - self.outside)


@dataclasses.dataclass(frozen=True, slots=True)
class Drift:
    """Figures of one input. shift: of the mean, in standard deviations of the calibration data."""

    mean: float
    std: float
    shift: float
    outside: float


class Watch:
    """The inputs of one model's requests beside its calibration data. Use from one thread."""

    def __init__(self, profiles: Mapping[str, Profile]) -> None:
        """profiles: by input name; other inputs are not watched."""
        self._profiles = dict(profiles)
        self._running: dict[str, _Running] = {}

    def see(self, feeds: Mapping[str, Array | Pictures]) -> None:
        """A request's tensors; images are seen by what they become, which is not at hand here."""
        for name, profile in self._profiles.items():
            given = feeds.get(name)
            values = None if given is None or isinstance(given, Pictures) else _numbers(given)
            if values is None:
                continue
            outside = np.count_nonzero((values < profile.low) | (values > profile.high)) / values.size
            # Squares and sums of what double precision just holds would be infinite, and the figures NaN ever after.
            near = np.clip(values, -_FARTHEST, _FARTHEST)
            running = self._running.setdefault(name, _Running())
            running.add(float(near.mean()), float(np.square(near).mean()), float(outside))

    def figures(self) -> dict[str, Drift]:
        """What there is to say, by input name; nothing before the first request."""
        found = {}
        for name, running in self._running.items():
            profile = self._profiles[name]
            std = math.sqrt(max(0.0, running.square - running.mean * running.mean))
            # A constant input has no deviation: any other value is then infinitely far off, which no gauge should say.
            scale = profile.std or max(abs(profile.mean), 1.0)
            found[name] = Drift(running.mean, std, (running.mean - profile.mean) / scale, running.outside)
        return found


def _numbers(array: Array) -> Array | None:
    """Finite values in 64 bits, at most `_LOOKED_AT`; None where there are none."""
    if array.dtype.kind in "OUS" or not array.size:
        return None
    flat = array.reshape(-1)
    values = flat[:: max(1, flat.size // _LOOKED_AT)].astype(np.float64)
    finite = values[np.isfinite(values)]
    return finite if finite.size else None

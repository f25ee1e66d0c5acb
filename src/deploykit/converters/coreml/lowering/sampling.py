"""Where ONNX's Resize takes its samples along an axis: weights of input elements by output element (Resize-19)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Sampling:
    """The attributes of a Resize that decide where and how it samples.

    coordinates: the coordinate_transformation_mode. rounding: of nearest. cubic: the coefficient a. outside: whether
    samples outside are left out (exclude_outside).
    """

    mode: str
    coordinates: str
    rounding: str = "round_prefer_floor"
    cubic: float = -0.75
    outside: bool = False
    antialias: bool = False


def positions(how: Sampling, size: int, count: int, scale: float, roi: tuple[float, float]) -> Array:
    """Positions on an axis of `size` of `count` samples, in float64. roi: start and end of tf_crop_and_resize."""
    at = np.arange(count, dtype=np.float64)
    start, end = roi
    if how.coordinates == "align_corners":
        return at * (size - 1) / (count - 1) if count > 1 else at
    if how.coordinates == "asymmetric":
        return at / scale
    if how.coordinates == "tf_crop_and_resize":
        if count > 1:
            return start * (size - 1) + at * (end - start) * (size - 1) / (count - 1)
        return at + 0.5 * (start + end) * (size - 1)
    centred = (at + 0.5) / scale - 0.5
    if how.coordinates == "pytorch_half_pixel" and count == 1:
        return at
    if how.coordinates == "half_pixel_symmetric":
        return centred + size / 2 * (1 - count / (size * scale))
    return centred


def nearest(how: Sampling, points: Array, size: int) -> Array | None:
    """The element that each position takes; None where single precision might round to another one."""
    rules: dict[str, Callable[[Array], Array]] = {
        "round_prefer_floor": lambda x: np.ceil(x - 0.5),
        "round_prefer_ceil": lambda x: np.floor(x + 0.5),
        "floor": np.floor,
        "ceil": np.ceil,
    }
    rule = rules[how.rounding]
    # A position that is a tie in exact arithmetic, but perhaps not in an engine's: then nobody can say.
    exact = np.round(points * 4096) / 4096
    clear = np.abs(points - exact) < 1e-12
    near = [rule(np.where(clear, exact, points + shift)) for shift in (-1e-5, 0.0, 1e-5)]
    if not (np.array_equal(near[0], near[1]) and np.array_equal(near[1], near[2])):
        return None
    return np.clip(near[1], 0, size - 1).astype(np.int64)


def weights(how: Sampling, points: Array, size: int, scale: float) -> Array:
    """[count, size]: how much of each element goes into each sample, linear or cubic."""
    matrix = np.zeros((len(points), size), np.float64)
    shrink = min(scale, 1.0) if how.antialias else 1.0
    reach = 1 if how.mode == "linear" else 2
    first = int(np.floor(-reach / shrink)) + 1
    for row, point in enumerate(points):
        base = int(np.floor(point))
        share = point - base
        if share == 0:  # the pixel left of the point counts as its neighbour
            base, share = base - 1, 1.0
        steps = np.arange(first, 2 - first) if how.antialias else np.arange(1 - reach, 1 + reach)
        parts = _kernel(how, (steps - share) * shrink)
        if how.antialias:
            parts = parts / parts.sum()
        places = base + steps
        if how.outside:
            parts = np.where((places < 0) | (places >= size), 0.0, parts)
            parts = parts / parts.sum()
        np.add.at(matrix[row], np.clip(places, 0, size - 1), parts)
    return matrix


def _kernel(how: Sampling, distance: Array) -> Any:
    x = np.abs(distance)
    if how.mode == "linear":
        return np.clip(1 - x, 0, 1)
    a = how.cubic
    inner = (a + 2) * x**3 - (a + 3) * x**2 + 1
    outer = a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a
    return np.where(x <= 1, inner, np.where(x < 2, outer, 0.0))

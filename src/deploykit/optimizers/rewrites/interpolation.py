"""Which elements of an axis each element of a resized axis is made of, and with which weights (spec, Resize-19).

Coordinates are computed in float32, as runtimes do: whether 0.9999999 or 1.0 comes out decides between neighbours.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True)
class Sampling:
    """The attributes of a Resize that decide about values. mode: "nearest", "linear" or "cubic"."""

    mode: str
    coordinates: str
    nearest: str = "round_prefer_floor"
    cubic: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False


KNOWN_COORDINATES = frozenset(
    {
        "half_pixel",
        "half_pixel_symmetric",
        "pytorch_half_pixel",
        "align_corners",
        "asymmetric",
        "tf_half_pixel_for_nn",
    }
)


def positions(sampling: Sampling, size: int, result: int, scale: float, kind: type = np.float32) -> Array:
    """Where each element of the result lies on the original axis, [result], computed in this type."""
    at: Array = np.arange(result, dtype=kind)
    factor = kind(np.float32(scale))
    half = kind(0.5)
    if sampling.coordinates == "asymmetric":
        found = at / factor
    elif sampling.coordinates == "align_corners":
        found = at * kind(size - 1) / kind(max(1, result - 1))
    elif sampling.coordinates == "tf_half_pixel_for_nn":
        found = (at + half) / factor
    elif sampling.coordinates == "pytorch_half_pixel":
        found = (at + half) / factor - half if result > 1 else np.zeros(result, kind)
    else:
        offset = kind(0)
        if sampling.coordinates == "half_pixel_symmetric":
            adjustment = kind(result) / (factor * kind(size))
            offset = kind(size) / kind(2) * (kind(1) - adjustment)
        found = offset + (at + half) / factor - half
    return np.asarray(found, kind)


def is_certain(sampling: Sampling, size: int, result: int, scale: float) -> bool:
    """Whether rounding does not decide which element is the nearest: runtimes order the operations differently."""
    rough, fine = (positions(sampling, size, result, scale, kind) for kind in (np.float32, np.float64))
    border = fine if sampling.nearest in ("floor", "ceil") else fine + 0.5
    distance = np.abs(border - np.round(border))
    near = distance < 1e-5 * np.maximum(1, np.abs(fine))
    if sampling.coordinates == "half_pixel_symmetric":  # a sum that may cancel to the border, or not
        return not bool(near.any())
    # A place that is on the border in both precisions is there in all.
    return not bool((near & ((distance > 0) | (rough != fine))).any())


def indices(sampling: Sampling, size: int, result: int, scale: float, kind: type = np.float32) -> Array:
    """The nearest element for each element of the result, int64 [result]."""
    x = positions(sampling, size, result, scale, kind)
    if sampling.nearest == "floor":
        near = np.floor(x)
    elif sampling.nearest == "ceil":
        near = np.ceil(x)
    elif sampling.nearest == "round_prefer_ceil":
        near = np.floor(x + kind(0.5))
    else:
        near = np.ceil(x - kind(0.5))
    return np.clip(near, 0, size - 1).astype(np.int64)


def weights(sampling: Sampling, size: int, result: int, scale: float) -> Array:
    """What each element of the axis adds to each of the result, float64 [size, result]."""
    matrix = np.zeros((size, result))
    if sampling.mode == "nearest":
        matrix[indices(sampling, size, result, scale), np.arange(result)] = 1
        return matrix
    if sampling.antialias and scale < 1:
        return _filtered(sampling, size, result, scale)
    x = positions(sampling, size, result, scale)
    if sampling.mode == "linear":
        x = np.clip(x, 0, size - 1)
    for at, place in enumerate(x.astype(np.float64)):
        first = math.floor(place)
        for index in range(first - 1, first + 3):
            weight = _kernel(sampling, place - index)
            inside = 0 <= index < size
            if weight and (inside or not sampling.exclude_outside):
                matrix[min(max(index, 0), size - 1), at] += weight
    return matrix / matrix.sum(axis=0, keepdims=True) if sampling.exclude_outside else matrix


def _kernel(sampling: Sampling, distance: float) -> float:
    """Triangle, or the cubic of Keys 1981, equation 15, with its free parameter."""
    size, a = abs(distance), sampling.cubic
    if sampling.mode == "linear":
        return max(0.0, 1 - size)
    if size <= 1:
        return ((a + 2) * size - (a + 3)) * size * size + 1
    return ((a * size - 5 * a) * size + 8 * a) * size - 4 * a if size < 2 else 0.0


def _filtered(sampling: Sampling, size: int, result: int, scale: float) -> Array:
    """The kernel stretched to the size of a result element and normalized; what lies outside weighs on the border."""
    matrix = np.zeros((size, result))
    stretch = 1 / scale
    support = stretch * (1 if sampling.mode == "linear" else 2)
    for at in range(result):
        centre = (at + 0.5) * stretch
        for index in range(math.floor(centre - support), math.ceil(centre + support)):
            weight = _kernel(sampling, (index + 0.5 - centre) / stretch)
            if 0 <= index < size or not sampling.exclude_outside:
                matrix[min(max(index, 0), size - 1), at] += weight
    return np.asarray(matrix / matrix.sum(axis=0, keepdims=True))

"""Sampling of images at other positions."""

from __future__ import annotations

from typing import Any

import numpy as np

from deploykit.converters.coreml.simulator.table import Array, Undocumented, evaluates, flag, integers, text


def _along_axis(x: Array, points: Array, axis: int) -> Any:
    """Linear interpolation at the given positions of an axis."""
    low = np.clip(np.floor(points).astype(np.int64), 0, x.shape[axis] - 1)
    high = np.minimum(low + 1, x.shape[axis] - 1)
    shape = [1] * x.ndim
    shape[axis] = -1
    share = (points - low).reshape(shape)
    return np.take(x, low, axis=axis) * (1 - share) + np.take(x, high, axis=axis) * share


def grid_points(count: int, size: int, mode: str) -> Any:
    """Positions of `count` samples on an axis of `size`, as documented for `resize_bilinear`."""
    at = np.arange(count, dtype=np.float64)
    if mode in ("STRICT_ALIGN_CORNERS", "ALIGN_CORNERS"):
        if count == 1:
            at = np.array([0.0 if mode.startswith("STRICT") else (size - 1) / 2])
        else:
            at = at * ((size - 1) / (count - 1))
    elif mode == "UNALIGN_CORNERS":
        at = at * (size / count) + 0.5 * size / count - 0.5
    elif mode == "DEFAULT":
        at = at * ((size - size / count) / (count - 1)) if count > 1 else at * 0
    elif mode == "OFFSET_CORNERS":
        delta = max(1, size - 1) / count
        at = 0.5 * delta + at * delta
    else:
        raise Undocumented(f"sampling mode {mode!r}")
    return np.clip(at, 0, size - 1)


@evaluates("resize_bilinear")
def resize_bilinear(
    x: Array, target_size_height: Any = 1, target_size_width: Any = 1, sampling_mode: Any = "DEFAULT"
) -> Any:
    """Linear interpolation of the last two axes to the target sizes."""
    made = _along_axis(x, grid_points(int(target_size_height), x.shape[-2], text(sampling_mode)), x.ndim - 2)
    return _along_axis(made, grid_points(int(target_size_width), x.shape[-1], text(sampling_mode)), x.ndim - 1)


@evaluates("resize")
def resize(
    x: Array, shape: Any, resized_dims: Any, interpolation_mode: Any = "LINEAR", sampling_mode: Any = "DEFAULT"
) -> Any:
    """Linear interpolation of the last axes to the last sizes of a vector; 0 keeps an axis as it is."""
    if text(interpolation_mode) != "LINEAR" or int(resized_dims) != 2:
        raise Undocumented(f"resize with {text(interpolation_mode)} of {int(resized_dims)} axes: how it rounds")
    height, width = (
        size or x.shape[x.ndim - 2 + place] for place, size in enumerate(integers(shape)[len(integers(shape)) - 2 :])
    )
    return resize_bilinear(x, height, width, sampling_mode)


@evaluates("upsample_bilinear")
def upsample_bilinear(
    x: Array,
    scale_factor_height: Any = 1,
    scale_factor_width: Any = 1,
    align_corners: Any = True,
    half_pixel_centers: Any = None,
) -> Any:
    """Linear interpolation by factors, at aligned corners or at pixel centres."""
    aligned = flag(align_corners)
    if half_pixel_centers is not None and flag(half_pixel_centers) == aligned:
        raise Undocumented("upsample_bilinear with half_pixel_centers equal to align_corners")
    sizes = [
        int(np.floor(x.shape[axis] * float(factor)))
        for axis, factor in ((-2, scale_factor_height), (-1, scale_factor_width))
    ]
    return resize_bilinear(x, sizes[0], sizes[1], "STRICT_ALIGN_CORNERS" if aligned else "UNALIGN_CORNERS")


@evaluates("upsample_nearest_neighbor")
def upsample_nearest_neighbor(x: Array, scale_factor_height: Any = 1, scale_factor_width: Any = 1) -> Any:
    """Every element repeated; factors must be whole, since the documentation does not say which one others take."""
    height, width = float(scale_factor_height), float(scale_factor_width)
    if height % 1 or width % 1:
        raise Undocumented(f"upsample_nearest_neighbor by {height} and {width}")
    return np.repeat(np.repeat(x, int(height), axis=-2), int(width), axis=-1)


@evaluates("crop")
def crop(x: Array, crop_height: Any, crop_width: Any) -> Any:
    """Cuts [before, after] of height and width."""
    (top, bottom), (left, right) = (int(v) for v in crop_height), (int(v) for v in crop_width)
    return x[..., top : x.shape[-2] - bottom, left : x.shape[-1] - right]


@evaluates("resample")
def resample(
    x: Array,
    coordinates: Array,
    sampling_mode: Any,
    padding_mode: Any,
    padding_value: Any,
    coordinates_mode: Any,
    align_corners: Any,
) -> Any:
    """Bilinear samples of x [B, C, H, W] at coordinates [B, H2, W2, (x, y)]; padded with a value or with the border."""
    style, places = text(padding_mode), text(coordinates_mode)
    if text(sampling_mode) != "bilinear" or style not in ("constant", "border"):
        raise Undocumented(f"resample with {text(sampling_mode)} and {style}: how it rounds, or reflects")
    sizes = (x.shape[3], x.shape[2])
    points = []
    for place, size in enumerate(sizes):
        at = coordinates[..., place].astype(np.float64)
        if places == "normalized_zero_to_one":
            at = at * 2 - 1
        if places != "unnormalized":
            at = (at + 1) / 2 * (size - 1) if flag(align_corners) else ((at + 1) * size - 1) / 2
        points.append(np.clip(at, 0, size - 1) if style == "border" else at)
    low = [np.floor(at).astype(np.int64) for at in points]
    made = np.zeros((*x.shape[:2], *coordinates.shape[1:3]), np.float64)
    for right in (0, 1):
        for down in (0, 1):
            column, row = low[0] + right, low[1] + down
            share = np.abs(1 - right - (points[0] - low[0])) * np.abs(1 - down - (points[1] - low[1]))
            inside = (column >= 0) & (column < sizes[0]) & (row >= 0) & (row < sizes[1])
            rows, columns = np.clip(row, 0, sizes[1] - 1), np.clip(column, 0, sizes[0] - 1)
            picked = np.stack([x[batch][:, rows[batch], columns[batch]] for batch in range(x.shape[0])])
            made += np.where(inside[:, None], picked, float(padding_value)) * share[:, None]
    return made

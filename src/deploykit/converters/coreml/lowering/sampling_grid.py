"""GridSample where Core ML's `resample` does not do, or does not say: by gathers, as ONNX's reference computes it."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Var, types

from deploykit.converters.coreml.lowering.context import Refused, size_of
from deploykit.converters.coreml.lowering.shape import as_shape

_A = np.float32(-0.75)  # ONNX's cubic coefficient


def sampled(x: Var, grid: Var, mode: str, padding: str, *, aligned: bool) -> Var:
    """Samples of x [N, C, *plane] at grid [N, *out, K], positions from -1 to 1, the last axis of the plane first.

    mode: nearest, linear or cubic. padding: zeros, border or reflection. Positions are computed in float32.
    """
    plane = x.shape[2:]
    if not all(isinstance(size, (int, np.integer)) for size in plane):
        raise Refused("the plane that it samples varies", "fix the spatial size")
    sizes = [int(size) for size in plane]
    batch, channels = size_of(x, 0), size_of(x, 1)
    flat = mb.reshape(x=x, shape=as_shape([batch, channels, int(np.prod(sizes))]))
    places = mb.reshape(x=grid, shape=as_shape([batch, -1, len(sizes)]))
    if places.dtype != types.fp32:
        places = mb.cast(x=places, dtype="fp32")
    columns = [mb.squeeze(x=part, axes=[2]) for part in mb.split(x=places, num_splits=len(sizes), axis=2)][::-1]
    choices = [
        _choices(column, size, mode, padding, aligned=aligned) for column, size in zip(columns, sizes, strict=True)
    ]
    total = None
    for corner in itertools.product(*choices):
        index, share = None, None
        for (place, weight), size in zip(corner, sizes, strict=True):
            index = place if index is None else mb.add(x=mb.mul(x=index, y=np.int32(size)), y=place)
            if weight is not None:
                share = weight if share is None else mb.mul(x=share, y=weight)
        picked = mb.gather(x=flat, indices=index, axis=2, batch_dims=1)
        if share is not None:
            kind = types.builtin_to_string(x.dtype)
            share = share if kind == "fp32" else mb.cast(x=share, dtype=kind)
            picked = mb.mul(x=picked, y=mb.expand_dims(x=share, axes=[1]))
        total = picked if total is None else mb.add(x=total, y=picked)
    outside = [size_of(grid, axis) for axis in range(1, grid.rank - 1)]
    return mb.reshape(x=total, shape=as_shape([batch, channels, *outside]))


def _choices(column: Var, size: int, mode: str, padding: str, *, aligned: bool) -> list[tuple[Var, Var | None]]:
    """Of one axis the elements that a sample takes, with the weight of each; None where it takes one whole."""
    one = mb.add(x=column, y=np.float32(1))
    if aligned:
        at = mb.mul(x=mb.mul(x=one, y=np.float32(0.5)), y=np.float32(size - 1))
    else:
        at = mb.mul(x=mb.sub(x=mb.mul(x=one, y=np.float32(size)), y=np.float32(1)), y=np.float32(0.5))
    inside = functools.partial(_inside, size=size, padding=padding, aligned=aligned)
    if mode == "nearest":
        return [_element(inside(_to_even(at)), None, size, padding)]
    at = inside(at)
    low = mb.floor(x=at)
    share = mb.sub(x=at, y=low)
    if mode == "linear":
        parts = [(0, mb.sub(x=np.float32(1), y=share)), (1, share)]
    else:
        parts = [(step, _cubic(share, step)) for step in (-1, 0, 1, 2)]
    return [
        _element(inside(mb.add(x=low, y=np.float32(step))) if padding != "zeros" else mb.add(x=low, y=np.float32(step)),
                 weight, size, padding)
        for step, weight in parts
    ]  # fmt: skip


def _to_even(at: Var) -> Var:
    """The nearest integer, the even one in the middle: Core ML does not say which one its own takes."""
    up = mb.floor(x=mb.add(x=at, y=np.float32(0.5)))
    half = mb.mul(x=up, y=np.float32(0.5))
    odd = mb.not_equal(x=half, y=mb.floor(x=half))
    middle = mb.equal(x=mb.sub(x=up, y=at), y=np.float32(0.5))
    return mb.sub(x=up, y=mb.cast(x=mb.logical_and(x=odd, y=middle), dtype="fp32"))


def _inside(at: Var, *, size: int, padding: str, aligned: bool) -> Var:
    """Positions moved into the plane: to its border, or by reflection at its edges; as they are for zeros."""
    if padding == "zeros":
        return at
    if padding == "border":
        return mb.clip(x=at, alpha=np.float32(0), beta=np.float32(size - 1))
    first, reach = (0.0, size - 1.0) if aligned else (-0.5, float(size))
    if not reach:
        return mb.mul(x=at, y=np.float32(0))
    away = mb.sub(x=at, y=np.float32(first))
    turns = mb.floor(x=mb.mul(x=away, y=np.float32(0.5 / reach)))
    away = mb.sub(x=away, y=mb.mul(x=turns, y=np.float32(2 * reach)))
    back = mb.minimum(x=away, y=mb.sub(x=np.float32(2 * reach), y=away))
    return mb.add(x=back, y=np.float32(first))


def _element(at: Var, weight: Var | None, size: int, padding: str) -> tuple[Var, Var | None]:
    """The element's number within the axis, and its weight, 0 for what lies outside where that counts as 0."""
    last = np.float32(size - 1)
    within = mb.clip(x=at, alpha=np.float32(0), beta=last) if size > 1 else mb.mul(x=at, y=np.float32(0))
    if padding == "zeros":
        there = mb.cast(x=mb.equal(x=at, y=within), dtype="fp32")
        weight = there if weight is None else mb.mul(x=weight, y=there)
    return mb.cast(x=within, dtype="int32"), weight


def _cubic(share: Var, step: int) -> Any:
    """The weight of the element `step` after the one below, R. Keys 1981, as a polynomial of the distance."""
    if step in (-1, 2):
        x = mb.add(x=share, y=np.float32(1)) if step == -1 else mb.sub(x=np.float32(2), y=share)
        inner = mb.add(x=mb.mul(x=mb.sub(x=mb.mul(x=x, y=_A), y=5 * _A), y=x), y=8 * _A)
        return mb.sub(x=mb.mul(x=inner, y=x), y=4 * _A)
    x = share if step == 0 else mb.sub(x=np.float32(1), y=share)
    inner = mb.sub(x=mb.mul(x=x, y=_A + np.float32(2)), y=_A + np.float32(3))
    return mb.add(x=mb.mul(x=mb.mul(x=inner, y=x), y=x), y=np.float32(1))

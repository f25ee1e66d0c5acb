"""Weights of 4 bits in blocks: consecutive weights of a row share a scale and a zero point. Rounding without data."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from deploykit.quantize.slices import rows_of
from deploykit.quantize.weights import SMALLEST_SCALE

Array = np.ndarray[Any, Any]
BITS = 4
TOP = 2**BITS - 1
MIDDLE = 2 ** (BITS - 1)
# A range somewhat smaller than the extremes rounds the many weights inside better than it clips the few outside.
SHARES = np.linspace(0.68, 1.0, 10, endpoint=False, dtype=np.float32)


@dataclasses.dataclass(frozen=True, slots=True)
class BlockWeight:
    """A matrix [rows, columns] in 4 bits: value = (code - zero) * scale.

    codes: uint8 0 to 15, [rows, columns], columns padded to whole blocks. scale: float32 [rows, blocks].
    zero: uint8 0 to 15, [rows, blocks]; float32 where a method has them between integers.
    columns: without the padding. block: columns that share a scale.
    """

    codes: Array
    scale: Array
    zero: Array
    columns: int
    block: int

    def dequantized(self) -> Array:
        """The matrix that the integers stand for, float32 [rows, columns]."""
        rows, blocks = self.scale.shape
        levels = self.codes.reshape(rows, blocks, self.block).astype(np.float32) - self.zero[..., None]
        found: Array = (levels * self.scale[..., None]).reshape(rows, -1)[:, : self.columns]
        return found


def in_blocks(rows: Array, block: int) -> Array:
    """[rows, columns] as [rows, blocks, block], padded with zeros."""
    count = -(-rows.shape[1] // block)
    padded = np.pad(rows, ((0, 0), (0, count * block - rows.shape[1])))
    return padded.reshape(rows.shape[0], count, block)


def pack(codes: Array) -> Array:
    """Two codes a byte along the last axis, the first in the low half; an odd row ends in a half byte of 0."""
    if codes.shape[-1] % 2:
        codes = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, 1)])
    packed: Array = codes[..., ::2] | (codes[..., 1::2] << 4)
    return packed


def _grid(low: Array, high: Array) -> tuple[Array, Array]:
    width = high - low
    scale = np.where(width > 0, np.maximum(width / TOP, SMALLEST_SCALE), 1.0).astype(np.float32)
    return scale, np.clip(np.rint(-low / scale), 0, TOP).astype(np.float32)


def searched_grid(blocks: Array, importance: Array, *, symmetric: bool = False) -> tuple[Array, Array]:
    """The grid of each block with the least error sum(importance * (w - q)^2), over `SHARES` of its range: [..., 1].

    importance: like blocks, or broadcast to them, not negative. symmetric: the zero point is 8, levels are -8 to 7.
    """
    low = np.minimum(blocks.min(-1, keepdims=True), 0)
    high = np.maximum(blocks.max(-1, keepdims=True), 0)
    if symmetric:
        high = np.maximum(high, -low)
        low = high * np.float32(-MIDDLE / (TOP - MIDDLE))
    scale, zero = _grid(low, high)
    if symmetric:
        zero = np.full_like(zero, MIDDLE)  # of a block of zeros too, which has no range that says so
    least = _error(blocks, scale, zero, importance)
    for share in SHARES:
        other, moved = _grid(low * share, high * share)
        moved = zero if symmetric else moved
        error = _error(blocks, other, moved, importance)
        better = error < least
        scale, zero = np.where(better, other, scale), np.where(better, moved, zero)
        least = np.where(better, error, least)
    return scale, zero


def _error(blocks: Array, scale: Array, zero: Array, importance: Array) -> Array:
    missed = rounded(blocks, scale, zero)
    missed -= zero
    missed *= scale
    missed -= blocks
    np.square(missed, out=missed)
    missed *= importance
    found: Array = missed.sum(-1, keepdims=True)
    return found


def rounded(values: Array, scale: Array, zero: Array) -> Array:
    """Codes of values, as floats 0 to 15."""
    levels = values / scale
    levels += zero
    np.rint(levels, out=levels)
    return np.clip(levels, 0, TOP, out=levels)


def round_to_nearest(weight: Array, block: int, *, symmetric: bool = False) -> BlockWeight:
    """A matrix [rows, columns] rounded to nearest, with the range of each block that leaves the least squared error."""
    count = -(-weight.shape[1] // block)
    codes = np.empty((weight.shape[0], count * block), np.uint8)
    scales = np.empty((weight.shape[0], count), np.float32)
    zeros = np.empty((weight.shape[0], count), np.uint8)
    for rows in rows_of(weight):
        blocks = in_blocks(np.asarray(weight[rows], np.float32), block)
        scale, zero = searched_grid(blocks, np.ones((), np.float32), symmetric=symmetric)
        codes[rows] = rounded(blocks, scale, zero).reshape(blocks.shape[0], -1)
        scales[rows], zeros[rows] = scale[..., 0], zero[..., 0]
    return BlockWeight(codes, scales, zeros, weight.shape[1], block)

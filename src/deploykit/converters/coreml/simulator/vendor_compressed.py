"""Weights as coremltools.optimize stores them: look-up tables and sparse values. Our own packages have neither."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from deploykit.converters.coreml.simulator.table import Array, evaluates, integers


@evaluates("constexpr_lut_to_dense")
def constexpr_lut_to_dense(indices: Array, lut: Array, shape: Any = None, vector_axis: Any = None) -> Any:
    """The table's values at the indices; iOS16's form packs them, iOS18's has tables by block and of vectors."""
    if shape is not None:
        sizes = integers(shape)
        return lut[_unpacked(indices, lut.size.bit_length() - 1, math.prod(sizes))].reshape(sizes)
    blocks = [
        (np.arange(size) // (size // count)).reshape([-1 if axis == at else 1 for at in range(indices.ndim)])
        for axis, (size, count) in enumerate(zip(indices.shape, lut.shape, strict=False))
    ]
    vectors = lut[(*blocks, indices.astype(np.intp))]  # the indices' shape, and behind it the length of a vector
    if vectors.shape[-1] == 1:
        return vectors[..., 0]
    axis = int(vector_axis) % indices.ndim
    spread = np.moveaxis(vectors, -1, axis + 1)
    merged = [*indices.shape[:axis], indices.shape[axis] * vectors.shape[-1], *indices.shape[axis + 1 :]]
    return spread.reshape(merged)


def _unpacked(packed: Array, bits: int, count: int) -> Any:
    """Unsigned integers of so many bits from bytes, the lowest bits first."""
    single = np.unpackbits(packed.view(np.uint8), bitorder="little")[: count * bits].reshape(count, bits)
    return single.astype(np.int64) @ (1 << np.arange(bits))


@evaluates("constexpr_sparse_to_dense")
def constexpr_sparse_to_dense(nonzero_data: Array, mask: Array, shape: Any = None) -> Any:
    """The values where the mask is set, in row-major order, 0 elsewhere; iOS16's mask is packed."""
    if shape is not None:
        sizes = integers(shape)
        mask = np.unpackbits(mask.view(np.uint8), bitorder="little")[: math.prod(sizes)].reshape(sizes)
    dense = np.zeros(mask.shape, nonzero_data.dtype)
    dense[mask != 0] = nonzero_data
    return dense

"""The first value of an input that is carried from call to call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.data.dtypes import numpy_dtype

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploykit.artifact import TensorSpec


def zero_start(
    spec: TensorSpec, inputs: Sequence[TensorSpec], feeds: Mapping[str, np.ndarray[Any, Any]]
) -> np.ndarray[Any, Any]:
    """Zeros in the shape of the input; a symbol that another input has is as large as there, any other is 1."""
    sizes = {
        dim: size
        for other in inputs
        if other.name in feeds and other.shape is not None
        for dim, size in zip(other.shape, feeds[other.name].shape, strict=True)
        if isinstance(dim, str)
    }
    shape = tuple(dim if isinstance(dim, int) else sizes.get(dim, 1) for dim in spec.shape or ())
    return np.zeros(shape, numpy_dtype(spec.dtype))

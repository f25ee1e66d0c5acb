"""Blocks of an image in the batch, as coremltools' TensorFlow front-end writes dilated convolutions."""

from __future__ import annotations

from typing import Any

import numpy as np

from deploykit.converters.coreml.simulator.table import Array, evaluates, integers


@evaluates("space_to_batch")
def space_to_batch(x: Array, block_shape: Any, paddings: Any) -> Any:
    """Pads height and width with zeros; the place in a block becomes the outer part of the batch."""
    high, wide = integers(block_shape)
    (top, bottom), (left, right) = np.asarray(paddings).tolist()
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    n, c, h, w = padded.shape
    blocks = padded.reshape(n, c, h // high, high, w // wide, wide).transpose(3, 5, 0, 1, 2, 4)
    return blocks.reshape(n * high * wide, c, h // high, w // wide)


@evaluates("batch_to_space")
def batch_to_space(x: Array, block_shape: Any, crops: Any) -> Any:
    """The inverse of `space_to_batch`, its crops taken away."""
    high, wide = integers(block_shape)
    (top, bottom), (left, right) = np.asarray(crops).tolist()
    n, c, h, w = x.shape
    whole = x.reshape(high, wide, n // (high * wide), c, h, w).transpose(2, 3, 4, 0, 5, 1)
    whole = whole.reshape(n // (high * wide), c, h * high, w * wide)
    return whole[:, :, top : h * high - bottom, left : w * wide - right]

"""Matrix products and attention."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from deploykit.converters.coreml.simulator.elementwise import softmax
from deploykit.converters.coreml.simulator.table import Array, evaluates, flag, text


@evaluates("linear")
def linear(x: Array, weight: Array, bias: Array | None = None) -> Any:
    """x times the transposed weight [out, in], plus bias."""
    made = x @ weight.T
    return made if bias is None else made + bias


@evaluates("matmul")
def matmul(x: Array, y: Array, transpose_x: Any = False, transpose_y: Any = False) -> Any:
    """Matrix product over the last two axes, others broadcast."""
    left = np.swapaxes(x, -1, -2) if flag(transpose_x) and x.ndim > 1 else x
    right = np.swapaxes(y, -1, -2) if flag(transpose_y) and y.ndim > 1 else y
    return np.matmul(left, right)


@evaluates("einsum")
def einsum(values: list[Array], equation: Any) -> Any:
    """As numpy's."""
    return np.einsum(text(equation), *values)


@evaluates("scaled_dot_product_attention")
def scaled_dot_product_attention(query: Array, key: Array, value: Array, attn_mask: Array | None = None) -> Any:
    """softmax(Q K' / sqrt(E) + mask) V."""
    scores = np.matmul(query, np.swapaxes(key, -1, -2)) / math.sqrt(query.shape[-1])
    if attn_mask is not None:
        scores = scores + (np.where(attn_mask, 0, -np.inf) if attn_mask.dtype == bool else attn_mask)
    return np.matmul(softmax(scores, -1), value)

"""Normalizations."""

from __future__ import annotations

from typing import Any

import numpy as np

from deploykit.converters.coreml.simulator.table import Array, evaluates, integers, wide


def _by_channel(parameter: Array, x: Array) -> Any:
    return parameter.reshape([1, -1] + [1] * (x.ndim - 2))


@evaluates("layer_norm")
def layer_norm(
    x: Array, axes: Any = None, gamma: Array | None = None, beta: Array | None = None, epsilon: Any = 1e-5
) -> Any:
    """(x - mean) / sqrt(variance + epsilon) over the axes, then gamma and beta of those axes' sizes."""
    over = tuple(integers(axes)) if axes is not None else tuple(range(x.ndim))
    v = wide(x)
    made = (v - v.mean(over, keepdims=True)) / np.sqrt(v.var(over, keepdims=True) + float(epsilon))
    shape = [size if axis in {a % x.ndim for a in over} else 1 for axis, size in enumerate(x.shape)]
    made = made if gamma is None else made * gamma.reshape(shape)
    return made if beta is None else made + beta.reshape(shape)


@evaluates("instance_norm")
def instance_norm(x: Array, gamma: Array | None = None, beta: Array | None = None, epsilon: Any = 1e-5) -> Any:
    """Every plane of x [N, C, *spatial] by itself, then gamma and beta by channel."""
    made = layer_norm(x, list(range(2, x.ndim)), epsilon=epsilon)
    made = made if gamma is None else made * _by_channel(gamma, x)
    return made if beta is None else made + _by_channel(beta, x)


@evaluates("batch_norm")
def batch_norm(
    x: Array,
    mean: Array,
    variance: Array,
    gamma: Array | None = None,
    beta: Array | None = None,
    epsilon: Any = 1e-5,
) -> Any:
    """(x - mean) / sqrt(variance + epsilon) by channel, then gamma and beta."""
    scale = 1 / np.sqrt(wide(variance) + float(epsilon))
    made = (x - _by_channel(mean, x)) * _by_channel(scale, x)
    made = made if gamma is None else made * _by_channel(gamma, x)
    return made if beta is None else made + _by_channel(beta, x)


@evaluates("l2_norm")
def l2_norm(x: Array, epsilon: Any = 1e-6) -> Any:
    """x / sqrt(sum of squares over the last three axes + epsilon)."""
    v = wide(x)
    return v / np.sqrt(np.square(v).sum(axis=(-3, -2, -1), keepdims=True) + float(epsilon))


@evaluates("local_response_norm")
def local_response_norm(x: Array, size: Any, alpha: Any = 1e-4, beta: Any = 0.75, k: Any = 1.0) -> Any:
    """x / (k + alpha / size * sum of squares over `size` neighbouring channels) ** beta."""
    half, squares = int(size) // 2, np.square(wide(x))
    sums = [squares[:, max(c - half, 0) : c + half + 1].sum(axis=1) for c in range(x.shape[1])]
    return x / (float(k) + float(alpha) / int(size) * np.stack(sums, axis=1)) ** float(beta)

"""Reductions and what picks by size."""

from __future__ import annotations

from typing import Any

import numpy as np

from deploykit.converters.coreml.simulator.table import Array, evaluates, flag, integers, text, wide

_REDUCTIONS: dict[str, Any] = {
    "reduce_mean": np.mean,
    "reduce_sum": np.sum,
    "reduce_max": np.max,
    "reduce_min": np.min,
    "reduce_prod": np.prod,
    "reduce_l1_norm": lambda x, **k: np.sum(np.abs(x), **k),
    "reduce_l2_norm": lambda x, **k: np.sqrt(np.sum(np.square(x), **k)),
    "reduce_sum_square": lambda x, **k: np.sum(np.square(x), **k),
    "reduce_log_sum": lambda x, **k: np.log(np.sum(x, **k)),
}


def _register() -> None:
    """The table above; floats are summed in 64 bits."""

    def reducing(function: Any) -> Any:
        def reduce(x: Array, axes: Any = None, keep_dims: Any = False) -> Any:
            return function(wide(x), axis=_axes(axes), keepdims=flag(keep_dims))

        return reduce

    for name, function in _REDUCTIONS.items():
        evaluates(name)(reducing(function))


def _axes(axes: Any) -> tuple[int, ...] | None:
    return None if axes is None else tuple(integers(axes))


_register()


@evaluates("reduce_log_sum_exp")
def reduce_log_sum_exp(x: Array, axes: Any = None, keep_dims: Any = False) -> Any:
    """log(sum(exp(x))), without overflow."""
    v, over = wide(x), _axes(axes)
    peak = v.max(axis=over, keepdims=True)
    made = np.log(np.exp(v - peak).sum(axis=over, keepdims=True)) + peak
    return made if flag(keep_dims) else np.squeeze(made, axis=over)


@evaluates("reduce_argmax")
def reduce_argmax(x: Array, axis: Any = -1, keep_dims: Any = False, output_dtype: Any = "int32") -> Any:
    """The position of the largest value; the first of equal ones, which Apple does not promise."""
    return np.argmax(x, axis=int(axis), keepdims=flag(keep_dims)).astype(text(output_dtype))


@evaluates("reduce_argmin")
def reduce_argmin(x: Array, axis: Any = -1, keep_dims: Any = False, output_dtype: Any = "int32") -> Any:
    """The position of the smallest value; the first of equal ones, which Apple does not promise."""
    return np.argmin(x, axis=int(axis), keepdims=flag(keep_dims)).astype(text(output_dtype))


@evaluates("topk")
def topk(
    x: Array,
    k: Any = 1,
    axis: Any = -1,
    ascending: Any = False,
    sort: Any = True,
    return_indices: Any = True,
    output_indices_dtype: Any = "int32",
) -> Any:
    """The k largest (ascending: smallest) values in order, and their positions; lower positions first among equals."""
    at = int(axis)
    count = x.shape[at] if int(k) == -1 else int(k)
    order = np.argsort(x if flag(ascending) else -wide(x), axis=at, kind="stable")
    indices = np.take(order, range(count), axis=at)
    values = np.take_along_axis(x, indices, at)
    return (values, indices.astype(text(output_indices_dtype))) if flag(return_indices) else (values,)


@evaluates("argsort")
def argsort(x: Array, axis: Any = -1, ascending: Any = False, output_dtype: Any = "int32") -> Any:
    """Positions in the order of the values, largest first unless ascending."""
    return np.argsort(x if flag(ascending) else -wide(x), axis=int(axis), kind="stable").astype(text(output_dtype))

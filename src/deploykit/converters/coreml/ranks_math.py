"""Arithmetic on tensors of more than five dimensions: elementwise, along axes, reductions, norms, products."""

from __future__ import annotations

from typing import Any

import numpy as np

from deploykit.converters.coreml.lowering.context import OpContext, Refused, positive_axis
from deploykit.converters.coreml.ranks import MOST, Wide, grouped
from deploykit.converters.coreml.ranks_values import around, broadcast, expanded, permuted, view, views_together, wide
from deploykit.converters.coreml.ranks_views import axis_of, first, handles, tensor_of


@handles(
    "Abs",
    "Acos",
    "Acosh",
    "Add",
    "And",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "Cast",
    "Ceil",
    "Celu",
    "Clip",
    "Cos",
    "Cosh",
    "Div",
    "Dropout",
    "Elu",
    "Equal",
    "Erf",
    "Exp",
    "FastGelu",
    "Floor",
    "Gelu",
    "Greater",
    "GreaterOrEqual",
    "HardSigmoid",
    "HardSwish",
    "Identity",
    "IsInf",
    "IsNaN",
    "LeakyRelu",
    "Less",
    "LessOrEqual",
    "Log",
    "Max",
    "Mean",
    "Min",
    "Mish",
    "Mod",
    "Mul",
    "Neg",
    "Not",
    "Or",
    "PRelu",
    "Pow",
    "QuickGelu",
    "Reciprocal",
    "Relu",
    "Round",
    "Selu",
    "Shrink",
    "Sigmoid",
    "Sign",
    "Sin",
    "Sinh",
    "Softplus",
    "Softsign",
    "Sqrt",
    "Sub",
    "Sum",
    "Swish",
    "Tan",
    "Tanh",
    "ThresholdedRelu",
    "Where",
    "Xor",
)
def alike(op: OpContext) -> tuple[Wide, ...]:
    """Elementwise, with broadcasting; scalars stay as they are."""
    places = [
        place
        for place, value in enumerate(op.raw.inputs)
        if value is not None and not (value.shape is not None and len(value.shape) == 0)
    ]
    places = [place for place in places if wide(op.value(place), op.environment).rank]
    views, sizes = views_together([tensor_of(op, place) for place in places])
    inputs: list[Any] = [None if value is None else place for place, value in enumerate(op.raw.inputs)]
    for place, made in zip(places, views, strict=True):
        inputs[place] = made
    if op.used_outputs > 1:
        raise Refused("more than its first output is used", "use the first output only")
    return (Wide(first(op, inputs), sizes),)


@handles("Softmax", "LogSoftmax", "Hardmax", "LpNormalization")
def along_axis(op: OpContext) -> tuple[Wide, ...]:
    """Softmax and its kind: before opset 13 over all axes from the given one on (spec, Softmax-11)."""
    x = tensor_of(op)
    if op.op in ("Softmax", "LogSoftmax") and op.opset < 13:
        axis = axis_of(op, x.rank, 1)
        made = view(x, [list(range(axis)), list(range(axis, x.rank))])
        return (Wide(first(op, [made], axis=1), x.sizes),)
    return (Wide(first(op, [around(x, axis_of(op, x.rank, -1))], axis=1), x.sizes),)


@handles("CumSum")
def cumulative(op: OpContext) -> tuple[Wide, ...]:
    """Running sum along an axis."""
    x = tensor_of(op)
    axis = positive_axis(int(op.required_array(1, "axis").reshape(-1)[0]), x.rank)
    return (Wide(first(op, [around(x, axis), np.array(1, np.int64)]), x.sizes),)


@handles("ArgMax", "ArgMin")
def extreme(op: OpContext) -> tuple[Wide, ...]:
    """ArgMax and ArgMin."""
    x = tensor_of(op)
    axis = axis_of(op, x.rank, 0)
    kept = (1,) if op.flag("keepdims", default=True) else ()
    return (Wide(first(op, [around(x, axis)], axis=1), (*x.sizes[:axis], *kept, *x.sizes[axis + 1 :])),)


@handles(
    "ReduceMean",
    "ReduceSum",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceL1",
    "ReduceL2",
    "ReduceSumSquare",
    "ReduceLogSum",
    "ReduceLogSumExp",
)
def reduction(op: OpContext) -> tuple[Wide, ...]:
    """Kept and reduced axes as blocks; where they are more than five, the reduced ones go behind the kept ones."""
    x, given = tensor_of(op), op.integers("axes", 1)
    if op.has(1) and given is None:
        raise Refused("its axes are computed while the model runs", "deploykit simplify MODEL")
    if not given and op.flag("noop_with_empty_axes"):
        raise Refused("it reduces over no axes", "leave it out")
    gone = {positive_axis(axis, x.rank) for axis in given} if given else set(range(x.rank))
    groups = grouped([axis in gone for axis in range(x.rank)])
    moved = x
    if len(groups) > MOST:
        kept = [axis for axis in range(x.rank) if axis not in gone]
        moved = permuted(x, [*kept, *sorted(gone)])
        groups = [(False, list(range(len(kept)))), (True, list(range(len(kept), x.rank)))]
    axes = [place for place, (reduced, _) in enumerate(groups) if reduced]
    inputs: list[Any] = [view(moved, [members for _, members in groups])]
    if op.has(1) or (op.opset >= 18 and "axes" not in op.raw.attributes) or (op.opset >= 13 and op.op == "ReduceSum"):
        made = first(op, [*inputs, np.array(axes, np.int64)], keepdims=1)
    else:
        made = first(op, inputs, axes=axes, keepdims=1)
    keep = op.flag("keepdims", default=True)
    return (Wide(made, tuple(1 if axis in gone else s for axis, s in enumerate(x.sizes) if keep or axis not in gone)),)


@handles("LayerNormalization", "RMSNormalization")
def last_axes(op: OpContext) -> tuple[Wide, ...]:
    """Normalizations over all axes from one on: that part is one axis, and so are scale and bias."""
    x = tensor_of(op)
    axis = axis_of(op, x.rank, -1)
    if op.used_outputs > 1:
        raise Refused("its statistics are used", "use the first output only")
    inputs: list[Any] = [view(x, [list(range(axis)), list(range(axis, x.rank))])]
    for position in range(1, op.input_count):
        if not op.has(position):
            inputs.append(None)
            continue
        factor = expanded(tensor_of(op, position), x.sizes[axis:])
        inputs.append(view(factor, [list(range(factor.rank))]))
    return (Wide(first(op, inputs, axis=1), x.sizes),)


@handles("BatchNormalization", "InstanceNormalization", "GroupNormalization")
def channels(op: OpContext) -> tuple[Wide, ...]:
    """Normalizations by channel, the second axis: all behind it is one axis."""
    x = tensor_of(op)
    made = view(x, [[0], [1], list(range(2, x.rank))])
    return (Wide(first(op, [made, *range(1, op.input_count)]), x.sizes),)


@handles("QuantizeLinear", "DequantizeLinear")
def quantized(op: OpContext) -> tuple[Wide, ...]:
    """One scale for all, or one for each place on an axis."""
    x, scale = tensor_of(op), op.required_array(1, "scale")
    made = view(x, [list(range(x.rank))]) if scale.size == 1 else around(x, axis_of(op, x.rank, 1))
    return (Wide(first(op, [made, *range(1, op.input_count)], axis=0 if scale.size == 1 else 1), x.sizes),)


@handles("MatMul")
def matmul(op: OpContext) -> tuple[Wide, ...]:
    """All batch axes as one; a matrix without batch axes multiplies all rows at once."""
    x, y = tensor_of(op, 0), tensor_of(op, 1)
    if x.rank < 2 or y.rank < 2:
        raise Refused("it multiplies by a vector", "give the vector a second dimension")
    if y.rank == 2:
        rows = view(x, [list(range(x.rank - 1)), [x.rank - 1]])
        return (Wide(first(op, [rows, y.variable]), (*x.sizes[:-1], y.sizes[-1])),)
    batch = broadcast([x.sizes[:-2], y.sizes[:-2]])
    parts = []
    for tensor in (x, y):
        full = expanded(tensor, (*batch, *tensor.sizes[-2:]))
        parts.append(view(full, [list(range(len(batch))), [len(batch)], [len(batch) + 1]]))
    return (Wide(first(op, parts), (*batch, x.sizes[-2], y.sizes[-1])),)

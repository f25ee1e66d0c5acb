"""Where factors of the channels of a tensor can go without a node of their own: into constants of what computes it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.quantize.prepare import add_constant, constant_of, is_constant

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnx_ir as ir

Array = np.ndarray[Any, Any]
# f(s * x) = s * f(x) for every s > 0, channel by channel.
HOMOGENEOUS = frozenset(
    {"AveragePool", "GlobalAveragePool", "GlobalMaxPool", "Identity", "LeakyRelu", "MaxPool", "Relu"}
)


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """One constant that takes the factors in: input `index` of `node`, times or divided by them.

    axis: of the constant that holds the channels, for one of the full shape; None: it is broadcast, and becomes
    [channels, 1, ...] with `trailing` ones when it was a single number.
    """

    node: ir.Node
    index: int
    multiply: bool = False
    axis: int | None = None
    trailing: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Absorber:
    """Constants that together divide the channels of one tensor by factors."""

    changes: tuple[Change, ...]

    def apply(self, main: ir.Graph, factors: Array, taken: set[str]) -> None:
        """Replaces the constants by new ones; those of other nodes stay as they are. factors: [channels]."""
        for change in self.changes:
            old = change.node.inputs[change.index]
            array = constant_of(old)
            assert old is not None
            assert array is not None
            if change.axis is not None:
                shaped = factors.reshape([-1 if axis == change.axis else 1 for axis in range(array.ndim)])
            else:
                shaped = factors.reshape(-1, *[1] * change.trailing)
            made = array * shaped if change.multiply else array / shaped
            new = add_constant(main, f"{old.name}_equalised", made.astype(np.float32, copy=False), taken)
            change.node.replace_input_with(change.index, new)


def absorber_of(value: ir.Value, axis: int, rank: int, channels: int) -> Absorber | None:
    """What can divide the channels (axis `axis` of `rank`) of a tensor by factors; None: nothing."""
    changes = _changes(value, axis, rank, channels)
    return None if changes is None else Absorber(tuple(changes))


def _changes(value: ir.Value, axis: int, rank: int, channels: int) -> list[Change] | None:
    node = value.producer()
    if node is None or node.domain or len(node.outputs) != 1:
        return None
    if node.op_type in HOMOGENEOUS:
        return _of_operand(node.inputs[0], axis, rank, channels)
    find = _FIND.get(node.op_type)
    return None if find is None else find(node, axis, rank, channels)


def _of_operand(value: ir.Value | None, axis: int, rank: int, channels: int) -> list[Change] | None:
    """The changes for an operand that nothing else reads and that has all the channels."""
    if value is None or value.is_graph_output() or len(list(value.uses())) != 1 or value.shape is None:
        return None
    if len(value.shape) != rank or value.shape[axis] != channels:
        return None
    return _changes(value, axis, rank, channels)


def _constant(node: ir.Node, index: int, axis: int, rank: int, channels: int, *, multiply: bool) -> Change | None:
    """A broadcast constant, when it is a single number or has one value a channel."""
    array = constant_of(node.inputs[index])
    if array is None or array.dtype != np.float32 or array.ndim > rank:
        return None
    trailing = rank - 1 - axis
    if array.size == 1 and array.ndim <= trailing + 1:
        return Change(node, index, multiply, trailing=trailing)
    place = array.ndim - 1 - trailing
    if place >= 0 and array.shape[place] == channels and array.size == channels:
        return Change(node, index, multiply, trailing=trailing)
    return None


def _product(node: ir.Node, axis: int, rank: int, channels: int) -> list[Change] | None:
    """Mul and Div: into the constant operand, or through one of the computed ones."""
    for index in (1, 0) if node.op_type == "Mul" else (1,):
        if is_constant(node.inputs[index]):
            found = _constant(node, index, axis, rank, channels, multiply=node.op_type == "Div")
            return None if found is None else [found]
    for index in (0, 1) if node.op_type == "Mul" else (0,):
        changes = _of_operand(node.inputs[index], axis, rank, channels)
        if changes is not None:
            return changes
    return None


def _sum(node: ir.Node, axis: int, rank: int, channels: int) -> list[Change] | None:
    """Add and Sub of a constant: both sides are divided."""
    for index in (1, 0):
        if not is_constant(node.inputs[index]):
            continue
        found = _constant(node, index, axis, rank, channels, multiply=False)
        rest = _of_operand(node.inputs[1 - index], axis, rank, channels)
        return None if found is None or rest is None else [found, *rest]
    return None


def _layer(node: ir.Node, axis: int, rank: int, channels: int) -> list[Change] | None:
    """Conv, ConvTranspose, MatMul, Gemm: output channels of the weight, and the bias."""
    weight = constant_of(node.inputs[1])
    if weight is None or weight.dtype != np.float32:
        return None
    if node.op_type in {"Conv", "ConvTranspose"}:
        place = 0 if node.op_type == "Conv" else 1
        if axis != 1:
            return None
    elif axis != rank - 1 or weight.ndim != 2:
        return None
    else:
        transposed = node.op_type == "Gemm" and bool(node.attributes.get_int("transB", 0))
        place = 0 if transposed else 1
    if weight.shape[place] != channels:  # a grouped ConvTranspose, too
        return None
    changes = [Change(node, 1, axis=place)]
    if node.op_type != "MatMul" and len(node.inputs) > 2 and node.inputs[2] is not None:
        bias = constant_of(node.inputs[2])
        if bias is None or bias.size not in {1, channels} or (bias.size == channels and bias.shape[-1] != channels):
            return None
        changes.append(Change(node, 2))
    return changes


def _normalisation(node: ir.Node, axis: int, rank: int, channels: int) -> list[Change] | None:
    """LayerNormalization over the last axis, BatchNormalization over axis 1: scale and shift."""
    last = node.attributes.get_int("axis", -1)
    if node.op_type == "BatchNormalization":
        if axis != 1:
            return None
    elif axis != rank - 1 or last not in {-1, rank - 1}:
        return None
    changes = []
    for index in (1, 2):
        value = node.inputs[index] if index < len(node.inputs) else None
        if value is None:
            continue
        array = constant_of(value)
        if array is None or array.shape != (channels,) or array.dtype != np.float32:
            return None
        changes.append(Change(node, index))
    return changes or None


def _clip(node: ir.Node, axis: int, rank: int, channels: int) -> list[Change] | None:
    """Clip from 0 without an upper limit is a Relu."""
    low = constant_of(node.inputs[1]) if len(node.inputs) > 1 else None
    if low is None or float(low) != 0.0 or (len(node.inputs) > 2 and node.inputs[2] is not None):
        return None
    return _of_operand(node.inputs[0], axis, rank, channels)


_FIND: dict[str, Callable[[ir.Node, int, int, int], list[Change] | None]] = {
    "Add": _sum,
    "BatchNormalization": _normalisation,
    "Clip": _clip,
    "Conv": _layer,
    "ConvTranspose": _layer,
    "Div": _product,
    "Gemm": _layer,
    "LayerNormalization": _normalisation,
    "MatMul": _layer,
    "Mul": _product,
    "Sub": _sum,
}

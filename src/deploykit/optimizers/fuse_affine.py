"""Multiplies what is done to each channel after a convolution or matrix product into its weights."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from deploykit.optimizers.constants import Constants, cancels
from deploykit.optimizers.editing import (
    bypass,
    input_at,
    integer,
    makes,
    nodes_of,
    number,
    same_graph,
    standard_opset,
    used_once,
)
from deploykit.optimizers.manager import Pass

if TYPE_CHECKING:
    from collections.abc import Callable

    Array = np.ndarray[Any, Any]

_AFFINE = ("BatchNormalization", "Mul", "Div", "Add", "Sub")
# Broadcasting, and BatchNormalization with one statistic for each channel, are as read here from this version on.
_SINCE = 9
_FLOATS = {ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16}


@dataclasses.dataclass(frozen=True, slots=True)
class Affine:
    """y = scale * x + shift, each [1] for all channels or [channels]; data: the input of the node that is x."""

    scale: Array
    shift: Array
    data: ir.Value


class FuseAffine(Pass):
    """BatchNormalization, Mul, Div, Add and Sub with constants of each channel go into what feeds them alone.

    s * (W x + b) + t = (s W) x + (s b + t), for Conv, ConvTranspose, Gemm, MatMul (scale only) and
    BatchNormalization, whose weights are constants that nothing else reads. For BatchNormalization
    s = scale / sqrt(var + eps), t = bias - mean * s (Ioffe and Szegedy 2015, section 3.1). Computed in float64.
    """

    def run(self, model: ir.Model) -> bool:
        """Whether a node was fused."""
        if standard_opset(model) < _SINCE:
            return False
        constants = Constants(model)
        changed = False
        for node in nodes_of(model, *_AFFINE):
            for at in (0, 1) if node.op_type in ("Mul", "Add", "Sub") else (0,):
                base = makes(node.inputs[at], *_BASES)
                if base is not None and self._fuse(node, at, base, constants):
                    changed = True
                    break
        return changed

    def _fuse(self, node: ir.Node, at: int, base: ir.Node, constants: Constants) -> bool:
        value = base.outputs[0]
        if not used_once(value) or not same_graph(node, base) or len(base.outputs) > 1:
            return False
        found = _BASES[base.op_type](base, constants)
        if found is None:
            return False
        affine = _affine(node, at, found.rank, found.channels, found.axis, constants)
        return affine is not None and found.apply(affine) and bypass(node, value)


@dataclasses.dataclass(slots=True)
class _Base:
    """What takes the affine in: `channels` on axis `axis` (from the last) of a result of `rank` dimensions (0: any)."""

    node: ir.Node
    constants: Constants
    rank: int
    channels: int
    axis: int
    scaled: Callable[[Array], Array]  # the weights, their channels multiplied
    weight: int = 1
    bias: int = 2
    bias_factor: float = 1.0
    takes_shift: bool = True
    cancelled: bool = False

    def apply(self, affine: Affine) -> bool:
        """Whether the new weights are finite in their dtype, and stand in the node now."""
        node, old = self.node, self.node.inputs[self.weight]
        if old is None or old.dtype is None:
            return False
        if not self.takes_shift and affine.shift.any():
            return False
        scale = np.broadcast_to(affine.scale, (self.channels,))
        dtype = old.dtype.numpy()
        with np.errstate(all="ignore"):
            weights = self.scaled(scale).astype(dtype)
        bias = self._bias(affine, scale, dtype)
        if self.cancelled or not np.isfinite(weights).all() or (bias is not None and not np.isfinite(bias).all()):
            return False
        # Fresh constants: no other node sees them change.
        stem = old.name or "weight"
        node.replace_input_with(self.weight, self.constants.add(node, weights, stem))
        if bias is not None:
            if len(node.inputs) <= self.bias:
                node.resize_inputs(self.bias + 1)
            node.replace_input_with(self.bias, self.constants.add(node, bias, f"{stem}/bias"))
            node.attributes.pop("beta", None)
        return True

    def _bias(self, affine: Affine, scale: Array, dtype: Any) -> Array | None:
        if not self.takes_shift:
            return None
        given = input_at(self.node, self.bias)
        known = self.constants.array(given)
        if given is None and not affine.shift.any():
            return None
        before = np.zeros(1) if known is None else known.astype(np.float64).reshape(-1) * self.bias_factor
        scaled = np.broadcast_to(before * scale, (self.channels,))
        self.cancelled = cancels(scaled, affine.shift, dtype)
        shifted = scaled + affine.shift
        return np.ascontiguousarray(np.broadcast_to(shifted, (self.channels,))).astype(dtype)


def _weights(node: ir.Node, at: int, constants: Constants) -> Array | None:
    """A constant that only this node reads."""
    value = input_at(node, at)
    tensor = constants.tensor(value)
    if value is None or tensor is None or tensor.dtype not in _FLOATS or not used_once(value):
        return None
    return tensor.numpy()


def _bias_fits(node: ir.Node, at: int, channels: int, constants: Constants) -> bool:
    """No bias, or a constant one of one value or one for each channel."""
    if input_at(node, at) is None:
        return True
    tensor = constants.tensor(node.inputs[at])
    shape = None if tensor is None else list(tensor.shape.numpy())
    return shape is not None and shape in ([], [1], [channels], [1, 1], [1, channels])


def _conv(node: ir.Node, constants: Constants) -> _Base | None:
    weights = _weights(node, 1, constants)
    if weights is None or not _bias_fits(node, 2, weights.shape[0], constants):
        return None
    tail = (1,) * (weights.ndim - 1)
    return _Base(
        node,
        constants,
        weights.ndim,
        weights.shape[0],
        1 - weights.ndim,
        lambda scale: weights.astype(np.float64) * scale.reshape(-1, *tail),
    )


def _conv_transpose(node: ir.Node, constants: Constants) -> _Base | None:
    """Weights are [inputs, outputs / groups, ...], the inputs of a group after one another."""
    weights, groups = _weights(node, 1, constants), integer(node, "group", 1)
    if weights is None or not _bias_fits(node, 2, weights.shape[1] * groups, constants):
        return None

    def scaled(scale: Array) -> Array:
        split = weights.astype(np.float64).reshape(groups, -1, *weights.shape[1:])
        factor = scale.reshape(groups, 1, -1, *(1,) * (weights.ndim - 2))
        return (split * factor).reshape(weights.shape)

    return _Base(node, constants, weights.ndim, weights.shape[1] * groups, 1 - weights.ndim, scaled)


def _gemm(node: ir.Node, constants: Constants) -> _Base | None:
    weights, turned = _weights(node, 1, constants), bool(integer(node, "transB"))
    if weights is None or not _bias_fits(node, 2, weights.shape[0 if turned else 1], constants):
        return None
    channels = weights.shape[0 if turned else 1]
    return _Base(
        node,
        constants,
        2,
        channels,
        -1,
        lambda scale: weights.astype(np.float64) * (scale[:, None] if turned else scale),
        bias_factor=number(node, "beta", 1.0),
    )


def _matmul(node: ir.Node, constants: Constants) -> _Base | None:
    weights = _weights(node, 1, constants)
    if weights is None or weights.ndim != 2:
        return None
    return _Base(
        node,
        constants,
        0,
        weights.shape[1],
        -1,
        lambda scale: weights.astype(np.float64) * scale,
        takes_shift=False,
    )


def _batch_norm(node: ir.Node, constants: Constants) -> _Base | None:
    gamma = _weights(node, 1, constants)
    shape = node.inputs[0].shape if node.inputs[0] is not None else None
    if gamma is None or shape is None or _weights(node, 2, constants) is None or integer(node, "training_mode"):
        return None
    return _Base(
        node, constants, len(shape), gamma.size, 1 - len(shape), lambda scale: gamma.astype(np.float64) * scale
    )


_BASES: dict[str, Callable[[ir.Node, Constants], _Base | None]] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "BatchNormalization": _batch_norm,
}


def _affine(node: ir.Node, at: int, rank: int, channels: int, axis: int, constants: Constants) -> Affine | None:
    """What the node does to each channel of its input `at`; None when it does something else."""
    data = node.inputs[at]
    if data is None:
        return None
    if node.op_type == "BatchNormalization":
        return _normalization(node, data, channels, constants) if rank else None
    other = constants.tensor(node.inputs[1 - at])
    if other is None or other.dtype not in _FLOATS or other.size not in (1, channels):
        return None
    shape = list(other.shape.numpy())
    if len(shape) > max(rank, 1 if not rank else 0):
        return None
    if other.size != 1 and (len(shape) < -axis or shape[axis] != channels):
        return None
    values = other.numpy().astype(np.float64).reshape(-1)
    one, zero = np.ones(1), np.zeros(1)
    if node.op_type == "Mul":
        return Affine(values, zero, data)
    if node.op_type == "Div":
        return Affine(1 / values, zero, data) if values.all() else None
    if node.op_type == "Add":
        return Affine(one, values, data)
    return Affine(one, -values, data) if at == 0 else Affine(-one, values, data)


def _normalization(node: ir.Node, data: ir.Value, channels: int, constants: Constants) -> Affine | None:
    statistics = [constants.tensor(input_at(node, index)) for index in range(1, 5)]
    if integer(node, "training_mode") or len(node.outputs) > 1:  # statistics are outputs of training
        return None
    if any(tensor is None or tensor.dtype not in _FLOATS or tensor.size != channels for tensor in statistics):
        return None
    gamma, beta, mean, variance = (t.numpy().astype(np.float64) for t in statistics if t is not None)
    scale = gamma / np.sqrt(variance + number(node, "epsilon", 1e-5))
    return Affine(scale, beta - mean * scale, data)

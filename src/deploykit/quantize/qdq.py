"""Carries out a plan: QuantizeLinear/DequantizeLinear pairs, integer weights, biases."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from deploykit.quantize import weights as weighting
from deploykit.quantize.plan import activations_of
from deploykit.quantize.prepare import (
    add_constant,
    constant_of,
    drop_unused_initializers,
    is_constant,
    names_in,
    unique_name,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deploykit.quantize.plan import Plan
    from deploykit.quantize.ranges import Ranges
    from deploykit.quantize.thresholds import Interval
    from deploykit.target import QuantizationScheme

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Parameters:
    """Scale and zero point of one activation, rank 0, as they stand in the model.

    typical: a magnitude that few values exceed, in the units of the tensor.
    """

    scale: Array
    zero_point: Array
    typical: float = 0.0

    @property
    def step(self) -> float:
        """The scale as a number."""
        return float(self.scale)


def activation_parameters(interval: Interval, scheme: QuantizationScheme) -> Parameters:
    """Scale and zero point for a range: real = (integer - zero point) * scale (QuantizeLinear, ONNX specification).

    Zero is always exact. A range of width 0 gets the scale 1.
    """
    dtype = np.dtype(scheme.activation)
    limits = np.iinfo(scheme.activation)
    if scheme.symmetric_activations:
        largest = max(abs(interval.low), abs(interval.high))
        zero = 0 if limits.min < 0 else 128
        return Parameters(_scale(largest / 127), np.array(zero, dtype))
    low, high = min(interval.low, 0.0), max(interval.high, 0.0)
    scale = _scale((high - low) / (limits.max - limits.min))
    zero = int(np.clip(np.rint(limits.min - low / float(scale)), limits.min, limits.max))
    return Parameters(scale, np.array(zero, dtype))


def _scale(value: float) -> Array:
    return np.array(max(value, weighting.SMALLEST_SCALE) if value > 0 else 1.0, np.float32)


def shared_parameters(plan: Plan, ranges: Ranges, scheme: QuantizationScheme) -> dict[str, Parameters]:
    """Parameters by group of tensors that share a scale: those of the union of their ranges."""
    negative = {
        plan.group(v.name or "") for v in plan.readers if ranges.tensors[v.name or ""].interval(symmetric=False).low < 0
    }
    signed = {plan.group(name) for name in plan.signed} & negative
    around_zero = dataclasses.replace(scheme, activation="int8", symmetric_activations=True)
    intervals: dict[str, Interval] = {}
    for value in plan.readers:
        group = plan.group(value.name or "")
        symmetric = scheme.symmetric_activations or group in signed
        found = ranges.tensors[value.name or ""].interval(symmetric=symmetric)
        intervals[group] = intervals[group].union(found) if group in intervals else found
    typical: dict[str, float] = {}
    for value in plan.readers:
        group = plan.group(value.name or "")
        typical[group] = max(typical.get(group, 0.0), ranges.tensors[value.name or ""].typical)
    return {
        group: dataclasses.replace(
            activation_parameters(found, around_zero if group in signed else scheme), typical=typical[group]
        )
        for group, found in intervals.items()
    }


class Inserter:
    """Rewrites one model in place; `saturating`: nodes whose pair sums exceed int16; `reduced`: with 7-bit weights."""

    def __init__(
        self, model: ir.Model, plan: Plan, scheme: QuantizationScheme, parameters: Mapping[str, Parameters]
    ) -> None:
        """parameters: of each group of the plan, as `shared_parameters` finds them."""
        self._graph = model.graph
        self._plan = plan
        self._scheme = scheme
        self._taken = names_in(model)
        self._parameters = parameters
        self._constants: dict[tuple[str, str], ir.Value] = {}
        self._weights: dict[tuple[object, ...], ir.Value] = {}
        self._first = self._graph[0]
        self.saturating: dict[str, float] = {}
        self.reduced: list[str] = []

    def run(self) -> None:
        """Inserts everything that the plan names, in graph order."""
        operands = [(node, self._operands(node)) for node in self._plan.nodes]
        readers = sorted(self._plan.readers.items(), key=lambda item: self._position(item[0]))
        for value, places in readers:
            dequantized = self._pair(value)
            for node, index in places:
                node.replace_input_with(index, dequantized)
        for node, scales in operands:
            self._quantize_constants(node, scales)
        drop_unused_initializers(self._graph)
        self._graph.sort()

    def _position(self, value: ir.Value) -> tuple[int, str]:
        producer = value.producer()
        if not hasattr(self, "_order"):
            self._order = {node: number for number, node in enumerate(self._graph)}
        return (-1 if producer is None else self._order[producer], value.name or "")

    def parameters(self, value: ir.Value) -> Parameters:
        """Scale and zero point of a quantized tensor."""
        return self._parameters[self._plan.group(value.name or "")]

    def _operands(self, node: ir.Node) -> list[float]:
        """Steps of the node's computed inputs, before they are replaced."""
        return [self.parameters(value).step for index in activations_of(node) if (value := node.inputs[index])]

    def _pair(self, value: ir.Value) -> ir.Value:
        """The value behind a new Q/DQ pair."""
        group = self._plan.group(value.name or "")
        found = self._parameters[group]
        scale = self._constant(group, "scale", found.scale)
        zero = self._constant(group, "zero_point", found.zero_point)
        quantize = self._node("QuantizeLinear", [value, scale, zero], f"{value.name}_quantized")
        dequantize = self._node("DequantizeLinear", [quantize.outputs[0], scale, zero], f"{value.name}_dequantized")
        quantize.outputs[0].type = ir.TensorType(ir.DataType.from_numpy(found.zero_point.dtype))
        quantize.outputs[0].shape = dequantize.outputs[0].shape = value.shape
        dequantize.outputs[0].type = value.type
        producer = value.producer()
        if producer is None:
            self._graph.insert_before(self._first, [quantize, dequantize])
        else:
            self._graph.insert_after(producer, [quantize, dequantize])
        return dequantize.outputs[0]

    def _constant(self, owner: str, what: str, array: Array) -> ir.Value:
        key = (owner, what)
        if key not in self._constants:
            self._constants[key] = add_constant(self._graph, f"{owner}_{what}", array, self._taken)
        return self._constants[key]

    def _node(self, op: str, inputs: list[ir.Value], output: str, **attributes: int) -> ir.Node:
        name = unique_name(self._graph, output, self._taken)
        node = ir.node(
            op, inputs, attributes=attributes, num_outputs=1, name=unique_name(self._graph, f"{name}/{op}", self._taken)
        )
        node.outputs[0].name = name
        return node

    def _quantize_constants(self, node: ir.Node, steps: list[float]) -> None:
        """Replaces the constant operands and, where the scheme says so, the bias."""
        step = float(np.prod(steps)) if steps else 1.0
        bias = constant_of(node.inputs[2]) if node.op_type != "MatMul" and len(node.inputs) > 2 else None
        for index in range(2):
            value = node.inputs[index]
            if not is_constant(value) or value is None:
                continue
            scale, axis = self._replace_weight(node, index, value, step, bias)
            if bias is not None and self._scheme.quantize_bias and index == 1:
                self._replace_bias(node, bias, step, scale, axis)

    def _replace_weight(
        self, node: ir.Node, index: int, value: ir.Value, step: float, bias: Array | None
    ) -> tuple[Array, int | None]:
        weight = constant_of(value)
        assert weight is not None
        axis = weighting.channel_axis(node, index, weight.ndim) if self._scheme.per_channel else None
        if node.op_type == "MatMul" and weight.ndim > 2:
            axis = None  # onnxruntime 1.32 has no kernel for a stack of matrices with a scale a column
        found, share = self._quantized(node, index, weight, axis, step, bias, bits=8)
        if share > 0 and self._scheme.reduce_range:
            found, share = self._quantized(node, index, weight, axis, step, bias, bits=7)
            self.reduced.append(node.name or "")
        if share > 0:
            self.saturating[node.name or ""] = share
        scale = found.scale
        # One initializer may feed nodes that see other axes, or whose biases ask for other scales.
        key = (value.name, axis, scale.tobytes())
        if key not in self._weights:
            self._weights[key] = self._dequantized_weight(value, found)
        node.replace_input_with(index, self._weights[key])
        return scale, axis

    def _dequantized_weight(self, value: ir.Value, found: weighting.QuantizedWeight) -> ir.Value:
        scale = found.scale
        integers = add_constant(self._graph, f"{value.name}_quantized", found.values, self._taken)
        scales = add_constant(self._graph, f"{value.name}_scale", scale, self._taken)
        zeros = add_constant(self._graph, f"{value.name}_zero_point", np.zeros(scale.shape, np.int8), self._taken)
        attributes = {} if found.axis is None else {"axis": found.axis}
        dequantize = self._node(
            "DequantizeLinear", [integers, scales, zeros], f"{value.name}_dequantized", **attributes
        )
        dequantize.outputs[0].type = value.type
        dequantize.outputs[0].shape = ir.Shape(found.values.shape)
        self._graph.insert_before(self._first, [dequantize])
        return dequantize.outputs[0]

    def _replace_bias(self, node: ir.Node, bias: Array, step: float, scale: Array, axis: int | None) -> None:
        """The bias as int32 with scale input*weight, which is what integer kernels add."""
        plain = node.op_type != "Gemm" or (
            node.attributes.get_float("alpha", 1.0) == 1.0 and node.attributes.get_float("beta", 1.0) == 1.0
        )
        value = node.inputs[2]
        if value is None or not plain or not _is_per_channel(bias, scale):
            return
        repeated = np.tile(scale, bias.size // scale.size) if scale.ndim else scale
        scales = np.asarray(repeated * np.float32(step), np.float32)
        integers = add_constant(
            self._graph, f"{value.name}_quantized", weighting.quantize_bias(bias, scales), self._taken
        )
        factor = add_constant(self._graph, f"{value.name}_scale", scales, self._taken)
        zero = add_constant(self._graph, f"{value.name}_zero_point", np.zeros(scales.shape, np.int32), self._taken)
        attributes = {"axis": 0} if scales.ndim else {}
        dequantize = self._node("DequantizeLinear", [integers, factor, zero], f"{value.name}_dequantized", **attributes)
        dequantize.outputs[0].type = value.type
        dequantize.outputs[0].shape = ir.Shape(bias.shape)
        self._graph.insert_before(self._first, [dequantize])
        node.replace_input_with(2, dequantize.outputs[0])

    def _quantized(
        self, node: ir.Node, index: int, weight: Array, axis: int | None, step: float, bias: Array | None, *, bits: int
    ) -> tuple[weighting.QuantizedWeight, float]:
        """The weight in so many bits, and the share of int16 pair sums that saturate on CPUs without VNNI."""
        scale = weighting.weight_scale(weight, axis, bits=bits)
        if bias is not None and index == 1 and _is_per_channel(bias, scale):
            scale = weighting.fit_scale_to_bias(scale, step, bias)
        found = weighting.quantize_weight(weight, scale, axis, bits=bits)
        return found, self._saturating_share(node, found) if self._scheme.activation == "uint8" else 0.0

    def _saturating_share(self, node: ir.Node, weight: weighting.QuantizedWeight) -> float:
        """How many int16 pair sums a typical large activation overflows on CPUs without VNNI."""
        source = node.inputs[0]
        pair = source.producer() if source is not None else None
        while pair is not None and pair.op_type in {"DequantizeLinear", "QuantizeLinear"}:
            source = pair.inputs[0]
            pair = source.producer() if source is not None else None
        if source is None or self._plan.group(source.name or "") not in self._parameters:
            return 0.0
        found = self.parameters(source)
        typical = found.typical / found.step + float(found.zero_point)
        return weighting.saturating_share(weight.values, weight.axis, int(min(typical, 255)))


def _is_per_channel(bias: Array, scale: Array) -> bool:
    """Whether the bias has one value a channel (or a whole number of groups of them), so that it takes the scales."""
    return bias.ndim == 1 and bias.size > 0 and (scale.ndim == 0 or bias.size % scale.size == 0)

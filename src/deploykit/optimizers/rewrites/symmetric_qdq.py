"""Q/DQ pairs of uint8, or with a zero point, as int8 with zero point 0: the only form that TensorRT takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import onnx_ir as ir

from deploykit.optimizers.rewrites.cleanup import remove_unused
from deploykit.optimizers.rewrites.decomposition import in_function
from deploykit.optimizers.rewrites.emitting import Emitter, Names, known_array
from deploykit.optimizers.rewrites.fold_int32_bias import dequantized_bias, fold
from deploykit.optimizers.rewrites.quantized_groups import Group, grid_of, group_of
from deploykit.optimizers.rewrites.requantizing import Grid, is_exact, recentre, symmetric
from deploykit.optimizers.rewriting import Change, Rewrite

if TYPE_CHECKING:
    from collections.abc import Sequence

    Array = np.ndarray[Any, Any]

# Their results are never below 0, so that integers that start at 0 cut nothing off.
_NOT_NEGATIVE = frozenset(
    {"Abs", "Exp", "HardSigmoid", "Relu", "ReduceL1", "ReduceL2", "ReduceSumSquare", "Sigmoid", "Softmax"}
)
# What they give is not below 0 when their first input is not.
_KEEP_SIGN = frozenset(
    {
        *("AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool", "Flatten", "Identity", "Reshape", "Sqrt"),
        *("Squeeze", "Transpose", "Unsqueeze", "DepthToSpace", "SpaceToDepth", "Slice"),
        # Together: zero is on every grid, so that nothing is rounded across it.
        *("QuantizeLinear", "DequantizeLinear"),
    }
)
_WITH_BIAS = ("Conv", "ConvTranspose", "Gemm")


class SymmetricQdq(Rewrite):
    """Quantizes anew what is uint8 or has a zero point, with every node that shares the integers.

    Weights keep their values where int8 holds their distance to the zero point; otherwise they are rounded to a scale
    that reaches as far. Activations get the finest scale that reaches as far as the integers did. Where those integers
    begin at 0, the quantization has been the Relu, too: it stays as a Relu, unless nothing negative arrives.
    """

    name: ClassVar[str] = "symmetric-qdq"
    title: ClassVar[str] = "makes uint8 and asymmetric Q/DQ pairs int8 with zero point 0"

    def applies(self, node: ir.Node, model: ir.Model) -> bool:
        """Whether the node is part of a quantization that can be, and is not yet, symmetric."""
        return _group(node, model) is not None

    def apply(self, model: ir.Model, nodes: Sequence[ir.Node]) -> list[Change]:
        """Rewrites the whole group of each node, and the int32 biases whose scale belonged to it."""
        names = Names(model)
        done: set[int] = set()
        changes = []
        for node in nodes:
            group = None if id(node) in done or node.graph is None else _group(node, model)
            if group is None:
                continue
            done.update(id(edge) for edge in (*group.quantizers, *group.dequantizers))
            changes.append(_Requantizer(group, names, model).run())
        return changes


def _group(node: ir.Node, model: ir.Model) -> Group | None:
    """The group of a Q or DQ when it can be rewritten."""
    if node.op_type not in ("QuantizeLinear", "DequantizeLinear") or node.domain not in ("", "ai.onnx"):
        return None
    grid = grid_of(node)
    if grid is None or grid.is_symmetric or in_function(node, model):
        return None
    group = group_of(node)
    if not group.ok or group.grid is None:
        return None
    # The axis of a constant's channels is known where the DequantizeLinear reads it itself.
    direct = {id(edge.inputs[0]) for edge in group.dequantizers}
    vectors = group.grid.scale.size > 1
    if vectors and group.constants and any(id(value) not in direct for value in group.constants):
        return None
    # Constants that stand beside activations share their scale; alone they get one of their own.
    return group


class _Requantizer:
    """Carries out one group."""

    def __init__(self, group: Group, names: Names, model: ir.Model) -> None:
        assert group.grid is not None  # a group that is ok has one
        self.group, self.names, self.model = group, names, model
        self.old: Grid = group.grid
        self.removed: list[str] = []
        self.added: list[str] = []

    def run(self) -> Change:
        """Rewrites the group; returns what was done."""
        arrays = [known_array(value) for value in self.group.constants]
        constants = [(v, array) for v, array in zip(self.group.constants, arrays, strict=True) if array is not None]
        if self.group.quantizers or len(constants) != 1:
            new = symmetric(self.old)
            exact = is_exact(self.old, new)
            for value, integers in constants:
                self._replace(value, self._moved(value, integers, new))
        else:
            value, integers = constants[0]
            moved, scale, exact = recentre(integers, self.old, self._axis(value))
            new = Grid(scale, np.zeros(self.old.zero_point.shape, np.int8))
            self._replace(value, moved)
        relus = self._keep_relus(new)
        self._fold_biases()
        for edge in (*self.group.quantizers, *self.group.dequantizers):
            self._retune(edge, new)
        for value in self.group.values.values():
            value.dtype = ir.DataType.INT8
        edges = tuple(edge.name or edge.op_type for edge in (*self.group.quantizers, *self.group.dequantizers))
        how = "the same values" if exact else "a scale that reaches as far, rounded anew"
        also = f"; {relus} Relu that the integers' lower end was" if relus else ""
        text = f"{self.old.zero_point.dtype} as int8 with zero point 0 ({how}){also}: {', '.join(edges)}"
        bound = "fp32" if exact and not relus else "int8"
        return Change(tuple(self.removed), tuple(self.added), text, bound=bound)

    def _axis(self, value: ir.Value) -> int | None:
        """Of the channels of a constant; None when it has one scale."""
        if self.old.scale.size == 1:
            return None
        reader = next(edge for edge in self.group.dequantizers if edge.inputs[0] is value)
        axis = reader.attributes.get("axis")
        rank = 1 if value.shape is None else len(value.shape)
        return (1 if axis is None else axis.as_int()) % rank if rank > 1 else 0

    def _moved(self, value: ir.Value, integers: Array, new: Grid) -> Array:
        """A constant on the grid that it shares with activations."""
        shape = [1] * integers.ndim
        if (axis := self._axis(value)) is not None:
            shape[axis] = -1
        zero, old, scale = (
            part.astype(np.float64).reshape(shape if part.size > 1 else ())
            for part in (self.old.zero_point, self.old.scale, new.scale)
        )
        moved = np.rint((integers.astype(np.float64) - zero) * old / scale)
        return np.clip(moved, -128, 127).astype(np.int8)

    def _replace(self, value: ir.Value, integers: Array) -> None:
        """Other integers in the place of a constant."""
        tensor = ir.tensor(integers, name=value.name)
        producer = value.producer()
        if producer is None:
            value.const_value = tensor
        else:
            producer.attributes["value"] = ir.AttrTensor("value", tensor)
        value.type = ir.TensorType(ir.DataType.INT8)

    def _retune(self, edge: ir.Node, new: Grid) -> None:
        """Gives a Q or DQ its new scale and a zero point of zeros; what nobody reads any more goes."""
        owner = edge.graph
        assert owner is not None  # it is part of the model
        before = list(edge.inputs[1:3])
        edge.resize_inputs(3)
        for at, (array, what) in enumerate(((new.scale, "scale"), (new.zero_point, "zero_point")), start=1):
            constant = ir.Value(
                name=self.names.value(f"{edge.name}/{what}"),
                const_value=ir.tensor(array),
                type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
                shape=ir.Shape(array.shape),
            )
            owner.register_initializer(constant)
            edge.replace_input_with(at, constant)
        if edge.op_type == "QuantizeLinear" and "output_dtype" in edge.attributes:
            del edge.attributes["output_dtype"]  # the zero point says it
        self.removed += remove_unused(before)

    def _keep_relus(self, new: Grid) -> int:
        """Puts a Relu where integers from 0 up have cut off what is negative, and the new ones do not."""
        if np.any(self.old.limits[0] != 0) or np.all(new.limits[0] == 0):
            return 0
        count = 0
        for edge in self.group.quantizers:
            source = edge.inputs[0]
            if source is None or _is_not_negative(source):
                continue
            emitter = Emitter(edge, self.model)
            made = emitter.op("Relu", source)
            relu = emitter.nodes[0]
            relu.name = self.names.node(f"{edge.name}/Relu")
            relu.metadata_props.update(edge.metadata_props)
            made.name, made.type, made.shape = self.names.value(f"{relu.name}/value"), source.type, source.shape
            assert edge.graph is not None  # it is part of the model
            edge.graph.insert_before(edge, relu)
            edge.replace_input_with(0, made)
            self.added.append(relu.name)
            count += 1
        return count

    def _fold_biases(self) -> None:
        """An int32 bias has the product of two scales; the float that it means stays right whatever they become."""
        for edge in self.group.dequantizers:
            for reader, _ in list(edge.outputs[0].uses()):
                bias = reader.inputs[2] if reader.op_type in _WITH_BIAS and len(reader.inputs) > 2 else None
                producer = None if bias is None else bias.producer()
                if producer is not None and dequantized_bias(producer) is not None:
                    change = fold(producer, self.names)
                    self.removed += change.removed if change else ()


def _is_not_negative(value: ir.Value) -> bool:
    """Whether a value cannot be below 0, told from what makes it."""
    current: ir.Value | None = value
    while current is not None:
        node = current.producer()
        if node is None:
            return False
        if node.op_type in _NOT_NEGATIVE:
            return True
        if node.op_type == "Clip":
            low = known_array(node.inputs[1]) if len(node.inputs) > 1 else None
            legacy = node.attributes.get("min")
            return (low is not None and float(low.reshape(())) >= 0) or (legacy is not None and legacy.as_float() >= 0)
        if node.op_type not in _KEEP_SIGN:
            return False
        current = node.inputs[0]
    return False

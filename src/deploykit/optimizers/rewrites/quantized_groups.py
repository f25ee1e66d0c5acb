"""Finds the values that share one quantization: integers that are moved, reshaped and picked, but not computed with."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from deploykit.optimizers.rewrites.emitting import known_array
from deploykit.optimizers.rewrites.requantizing import Grid

if TYPE_CHECKING:
    import onnx_ir as ir

# Operators that give integers they were given: which of their inputs, and which of their outputs.
_ALL = None
_MOVES: dict[str, tuple[tuple[int, ...] | None, tuple[int, ...] | None]] = {
    "Concat": (_ALL, (0,)),
    "DepthToSpace": ((0,), (0,)),
    "Expand": ((0,), (0,)),
    "Flatten": ((0,), (0,)),
    "Gather": ((0,), (0,)),
    "GatherElements": ((0,), (0,)),
    "GatherND": ((0,), (0,)),
    "Identity": ((0,), (0,)),
    "MaxPool": ((0,), (0,)),
    "Reshape": ((0,), (0,)),
    "Slice": ((0,), (0,)),
    "SpaceToDepth": ((0,), (0,)),
    "Split": ((0,), _ALL),
    "Squeeze": ((0,), (0,)),
    "Tile": ((0,), (0,)),
    "Transpose": ((0,), (0,)),
    "Unsqueeze": ((0,), (0,)),
    "Where": ((1, 2), (0,)),
}
_STANDARD = ("", "ai.onnx")


@dataclasses.dataclass
class Group:
    """Values of one quantization, and the nodes that make and read them.

    quantizers, dequantizers: the QuantizeLinear and DequantizeLinear at its edges. constants: initializers in it.
    grid: what they all agree on. Not ok: something else takes part, or they disagree.
    """

    values: dict[int, ir.Value] = dataclasses.field(default_factory=dict)
    quantizers: list[ir.Node] = dataclasses.field(default_factory=list)
    dequantizers: list[ir.Node] = dataclasses.field(default_factory=list)
    constants: list[ir.Value] = dataclasses.field(default_factory=list)
    grid: Grid | None = None
    ok: bool = True

    def agree(self, grid: Grid | None) -> None:
        """Another member's scale and zero point."""
        if grid is None or (self.grid is not None and not self.grid.same(grid)):
            self.ok = False
        self.grid = self.grid or grid


def grid_of(node: ir.Node) -> Grid | None:
    """Scale and zero point of a QuantizeLinear or DequantizeLinear of 8-bit integers, when they are constant.

    A zero point that is left out is 0, and the integers uint8 unless QuantizeLinear's output_dtype or the type of
    DequantizeLinear's input says otherwise. None for blocks, and for other types.
    """
    settings = {name: attribute.value for name, attribute in node.attributes.items()}
    scale = known_array(node.inputs[1]) if len(node.inputs) > 1 else None
    if scale is None or settings.get("block_size") or scale.ndim > 1 or scale.dtype.name not in _FLOATS:
        return None
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        zero = known_array(node.inputs[2])
    else:
        zero = np.zeros(scale.shape, _integer_type(node, settings.get("output_dtype", 0)))
    if zero is None or zero.dtype not in (np.uint8, np.int8) or zero.size != scale.size:
        return None
    return Grid(scale, zero)


_FLOATS = ("float32", "float16", "bfloat16")


def _integer_type(node: ir.Node, output_dtype: int) -> np.dtype[np.generic]:
    import onnx_ir as ir

    if node.op_type == "QuantizeLinear":
        return np.dtype(ir.DataType(output_dtype).numpy()) if output_dtype else np.dtype(np.uint8)
    given = node.inputs[0]
    return np.dtype(np.uint8) if given is None or given.dtype is None else np.dtype(given.dtype.numpy())


def group_of(node: ir.Node) -> Group:
    """The group that a QuantizeLinear or DequantizeLinear stands at the edge of."""
    group = Group()
    start = node.outputs[0] if node.op_type == "QuantizeLinear" else node.inputs[0]
    pending = [] if start is None else [start]
    while pending and group.ok:
        value = pending.pop()
        if id(value) in group.values:
            continue
        group.values[id(value)] = value
        if value.is_graph_input() or value.is_graph_output():
            group.ok = False
            continue
        pending += _made_by(value, group)
        for reader, at in value.uses():
            pending += _read_by(reader, at, group)
    group.ok = group.ok and group.grid is not None and bool(group.values)
    return group


def _made_by(value: ir.Value, group: Group) -> list[ir.Value]:
    """What else belongs to it because of how a value comes about."""
    node = value.producer()
    if node is None or node.op_type == "Constant":
        if known_array(value) is None:
            group.ok = False
        group.constants.append(value)
        return []
    if node.op_type == "QuantizeLinear" and node.domain in _STANDARD:
        group.quantizers.append(node)
        group.agree(grid_of(node))
        return []
    return _neighbours(node, group, output=value.index() or 0)


def _read_by(node: ir.Node, at: int, group: Group) -> list[ir.Value]:
    if node.op_type == "DequantizeLinear" and node.domain in _STANDARD and at == 0:
        group.dequantizers.append(node)
        group.agree(grid_of(node))
        return []
    return _neighbours(node, group, given=at)


def _neighbours(node: ir.Node, group: Group, given: int | None = None, output: int | None = None) -> list[ir.Value]:
    """The integers that a node takes and gives, when it only moves them."""
    if node.op_type not in _MOVES or node.domain not in _STANDARD:
        group.ok = False
        return []
    inputs, outputs = _MOVES[node.op_type]
    takes = range(len(node.inputs)) if inputs is None else inputs
    gives = range(len(node.outputs)) if outputs is None else outputs
    if (given is not None and given not in takes) or (output is not None and output not in gives):
        group.ok = False
        return []
    taken = [node.inputs[at] for at in takes if at < len(node.inputs)]
    return [value for value in (*taken, *(node.outputs[at] for at in gives)) if value is not None]

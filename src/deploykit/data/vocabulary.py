"""Which integers a graph takes at its inputs, told by what it does with them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.graph import load

if TYPE_CHECKING:
    from collections.abc import Iterator

    import onnx_ir as ir

_MANY = 64
# Operators whose output holds values of these inputs, moved but not changed.
_MOVES: dict[str, tuple[int, ...]] = {
    "Identity": (0,),
    "Reshape": (0,),
    "Squeeze": (0,),
    "Unsqueeze": (0,),
    "Flatten": (0,),
    "Transpose": (0,),
    "Slice": (0,),
    "Split": (0,),
    "Expand": (0,),
    "Tile": (0,),
    "Pad": (0,),
    "Clip": (0,),
    "Gather": (0,),
    "GatherElements": (0,),
    "GatherND": (0,),
    "Concat": tuple(range(64)),
    "Where": (1, 2),
}
# (operator, input of the indices): input of the table that they point into.
_TABLES = {
    ("Gather", 1): 0,
    ("GatherElements", 1): 0,
    ("GatherND", 1): 0,
    ("ScatterElements", 1): 0,
    ("ScatterND", 1): 0,
    ("EmbedLayerNormalization", 0): 2,
    ("EmbedLayerNormalization", 1): 4,
}
# Sizes and counts: 1 is the value that needs least.
_SIZES = {
    ("Reshape", 1),
    ("Expand", 1),
    ("Tile", 1),
    ("ConstantOfShape", 0),
    ("TopK", 1),
    ("Range", 0),
    ("Range", 1),
    ("Range", 2),
}
_QUANTIZED = {"DequantizeLinear", "QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger"}
_NARROW = {"INT8", "UINT8", "INT16", "UINT16"}


@dataclasses.dataclass(frozen=True, slots=True)
class Values:
    """The integers that an input may have: the `choices` when there are any, else low..high, both included."""

    low: int
    high: int
    choices: tuple[int, ...] = ()

    def describe(self) -> str:
        """`0..30521`, or `one of 8000, 16000`."""
        if len(self.choices) == 1:
            return f"always {self.choices[0]}"
        return f"one of {', '.join(map(str, self.choices))}" if self.choices else f"{self.low}..{self.high}"


@dataclasses.dataclass(slots=True)
class _Uses:
    """What the graph was seen to do with the values of one input."""

    tables: list[int] = dataclasses.field(default_factory=list)
    compared_with: set[int] = dataclasses.field(default_factory=set)
    as_size: bool = False
    as_number: bool = False


def integer_values(model: Path | ir.Model, names: tuple[str, ...]) -> dict[str, Values]:
    """The values of the named integer inputs; inputs about which the graph says nothing are left out.

    An index stays below the smallest table that it points into (Gather, OneHot). A value that is compared for equality
    with constants is one of them. A size or count is 1. 8- and 16-bit integers that become numbers (a Cast to float, a
    DequantizeLinear) have their whole range.
    """
    graph = (load(model) if isinstance(model, Path) else model).graph
    found = {}
    for value in graph.inputs:
        if value.name in names:
            values = _decide(_uses_of(value), value)
            if values is not None:
                found[str(value.name)] = values
    return found


def _decide(uses: _Uses, value: Any) -> Values | None:
    if uses.tables:
        return Values(0, max(min(uses.tables) - 1, 0))
    if uses.compared_with:
        choices = sorted(uses.compared_with)
        if len(choices) > _MANY:
            return Values(choices[0], choices[-1])
        return Values(choices[0], choices[-1], tuple(choices))
    if uses.as_size:
        return Values(1, 1)
    if uses.as_number and value.dtype is not None and value.dtype.name in _NARROW:
        limits = np.iinfo(value.dtype.numpy())
        return Values(int(limits.min), int(limits.max))
    return None


def _uses_of(start: Any) -> _Uses:
    uses = _Uses()
    seen = {id(start)}
    waiting = [start]
    while waiting:
        value = waiting.pop()
        # Nodes inside If, Loop and Scan bodies that use an outer value are among its uses.
        for node, index in value.uses():
            _note_use(uses, node, index)
            for output in _carried_on(node, index):
                if id(output) not in seen:
                    seen.add(id(output))
                    waiting.append(output)
    return uses


def _carried_on(node: Any, index: int) -> Iterator[Any]:
    if node.domain not in {"", "ai.onnx"}:
        return
    if index in _MOVES.get(node.op_type, ()) or (node.op_type == "Cast" and _to_integer(node)):
        yield from node.outputs


def _to_integer(node: Any) -> bool:
    import onnx_ir

    attribute = node.attributes.get("to")
    kind = None if attribute is None else onnx_ir.DataType(attribute.as_int())
    return kind is not None and kind.name.startswith(("INT", "UINT"))


def _note_use(uses: _Uses, node: Any, index: int) -> None:
    op = node.op_type
    if (op, index) in _TABLES:
        uses.tables += _table_sizes(node, node.inputs[_TABLES[op, index]])
    elif op == "OneHot" and index == 0:
        uses.tables += _constants(node.inputs[1])
    elif op == "Equal":
        uses.compared_with.update(_constants(node.inputs[1 - index]))
    elif (op, index) in _SIZES:
        uses.as_size = True
    elif op in _QUANTIZED or (op == "Cast" and not _to_integer(node)):
        uses.as_number = True


def _table_sizes(node: Any, table: Any) -> list[int]:
    """The known sizes of the axes that the indices point along."""
    if table is None or table.shape is None:
        return []
    dims = [dim if isinstance(dim, int) else None for dim in table.shape]
    if node.op_type in {"GatherND", "ScatterND"}:
        return [dim for dim in dims if dim is not None]
    attribute = node.attributes.get("axis")
    axis = 0 if attribute is None else attribute.as_int()
    size = dims[axis] if -len(dims) <= axis < len(dims) else None
    return [] if size is None else [size]


def _constants(value: Any) -> list[int]:
    """The distinct whole numbers of an initializer or Constant node; none when it is neither."""
    import onnx_ir

    tensor = None if value is None else onnx_ir.convenience.get_const_tensor(value)
    if tensor is None or tensor.size > 1_000_000:
        return []
    array = tensor.numpy()
    return [int(number) for number in np.unique(array)] if array.dtype.kind in "iu" else []

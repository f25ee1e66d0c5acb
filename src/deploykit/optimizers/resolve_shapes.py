"""Computes shapes that are known, and writes those that are known but for one size in a form without computation."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import onnx_ir as ir

from deploykit.optimizers.constants import Constants
from deploykit.optimizers.editing import input_at, integer, integers, once_run, standard_opset
from deploykit.optimizers.manager import INFERRED_SHAPES, Pass

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# One entry of an integer tensor that holds a shape: a number, the name of a dimension, or unknown.
Entry: TypeAlias = int | str | None
Entries: TypeAlias = list[Entry]

_LONGEST = 64
_END = np.iinfo(np.int64).max


class ResolveShapes(Pass):
    """Follows sizes through Shape, Gather, Slice, Concat, Unsqueeze, Squeeze, Reshape, Cast and integer arithmetic.

    A shape of numbers becomes a constant. Reshape to a shape with one unknown size gets -1 there, sizes that are those
    of its input at the same place get 0. Expand gets 1 where its input has the size already. Bodies of loops are left
    alone: their shapes may differ from one round to the next.

    A name of a dimension counts as one size only when it stands at one place of the inputs: models give one name to
    dimensions that differ.
    """

    requires = (INFERRED_SHAPES,)

    def run(self, model: ir.Model) -> bool:
        """Whether a shape was replaced."""
        return _Resolving(model).run()


class _Resolving:
    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._constants = Constants(model)
        self._entries: dict[ir.Value, tuple[Entries, int]] = {}  # entries, and rank 0 or 1
        places = Counter(
            str(dim.value) for value in model.graph.inputs for dim in value.shape or () if not isinstance(dim, int)
        )
        self._doubtful = {name for name, count in places.items() if count > 1}
        self.opset = standard_opset(model)

    def run(self) -> bool:
        changed = False
        for node in once_run(self._model):
            rule = _RULES.get(node.op_type)
            if rule is not None and len(node.outputs) == 1:
                found = rule(self, node)
                if found is not None and _fits(found[0], node.outputs[0].dtype):
                    self._entries[node.outputs[0]] = found
        for node in once_run(self._model):
            if node.op_type in ("Reshape", "Expand") and len(node.inputs) == 2:
                changed = self._shape_input(node) or changed
        for value, (entries, rank) in self._entries.items():
            changed = self._to_constant(value, entries, rank) or changed
        return changed

    def of(self, value: ir.Value | None) -> tuple[Entries, int] | None:
        """What is known of an integer tensor of rank 0 or 1."""
        if value is None:
            return None
        if value in self._entries:
            return self._entries[value]
        known = self._constants.array(value, _LONGEST)
        if known is None or known.dtype not in (np.int64, np.int32) or known.ndim > 1:
            return None
        return [int(item) for item in known.ravel()], known.ndim

    def constants(self, value: ir.Value | None) -> list[int] | None:
        found = self.of(value)
        if found is None or not all(isinstance(entry, int) for entry in found[0]):
            return None
        return [entry for entry in found[0] if isinstance(entry, int)]

    def dims(self, value: ir.Value | None) -> Entries | None:
        """The sizes of a tensor."""
        if value is None or value.shape is None:
            return None
        return [dim if isinstance(dim, int) else self._name(dim) for dim in value.shape]

    def _name(self, dim: ir.SymbolicDim) -> str | None:
        return None if not dim.value or str(dim.value) in self._doubtful else str(dim.value)

    def _to_constant(self, value: ir.Value, entries: Entries, rank: int) -> bool:
        node, dtype = value.producer(), value.dtype
        if node is None or node.graph is None or value.is_graph_output() or not value.uses() or dtype is None:
            return False
        if not all(isinstance(entry, int) for entry in entries) or not np.issubdtype(dtype.numpy(), np.integer):
            return False
        array = np.array(entries if rank else entries[0], dtype.numpy())
        value.replace_all_uses_with(self._constants.add(node, array, value.name or "shape"))
        return True

    def _shape_input(self, node: ir.Node) -> bool:
        """Gives a Reshape or Expand a constant shape where that says the same."""
        shape = node.inputs[1]
        if shape is None or self._constants.tensor(shape) is not None:
            return False
        found, dims = self.of(shape), self.dims(node.inputs[0])
        if found is None or not found[1]:
            return False
        wanted = _reshaped(node, found[0], dims) if node.op_type == "Reshape" else _expanded(found[0], dims)
        if wanted is None:
            return False
        stem = f"{node.outputs[0].name}/shape"
        node.replace_input_with(1, self._constants.add(node, np.array(wanted, np.int64), stem))
        return True


def _fits(entries: Entries, dtype: ir.DataType | None) -> bool:
    """Whether the numbers are values of the type: beyond it integers wrap around, which is not followed here."""
    if dtype not in (ir.DataType.INT32, ir.DataType.INT64):
        return False
    limits = np.iinfo(dtype.numpy())
    return all(limits.min <= entry <= limits.max for entry in entries if isinstance(entry, int))


def _reshaped(node: ir.Node, entries: Entries, dims: Entries | None) -> list[int] | None:
    """The shape with 0 for sizes that stay where they are, and -1 for the only one that is not known."""
    if integer(node, "allowzero"):
        return None
    wanted: list[int] = []
    known = -1 in entries
    for at, entry in enumerate(entries):
        if isinstance(entry, int):
            if entry == 0 or entry < -1:
                return None
            wanted.append(entry)
        elif isinstance(entry, str) and dims is not None and at < len(dims) and dims[at] == entry:
            wanted.append(0)
        else:
            wanted.append(-1)
    if wanted.count(-1) > 1 or (-1 in wanted and 0 in wanted and not known):
        return None  # nothing follows for -1 where a size that is copied happens to be zero
    if wanted.count(0) == 1 and -1 not in wanted:
        wanted[wanted.index(0)] = -1  # the same, and what other tools read as "any batch"
    return wanted


def _expanded(entries: Entries, dims: Entries | None) -> list[int] | None:
    """The shape with 1 for sizes that the input has already at that place, counted from the last."""
    if dims is None:
        return None
    wanted: list[int] = []
    for at, entry in enumerate(entries):
        place = at - len(entries) + len(dims)
        if isinstance(entry, int):
            wanted.append(entry)
        elif isinstance(entry, str) and place >= 0 and dims[place] == entry:
            wanted.append(1)
        else:
            return None
    return wanted


def _shape(work: _Resolving, node: ir.Node) -> tuple[Entries, int] | None:
    dims = work.dims(node.inputs[0])
    if dims is None:
        return None
    end = node.attributes.get("end")
    return dims[integer(node, "start") : None if end is None else int(end.as_int())], 1


def _gather(work: _Resolving, node: ir.Node) -> tuple[Entries, int] | None:
    data, at = work.of(node.inputs[0]), work.of(node.inputs[1])
    if data is None or at is None or not data[1] or integer(node, "axis") not in (0, -1):
        return None
    picked = [data[0][i] for i in at[0] if isinstance(i, int) and -len(data[0]) <= i < len(data[0])]
    return (picked, at[1]) if len(picked) == len(at[0]) else None


def _slice(work: _Resolving, node: ir.Node) -> tuple[Entries, int] | None:
    data = work.of(node.inputs[0])
    if data is None or not data[1] or len(node.inputs) < 3:
        return None
    starts, ends = work.constants(node.inputs[1]), work.constants(node.inputs[2])
    axes = work.constants(input_at(node, 3)) if input_at(node, 3) is not None else [0]
    steps = work.constants(input_at(node, 4)) if input_at(node, 4) is not None else [1]
    if not starts or not ends or axes not in ([0], [-1]) or not steps or steps[0] < 1:
        return None
    return data[0][starts[0] : ends[0] : steps[0]], 1


def _concat(work: _Resolving, node: ir.Node) -> tuple[Entries, int] | None:
    parts = [work.of(value) for value in node.inputs]
    if not parts or any(part is None or not part[1] for part in parts):
        return None
    entries = [entry for part in parts if part is not None for entry in part[0]]
    return (entries, 1) if len(entries) <= _LONGEST else None


def _axes(work: _Resolving, node: ir.Node) -> list[int] | None:
    return integers(node, "axes") if len(node.inputs) < 2 else work.constants(node.inputs[1])


def _unsqueeze(work: _Resolving, node: ir.Node) -> tuple[Entries, int] | None:
    data = work.of(node.inputs[0])
    return (data[0], 1) if data is not None and not data[1] and _axes(work, node) in ([0], [-1]) else None


def _squeeze(work: _Resolving, node: ir.Node) -> tuple[Entries, int] | None:
    data = work.of(node.inputs[0])
    return (data[0], 0) if data is not None and data[1] and len(data[0]) == 1 else None


def _reshape(work: _Resolving, node: ir.Node) -> tuple[Entries, int] | None:
    data, shape = work.of(node.inputs[0]), work.constants(input_at(node, 1))
    if data is None or shape is None or len(shape) > 1 or (not shape and len(data[0]) != 1):
        return None
    return data[0], len(shape)


def _cast(work: _Resolving, node: ir.Node) -> tuple[Entries, int] | None:
    narrow = integer(node, "to") in (int(ir.DataType.INT64), int(ir.DataType.INT32))
    return work.of(node.inputs[0]) if narrow and _is_integer(node.inputs[0]) else None


def _is_integer(value: ir.Value | None) -> bool:
    return value is not None and value.dtype in (ir.DataType.INT64, ir.DataType.INT32)


def _same(work: _Resolving, node: ir.Node) -> tuple[Entries, int] | None:
    return work.of(node.inputs[0])


def _arithmetic(work: _Resolving, node: ir.Node) -> tuple[Entries, int] | None:
    """Numbers are computed, names stay where nothing is done to them, anything else is unknown."""
    if work.opset < 7:
        return None
    a, b = work.of(node.inputs[0]), work.of(node.inputs[1])
    if a is None or b is None or (len(a[0]) != len(b[0]) and 1 not in (len(a[0]), len(b[0]))):
        return None
    size = max(len(a[0]), len(b[0])) if a[0] and b[0] else 0
    pairs = zip(_spread(a[0], size), _spread(b[0], size), strict=True)
    return [_result(node.op_type, x, y) for x, y in pairs], max(a[1], b[1])


def _spread(entries: Sequence[Entry], size: int) -> Sequence[Entry]:
    return list(entries) * size if len(entries) == 1 else entries


def _result(operator: str, x: Entry, y: Entry) -> Entry:
    if isinstance(x, int) and isinstance(y, int):
        if operator == "Add":
            found = x + y
        elif operator == "Sub":
            found = x - y
        elif operator == "Mul":
            found = x * y
        elif y <= 0 or x < 0:
            return None
        else:
            found = x // y
        return found if abs(found) < _END else None
    neutral = 0 if operator in ("Add", "Sub") else 1
    if y == neutral and isinstance(y, int):
        return x
    return y if x == neutral and isinstance(x, int) and operator in ("Add", "Mul") else None


_RULES: dict[str, Callable[[_Resolving, ir.Node], tuple[Entries, int] | None]] = {
    "Shape": _shape,
    "Gather": _gather,
    "Slice": _slice,
    "Concat": _concat,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Reshape": _reshape,
    "Cast": _cast,
    "Identity": _same,
    "Add": _arithmetic,
    "Sub": _arithmetic,
    "Mul": _arithmetic,
    "Div": _arithmetic,
}

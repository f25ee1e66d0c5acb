"""Makes one node of two neighbours that do the same kind of thing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from deploykit.optimizers.constants import Constants
from deploykit.optimizers.editing import (
    bypass,
    input_at,
    integer,
    integers,
    makes,
    nodes_of,
    put,
    same_graph,
    standard_opset,
    used_once,
)
from deploykit.optimizers.manager import Pass

if TYPE_CHECKING:
    from collections.abc import Callable

_SHORT = 64


class MergePairs(Pass):
    """Transpose of Transpose, Cast of a lossless Cast, Concat in Concat, Relu of Relu, Slices of different axes."""

    def run(self, model: ir.Model) -> bool:
        """Whether two nodes became one."""
        constants, opset = Constants(model), standard_opset(model)
        changed = False
        for node in nodes_of(model, *_RULES):
            if node.graph is not None and node.inputs and node.inputs[0] is not None:
                since, rule = _RULES[node.op_type]
                changed = (opset >= since and rule(node, constants)) or changed
        return changed


def _transposes(node: ir.Node, constants: Constants) -> bool:
    del constants
    before = makes(node.inputs[0], "Transpose")
    if before is None or before.inputs[0] is None:
        return False
    first, second = integers(before, "perm"), integers(node, "perm")
    if first is None or second is None or len(first) != len(second):
        return False
    order = [first[axis] for axis in second]
    if order == sorted(order):
        return bypass(node, before.inputs[0])
    if not used_once(before.outputs[0]):
        return False  # it would stay, and the data would be moved twice as before
    put(node, "Transpose", [before.inputs[0]], {"perm": ir.AttrInt64s("perm", order)})
    return True


def _casts(node: ir.Node, constants: Constants) -> bool:
    """The first cast keeps every value, so that the second one may read what it reads."""
    del constants
    before = makes(node.inputs[0], "Cast")
    source = before.inputs[0] if before is not None else None
    if before is None or source is None or source.dtype is None:
        return False
    middle, to = ir.DataType(integer(before, "to")), ir.DataType(integer(node, "to"))
    if not _keeps_values(source.dtype, middle):
        return False
    if to == source.dtype:
        return bypass(node, source)
    node.replace_input_with(0, source)
    return True


def _keeps_values(source: ir.DataType, to: ir.DataType) -> bool:
    """Whether each value of one type is a value of the other."""
    if ir.DataType.STRING in (source, to) or source == to:
        return source == to
    if source in _WIDE and to in _WIDE:
        return (source, to) not in _NARROWING and to in (ir.DataType.FLOAT, ir.DataType.DOUBLE)
    if source in _WIDE or to not in _INTEGERS | {ir.DataType.FLOAT, ir.DataType.DOUBLE}:
        return False
    if source == ir.DataType.BOOL:
        return True
    return source in _INTEGERS and bool(np.can_cast(source.numpy(), to.numpy(), "safe"))


_WIDE = {ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.FLOAT, ir.DataType.DOUBLE}
_NARROWING = {(ir.DataType.DOUBLE, ir.DataType.FLOAT)}
_INTEGERS = {getattr(ir.DataType, f"{sign}INT{bits}") for sign in ("", "U") for bits in (8, 16, 32, 64)}


def _concats(node: ir.Node, constants: Constants) -> bool:
    del constants
    inputs: list[ir.Value | None] = []
    for value in node.inputs:
        inner = makes(value, "Concat")
        # The same axis by the same count: a negative one counts from another end only where ranks differ.
        same = inner is not None and integer(inner, "axis") == integer(node, "axis")
        if inner is not None and same and value is not None and used_once(value) and same_graph(node, inner):
            inputs += inner.inputs
        else:
            inputs.append(value)
    if len(inputs) == len(node.inputs):
        return False
    put(node, "Concat", inputs, {"axis": ir.AttrInt64("axis", integer(node, "axis"))})
    return True


def _relus(node: ir.Node, constants: Constants) -> bool:
    del constants
    # Of floats: the smallest integer has no absolute value.
    floats = node.outputs[0].dtype in _WIDE
    positive = makes(node.inputs[0], "Relu", "Sigmoid", "HardSigmoid", "Softmax", "Abs")
    return floats and positive is not None and bypass(node)


def _slices(node: ir.Node, constants: Constants) -> bool:
    """One Slice of both: on axes that differ neither sees what the other does."""
    before = makes(node.inputs[0], "Slice")
    if before is None or not used_once(before.outputs[0]) or not same_graph(node, before):
        return False
    parts = _slice_parts(before, constants), _slice_parts(node, constants)
    if parts[0] is None or parts[1] is None:
        return False
    axes = [axis for part in parts if part is not None for axis in part[2]]
    if min(axes) < 0 or len(set(axes)) < len(axes):
        return False
    merged = [[*first, *second] for first, second in zip(parts[0], parts[1], strict=True)]
    stem = node.outputs[0].name
    names = ("starts", "ends", "axes", "steps")
    stored = [
        constants.add(node, np.array(values, np.int64), f"{stem}/{name}")
        for name, values in zip(names, merged, strict=True)
    ]
    put(node, "Slice", [before.inputs[0], *stored])
    return True


def _slice_parts(node: ir.Node, constants: Constants) -> tuple[list[int], ...] | None:
    given = [constants.integers(input_at(node, at), _SHORT) for at in (1, 2, 3, 4)]
    starts, ends, axes, steps = given
    if starts is None or ends is None or (axes is None and input_at(node, 3) is not None):
        return None
    if steps is None and input_at(node, 4) is not None:
        return None
    return starts, ends, axes or list(range(len(starts))), steps or [1] * len(starts)


_RULES: dict[str, tuple[int, Callable[[ir.Node, Constants], bool]]] = {
    "Transpose": (1, _transposes),
    "Cast": (6, _casts),
    "Concat": (4, _concats),
    "Relu": (6, _relus),
    "Slice": (10, _slices),
}

"""Makes one node of several that only give a tensor another shape."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from deploykit.optimizers.constants import Constants
from deploykit.optimizers.editing import (
    bypass,
    input_at,
    integer,
    integers,
    makes,
    once_run,
    put,
    rank_of,
    standard_opset,
)
from deploykit.optimizers.manager import INFERRED_SHAPES, Pass

_SHAPING = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
_SHORT = 64
_AXES_ARE_INPUTS = 13


class MergeReshapes(Pass):
    """A Reshape reads what the Reshape, Flatten, Squeeze or Unsqueeze before it reads; Squeeze undoes Unsqueeze.

    Only where the last shape does not refer to the sizes before it (0 is "as it was"), or those are known.
    """

    requires = (INFERRED_SHAPES,)

    def run(self, model: ir.Model) -> bool:
        """Whether a node was merged."""
        constants, opset = Constants(model), standard_opset(model)
        changed = False
        for node in once_run(model, *_SHAPING):
            before = makes(node.inputs[0], *_SHAPING)
            if before is None or before.inputs[0] is None or node.graph is None:
                continue
            if node.op_type == "Reshape":
                changed = _reshape(node, before, constants, opset) or changed
            elif node.op_type == "Squeeze" and before.op_type == "Unsqueeze":
                changed = _undo(node, before, constants) or changed
            elif node.op_type == before.op_type == "Unsqueeze":
                changed = _unsqueeze_twice(node, before, constants, opset) or changed
        return changed


def _reshape(node: ir.Node, before: ir.Node, constants: Constants, opset: int) -> bool:
    shape = constants.integers(input_at(node, 1), _SHORT)
    if opset < 5 or shape is None or integer(node, "allowzero"):
        return False
    output = node.outputs[0].shape
    if 0 in shape:
        if output is None or len(output) != len(shape):
            return False
        sizes = [dim if size == 0 and isinstance(dim, int) else size for size, dim in zip(shape, output, strict=True)]
        if sizes.count(0) == 1 and -1 not in sizes and all(isinstance(size, int) for size in sizes):
            sizes[sizes.index(0)] = -1
        if 0 in sizes:
            return False
        shape = sizes
        node.replace_input_with(1, constants.add(node, np.array(shape, np.int64), f"{node.outputs[0].name}/shape"))
    node.replace_input_with(0, before.inputs[0])
    return True


def _axes(node: ir.Node, constants: Constants, rank: int | None) -> list[int] | None:
    """Axes counted from the first, of a tensor with `rank` dimensions."""
    axes = constants.integers(node.inputs[1], _SHORT) if input_at(node, 1) is not None else integers(node, "axes")
    if axes is None or (rank is None and min(axes, default=0) < 0):
        return None
    return sorted(axis + rank if axis < 0 and rank is not None else axis for axis in axes)


def _undo(node: ir.Node, before: ir.Node, constants: Constants) -> bool:
    rank = rank_of(before.inputs[0])
    added = _axes(before, constants, None)
    if added is None and rank is not None:
        width = _count(before, constants)
        added = None if width is None else _axes(before, constants, rank + width)
    if added is None:
        return False
    removed = _axes(node, constants, None if rank is None else rank + len(added))
    return removed == added and bypass(node, before.inputs[0])


def _count(node: ir.Node, constants: Constants) -> int | None:
    axes = constants.integers(node.inputs[1], _SHORT) if input_at(node, 1) is not None else integers(node, "axes")
    return None if axes is None else len(axes)


def _unsqueeze_twice(node: ir.Node, before: ir.Node, constants: Constants, opset: int) -> bool:
    """The axes of the second one count with those of the first one there."""
    first, second = _axes(before, constants, None), _axes(node, constants, None)
    if first is None or second is None:
        return False
    axes = set(second)
    for axis in first:
        place = seen = 0
        while place in second or seen < axis:
            seen += place not in second
            place += 1
        axes.add(place)
    wanted = sorted(axes)
    if len(wanted) != len(first) + len(second):
        return False
    source = before.inputs[0]
    if opset >= _AXES_ARE_INPUTS:
        stored = constants.add(node, np.array(wanted, np.int64), f"{node.outputs[0].name}/axes")
        put(node, "Unsqueeze", [source, stored])
    else:
        put(node, "Unsqueeze", [source], {"axes": ir.AttrInt64s("axes", wanted)})
    return True

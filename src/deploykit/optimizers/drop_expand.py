"""Leaves an Expand out where the operator after it broadcasts by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deploykit.optimizers.editing import makes, once_run, standard_opset, static_shape
from deploykit.optimizers.manager import INFERRED_SHAPES, Pass

if TYPE_CHECKING:
    import onnx_ir as ir

_BROADCASTING = (
    *("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Less", "Greater"),
    *("LessOrEqual", "GreaterOrEqual"),
)
_SINCE = 8


class DropExpand(Pass):
    """op(Expand(x, Shape(y)), y) is op(x, y), and so where the sizes are known and y has them all.

    An Expand that makes the result larger than the other operand stays.
    """

    requires = (INFERRED_SHAPES,)

    def run(self, model: ir.Model) -> bool:
        """Whether an Expand was left out."""
        if standard_opset(model) < _SINCE:
            return False
        changed = False
        for node in once_run(model, *_BROADCASTING):
            for at in (0, 1):
                expand = makes(node.inputs[at], "Expand")
                if expand is not None and _is_implied(expand, node.inputs[1 - at]):
                    node.replace_input_with(at, expand.inputs[0])
                    changed = True
        return changed


def _is_implied(expand: ir.Node, other: ir.Value | None) -> bool:
    source, shape = expand.inputs[0], makes(expand.inputs[1], "Shape")
    if other is None or source is None:
        return False
    if shape is not None and shape.inputs[0] is other and not shape.attributes:
        return True
    sizes, wanted, given = static_shape(source), static_shape(expand.outputs[0]), static_shape(other)
    if sizes is None or wanted is None or given is None:
        return False
    width = max(len(sizes), len(given))
    if len(wanted) > width:
        return False
    before, beside, after = ((1,) * (width - len(dims)) + dims for dims in (sizes, given, wanted))
    return all(size in (a, b) or size == 1 for a, b, size in zip(before, beside, after, strict=True))

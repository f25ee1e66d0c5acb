"""Removes arithmetic with the neutral element: x * 1, x / 1, x + 0, x - 0, x to the power of 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deploykit.optimizers.constants import Constants
from deploykit.optimizers.editing import bypass, once_run, standard_opset
from deploykit.optimizers.manager import INFERRED_SHAPES, Pass

if TYPE_CHECKING:
    import onnx_ir as ir

# The neutral element, and the inputs where it is one.
_NEUTRAL = {"Mul": (1, (1, 0)), "Div": (1, (1,)), "Add": (0, (1, 0)), "Sub": (0, (1,)), "Pow": (1, (1,))}
_LARGEST = 1 << 16
_BROADCASTING_OPSET = 7


class RemoveNeutral(Pass):
    """Removes a node whose one input is neutral and does not broadcast the other to another shape.

    x + 0 makes 0.0 of -0.0, which are equal. The neutral element has the dtype of the other input by the standard
    (but for Pow, where the base decides).
    """

    requires = (INFERRED_SHAPES,)

    def run(self, model: ir.Model) -> bool:
        """Whether a node was removed."""
        if standard_opset(model) < _BROADCASTING_OPSET:
            return False
        constants = Constants(model)
        changed = False
        for node in once_run(model, *_NEUTRAL):
            element, places = _NEUTRAL[node.op_type]
            for at in places:
                data, other = node.inputs[1 - at], constants.tensor(node.inputs[at])
                if data is None or other is None or other.size > _LARGEST or not other.size:
                    continue
                if _keeps_shape(data, list(other.shape.numpy())) and bool((other.numpy() == element).all()):
                    changed = bypass(node, data) or changed
                    break
        return changed


def _keeps_shape(data: ir.Value, shape: list[int]) -> bool:
    if not shape:
        return True
    if data.shape is None or len(shape) > len(data.shape):
        return False
    dims = list(data.shape)[len(data.shape) - len(shape) :]
    return all(size == 1 or (isinstance(dim, int) and size == dim) for size, dim in zip(shape, dims, strict=True))

"""Leaves out the initial state of a recurrent node where it is zeros, which is what the standard takes then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deploykit.optimizers.constants import Constants
from deploykit.optimizers.editing import input_at, makes, nodes_of
from deploykit.optimizers.manager import Pass

if TYPE_CHECKING:
    import onnx_ir as ir

_STATES = {"RNN": (5,), "GRU": (5,), "LSTM": (5, 6)}
_LARGEST = 1 << 16
_SHAPING = ("Unsqueeze", "Squeeze", "Reshape", "Expand", "Transpose", "Identity", "Slice")


class DropZeroState(Pass):
    """Removes initial_h and initial_c of RNN, GRU and LSTM when they are zeros of whatever size.

    "If not specified - assumed to be 0" (ONNX, LSTM-22); exporters compute a zero tensor for every batch size.
    """

    def run(self, model: ir.Model) -> bool:
        """Whether an input was left out."""
        constants = Constants(model)
        changed = False
        for node in nodes_of(model, *_STATES):
            for at in _STATES[node.op_type]:
                if _is_zero(input_at(node, at), constants):
                    node.replace_input_with(at, None)
                    changed = True
        return changed


def _is_zero(value: ir.Value | None, constants: Constants) -> bool:
    if value is None:
        return False
    # Through nodes that only give zeros another shape.
    while (through := makes(value, *_SHAPING)) is not None:
        value = through.inputs[0]
    made = makes(value, "ConstantOfShape")
    if made is not None:
        fill = made.attributes.get("value")
        return fill is None or (not fill.is_ref() and not fill.as_tensor().numpy().any())
    known = constants.array(value, _LARGEST)
    return known is not None and known.dtype.kind == "f" and not known.any()

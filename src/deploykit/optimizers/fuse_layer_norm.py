"""Layer normalization that an exporter wrote in parts, as the one operator that the standard has for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from deploykit.optimizers.constants import Constants
from deploykit.optimizers.editing import input_at, integer, integers, makes, once_run, put, rank_of, standard_opset
from deploykit.optimizers.manager import INFERRED_SHAPES, Pass

if TYPE_CHECKING:
    from collections.abc import Sequence

_SINCE = 17
# The operator's epsilon is a float, and its statistics are floats by default: too little for doubles.
_FLOATS = {ir.DataType.FLOAT}


class FuseLayerNorm(Pass):
    """(x - mean) / sqrt(variance + eps) * scale + bias over the last axis becomes LayerNormalization.

    As PyTorch's and TensorFlow's exporters write it (Ba, Kiros and Hinton 2016, equation 3), where nothing else reads
    the values in between.
    """

    requires = (INFERRED_SHAPES,)

    def run(self, model: ir.Model) -> bool:
        """Whether a normalization was fused."""
        if standard_opset(model) < _SINCE:
            return False
        constants = Constants(model)
        changed = False
        for node in once_run(model, "Add"):
            changed = (node.graph is not None and _fuse(node, constants)) or changed
        return changed


def _fuse(last: ir.Node, constants: Constants) -> bool:
    bias, scaled = _constant_and(last, "Mul", constants)
    scale, divided = _constant_and(scaled, "Div", constants) if scaled is not None else (None, None)
    if bias is None or scale is None or scaled is None or divided is None:
        return False
    centred, root = makes(divided.inputs[0], "Sub"), makes(divided.inputs[1], "Sqrt")
    if centred is None or root is None:
        return False
    source, mean = centred.inputs[0], makes(centred.inputs[1], "ReduceMean")
    shifted = makes(root.inputs[0], "Add")
    if source is None or source.dtype not in _FLOATS or mean is None or shifted is None:
        return False
    epsilon, variance = _epsilon(shifted, constants)
    square = makes(variance.inputs[0], "Pow", "Mul") if variance is not None else None
    if epsilon is None or variance is None or square is None or mean.inputs[0] is not source:
        return False
    if not _is_square_of(square, centred.outputs[0], constants):
        return False
    rank = rank_of(source)
    if rank is None or any(_axes(found, constants) not in ([-1], [rank - 1]) for found in (mean, variance)):
        return False
    inside = (scaled, divided, centred, root, mean, shifted, variance, square)
    if not _alone(inside, last) or not _fits(source, scale, bias, constants):
        return False
    attributes = {"axis": ir.AttrInt64("axis", -1), "epsilon": ir.AttrFloat32("epsilon", epsilon)}
    put(last, "LayerNormalization", [source, scale, bias], attributes)
    return True


def _constant_and(node: ir.Node, kind: str, constants: Constants) -> tuple[ir.Value | None, ir.Node | None]:
    """The constant input of a node and what makes the other one, when that is of this kind."""
    for at in (0, 1):
        other = makes(node.inputs[1 - at], kind)
        if other is not None and constants.tensor(node.inputs[at]) is not None:
            return node.inputs[at], other
    return None, None


def _epsilon(node: ir.Node, constants: Constants) -> tuple[float | None, ir.Node | None]:
    value, variance = _constant_and(node, "ReduceMean", constants)
    known = constants.array(value, 1)
    return (float(known.item()), variance) if known is not None and known.size == 1 else (None, None)


def _is_square_of(node: ir.Node, value: ir.Value, constants: Constants) -> bool:
    if node.op_type == "Mul":
        return node.inputs[0] is value and node.inputs[1] is value
    exponent = constants.array(node.inputs[1], 1)
    return node.inputs[0] is value and exponent is not None and bool(np.all(exponent == 2))


def _axes(node: ir.Node, constants: Constants) -> list[int] | None:
    if not integer(node, "keepdims", 1):
        return None
    return constants.integers(node.inputs[1]) if input_at(node, 1) is not None else integers(node, "axes")


def _alone(inside: Sequence[ir.Node], last: ir.Node) -> bool:
    """Whether these nodes, all in one graph, read one another and are read by nothing else."""
    known = {id(node) for node in (*inside, last)}
    return all(
        node.graph is last.graph
        and not node.outputs[0].is_graph_output()
        and all(id(use.node) in known for use in node.outputs[0].uses())
        for node in inside
    )


def _fits(source: ir.Value, scale: ir.Value, bias: ir.Value, constants: Constants) -> bool:
    """Scale and bias have one value for each element of the last axis, whose size is known."""
    width = source.shape[-1] if source.shape is not None else None
    tensors = [constants.tensor(value) for value in (scale, bias)]
    return isinstance(width, int) and all(
        tensor is not None and tensor.dtype == source.dtype and list(tensor.shape.numpy()) == [width]
        for tensor in tensors
    )

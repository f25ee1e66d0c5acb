"""A bias that is stored as int32 and dequantized, as the float constant that it stands for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import onnx_ir as ir

from deploykit.optimizers.rewrites.cleanup import remove_unused
from deploykit.optimizers.rewrites.decomposition import in_function
from deploykit.optimizers.rewrites.emitting import Names, known_array
from deploykit.optimizers.rewriting import Change, Rewrite

if TYPE_CHECKING:
    from collections.abc import Sequence

    Array = np.ndarray[Any, Any]


class FoldInt32Bias(Rewrite):
    """Replaces DequantizeLinear on a constant int32 by the float constant, which is what TensorRT and Core ML want."""

    name: ClassVar[str] = "fold-int32-bias"
    title: ClassVar[str] = "stores a dequantized int32 bias as the float constant that it is"

    def applies(self, node: ir.Node, model: ir.Model) -> bool:
        """Whether the node dequantizes a constant int32 with constant scale and zero point."""
        return dequantized_bias(node) is not None and not in_function(node, model)

    def apply(self, model: ir.Model, nodes: Sequence[ir.Node]) -> list[Change]:
        """Folds each such node; the float is what the node computes."""
        names = Names(model)
        return [change for node in nodes if not in_function(node, model) and (change := fold(node, names))]


def fold(node: ir.Node, names: Names) -> Change | None:
    """Puts the float constant in the place of one node; None where it cannot be told, or is an output of the graph."""
    values = dequantized_bias(node)
    owner, output = node.graph, node.outputs[0]
    if values is None or owner is None:
        return None
    constant = ir.Value(
        name=names.value(f"{node.name}/float"),
        const_value=ir.tensor(values),
        type=ir.TensorType(ir.DataType.from_numpy(values.dtype)),
        shape=ir.Shape(values.shape),
    )
    owner.register_initializer(constant)
    output.replace_all_uses_with(constant)
    name = node.name or node.op_type
    gone = remove_unused([output])
    return Change(tuple(dict.fromkeys((name, *gone))), (), f"int32 bias {name} as a float constant")


def dequantized_bias(node: ir.Node) -> Array | None:
    """What a DequantizeLinear of a constant int32 gives; None for any other node.

    (x - zero_point) * scale in the type of the scale; scale and zero point along `axis` when they are vectors
    (DequantizeLinear, ONNX specification).
    """
    if node.op_type != "DequantizeLinear" or node.domain not in ("", "ai.onnx") or node.outputs[0].is_graph_output():
        return None
    integers, scale = known_array(node.inputs[0]), known_array(node.inputs[1])
    if integers is None or scale is None or integers.dtype != np.int32:
        return None
    zero: Array | None = np.zeros((), np.int32)
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        zero = known_array(node.inputs[2])
    settings = {name: attribute.value for name, attribute in node.attributes.items()}
    if zero is None or settings.get("block_size") or settings.get("output_dtype"):
        return None
    axis = settings.get("axis", 1)
    offset = integers.astype(np.int64) - along(zero, integers.ndim, axis)
    # Through float32, as the kernels do: the types below it would round twice.
    found = offset.astype(np.float32) * along(scale, integers.ndim, axis).astype(np.float32)
    return found.astype(scale.dtype)


def along(values: Array, rank: int, axis: int) -> Array:
    """Scales or zero points in the shape that broadcasts along one axis of a tensor of this rank."""
    if values.size == 1:
        return values.reshape(())
    shape = [1] * rank
    shape[axis if rank > 1 or axis < 0 else 0] = values.size
    return values.reshape(shape)

"""Constant factors and summands behind a layer go into its weight and bias, so that Q/DQ stands behind all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.quantize.prepare import add_constant, constant_of, drop_unused_initializers, is_named, names_in

if TYPE_CHECKING:
    from collections.abc import Collection

    import onnx_ir as ir

Array = np.ndarray[Any, Any]
FOLDED = ("Mul", "Div", "Add", "Sub")


def fold_affine(model: ir.Model, keep: Collection[str] = ()) -> int:
    """Folds Mul, Div, Add and Sub of a constant a channel into the Conv that alone feeds them; returns how many.

    keep: names of nodes and operators that stay as they are.
    (w * x + b) * f + s = (w f) * x + (b f + s), with f and s one number, or one an output channel.
    """
    main = model.graph
    taken = names_in(model)
    folded = 0
    for node in list(main):
        conv = None if is_named(node, keep) else _layer_before(node, main)
        if conv is None:
            continue
        weight, bias = constant_of(conv.inputs[1]), constant_of(conv.inputs[2]) if len(conv.inputs) > 2 else None
        assert weight is not None
        constant = _per_channel(constant_of(node.inputs[1]), weight)
        assert constant is not None
        _fold(main, conv, node, weight, bias, constant, taken)
        folded += 1
    if folded:
        drop_unused_initializers(main)
    return folded


def _layer_before(node: ir.Node, main: ir.Graph) -> ir.Node | None:
    """The Conv whose output only `node` reads, when the node's other operand is constant and fits its channels."""
    if node.op_type not in FOLDED or node.domain or len(node.inputs) != 2:
        return None
    if node.op_type in {"Mul", "Add"} and constant_of(node.inputs[1]) is None and node.inputs[0] is not None:
        first, second = node.inputs
        node.replace_input_with(0, second)
        node.replace_input_with(1, first)
    source = node.inputs[0]
    conv = None if source is None else source.producer()
    if source is None or conv is None or conv.op_type != "Conv" or conv.domain or conv.graph is not main:
        return None
    if source.is_graph_output() or len(list(source.uses())) != 1:
        return None
    constants = [constant_of(value) for value in conv.inputs[1:]]
    if any(constant is None or constant.dtype != np.float32 for constant in constants):
        return None
    weight = constants[0]
    constant = None if weight is None else _per_channel(constant_of(node.inputs[1]), weight)
    if constant is None or (node.op_type == "Div" and not np.all(constant)):
        return None
    return conv


def _per_channel(constant: Array | None, weight: Array) -> Array | None:
    """The constant as [1] or [channels] in float64; None where it differs within a channel or makes the rank higher."""
    if (
        constant is None
        or constant.dtype != np.float32
        or constant.ndim > weight.ndim
        or not np.isfinite(constant).all()
    ):
        return None
    if constant.size == 1:
        return constant.astype(np.float64).reshape(1)
    place = constant.ndim - (weight.ndim - 1)  # of the channels, counted from the front
    if place < 0 or constant.size != weight.shape[0] or constant.shape[place] != weight.shape[0]:
        return None
    return constant.astype(np.float64).reshape(-1)


def _fold(
    main: ir.Graph, conv: ir.Node, node: ir.Node, weight: Array, bias: Array | None, constant: Array, taken: set[str]
) -> None:
    shift = np.zeros(weight.shape[0]) if bias is None else bias.astype(np.float64)
    base = node.outputs[0].name or node.name or "affine"
    if node.op_type in {"Mul", "Div"}:
        factor = constant if node.op_type == "Mul" else 1.0 / constant
        scaled = (weight * factor.reshape(-1, *[1] * (weight.ndim - 1))).astype(np.float32)
        conv.replace_input_with(1, add_constant(main, f"{base}_folded_weight", scaled, taken))
        shift = shift * factor
    else:
        shift = shift + (constant if node.op_type == "Add" else -constant)
    if bias is not None or node.op_type in {"Add", "Sub"}:
        if len(conv.inputs) < 3:
            conv.resize_inputs(3)
        conv.replace_input_with(2, add_constant(main, f"{base}_folded_bias", shift.astype(np.float32), taken))
    out, kept = node.outputs[0], conv.outputs[0]
    name = out.name
    kept.type, kept.shape = out.type, out.shape
    out.replace_all_uses_with(kept, replace_graph_outputs=True)
    main.remove(node, safe=True)
    kept.name = name

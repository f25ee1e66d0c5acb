"""Weight-only integers: int8 weights per channel behind a DequantizeLinear, all arithmetic in float."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from deploykit.progress import OnProgress, Progress
from deploykit.quantize import findings as say
from deploykit.quantize.families import MAC_OPS
from deploykit.quantize.plan import FloatNode, check_exclusions, owners
from deploykit.quantize.prepare import (
    add_constant,
    constant_of,
    drop_unused_initializers,
    is_constant,
    load_float,
    names_in,
    unique_name,
)
from deploykit.quantize.product import counts, written
from deploykit.quantize.weights import channel_axis, quantize_weight, weight_scale

if TYPE_CHECKING:
    from pathlib import Path

    from deploykit.quantize.settings import Settings

# Below this many elements scale, zero point and node cost more than the integers save.
SMALLEST_WEIGHT = 64


def quantize_weight_only(source: Path, output: Path, settings: Settings, on_progress: OnProgress) -> dict[str, Any]:
    """The int8-weights job."""
    model, said = load_float(source)
    check_exclusions(model, settings.exclude)
    on_progress(Progress("quantizing weights", source.name))
    done, left = quantize_weights(model, exclude=settings.exclude)
    facts = written(model, output, "int8-weights", [*said, *say.about_float(left)])
    # The arithmetic stays float: no multiply-accumulate becomes an integer one.
    facts["metrics"] |= {"calibration": None, **counts(done, left), "int8_macs_share": 0.0}
    return facts


def quantize_weights(model: ir.Model, *, exclude: tuple[str, ...] = ()) -> tuple[list[str], list[FloatNode]]:
    """Stores constant operands of multiply-accumulate nodes of the main graph as int8, one scale a channel.

    Returns the names of the nodes that read integer weights, and those that do not with the reason.
    """
    main = model.graph
    taken = names_in(model)
    done: dict[tuple[str | None, int | None], ir.Value] = {}
    changed: list[str] = []
    left: list[FloatNode] = []
    first = main[0] if len(main) else None
    for node, outer in owners(main).items():
        if node.op_type in MAC_OPS and not node.domain and any(map(is_constant, node.inputs[:2])):
            place = (outer.op_type, outer.name or "")
            left.append(FloatNode(node.name or "", node.op_type, "inside a control-flow body", place))
    for node in list(main):
        if node.op_type not in MAC_OPS or node.domain or first is None:
            continue
        indices = [index for index in range(2) if is_constant(node.inputs[index])]
        reason = _why_float(node, indices, exclude)
        if reason:
            left.append(FloatNode(node.name or "", node.op_type, reason))
            continue
        for index in indices:
            value = node.inputs[index]
            weight = constant_of(value)
            if value is None or weight is None:
                continue
            axis = channel_axis(node, index, weight.ndim)
            if (value.name, axis) not in done:
                done[value.name, axis] = _dequantized(main, first, value, weight, axis, taken)
            node.replace_input_with(index, done[value.name, axis])
        changed.append(node.name or "")
    drop_unused_initializers(main)
    return changed, left


def _why_float(node: ir.Node, indices: list[int], exclude: tuple[str, ...]) -> str:
    if node.name in exclude or node.op_type in exclude:
        return "excluded"
    if not indices:
        return "both operands are computed: there is no weight"
    values = [node.inputs[index] for index in indices]
    if any(value is None or value.dtype != ir.DataType.FLOAT for value in values):
        return "its weight is not float32"
    if all(
        value is not None and value.const_value is not None and value.const_value.size < SMALLEST_WEIGHT
        for value in values
    ):
        return f"its weight has fewer than {SMALLEST_WEIGHT} elements: integers would not make it smaller"
    return ""


def _dequantized(
    main: ir.Graph, first: ir.Node, value: ir.Value, weight: np.ndarray, axis: int | None, taken: set[str]
) -> ir.Value:
    found = quantize_weight(weight, weight_scale(weight, axis), axis)
    inputs = [
        add_constant(main, f"{value.name}_quantized", found.values, taken),
        add_constant(main, f"{value.name}_scale", found.scale, taken),
        add_constant(main, f"{value.name}_zero_point", np.zeros(found.scale.shape, np.int8), taken),
    ]
    name = unique_name(main, f"{value.name}_dequantized", taken)
    attributes = {} if axis is None else {"axis": axis}
    node = ir.node(
        "DequantizeLinear",
        inputs,
        attributes=attributes,
        num_outputs=1,
        name=unique_name(main, f"{name}/DequantizeLinear", taken),
    )
    node.outputs[0].name = name
    node.outputs[0].type = value.type
    node.outputs[0].shape = ir.Shape(weight.shape)
    main.insert_before(first, [node])
    return node.outputs[0]

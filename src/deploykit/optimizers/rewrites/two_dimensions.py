"""Operators over one spatial dimension as the ones over two: many engines have those for images only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from deploykit.optimizers.editing import rank_of
from deploykit.optimizers.rewrites.decomposition import Decomposition
from deploykit.optimizers.rewrites.emitting import known_array

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx_ir as ir

    from deploykit.optimizers.rewrites.decomposition import Builder
    from deploykit.optimizers.rewrites.emitting import Emitter

# Attributes with a number for each spatial dimension, and what it is for the new one; pads have two for each.
_NEUTRAL = {"kernel_shape": 1, "strides": 1, "dilations": 1, "output_padding": 0, "output_shape": 1}


def _attributes(node: ir.Node) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, attribute in node.attributes.items():
        if name in _NEUTRAL:
            found[name] = [_NEUTRAL[name], *attribute.as_ints()]
        elif name == "pads":
            begin, end = attribute.as_ints()
            found[name] = [0, begin, 0, end]
        else:
            found[name] = attribute.value
    return found


def _is_line(node: ir.Node) -> bool:
    """Whether the first input is [N, C, W]."""
    return rank_of(node.inputs[0]) == 3


def _images(op: Emitter, node: ir.Node, *others: ir.Value | None) -> Sequence[ir.Value] | None:
    """The same operator on [N, C, 1, W], and its result without the dimension."""
    x = node.inputs[0]
    used = len(node.outputs) > 1 and (node.outputs[1].uses() or node.outputs[1].is_graph_output())
    if x is None or used:
        return None
    return [op.squeeze(op.op(node.op_type, op.unsqueeze(x, [2]), *others, **_attributes(node)), [2])]


def convolution(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """Of Conv and ConvTranspose: the weight [O, I, k] gets the dimension, too; as a constant when it is one."""
    weight = node.inputs[1]
    if not _is_line(node) or weight is None or rank_of(weight) != 3:
        return None
    known = known_array(weight)
    if known is not None and weight.dtype is not None:
        image = op.const(known[:, :, None, :], weight.dtype)
    else:
        image = op.unsqueeze(weight, [2])
    return _images(op, node, image, *node.inputs[2:])


def pool(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """Of pools over windows, and over everything."""
    return _images(op, node) if _is_line(node) else None


def batch_normalization(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """Of [N, C] and [N, C, W] as [N, C, 1, W], at inference."""
    x, rank = node.inputs[0], rank_of(node.inputs[0])
    if x is None or rank not in (2, 3) or len(node.outputs) > 1 or node.attributes.get_int("training_mode", False):
        return None
    added = [2, 3] if rank == 2 else [2]
    kept = {name: attribute.value for name, attribute in node.attributes.items()}
    return [op.squeeze(op.op(node.op_type, op.unsqueeze(x, added), *node.inputs[1:], **kept), added)]


def resize(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """With constant scales or sizes for all three dimensions; 1 for the new one."""
    x = node.inputs[0]
    if x is None or op.opset < 11 or not _is_line(node) or "axes" in node.attributes:
        return None
    if node.attributes.get_string("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
        return None
    if node.attributes.get_string("keep_aspect_ratio_policy", "stretch") != "stretch":
        return None
    given = [known_array(node.inputs[at]) if at < len(node.inputs) else None for at in (2, 3)]
    scales, sizes = (array if array is not None and array.size == 3 else None for array in given)
    none = None if op.opset >= 13 else op.const(np.zeros(0, np.float32))
    if scales is not None:
        more: list[ir.Value | None] = [op.const(np.insert(scales, 2, 1.0).astype(np.float32))]
    elif sizes is not None:
        more = [none, op.ints([int(size) for size in np.insert(sizes, 2, 1)])]
    else:
        return None
    kept = {name: attribute.value for name, attribute in node.attributes.items()}
    return [op.squeeze(op.op("Resize", op.unsqueeze(x, [2]), none, *more, **kept), [2])]


class TwoDimensions(Decomposition):
    """Conv, ConvTranspose, pools, BatchNormalization and Resize over one dimension."""

    name: ClassVar[str] = "two-dimensions"
    title: ClassVar[str] = "writes operators over one spatial dimension as those over two, the first of size 1"
    builders: ClassVar[Mapping[tuple[str, str], Builder]] = {
        ("", "Conv"): convolution,
        ("", "ConvTranspose"): convolution,
        ("", "MaxPool"): pool,
        ("", "AveragePool"): pool,
        ("", "LpPool"): pool,
        ("", "GlobalAveragePool"): pool,
        ("", "GlobalMaxPool"): pool,
        ("", "GlobalLpPool"): pool,
        ("", "BatchNormalization"): batch_normalization,
        ("", "Resize"): resize,
    }

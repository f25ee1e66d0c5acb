"""ONNX Runtime, CPU provider: what it loads and then refuses at the first call, or computes otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deploykit.opsupport.limits.rules import Limits, fails, given, produced, right_while, scaled_corners, sizes, wrong

if TYPE_CHECKING:
    from deploykit.opsupport.facts import NodeFacts
    from deploykit.opsupport.verdict import Verdict

LIMITS = Limits("ONNX Runtime", "1.32.0")
LIMITS.rule("Resize")(scaled_corners)


@LIMITS.rule("Attention")
def _masked_scores(node: NodeFacts) -> Verdict | None:
    mask = given(node, 3)
    masks = node.attributes.get("is_causal") or (mask is not None and mask.dtype == "bool")
    if produced(node, 3) is None or not masks or node.attributes.get("qk_matmul_output_mode", 0) not in (1, 2):
        return None
    return wrong(
        "qk_matmul_output has the lowest finite number where ONNX has -inf for what is masked",
        remedy="use the scores before the mask (qk_matmul_output_mode 0), or Y only",
    )


@LIMITS.rule("Attention")
def _padded_mask(node: NodeFacts) -> Verdict | None:
    mask, keys, past = given(node, 3), given(node, 1), given(node, 4)
    if mask is None or keys is None or not mask.shape or not keys.shape or len(keys.shape) < 3 or past is not None:
        return None
    covered, total = mask.shape[-1], keys.shape[-2]
    if not isinstance(covered, int) or not isinstance(total, int) or covered >= total:
        return None
    return fails(
        f"attn_mask covers {covered} of {total} keys, and its kernel wants one as long as the keys",
        remedy=f"pad attn_mask to {total} keys with -inf (or false)",
    )


@LIMITS.rule("ConvInteger")
def _zero_point_per_channel(node: NodeFacts) -> Verdict | None:
    shape = sizes(given(node, 3))
    if not shape or shape == (1,):
        return None
    return fails(
        f"w_zero_point has {shape[0]} values, and its kernel takes one for all channels",
        remedy="quantize the weights with one zero point, or use Q/DQ form: "
        "deploykit quantize MODEL -o OUT --precision int8 --calib DATA --target onnxruntime",
    )


@LIMITS.rule("MaxUnpool")
def _own_output_shape(node: NodeFacts) -> Verdict | None:
    data, shape = given(node, 0), given(node, 2)
    if data is None or shape is None:
        return None
    remedy = "leave output_shape away and Pad the result"
    wanted = shape.value if shape.value is not None else sizes(produced(node, 0))
    lengths, kernel = sizes(data), node.attributes["kernel_shape"]
    if wanted is None or lengths is None:
        return right_while("output_shape is the size that kernel, strides and pads give", remedy=remedy)
    strides = node.attributes.get("strides") or [1] * len(kernel)
    pads = node.attributes.get("pads") or [0] * 2 * len(kernel)
    usual = [
        (length - 1) * stride + size - pads[axis] - pads[axis + len(kernel)]
        for axis, (length, stride, size) in enumerate(zip(lengths[2:], strides, kernel, strict=True))
    ]
    if list(map(int, wanted))[2:] == usual:
        return None
    told = f"it reads the indices as places in output_shape {list(map(int, wanted))}, ONNX as places in {usual}"
    return wrong(told, remedy=remedy)


@LIMITS.rule("ReduceMax", "ReduceMin")
def _nothing_to_reduce(node: NodeFacts) -> Verdict | None:
    data = given(node, 0)
    if data is None or data.dtype != "bool" or 0 not in (data.shape or ()):
        return None
    told = f"{node.op} of bool over an axis of size 0 is not defined in its kernel"
    return fails(told, remedy="give it at least one element, or cast to uint8 first")

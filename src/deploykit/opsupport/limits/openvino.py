"""OpenVINO, CPU plugin: what its front-end converts and its kernels compute otherwise than ONNX says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deploykit.opsupport.limits.rules import (
    ANY,
    Limits,
    fails,
    given,
    right_while,
    scaled_corners,
    text,
    wrong,
)

if TYPE_CHECKING:
    from deploykit.opsupport.facts import NodeFacts
    from deploykit.opsupport.verdict import Verdict

LIMITS = Limits("OpenVINO", "2026.4.1")
LIMITS.rule("Resize")(scaled_corners)
_FLOATS = ("float16", "bfloat16", "float32", "float64")


@LIMITS.rule(ANY)
def _double(node: NodeFacts) -> Verdict | None:
    tensors = [tensor for tensor in (*node.inputs, *node.outputs) if tensor is not None and not tensor.constant]
    if not any(tensor.dtype == "float64" for tensor in tensors):
        return None
    return right_while(
        "float32 is enough: its CPU kernels compute float64 in float32, and what is larger than 3.4e38, infinity too, "
        "comes out as 3.4e38",
        remedy="make the model float32, so that what is computed is what it says",
    )


@LIMITS.rule("Equal")
def _texts(node: NodeFacts) -> Verdict | None:
    data = given(node, 0)
    if data is None or data.dtype != "string":
        return None
    return fails("its CPU kernel compares no strings", remedy="compare strings outside the model, and feed the result")


@LIMITS.rule("Attention")
def _window(node: NodeFacts) -> Verdict | None:
    windows = [name for name in ("left_window_size", "right_window_size") if node.attributes.get(name, -1) != -1]
    if not windows:
        return None
    return wrong(f"{' and '.join(windows)} is ignored", remedy="give the window as attn_mask")


@LIMITS.rule("Attention")
def _causal_after_past(node: NodeFacts) -> Verdict | None:
    if not node.attributes.get("is_causal") or given(node, 3) is None or given(node, 4) is None:
        return None
    return wrong(
        "is_causal together with attn_mask and past_key masks other positions than ONNX",
        remedy="put the causal mask into attn_mask, and leave is_causal away",
    )


@LIMITS.rule("BitShift")
def _signed_shift(node: NodeFacts) -> Verdict | None:
    data = given(node, 0)
    if data is None or not data.dtype.startswith("int"):
        return None
    return right_while(
        f"no value is negative and nothing overflows: it shifts {data.dtype} as if it had no sign",
        remedy="shift unsigned integers, or multiply and divide by powers of two",
    )


@LIMITS.rule("DFT")
def _transformed_axis(node: NodeFacts) -> Verdict | None:
    if node.attributes.get("onesided"):
        return wrong("onesided gives a result of another shape", remedy="compute the whole DFT, and Slice it")
    data, axis = given(node, 0), given(node, 2)
    if node.opset < 20:
        return None
    remedy = "Transpose so that the axis to transform is axis 1"
    if data is None or data.rank is None or (axis is not None and axis.value is None):
        return right_while("axis is 1: it looks at no other, whatever the input `axis` says", remedy=remedy)
    wanted = -2 if axis is None or axis.value is None else int(axis.value.reshape(-1)[0])
    if wanted % data.rank == 1:
        return None
    return wrong(f"it transforms axis 1 in place of axis {wanted}", remedy=remedy)


@LIMITS.rule("DynamicQuantizeLinear")
def _rounding(node: NodeFacts) -> Verdict | None:
    return right_while(
        "a difference of one step of uint8 does not matter: it rounds some values that lie between two steps otherwise",
        remedy="quantize statically: deploykit quantize MODEL -o OUT --precision int8 --calib DATA --target openvino",
    )


@LIMITS.rule("RNN", "GRU", "LSTM")
def _batch_first(node: NodeFacts) -> Verdict | None:
    if node.attributes.get("layout"):
        return wrong("layout 1 (batch first) is ignored", remedy="Transpose to layout 0 (sequence first)")
    if node.op == "LSTM" and given(node, 7) is not None:
        return wrong("peepholes (input P) are ignored", remedy="an LSTM without peepholes, or its cells as operators")
    return None


@LIMITS.rule("MaxPool")
def _one_window_less(node: NodeFacts) -> Verdict | None:
    if not node.attributes.get("ceil_mode"):
        return None
    kernel = node.attributes.get("kernel_shape") or []
    strides = node.attributes.get("strides") or [1] * len(kernel)
    if all(size >= stride for size, stride in zip(kernel, strides, strict=True)):
        return None
    return wrong(
        "with ceil_mode it keeps a last window that lies in the padding only, as it can with strides above the kernel",
        remedy="ceil_mode 0 with explicit pads",
    )


@LIMITS.rule("NonMaxSuppression")
def _at_the_threshold(node: NodeFacts) -> Verdict | None:
    return right_while(
        "no two boxes overlap by exactly iou_threshold: it drops those, and ONNX keeps them",
        remedy="a threshold that is not a round number",
    )


@LIMITS.rule("ReduceMax", "ReduceMin")
def _infinite(node: NodeFacts) -> Verdict | None:
    data = given(node, 0)
    if data is None or data.dtype not in _FLOATS:
        return None
    bound = "-inf" if node.op == "ReduceMax" else "inf"
    if 0 in (data.shape or ()):
        return wrong(
            f"over no elements it gives the largest finite number in place of {bound}", remedy="Where, after it"
        )
    return right_while(
        f"it does not reduce over {bound} alone: the result is the largest finite number then",
        remedy=f"mask with a finite number in place of {bound}",
    )


@LIMITS.rule("Resize")
def _resize_attributes(node: NodeFacts) -> Verdict | None:
    if node.attributes.get("antialias"):
        return wrong("antialias gives other values", remedy="smooth with an AveragePool before it, without antialias")
    policy = text(node, "keep_aspect_ratio_policy", "stretch")
    if policy != "stretch":
        return wrong(f"keep_aspect_ratio_policy {policy!r} is ignored", remedy="compute the sizes outside, and stretch")
    if node.attributes.get("exclude_outside"):
        return wrong("exclude_outside is ignored", remedy="exclude_outside 0")
    return None


@LIMITS.rule("RoiAlign")
def _largest_sample(node: NodeFacts) -> Verdict | None:
    if text(node, "mode", "avg") != "max":
        return None
    return wrong("mode 'max' takes the largest of other samples", remedy="mode 'avg'")


@LIMITS.rule("SpaceToDepth")
def _column_row_depth(node: NodeFacts) -> Verdict | None:
    if text(node, "mode", "DCR") != "CRD":
        return None
    return wrong("mode 'CRD' is ignored", remedy="Reshape, Transpose and Reshape in its place")


@LIMITS.rule("Tile")
def _varying_repeats(node: NodeFacts) -> Verdict | None:
    repeats = given(node, 1)
    if repeats is None or repeats.foldable:
        return None
    return wrong(
        "with repeats that are computed at run time parts of the result are uninitialised memory",
        remedy="make repeats an initializer, or use Expand",
    )


@LIMITS.rule("TopK")
def _ties(node: NodeFacts) -> Verdict | None:
    count = given(node, 1)
    if count is None or count.foldable:
        return None
    return right_while(
        "no two values are equal: with a K that is computed at run time it does not keep their order",
        remedy="make K an initializer",
    )

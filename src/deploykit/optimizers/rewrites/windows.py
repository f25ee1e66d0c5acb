"""Windows over spatial dimensions (Conv, ConvTranspose, pools) with the pads that they mean written down."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from deploykit.optimizers.editing import rank_of
from deploykit.optimizers.rewrites.decomposition import Decomposition
from deploykit.optimizers.rewrites.emitting import size_of
from deploykit.optimizers.rewrites.normalizations import integer, is_float

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx_ir as ir

    from deploykit.optimizers.rewrites.decomposition import Builder
    from deploykit.optimizers.rewrites.emitting import Emitter

_LARGEST_WINDOW = 32  # slices that a dilated pool is made of


@dataclasses.dataclass(frozen=True)
class Window:
    """What a window does along each of its `count` dimensions; sizes of the input, None where they are not known."""

    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    begins: list[int]
    ends: list[int]
    sizes: list[int | None]
    auto_pad: str

    @property
    def count(self) -> int:
        """Number of spatial dimensions."""
        return len(self.kernel)

    @property
    def spans(self) -> list[int]:
        """Elements from the first to the last that a window touches."""
        return [step * (size - 1) + 1 for size, step in zip(self.kernel, self.dilations, strict=True)]

    @property
    def pads(self) -> list[int]:
        """As the attribute has them."""
        return self.begins + self.ends


def window_of(node: ir.Node) -> Window | None:
    """The window of a node; None where the kernel or the rank is not known."""
    x, weight = node.inputs[0], node.inputs[1] if len(node.inputs) > 1 else None
    rank = rank_of(x)
    if x is None or rank is None or rank < 3:
        return None
    count = rank - 2
    kernel = node.attributes.get_ints("kernel_shape", None)
    if kernel is None:
        sizes = (
            [None] if weight is None or rank_of(weight) != rank else [size_of(weight, at + 2) for at in range(count)]
        )
        if None in sizes:
            return None
        kernel = [size for size in sizes if size is not None]
    pads = list(node.attributes.get_ints("pads", [0] * (2 * count)))
    return Window(
        list(kernel),
        list(node.attributes.get_ints("strides", [1] * count)),
        list(node.attributes.get_ints("dilations", [1] * count)),
        pads[:count],
        pads[count:],
        [size_of(x, at + 2) for at in range(count)],
        node.attributes.get_string("auto_pad", "NOTSET") or "NOTSET",
    )


def _automatic(window: Window) -> Window | None:
    """The same with the pads that auto_pad means; None where they depend on a size that is not known."""
    if window.auto_pad in ("NOTSET", "VALID"):
        return window
    begins, ends = [], []
    for size, span, stride in zip(window.sizes, window.spans, window.strides, strict=True):
        if stride == 1:
            total = span - 1
        elif size is None:
            return None
        else:
            total = max(0, (math.ceil(size / stride) - 1) * stride + span - size)
        less, more = total // 2, total - total // 2
        begins.append(less if window.auto_pad == "SAME_UPPER" else more)
        ends.append(more if window.auto_pad == "SAME_UPPER" else less)
    return dataclasses.replace(window, begins=begins, ends=ends, auto_pad="NOTSET")


def _whole(window: Window, output: ir.Value) -> Window | None:
    """The same windows without ceil_mode: the end is padded so that the last one is whole (spec, MaxPool-12).

    None where the model claims another size of the output than the windows give: onnx 1.23 counts a window that starts
    in the padding, onnxruntime does not.
    """
    ends = []
    for at, (size, span, stride) in enumerate(zip(window.sizes, window.spans, window.strides, strict=True)):
        if stride == 1:
            ends.append(window.ends[at])
            continue
        if size is None:
            return None
        padded = size + window.begins[at] + window.ends[at]
        count = math.ceil((padded - span) / stride) + 1
        if (count - 1) * stride >= size + window.begins[at]:  # a window that starts in the padding is left out
            count -= 1
        if size_of(output, at + 2) not in (None, count):
            return None
        missing = (count - 1) * stride + span - padded
        ends.append(window.ends[at] + missing)
        if not 0 <= ends[-1] < span:
            return None
    return dataclasses.replace(window, ends=ends)


def _others(node: ir.Node, *without: str) -> dict[str, Any]:
    return {key: value.value for key, value in node.attributes.items() if key not in without}


def convolution(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """Conv with explicit pads instead of auto_pad."""
    window = window_of(node)
    if window is None or window.auto_pad == "NOTSET":
        return None
    explicit = _automatic(window)
    if explicit is None:
        return None
    return [op.op("Conv", *node.inputs, **_others(node, "auto_pad", "pads"), pads=explicit.pads)]


def pool(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """A pool with explicit pads and without ceil_mode; one with dilations by slices, since few targets have those."""
    x, window = node.inputs[0], window_of(node)
    indexed = len(node.outputs) > 1 and (node.outputs[1].uses() or node.outputs[1].is_graph_output())
    if x is None or window is None or indexed:
        return None
    explicit = _automatic(window)
    counted = node.op_type == "AveragePool" and integer(node, "count_include_pad", 0)
    if explicit is not None and integer(node, "ceil_mode", 0):
        # Padding that is counted weighs on the average, and what is added to the end is not counted.
        explicit = None if counted and window.strides != [1] * window.count else _whole(explicit, node.outputs[0])
    if explicit is None or any(begin >= span for begin, span in zip(explicit.begins, explicit.spans, strict=True)):
        return None
    if any(step != 1 for step in explicit.dilations):
        return _dilated(op, node, x, explicit, counted=bool(counted))
    if counted and any(explicit.pads):
        padded = _padded(op, x, explicit, 0.0)
        kept = _others(node, "auto_pad", "pads", "ceil_mode", "count_include_pad")
        return None if padded is None else [op.op(node.op_type, padded, **kept)]
    dropped = [key for key in ("auto_pad", "ceil_mode", "storage_order", "count_include_pad") if key in node.attributes]
    neutral = all(node.attributes[key].value in (0, "NOTSET") for key in dropped)
    if neutral and len(node.outputs) == 1:
        return None
    return [op.op(node.op_type, x, **_others(node, "pads", *dropped), pads=explicit.pads)]


def _padded(op: Emitter, x: ir.Value, window: Window, value: float) -> ir.Value | None:
    if not any(window.pads):
        return x
    if x.dtype is None or not is_float(x) or op.opset < 11:
        return None
    amounts = [0, 0, *window.begins, 0, 0, *window.ends]
    return op.op("Pad", x, op.ints(amounts), op.like(value, x))


def _dilated(op: Emitter, node: ir.Node, x: ir.Value, window: Window, *, counted: bool) -> list[ir.Value] | None:
    """The maximum or sum of slices that start one dilation apart, one dimension after the other."""
    largest = node.op_type == "MaxPool"
    if not is_float(x) or sum(window.kernel) > _LARGEST_WINDOW or (not largest and any(window.pads) and not counted):
        return None
    value = _padded(op, x, window, -math.inf if largest else 0.0)
    if value is None:
        return None
    for at in range(window.count):
        span, stride, step = window.spans[at], window.strides[at], window.dilations[at]
        result: ir.Value | None = None
        for start in range(0, span, step):
            end = start + 1 - span if start + 1 < span else np.iinfo(np.int64).max
            part = op.op("Slice", value, op.ints([start]), op.ints([end]), op.ints([at + 2]), op.ints([stride]))
            result = part if result is None else op.op("Max" if largest else "Add", result, part)
        value = result if result is not None else value
    return [value if largest else op.op("Mul", value, op.like(1 / math.prod(window.kernel), x))]


def transposed_convolution(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """ConvTranspose without auto_pad, output_shape, output_padding and uneven pads: the rest is cut off its result.

    spec, ConvTranspose-11, for what auto_pad and output_shape mean.
    """
    x, window = node.inputs[0], window_of(node)
    if x is None or window is None or op.opset < 10:
        return None
    more = list(node.attributes.get_ints("output_padding", [0] * window.count))
    pads = _transposed_pads(node, window, more)
    if pads is None:
        return None
    begins, ends = pads
    uniform = len(set(begins + ends)) == 1 and not any(more)
    named = window.auto_pad != "NOTSET" or "output_shape" in node.attributes
    if uniform and not named:
        return None
    kept = _others(node, "auto_pad", "output_shape", "output_padding", "pads")
    if uniform:
        return [op.op("ConvTranspose", *node.inputs, **kept, pads=begins + ends)]
    # What output_padding adds at the end stands beyond the windows: it can be cut off less, not made.
    cuts = [end - extra for end, extra in zip(ends, more, strict=True)]
    if min(begins + cuts) < 0:
        return None
    value = op.op("ConvTranspose", *node.inputs, **kept, pads=[0] * (2 * window.count))
    for at in range(window.count):
        if begins[at] or cuts[at]:
            end = -cuts[at] if cuts[at] else np.iinfo(np.int64).max
            value = op.slice(value, at + 2, begins[at], int(end))
    return [value]


def _transposed_pads(node: ir.Node, window: Window, more: Sequence[int]) -> tuple[list[int], list[int]] | None:
    shape = node.attributes.get_ints("output_shape", None)
    if shape is None and window.auto_pad in ("NOTSET", "VALID"):
        return window.begins, window.ends
    begins, ends = [], []
    for at, (size, span, stride) in enumerate(zip(window.sizes, window.spans, window.strides, strict=True)):
        if shape is None:
            total = span - stride + more[at]  # the output is stride times the input
        elif size is None:
            return None
        else:
            total = stride * (size - 1) + more[at] + span - shape[len(shape) - window.count + at]
        if total < 0:
            return None
        less, rest = total // 2, total - total // 2
        upper = window.auto_pad == "SAME_UPPER"
        begins.append(less if upper else rest)
        ends.append(rest if upper else less)
    return begins, ends


class ExplicitWindows(Decomposition):
    """auto_pad, ceil_mode, dilations of pools, counted padding, and what ConvTranspose cuts off, written out."""

    name: ClassVar[str] = "explicit-windows"
    title: ClassVar[str] = "writes the pads that auto_pad, ceil_mode, output_shape and counted padding mean"
    builders: ClassVar[Mapping[tuple[str, str], Builder]] = {
        ("", "Conv"): convolution,
        ("", "ConvTranspose"): transposed_convolution,
        ("", "MaxPool"): pool,
        ("", "AveragePool"): pool,
    }

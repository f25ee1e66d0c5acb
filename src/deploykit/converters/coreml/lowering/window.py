"""Padding of sliding windows: what ONNX's pads, auto_pad and ceil_mode mean in explicit numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deploykit.converters.coreml.lowering.context import Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deploykit.converters.coreml.lowering.node import Size


def interleaved(pads: Sequence[int]) -> list[int]:
    """ONNX [begin..., end...] -> MIL [begin, end] by dimension."""
    count = len(pads) // 2
    return [pads[side * count + axis] for axis in range(count) for side in (0, 1)]


def explicit_pads(
    auto_pad: str,
    pads: Sequence[int],
    sizes: Sequence[Size],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> list[int]:
    """Pads as [begin, end] by dimension, for any auto_pad.

    SAME: the output has ceil(size / stride); an odd rest goes to the end (SAME_UPPER) or the beginning (SAME_LOWER),
    as the spec of Conv-22 says. Refused where that depends on a size that varies.
    """
    count = len(kernel)
    if auto_pad in ("", "NOTSET"):
        return interleaved(pads or [0] * 2 * count)
    if auto_pad == "VALID":
        return [0] * 2 * count
    result = []
    for size, extent, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        reach = (extent - 1) * dilation + 1
        if isinstance(size, int):
            total = max((-(-size // stride) - 1) * stride + reach - size, 0)
        elif stride == 1:
            total = reach - 1
        else:
            raise Refused(
                f"auto_pad={auto_pad} with stride {stride} depends on a size that varies",
                "fix the spatial size (deploykit export --dim), or export with explicit pads",
            )
        small, large = total // 2, total - total // 2
        result += [small, large] if auto_pad == "SAME_UPPER" else [large, small]
    return result


def ceil_extension(
    sizes: Sequence[Size],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
) -> list[int]:
    """Additional end padding by dimension that makes floor division give what ceil_mode asks for.

    A window that would start in the end padding is left out (spec, MaxPool-22). Refused for a size that varies.
    """
    extra = []
    for axis, (size, extent, stride, dilation) in enumerate(zip(sizes, kernel, strides, dilations, strict=True)):
        if not isinstance(size, int):
            raise Refused(
                "ceil_mode depends on a spatial size that varies",
                "fix the spatial size (deploykit export --dim), or use ceil_mode=0",
            )
        begin, end = pads[2 * axis], pads[2 * axis + 1]
        reach = (extent - 1) * dilation + 1
        steps = -(-(size + begin + end - reach) // stride)
        if steps * stride >= size + begin:
            steps -= 1
        extra.append(max(steps * stride + reach - (size + begin + end), 0))
    return extra

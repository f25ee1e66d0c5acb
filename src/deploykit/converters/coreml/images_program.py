"""Image inputs in the program: the placeholder, and the operators from pixels to the model's tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import coremltools as ct
import numpy as np
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Var, types

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deploykit.converters.coreml.shapes import Flexibility
    from deploykit.converters.images import ImageInput

_LAYOUTS = {"rgb": ct.colorlayout.RGB, "bgr": ct.colorlayout.BGR, "gray": ct.colorlayout.GRAYSCALE}


def placeholder(image: ImageInput, sizes: Sequence[Any]) -> Any:
    """The function's input for an image; sizes: of the model's tensor, numbers and MIL symbols."""
    # A profile may have fixed what is a symbol in the model.
    known = [own if isinstance(own, int) else size for own, size in zip(image.shape, sizes, strict=True)]
    return mb.TensorSpec(shape=(1, image.channels, *image.placed(known)[2:]), dtype=types.fp32)


def enter(variable: Var, image: ImageInput) -> Var:
    """The model's tensor. Scale and bias are inserted in front of this by coremltools, from the `ImageType`."""
    _, _, std = image.affine
    if std is not None:
        variable = mb.real_div(x=variable, y=np.asarray(std, np.float32).reshape(1, image.channels, 1, 1))
    rank = len(image.shape)
    if image.rule.layout == "nhwc" and rank > 2:
        variable = mb.transpose(x=variable, perm=[0, 2, 3, 1])
    if rank < 4:
        variable = mb.squeeze(x=variable, axes=list(range(4 - rank)))
    to = {"float16": "fp16", "uint8": "uint8", "int32": "int32", "int64": "int32"}.get(image.dtype)
    return variable if to is None else mb.cast(x=variable, dtype=to)


def image_type(name: str, image: ImageInput, flexibility: Flexibility) -> Any:
    """The input as coremltools takes it; name: of the package's input."""
    scale, bias, _ = image.affine
    return ct.ImageType(
        name=name,
        shape=_declared(image, flexibility),
        scale=scale,
        bias=bias[0] if image.channels == 1 else bias,
        color_layout=_LAYOUTS[image.rule.color],
        channel_first=True,
    )


def _declared(image: ImageInput, flexibility: Flexibility) -> Any:
    usual = image.placed(flexibility.usual[image.name])
    if image.name in flexibility.shapes:
        listed = [list(image.placed(shape)) for shape in flexibility.shapes[image.name]]
        return ct.EnumeratedShapes(shapes=listed, default=list(usual))
    if image.name not in flexibility.ranges:
        return usual
    return tuple(
        low if low == high else ct.RangeDim(lower_bound=low, upper_bound=high, default=size)
        for size, (low, high) in zip(usual, _pairs(image, flexibility), strict=True)
    )


def _pairs(image: ImageInput, flexibility: Flexibility) -> list[tuple[int, int]]:
    """Ranges in the package's order; an axis that the model does not have is one long."""
    made = image.placed(flexibility.ranges[image.name])
    return [(1, 1) if pair == 1 else pair for pair in made]

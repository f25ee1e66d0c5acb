"""Image inputs: the preprocessing that the program does itself, and a model's tensor turned back into pixels.

Core ML's images are one picture of 8 bits, RGB, BGR or gray. Their scale and bias are operators of the program
(coremltools 9.0, `insert_image_preprocessing_ops`): one scale for all channels, one bias for each. Resizing and
cropping are the caller's, with Vision.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from deploykit.converters.coreml.shapes import Flexibility
from deploykit.converters.images import CHANNELS, ImageInput
from deploykit.data.contract import PreprocessSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

IMAGES_KEY = "deploykit.images"
# ImageFeatureType.ColorSpace: 10 GRAYSCALE, 20 RGB, 30 BGR, 40 GRAYSCALE_FLOAT16.
_COLOURS = {10: "gray", 20: "rgb", 30: "bgr", 40: "gray"}


def write_images(spec: Any, images: Mapping[str, ImageInput], names: Mapping[str, str]) -> None:
    """Keeps in the package how the pixels of its images became the model's tensors. names: the package's by ours."""
    if images:
        facts = {names[name]: image.as_dict() for name, image in images.items()}
        spec.description.metadata.userDefined[IMAGES_KEY] = json.dumps(facts, sort_keys=True)


def images_in(spec: Any) -> dict[str, ImageInput]:
    """The images of a package by its own input names; those made elsewhere take pixels uint8 [1, C, H, W]."""
    known = spec.description.metadata.userDefined
    kept = json.loads(known[IMAGES_KEY]) if IMAGES_KEY in known else {}
    found = {}
    for item in spec.description.input:
        if not item.type.HasField("imageType"):
            continue
        if item.name in kept:
            found[item.name] = ImageInput.from_dict(item.name, kept[item.name])
            continue
        rule = PreprocessSpec(color=_COLOURS.get(item.type.imageType.colorSpace, "rgb"))  # type: ignore[arg-type]
        sizes = _sizes(item.type.imageType)
        shape = (
            1,
            CHANNELS[rule.color],
            *(high if low == high else name for name, (low, high) in zip(("height", "width"), sizes, strict=True)),
        )
        found[item.name] = ImageInput(item.name, "uint8", shape, rule)
    return found


def _sizes(image: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    """Smallest and largest height, smallest and largest width."""
    kind = image.WhichOneof("SizeFlexibility")
    if kind == "enumeratedSizes":
        listed = image.enumeratedSizes.sizes
        heights, widths = [int(s.height) for s in listed], [int(s.width) for s in listed]
        return (min(heights), max(heights)), (min(widths), max(widths))
    if kind == "imageSizeRange":
        limits = image.imageSizeRange
        return _range(limits.heightRange), _range(limits.widthRange)
    return (int(image.height),) * 2, (int(image.width),) * 2


def _range(limits: Any) -> tuple[int, int]:
    high = int(limits.upperBound)
    return int(limits.lowerBound), high if high >= 0 else 2**31 - 1


def image_shapes(spec: Any, images: Mapping[str, ImageInput]) -> Flexibility:
    """The sizes that the package's images may have, as shapes of the model's tensors."""
    usual, ranges, shapes = {}, {}, {}
    for item in spec.description.input:
        if item.name not in images:
            continue
        image, feature = images[item.name], item.type.imageType

        def shaped(height: Any, width: Any, image: ImageInput = image) -> tuple[Any, ...]:
            return image.unplaced((1, image.channels, height, width))

        usual[item.name] = shaped(int(feature.height), int(feature.width))
        if feature.WhichOneof("SizeFlexibility") == "enumeratedSizes":
            listed = feature.enumeratedSizes.sizes
            shapes[item.name] = tuple(shaped(int(size.height), int(size.width)) for size in listed)
            continue
        sizes = _sizes(feature)
        if any(low != high for low, high in sizes):
            one, all_of = (1, 1), (image.channels, image.channels)
            ranges[item.name] = image.unplaced((one, all_of, *sizes))
    return Flexibility(usual, ranges, shapes)

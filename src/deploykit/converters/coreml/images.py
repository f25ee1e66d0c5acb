"""Image inputs: the preprocessing that the program does itself, and a model's tensor turned back into pixels.

Core ML's images are one picture of 8 bits, RGB, BGR or gray. Their scale and bias are operators of the program
(coremltools 9.0, `insert_image_preprocessing_ops`): one scale for all channels, one bias for each. Resizing and
cropping are the caller's, with Vision.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.artifact import TensorSpec
from deploykit.converters.coreml.shapes import Flexibility
from deploykit.data.contract import PreprocessSpec
from deploykit.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Array = np.ndarray[Any, Any]
CHANNELS = {"rgb": 3, "bgr": 3, "gray": 1}
IMAGES_KEY = "deploykit.images"
# ImageFeatureType.ColorSpace: 10 GRAYSCALE, 20 RGB, 30 BGR, 40 GRAYSCALE_FLOAT16.
_COLOURS = {10: "gray", 20: "rgb", 30: "bgr", 40: "gray"}
# float32 or float16 arithmetic on the way from pixels to the tensor: scale, mean and std, each rounded once.
_ROUNDINGS = 8


@dataclasses.dataclass(frozen=True, slots=True)
class ImageInput:
    """An input that is an image in the package: the tensor that the model takes, and how pixels become it.

    dtype, shape: of the model's tensor; of a package made elsewhere, the pixels themselves. rule: its preprocessing.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    rule: PreprocessSpec

    @property
    def channels(self) -> int:
        """1 or 3."""
        return CHANNELS[self.rule.color]

    @property
    def spec(self) -> TensorSpec:
        """The model's tensor."""
        return TensorSpec(self.name, self.dtype, self.shape)

    @property
    def affine(self) -> tuple[float, list[float], list[float] | None]:
        """(scale, bias by channel, std by channel or None): `(x * scale + bias) / std`; one std for all is folded."""
        scale = 1.0 if self.rule.scale is None else self.rule.scale
        mean, std = self._a_channel(self.rule.mean, 0.0), self._a_channel(self.rule.std, 1.0)
        if len(set(std)) == 1:
            return scale / std[0], [-value / std[0] for value in mean], None
        return scale, [-value for value in mean], std

    def _a_channel(self, numbers: Sequence[float] | None, default: float) -> list[float]:
        found = list(numbers or (default,))
        return found * self.channels if len(found) == 1 else found

    @property
    def _last(self) -> bool:
        return self.rule.layout == "nhwc" and len(self.shape) > 2

    def placed(self, sizes: Sequence[Any]) -> tuple[Any, ...]:
        """Sizes of the model's tensor in the package's order: [1, channels, height, width]."""
        whole = (*([1] * (4 - len(sizes))), *sizes)
        return (whole[0], whole[3], whole[1], whole[2]) if self._last else whole

    def unplaced(self, sizes: Sequence[Any]) -> tuple[Any, ...]:
        """The inverse of `placed`."""
        whole = (sizes[0], sizes[2], sizes[3], sizes[1]) if self._last else tuple(sizes)
        return whole[4 - len(self.shape) :]

    def tensor(self, pixels: Array) -> Array:
        """The model's tensor for pixels uint8 [1, channels, height, width], as `data.images` computes it."""
        values = pixels if np.dtype(self.dtype).kind in "iu" else self._scaled(pixels.astype(np.float32))
        last = values.transpose(0, 2, 3, 1) if self._last else values
        made: Array = last.reshape(last.shape[4 - len(self.shape) :]).astype(self.dtype)
        return made

    def _scaled(self, values: Array) -> Array:
        column = (1, self.channels, 1, 1)
        if self.rule.scale is not None:
            values = values * np.float32(self.rule.scale)
        if self.rule.mean is not None:
            values = values - np.asarray(self._a_channel(self.rule.mean, 0.0), np.float32).reshape(column)
        if self.rule.std is not None:
            values = values / np.asarray(self._a_channel(self.rule.std, 1.0), np.float32).reshape(column)
        return values

    def pixels(self, tensor: Array) -> Array:
        """The picture, uint8 [1, channels, height, width], that the preprocessing made this tensor of.

        Raises DataError (DK552) where it is none: only pixel data can be given to an image input.
        """
        first = tensor.reshape((*([1] * (4 - tensor.ndim)), *tensor.shape))
        values = first.transpose(0, 3, 1, 2) if self._last else first
        scale, bias, std = self.affine
        column = (1, self.channels, 1, 1)
        shifted = values.astype(np.float64) * np.asarray(std or 1.0).reshape(column if std else ())
        found = np.rint((shifted - np.asarray(bias).reshape(column)) / scale)
        inside: Array = np.clip(np.nan_to_num(found), 0, 255).astype(np.uint8)
        made = self.tensor(inside).astype(np.float64)
        away = np.abs(made - tensor.astype(np.float64))
        allowed = self._rounding(column)
        off = ~(away <= (allowed if allowed.ndim == 0 else self._like(allowed, tensor)))
        if off.any():
            at = tuple(int(place) for place in np.argwhere(off)[0])
            raise DataError(
                f"input {self.name!r} is an image in the package, and {tensor[at]:g} at {list(at)} is no pixel value: "
                f"{int(off.sum())} of {off.size} values are not (pixel * scale - mean) / std of a pixel 0..255",
                code="DK552",
                tensor=self.name,
                context=[f"preprocessing: {told(self.rule)}"],
                hint="give images: a folder of them, or uint8 arrays [N, height, width, channels]",
            )
        return inside

    def _rounding(self, column: tuple[int, ...]) -> Array:
        """By how much a tensor that was computed elsewhere may lie beside ours: roundings of its type."""
        if np.dtype(self.dtype).kind in "iu":
            return np.zeros(())
        scale, bias, std = self.affine
        largest = 255 * abs(scale) + np.abs(np.asarray(bias)).reshape(column)
        steps: Array = _ROUNDINGS * float(np.finfo(self.dtype).eps) * largest
        divided: Array = steps / np.asarray(std or 1.0).reshape(column if std else ())
        return divided

    def _like(self, allowed: Array, tensor: Array) -> Array:
        """[1, channels, 1, 1] in the layout of the tensor."""
        last = allowed.transpose(0, 2, 3, 1) if self._last else allowed
        return np.broadcast_to(last.reshape(last.shape[4 - tensor.ndim :]), tensor.shape)

    def picture(self, pixels: Array) -> Any:
        """A Pillow image, as coremltools takes it: RGB whatever the package's colour order, or L."""
        from PIL import Image

        if self.channels == 1:
            return Image.fromarray(np.ascontiguousarray(pixels[0, 0]))
        rows = pixels[0].transpose(1, 2, 0)
        return Image.fromarray(np.ascontiguousarray(rows[:, :, ::-1] if self.rule.color == "bgr" else rows))

    def as_dict(self) -> dict[str, Any]:
        """JSON form, without the name."""
        rule = self.rule.model_dump(mode="json", exclude_none=True)
        return {"dtype": self.dtype, "shape": list(self.shape), "preprocess": rule}

    @classmethod
    def from_dict(cls, name: str, facts: Mapping[str, Any]) -> ImageInput:
        """The image that `as_dict` wrote."""
        return cls(name, facts["dtype"], tuple(facts["shape"]), PreprocessSpec.model_validate(facts["preprocess"]))


def told(rule: PreprocessSpec) -> str:
    """The preprocessing as deploykit.yaml has it: `{scale: 0.0039, mean: [0.5], color: rgb, layout: nchw}`."""
    facts = rule.model_dump(mode="json", exclude_none=True)
    return "{" + ", ".join(f"{key}: {value}" for key, value in facts.items()) + "}"


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

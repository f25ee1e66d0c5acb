"""Images through the preprocessing contract; pillow reads and resizes them."""

from __future__ import annotations

import functools
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit import lazy
from deploykit.data.dtypes import numpy_dtype
from deploykit.errors import DataError

if TYPE_CHECKING:
    from types import ModuleType

    from deploykit.artifact import TensorSpec
    from deploykit.data.contract import PreprocessSpec

Array = np.ndarray[Any, Any]
SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm", ".pgm"})


def prepare(image: Path | bytes | Array, rule: PreprocessSpec, spec: TensorSpec) -> Array:
    """The input array of an image or a batch of images; see `InputContract.apply`."""
    if isinstance(image, (Path, bytes)):
        return _shaped(_one(_read(image), rule, spec), spec)
    if image.dtype != np.uint8 or image.ndim not in {2, 3, 4}:
        raise _wrong(spec, f"an image of {image.dtype} {list(image.shape)} is not uint8 [height, width, channels]")
    if image.ndim < 4:
        return _shaped(_one(image, rule, spec), spec)
    if not len(image):
        raise _wrong(spec, "there is no image in the batch")
    return np.concatenate([_shaped(_one(single, rule, spec), spec) for single in image])


def _read(image: Path | bytes) -> Array:
    pillow = _pillow()
    try:
        with pillow.open(io.BytesIO(image) if isinstance(image, bytes) else image) as opened:
            return np.asarray(opened.convert("RGB"))
    except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError) as problem:
        # pillow raises SyntaxError for some damaged PNG chunks.
        name = f" {image.name}" if isinstance(image, Path) else ""
        why = str(problem) if name else "it is no image of a known format, or a damaged one"
        raise DataError(
            f"cannot read the image{name}: {why}",
            code="DK311",
            file=image if isinstance(image, Path) else None,
            hint="leave the file out, or save it again as PNG",
        ) from problem


@functools.cache
def _pillow() -> ModuleType:
    return lazy.require("PIL.Image", "images", purpose="images")


def _one(image: Array, rule: PreprocessSpec, spec: TensorSpec) -> Array:
    """The image as [channels, height, width] or [height, width, channels] in the input's dtype."""
    pixels = _coloured(image, rule, spec)
    pixels = _resized(pixels, rule)
    pixels = _cropped(pixels, rule, spec)
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    values = _scaled(pixels, rule, spec)
    return values.transpose(2, 0, 1) if rule.layout == "nchw" else values


def _coloured(image: Array, rule: PreprocessSpec, spec: TensorSpec) -> Array:
    if image.ndim == 3 and image.shape[2] == 1:
        image = image[:, :, 0]
    if image.ndim == 3 and image.shape[2] != 3:
        raise _wrong(spec, f"an image of shape {image.shape} has neither 3 channels nor 1, last")
    if rule.color == "gray":
        # ITU-R 601 luma, as pillow computes it.
        return image if image.ndim == 2 else np.asarray(_pillow().fromarray(image).convert("L"))
    colours = np.repeat(image[:, :, None], 3, axis=2) if image.ndim == 2 else image
    return colours[:, :, ::-1] if rule.color == "bgr" else colours


def _resized(pixels: Array, rule: PreprocessSpec) -> Array:
    if rule.resize is None:
        return pixels
    height, width = pixels.shape[:2]
    if isinstance(rule.resize, int):
        shorter = min(height, width)
        size = (height * rule.resize // shorter, width * rule.resize // shorter)
    else:
        size = rule.resize
    if size == (height, width):
        return pixels
    pillow = _pillow()
    picture = pillow.fromarray(np.ascontiguousarray(pixels))
    return np.asarray(picture.resize((size[1], size[0]), pillow.Resampling.BILINEAR))


def _cropped(pixels: Array, rule: PreprocessSpec, spec: TensorSpec) -> Array:
    if rule.crop is None:
        return pixels
    (height, width), (high, wide) = pixels.shape[:2], rule.crop
    if high > height or wide > width:
        raise _wrong(spec, f"the crop {list(rule.crop)} is larger than the image of {height} x {width} pixels")
    # torchvision's CenterCrop rounds half to even; so does Python.
    top, left = round((height - high) / 2), round((width - wide) / 2)
    return pixels[top : top + high, left : left + wide]


def _scaled(pixels: Array, rule: PreprocessSpec, spec: TensorSpec) -> Array:
    wanted = numpy_dtype(spec.dtype)
    if wanted.kind in "iu":
        if rule.scale not in {None, 1.0} or rule.mean is not None or rule.std is not None:
            raise _wrong(spec, f"scale, mean and std make fractions, and the input takes {spec.dtype}")
        if wanted == np.int8:
            raise _wrong(spec, "pixels of 0..255 do not fit int8")
        return pixels.astype(wanted)
    values = pixels.astype(np.float32)
    if rule.scale is not None:
        values *= np.float32(rule.scale)
    if rule.mean is not None:
        values -= _a_channel(rule.mean, pixels.shape[2], "mean", spec)
    if rule.std is not None:
        values /= _a_channel(rule.std, pixels.shape[2], "std", spec)
    return values.astype(wanted)


def _a_channel(numbers: tuple[float, ...], channels: int, what: str, spec: TensorSpec) -> Array:
    if len(numbers) not in {1, channels}:
        raise _wrong(spec, f"{what} has {len(numbers)} numbers for {channels} channels")
    return np.asarray(numbers, np.float32)


def _shaped(values: Array, spec: TensorSpec) -> Array:
    """With the batch axis when the input has rank 4, without the channel when it has rank 2."""
    rank = 4 if spec.shape is None else len(spec.shape)
    if rank == 4:
        return values[None]
    if rank == 2 and 1 in (values.shape[0], values.shape[2]):
        return values[0] if values.shape[0] == 1 else values[:, :, 0]
    return values


def _wrong(spec: TensorSpec, why: str) -> DataError:
    return DataError(
        f"the preprocessing of input {spec.name!r} does not fit: {why}",
        code="DK310",
        tensor=spec.name,
        context=[f"expected {spec.describe()}"],
        hint=f"change inputs.{spec.name}.preprocess in deploykit.yaml",
    )

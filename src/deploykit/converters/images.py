"""Inputs that are pictures in an artifact: the preprocessing it does itself, and a tensor turned back into pixels."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.artifact import TensorSpec
from deploykit.data.contract import PreprocessSpec
from deploykit.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Array = np.ndarray[Any, Any]
CHANNELS = {"rgb": 3, "bgr": 3, "gray": 1}
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
                f"input {self.name!r} is an image in the artifact, and {tensor[at]:g} at {list(at)} is no pixel value: "
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

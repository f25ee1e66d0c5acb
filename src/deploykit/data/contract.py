"""The preprocessing contract: how raw data becomes what the model takes, the same in every command that feeds it."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, RootModel

from deploykit.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

    from deploykit.artifact import TensorSpec


def _number(value: object) -> object:
    """`1/255` or `1/127.5` as a number; anything else is left to pydantic."""
    if isinstance(value, str) and "/" in value:
        try:
            top, _, bottom = value.replace(" ", "").partition("/")
            return float(Fraction(top) / Fraction(bottom))
        except (ValueError, ZeroDivisionError) as problem:
            message = f"{value!r} is not a number or a fraction such as 1/255"
            raise ValueError(message) from problem
    return value


def _numbers(value: object) -> object:
    return [value] if isinstance(value, (int, float, str)) and not isinstance(value, bool) else value


Number = Annotated[float, BeforeValidator(_number), Field(allow_inf_nan=False)]
Divisor = Annotated[float, BeforeValidator(_number), Field(gt=0, allow_inf_nan=False)]
Numbers = Annotated[tuple[Number, ...], BeforeValidator(_numbers), Field(min_length=1)]
Divisors = Annotated[tuple[Divisor, ...], BeforeValidator(_numbers), Field(min_length=1)]
Pixels = Annotated[int, Field(gt=0, le=65535)]


class PreprocessSpec(BaseModel):
    """What is done to an image, in this order: colour, resize, crop, scale, mean and std, layout.

    resize: [height, width] in pixels, bilinear with antialiasing; one number is the shorter side.
    crop: [height, width] cut from the centre. scale: multiplies the 0..255 values, a number or "1/255".
    mean, std: one a channel, or one for all, in the units after scaling: `(x * scale - mean) / std`.
    color: order of the channels that the model takes. layout: where the model has its channels.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    resize: tuple[Pixels, Pixels] | Pixels | None = None
    crop: tuple[Pixels, Pixels] | None = None
    scale: Number | None = None
    mean: Numbers | None = None
    std: Divisors | None = None
    color: Literal["rgb", "bgr", "gray"] = "rgb"
    layout: Literal["nchw", "nhwc"] = "nchw"


class InputRule(BaseModel):
    """What one input wants: preprocessing, or the output whose value it takes from the previous call."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    preprocess: PreprocessSpec | None = None
    carry: str | None = None


class InputContract(RootModel[dict[str, InputRule]]):
    """The rules of all inputs, by input name.

    JSON form: `{"image": {"preprocess": {...}}, "state": {"carry": "stateN"}}`.
    """

    model_config = ConfigDict(frozen=True)

    @property
    def carry(self) -> dict[str, str]:
        """{input: output} of the inputs that take an output of the previous call."""
        return {name: rule.carry for name, rule in self.root.items() if rule.carry is not None}

    def prepares(self, name: str) -> bool:
        """Whether images for this input go through preprocessing."""
        return self.preprocess_of(name) is not None

    def preprocess_of(self, name: str) -> PreprocessSpec | None:
        """The preprocessing of an input; None without one."""
        rule = self.root.get(name)
        return None if rule is None else rule.preprocess

    def apply(self, image: Path | bytes | np.ndarray[Any, Any], spec: TensorSpec) -> np.ndarray[Any, Any]:
        """The array that input `spec` takes for an image.

        image: a file, a file's bytes, or uint8 (H, W, 3), (H, W) or a batch (N, H, W, C), channels red, green, blue.
        The result has the rank of the input, one image a row.
        Raises DataError: DK310 no preprocessing or one that does not fit, DK311 unreadable image;
        MissingDependencyError without pillow.
        """
        rule = self.preprocess_of(spec.name)
        if rule is None:
            raise DataError(
                f"input {spec.name!r} has no preprocessing, and images need one",
                code="DK310",
                tensor=spec.name,
                hint=f"set inputs.{spec.name}.preprocess in deploykit.yaml: "
                "{resize: [H, W], scale: 1/255, mean: [...], std: [...], color: rgb, layout: nchw}",
            )
        from deploykit.data.images import prepare

        return prepare(image, rule, spec)

    def as_dict(self) -> dict[str, Any]:
        """JSON form, as manifests and workers take it; what is not set is left out."""
        found: dict[str, Any] = self.model_dump(mode="json", exclude_none=True)
        return found

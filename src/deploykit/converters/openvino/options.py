"""What the options of the target say: stored weights, NNCF's quantizer, and the artifact's own interface."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from deploykit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

# NNCF's modes by what the option says; None is OpenVINO's own compression to float16.
WEIGHTS = {
    "fp16": None,
    "int8": "int8_asym",
    "int8_asym": "int8_asym",
    "int8_sym": "int8_sym",
    "int4_sym": "int4_sym",
    "int4_asym": "int4_asym",
}
PRESETS = ("performance", "mixed")
NNCF = "nncf"


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """The options, read.

    weights: a key of `WEIGHTS`. group_size: weights of a channel that share a scale, -1 all of them. ratio: share of
    the weights that become 4 bits. quantizer: whether NNCF makes int8. preset: its preset. transformer: its model type.
    preprocess, layout: as given.
    """

    weights: str | None = None
    group_size: int | None = None
    ratio: float | None = None
    quantizer: bool = False
    preset: str | None = None
    transformer: bool = False
    preprocess: bool = False
    layout: str | None = None

    @property
    def mode(self) -> str | None:
        """NNCF's mode of weight compression; None without."""
        return WEIGHTS[self.weights] if self.weights else None

    @property
    def four_bits(self) -> bool:
        """Whether weights of 4 bits are asked for."""
        return (self.weights or "").startswith("int4")

    @property
    def measures(self) -> bool:
        """Whether calibration data is used."""
        return self.quantizer or self.four_bits

    def precision(self, own: str) -> str:
        """The artifact's precision; own: the model's."""
        if self.quantizer:
            return "int8"
        if self.weights == "fp16":
            return "fp16"
        if self.weights:
            return "int4-weights" if self.four_bits else "int8-weights"
        return own


def settings_of(options: Mapping[str, Any], *, calibrated: bool) -> Settings:
    """The options' meaning; calibrated: whether --calib was given.

    Raises UsageError (DK527) for a wrong value, or for one that does nothing beside the others; (DK803) for --calib
    where nothing is measured.
    """
    weights = _word(options, "weights", tuple(WEIGHTS))
    quantizer = _word(options, "quantizer", (NNCF,)) is not None
    found = Settings(
        weights=weights,
        group_size=_group_size(options),
        ratio=_ratio(options),
        quantizer=quantizer,
        preset=_word(options, "preset", PRESETS),
        transformer=_word(options, "model_type", ("transformer",)) is not None,
        preprocess=_flag(options, "preprocess"),
        layout=None if options.get("layout") is None else str(options["layout"]),
    )
    if quantizer and weights:
        raise _wrong("quantizer=nncf stores weights as int8 itself, and weights asks for another form", "one of them")
    owners = (
        (("group_size", "ratio"), found.four_bits, "weights=int4_sym or int4_asym"),
        (("preset", "model_type"), quantizer, "quantizer=nncf"),
    )
    for names, owned, owner in owners:
        given = [name for name in names if options.get(name) is not None]
        if given and not owned:
            raise _wrong(f"{given[0]} belongs to {owner}", f"--option {owner.split(' or ')[0]}")
    if quantizer and not calibrated:
        raise _wrong("quantizer=nncf measures the range of every activation", "--calib DATA, some hundred real samples")
    if calibrated and not found.measures:
        raise UsageError(
            "OpenVINO's converter measures nothing here, so --calib has no use",
            code="DK803",
            target="openvino",
            hint="--option quantizer=nncf or --option weights=int4_sym measure on it; deploykit quantize MODEL -o OUT "
            "--calib DATA makes INT8 for every target",
        )
    return found


def _word(options: Mapping[str, Any], name: str, known: tuple[str, ...]) -> str | None:
    value = options.get(name)
    if value is None:
        return None
    word = str(value).strip().casefold()
    if word not in known:
        raise _wrong(f"{name} {value!r} is none of {', '.join(known)}", f"--option {name}={known[0]}")
    return word


def _flag(options: Mapping[str, Any], name: str) -> bool:
    words = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    value = options.get(name)
    found = words.get(str(value).strip().casefold()) if value is not None else False
    if found is None:
        raise _wrong(f"{name} {value!r} is neither true nor false", f"--option {name}=true")
    return found


def _group_size(options: Mapping[str, Any]) -> int | None:
    value = options.get("group_size")
    if value is None:
        return None
    try:
        number = int(str(value))
    except ValueError:
        number = 0
    if number != -1 and (number < 2 or number & (number - 1)):
        raise _wrong(f"group_size {value!r} is no power of two from 2 on, and not -1", "--option group_size=64")
    return number


def _ratio(options: Mapping[str, Any]) -> float | None:
    value = options.get("ratio")
    if value is None:
        return None
    try:
        number = float(str(value))
    except ValueError:
        number = -1.0
    if not 0.0 < number <= 1.0:
        raise _wrong(f"ratio {value!r} is no share above 0 and up to 1", "--option ratio=0.8")
    return number


def _wrong(why: str, hint: str) -> UsageError:
    return UsageError(why, code="DK527", target="openvino", hint=hint)

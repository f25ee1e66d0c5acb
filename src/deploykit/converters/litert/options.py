"""What the options of the target say: the precision that is made of the float model, and what is written beside it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from deploykit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

NAME = "litert"
PRECISIONS = ("fp16", "int8", "int8-dynamic", "int8-weights", "int4-weights")
RANGES = ("minmax", "moving-average")
ROUNDINGS = ("minmax", "mse", "octav", "gptq")
_DOORS = ("float", "int8")
_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """The options, read.

    precision: one of `PRECISIONS`; None: as the model is. integer_io: whether inputs and outputs are integers, too.
    ranges: how ranges of activations follow from calibration data. rounding: how weights become integers.
    micro: whether the C array and what goes with it are written.
    """

    precision: str | None = None
    integer_io: bool = False
    ranges: str = "minmax"
    rounding: str = "minmax"
    micro: bool = False

    @property
    def static(self) -> bool:
        """Whether activations are integers by ranges that calibration data gives."""
        return self.precision == "int8"

    @property
    def integers(self) -> bool:
        """Whether weights become integers."""
        return self.precision is not None and self.precision != "fp16"

    @property
    def measures(self) -> bool:
        """Whether calibration data is used."""
        return self.static or self.rounding == "gptq"

    def named(self, own: str) -> str:
        """The artifact's precision; own: the model's."""
        return self.precision or own


def settings_of(options: Mapping[str, Any], *, calibrated: bool) -> Settings:
    """The options' meaning; calibrated: whether --calib was given.

    Raises UsageError (DK527) for a wrong value, or for one that does nothing beside the others; (DK803) for --calib
    where nothing is measured.
    """
    precision = _word(options, "precision", (*PRECISIONS, "fp32"))
    precision = None if precision == "fp32" else precision
    rounding = _word(options, "rounding", ROUNDINGS)
    found = Settings(
        precision=precision,
        integer_io=_word(options, "io", _DOORS) == "int8",
        ranges=_word(options, "ranges", RANGES) or "minmax",
        # Of four bits an outlier's range leaves little: clipping where it loses least is 2 dB better on the digits CNN.
        rounding=rounding or ("octav" if precision == "int4-weights" else "minmax"),
        micro=_flag(options, "micro"),
    )
    owners = (
        ("io", options.get("io") is not None and str(options["io"]) != "float", found.static, "precision=int8"),
        ("ranges", options.get("ranges") is not None, found.static, "precision=int8"),
        ("rounding", rounding is not None, found.integers, "a precision of integers, as precision=int8"),
    )
    for name, given, owned, owner in owners:
        if given and not owned:
            raise _wrong(f"{name} belongs to {owner}", f"--option {owner.rpartition(' ')[2]}")
    if found.static and found.rounding == "gptq":
        # ai-edge-quantizer 0.10.0 knows it for fully connected layers only, and leaves all others in float.
        raise _wrong("rounding=gptq is for weights only, and precision=int8 has integer activations", "rounding=octav")
    if found.measures and not calibrated:
        what = "the range of every activation" if found.static else "what weights are multiplied with"
        raise _wrong(
            f"{'precision=int8' if found.static else 'rounding=gptq'} measures {what}",
            "--calib DATA, some hundred real samples",
        )
    if calibrated and not found.measures:
        raise UsageError(
            "LiteRT's converter measures nothing here, so --calib has no use",
            code="DK803",
            target=NAME,
            hint="--option precision=int8 measures on it",
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
    value = options.get(name)
    found = _WORDS.get(str(value).strip().casefold()) if value is not None else False
    if found is None:
        raise _wrong(f"{name} {value!r} is neither true nor false", f"--option {name}=true")
    return found


def _wrong(text: str, hint: str) -> UsageError:
    return UsageError(text, code="DK527", target=NAME, hint=hint)
